"""What a chunk file was when it was verified, so that it is not read again before it is used.

    in this process       which file it is: inode, time and size
    since the boot        checked/abcd…  ──► "{boot} {inode} {size} {written} {changed}"      a link that leads nowhere

The link's text is what the file was when its checksums were compared. Anything that writes to the file, renames another
one over it or sets its times makes the text wrong, and so does a restart of the machine, before which a file may have
been published whose bytes never reached the disk. What is left is a disk that silently gives other bytes than it was
given: `stoker cache verify` finds those.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import bring_in
from stoker._native import find_changed as find_changed_files
from stoker.host.huge import HUGE_BYTES

FileVersion: TypeAlias = tuple[int, int, int]
"""Which file a chunk is: inode, time of writing in nanoseconds, size in bytes."""

NO_VERSION: FileVersion = (-1, -1, -1)


def version_of(about: os.stat_result) -> FileVersion:
    """Return which file was looked at."""
    return about.st_ino, about.st_mtime_ns, about.st_size


def find_changed(
    names: npt.NDArray[np.bytes_],
    versions: npt.NDArray[np.int64],
    files: npt.NDArray[np.int64],
    *,
    patience_s: float = sys.getswitchinterval(),
) -> npt.NDArray[np.bool_]:
    """Return which of some files are not there any more, or are not as they were.

    To look at a file takes a microsecond or two, but each `os.stat` gives up the interpreter's lock, and to get it back
    from threads that make batches takes twenty, or five milliseconds where these hardly ever wait. So one call looks at
    a whole window and keeps the lock as long as a thread that runs Python may; where files are slow to look at, the
    rest is done without it.

    Args:
        names: Of all files, with room for a zero behind the longest. Shape [N].
        versions: What they were, see `FileVersion`. Shape [N, 3].
        files: Those to look at. Shape [K].
        patience_s: How long the interpreter's lock is kept at most, but for one file.

    Returns:
        Shape [K]. A file whose version was `NO_VERSION` has changed.
    """
    changed = np.ones(len(files), dtype=np.bool_)
    texts = names.view(np.uint8).reshape(len(names), names.itemsize)
    find_changed_files(texts, versions, files, changed, int(1e9 * patience_s))
    return changed


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# File systems stamp changes with a clock of up to 10 ms a tick: two changes within one look like one. A file that this
# process did not write is noted only once its last change is older than that, so that a later change shows.
_SETTLED_NS = 50_000_000


class VerifiedFiles:
    """Notes of verified chunk files. Where they cannot be read or written, every process verifies for itself.

    Args:
        folder: Descriptor of the folder where they lie.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def holds(self, key: str, about: os.stat_result) -> bool:
        """Return whether the file was verified as it is now, by this user or by root."""
        try:
            note = os.stat(key, dir_fd=self._folder, follow_symlinks=False)
            is_ours = note.st_uid in (os.geteuid(), 0)  # other users of a shared cache are not believed
            return is_ours and os.readlink(key, dir_fd=self._folder) == _text(about)
        except OSError:
            return False

    def set(self, key: str, about: os.stat_result, *, is_new: bool = False) -> None:
        """Note that the file was verified as it is now. A crash in between leaves the old note or none.

        Args:
            key: Of the chunk.
            about: The file's status. One that changed a moment ago is not noted.
            is_new: Whether this process has just published it, with a time that no later change has.
        """
        text = _text(about)
        if text is None or (not is_new and time.time_ns() - about.st_ctime_ns < _SETTLED_NS):
            return
        self.drop(key)
        with contextlib.suppress(OSError):  # a folder that only others may write to, or a full disk
            os.symlink(text, key, dir_fd=self._folder)

    def drop(self, key: str) -> None:
        """Forget a chunk."""
        with contextlib.suppress(OSError):
            os.unlink(key, dir_fd=self._folder)


def _text(about: os.stat_result) -> str | None:
    boot = _boot_id()
    if boot is None:
        return None
    return f"{boot} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"


@cache
def _boot_id() -> str | None:
    """Return what changes whenever the machine starts, None where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


_BLOCK_BYTES = 8 << 20
# If a second of processor time reads fewer bytes of what was brought in, pages cost much: the host of this machine
# gives each when it is first touched. 0.5 GB/s there, 4 to 6 where pages are at hand. Small pages are cheaper then.
_LEAST_BYTES_S = 1.5e9

_costs_much = threading.Event()  # found out once a process


class Readahead:
    """The part of a file that has been brought in ahead of whoever verifies it, by huge pages while they come cheaply.

    What reads a file first decides in which pages it lies from then on, and the system's own reading ahead takes small
    ones, the more so the less it reads ahead. So a cache that is used again after the machine was started would have
    lost its huge pages (docs/decisions/0014).

        bring in   ┆     8 MiB     ┆     8 MiB     ┆
        read       ┆ 1 ┆ 1 ┆ 1 ┆ …                      how long the processor takes for these says what the pages cost

    Args:
        size_bytes: Of the file.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self._size_bytes = size_bytes
        self._end = 0
        self._cpu_s = 0.0

    def reach(self, end: int) -> None:
        """Bring in what lies before `end`, if it has not been: called by the thread that reads, before it does."""
        while self._end < min(end, self._size_bytes) and self._size_bytes >= HUGE_BYTES and not _costs_much.is_set():
            if self._end and _LEAST_BYTES_S * (time.thread_time() - self._cpu_s) > _BLOCK_BYTES:
                _costs_much.set()
                return
            bring_in(self._fd, self._end, min(_BLOCK_BYTES, self._size_bytes - self._end))
            self._end += _BLOCK_BYTES
            self._cpu_s = time.thread_time()
