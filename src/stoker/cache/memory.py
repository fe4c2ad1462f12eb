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
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stoker.cache.folder import Files
from stoker.host.forks import Home

_SHM = Path("/dev/shm")
# Beginning of the names of all folders of a user. Not that of caches in memory, which belong to one process each.
_FAMILY = "stoker.{uid}."
# Chunks that this process has opened and leaves for the others: about what those that run beside it are behind.
_NUM_LEFT = 8
# Older ones are of processes that were killed; where one is not, it is built again.
_STALE_S = 600

T = TypeVar("T")


class MemoryChunks:
    """Chunks in memory, of one cache folder.

    Args:
        path: That folder, by whose name other processes find them; None keeps them in this process.
        files: What writes them.
    """

    def __init__(self, path: Path | None, files: Files) -> None:
        uid = os.geteuid()
        self._family = _FAMILY.format(uid=uid)
        name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=12).hexdigest() if path else None
        self._shared = None if name is None or not _SHM.is_dir() else _SHM / f"{self._family}{name}"
        self._files = files
        self._home = Home()
        self._mutex = threading.Lock()
        self._folder = -1
        self._own: dict[str, int] = {}  # kept by this process alone: descriptors
        self._named: set[str] = set()  # put into the shared folder by this process
        self._opened: OrderedDict[str, None] = OrderedDict()  # put by this process and opened since, the oldest first

    def put(self, key: str, write: Callable[[int], T]) -> T:
        """Keep a chunk, until some others were opened after it.

        Args:
            key: Of the chunk.
            write: Writes it to a descriptor.

        Raises:
            OSError: There is no memory.
        """
        folder = self._join()
        if folder >= 0:
            aside = f"{key}.{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):  # no room for it there
                fd = self._files.create(folder, aside)
                try:
                    result = write(fd)
                    self._files.replace(folder, aside, folder, key)
                except BaseException:
                    self._files.remove(folder, aside)
                    raise
                finally:
                    os.close(fd)
                self._named.add(key)
                return result
        fd = _unnamed(key)
        try:
            result = write(fd)
        except BaseException:
            os.close(fd)
            raise
        with self._mutex:
            before, self._own[key] = self._own.get(key, -1), fd
        if before >= 0:
            os.close(before)
        return result

    def open(self, key: str, *, is_use: bool = True) -> int | None:
        """Return a descriptor of a chunk, to be read by its bytes' places and closed; None where it is not there.

        Args:
            key: Of the chunk.
            is_use: Whether this is what it is kept for.
        """
        with self._mutex:
            own = self._own.get(key, -1)
            fd = os.dup(own) if own >= 0 else self._open_named(key)
            if fd is not None and is_use and (own >= 0 or key in self._named):
                self._opened[key] = None
                self._opened.move_to_end(key)
                while len(self._opened) > _NUM_LEFT:
                    self._drop(self._opened.popitem(last=False)[0])
        return fd

    def has(self, key: str) -> bool:
        """Return whether a chunk is there."""
        with self._mutex:
            if key in self._own:
                return True
            fd = self._open_named(key)
        if fd is not None:
            os.close(fd)
        return fd is not None

    def drop(self, key: str) -> None:
        """Let go of a chunk, whoever put it there."""
        with self._mutex:
            self._drop(key)
            if self._folder >= 0:
                with contextlib.suppress(OSError):
                    self._files.remove(self._folder, key)

    def close(self) -> None:
        """Let go of all chunks; the last process removes what they share. Harmless when called again, and in a fork."""
        with self._mutex:
            for fd in self._own.values():
                os.close(fd)
            self._own.clear()
            folder, self._folder = self._folder, -1
            if folder < 0:
                return
            if self._home.is_here and self._shared is not None and not _remove_if_last(folder, self._shared):
                for key in self._named:
                    with contextlib.suppress(OSError):
                        self._files.remove(folder, key)
            os.close(folder)

    def _drop(self, key: str) -> None:
        fd = self._own.pop(key, -1)
        if fd >= 0:
            os.close(fd)
        if key in self._named:
            self._named.discard(key)
            with contextlib.suppress(OSError):
                self._files.remove(self._folder, key)

    def _open_named(self, key: str) -> int | None:
        if self._folder < 0 and self._shared is not None and self._home.is_here:
            self._folder = _opened(self._shared)
        if self._folder >= 0:
            with contextlib.suppress(OSError):
                return os.open(key, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)
        return None

    def _join(self) -> int:
        """Return the folder that is shared, made if it is not there; -1 where there is none to be had."""
        with self._mutex:
            if self._shared is None or not self._home.is_here:
                return -1
            if self._folder < 0:
                self._sweep()
                with contextlib.suppress(OSError):
                    self._shared.mkdir(0o700)
                self._folder = _opened(self._shared)
                self._sweep_own()
            return self._folder

    def _sweep_own(self) -> None:
        """Remove what killed processes left in the folder while others went on: nobody waits so long with a use."""
        for name in os.listdir(self._folder) if self._folder >= 0 else ():  # noqa: PTH208  it has no path
            with contextlib.suppress(OSError):
                if time.time() - os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mtime > _STALE_S:
                    os.unlink(name, dir_fd=self._folder)

    def _sweep(self) -> None:
        """Remove what killed processes of this user left."""
        for path in _SHM.glob(f"{self._family}*"):
            fd = _opened(path)
            if fd >= 0:
                _remove_if_last(fd, path)
                os.close(fd)


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
