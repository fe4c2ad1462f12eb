"""Which chunk files were checked since this machine started, so that the next process need not read them all first.

    checked/abcd…  ──► "{boot} {inode} {size} {written} {changed}"      a symbolic link that leads nowhere

The link's text is what the file was when it was checked. Anything that writes to the file, renames another one over it
or sets its times makes the text wrong, and so does a restart of the machine, before which a file may have been
published whose bytes never reached the disk. What is left is a disk that silently gives other bytes than it was given:
`stoker cache verify` finds those.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections import deque
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# File systems stamp changes with a clock of up to 10 ms a tick: two changes within one look like one. A file is marked
# when its last change lies behind that, so that a later change shows.
_SETTLED_NS = 50_000_000
# Of names that nobody else uses, on any host and behind a fork.
_PROCESS, _numbers = secrets.token_hex(4), itertools.count()


class Marks:
    """Marks of checked chunk files. Where they cannot be read or written, every process checks for itself.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder_name = str(folder)
        self._lock = threading.Lock()
        self._fresh: deque[tuple[int, str, str, tuple[int, int, int]]] = deque()

    def holds(self, key: str, about: os.stat_result) -> bool:
        """Return whether the file was checked as it is now.

        Args:
            key: Of the chunk.
            about: The file's status.
        """
        wanted = _text(about)
        try:
            return wanted is not None and os.readlink(f"{self._folder_name}/{key}") == wanted  # noqa: PTH115 (no Path: it is text)
        except OSError:
            return False

    def set(self, key: str, about: os.stat_result) -> None:
        """Say that the file was checked as it is now. A crash in between leaves the old mark or none.

        Not said of a file that changed a moment ago: see `set_later`.
        """
        text = _text(about)
        if text is None or time.time_ns() - about.st_ctime_ns < _SETTLED_NS:
            return
        mark = f"{self._folder_name}/{key}"
        with contextlib.suppress(OSError):  # a folder that only others may write to, or a full disk
            try:
                os.symlink(text, mark)  # noqa: PTH211
            except FileExistsError:
                aside = f"{mark}.{_PROCESS}-{os.getpid()}-{next(_numbers)}"
                os.symlink(text, aside)  # noqa: PTH211
                try:
                    os.replace(aside, mark)  # noqa: PTH105
                except OSError:
                    os.unlink(aside)  # noqa: PTH108

    def set_later(self, key: str, path: str, version: tuple[int, int, int]) -> None:
        """Mark a file just published, once enough time has passed.

        Args:
            key: Of the chunk.
            path: Where it lies now.
            version: Its inode, time and size, as it was written.
        """
        with self._lock:
            self._fresh.append((time.monotonic_ns(), key, path, version))
        self.settle()

    def settle(self) -> None:
        """Mark what was published long enough ago and is still what it was."""
        before_ns = time.monotonic_ns() - _SETTLED_NS
        while True:
            with self._lock:
                if not self._fresh or self._fresh[0][0] > before_ns:
                    return
                _, key, path, version = self._fresh.popleft()
            with contextlib.suppress(OSError):  # evicted meanwhile
                about = os.stat(path)  # noqa: PTH116
                if (about.st_ino, about.st_mtime_ns, about.st_size) == version:
                    self.set(key, about)

    def drop(self, key: str) -> None:
        """Forget a chunk."""
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()


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
