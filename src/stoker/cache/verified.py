"""Which file a chunk is, whether it is still that one, and how it is read whole to be verified."""

from __future__ import annotations

import os
import sys
import threading
import time
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
