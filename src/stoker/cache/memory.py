"""Chunks that the cache folder cannot take, for as long as somebody is about to use them: in memory.

    publish   ──► the folder is full, read-only, gone ──► memory ──► opened by each process that needs it ──► gone

The processes of a user on this host find each other's by name in /dev/shm, in a folder that goes with the last of them.
Where that is not to be had, or has no room (64 MB are usual in containers), a process keeps them for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stoker.cache.folder import Files
from stoker.host.forks import Home

_SHM = Path("/dev/shm")
# Chunks that this process has opened and leaves for the others: about what those that run beside it are behind.
_NUM_LEFT = 8
# Older ones are of processes that were killed; where one is not, it is built again.
_STALE_S = 600
_NAMED = -1

T = TypeVar("T")


class MemoryChunks:
    """Chunks in memory, of one cache folder.

    Args:
        path: That folder, by whose name other processes find them; None keeps them in this process.
    """

    def __init__(self, path: Path | None, files: Files) -> None:
        # Not as those of caches in memory are called, which belong to one process each.
        self._family = f"stoker.{os.geteuid()}."
        name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=12).hexdigest() if path else None
        self._shared = None if name is None or not _SHM.is_dir() else _SHM / f"{self._family}{name}"
        self._files = files
        self._home = Home()
        self._mutex = threading.Lock()
        self._folder = -1
        self._mine: dict[str, int] = {}  # put by this process: descriptors of what it keeps alone, or _NAMED
        self._opened: dict[str, None] = {}  # those of them that were opened since, the oldest first

    def put(self, key: str, write: Callable[[int], T]) -> T:
        """Keep a chunk, until some others were opened after it.

        Args:
            key: Of the chunk.
            write: Writes it to a descriptor.

        Raises:
            OSError: There is no memory.
        """
        with self._mutex:
            folder = self._join(makes=True)
        if folder >= 0:
            with contextlib.suppress(OSError):  # no room for it there
                return self._put_named(folder, key, write)
        fd = _unnamed(key)
        try:
            result = write(fd)
        except BaseException:
            os.close(fd)
            raise
        with self._mutex:
            before, self._mine[key] = self._mine.get(key, _NAMED), fd
        if before >= 0:
            os.close(before)
        return result

    def _put_named(self, folder: int, key: str, write: Callable[[int], T]) -> T:
        aside = f"{key}.{secrets.token_hex(4)}"
        fd = self._files.create(folder, aside)
        try:
            result = write(fd)
            self._files.replace(folder, aside, folder, key)
        except BaseException:
            self._files.remove(folder, aside)
            raise
        finally:
            os.close(fd)
        with self._mutex:
            self._mine.setdefault(key, _NAMED)
        return result

    def open(self, key: str, *, is_use: bool = True) -> int | None:
        """Return a descriptor of a chunk, to be read by its bytes' places and closed; None where it is not there.

        Args:
            key: Of the chunk.
            is_use: Whether this is what it is kept for.
        """
        with self._mutex:
            fd: int | None = None
            own = self._mine.get(key)
            if own is not None and own >= 0:
                fd = os.dup(own)
            elif (folder := self._join()) >= 0:
                with contextlib.suppress(OSError):
                    fd = os.open(key, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
            if fd is not None and is_use and own is not None:
                self._opened.pop(key, None)
                self._opened[key] = None
                while len(self._opened) > _NUM_LEFT:
                    self._drop(next(iter(self._opened)))
        return fd

    def has(self, key: str) -> bool:
        """Return whether a chunk is there."""
        fd = self.open(key, is_use=False)
        if fd is not None:
            os.close(fd)
        return fd is not None

    def drop(self, key: str) -> None:
        """Let go of a chunk, whoever put it there."""
        with self._mutex:
            self._drop(key)
            self._remove(key)

    def close(self) -> None:
        """Let go of all chunks; the last process removes what they share. Harmless when called again, and in a fork."""
        with self._mutex:
            shared = self._shared if self._home.is_here else None
            if self._folder >= 0 and shared is not None and not _remove_if_last(self._folder, shared):
                for key in self._mine:
                    self._remove(key)
            for fd in (self._folder, *self._mine.values()):
                if fd >= 0:
                    os.close(fd)
            self._mine.clear()
            self._folder = -1

    def _drop(self, key: str) -> None:
        self._opened.pop(key, None)
        fd = self._mine.pop(key, None)
        if fd is not None and fd >= 0:
            os.close(fd)
        elif fd is not None:
            self._remove(key)

    def _remove(self, key: str) -> None:
        if self._folder >= 0:
            with contextlib.suppress(OSError):
                self._files.remove(self._folder, key)

    def _join(self, *, makes: bool = False) -> int:
        """Return the folder that is shared; -1 where it is not there, and is not to be made, or none is to be had."""
        if self._shared is None or not self._home.is_here:
            return -1
        if self._folder < 0 and makes:
            for path in _SHM.glob(f"{self._family}*"):  # what killed processes of this user left
                fd = _opened(path)
                if fd >= 0:
                    _remove_if_last(fd, path)
                    os.close(fd)
            with contextlib.suppress(OSError):
                self._shared.mkdir(0o700)
        if self._folder < 0:
            self._folder = _opened(self._shared)
            # What killed ones left there while others went on: nobody waits so long with a use.
            for name in os.listdir(self._folder) if self._folder >= 0 else ():  # noqa: PTH208  it has no path
                with contextlib.suppress(OSError):
                    if time.time() - os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mtime > _STALE_S:
                        os.unlink(name, dir_fd=self._folder)
        return self._folder


def _opened(path: Path) -> int:
    """Return a folder of this user's, open, and locked as in use; -1 where it is not there, or another's, or a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    about = os.fstat(fd)
    try:
        if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) == 0o700:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return fd
    except OSError:  # somebody is removing it
        pass
    os.close(fd)
    return -1


def _remove_if_last(fd: int, path: Path) -> bool:
    """Remove a folder that no other process has open, and return whether that was so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


def _unnamed(key: str) -> int:
    """Return a descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"stoker-{key}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
