"""Locks that the operating system drops when their holder dies: byte ranges of one file, which stays empty.

A lock is one byte of the file, at a place that a hash of its name decides. Nothing has to be cleaned up after a
process that was killed, and no lock file is ever left, because there is only the one.

    Linux      open-file-description locks: closing some other descriptor of the file does not drop them
    elsewhere  POSIX record locks, which that would drop; so the file is opened once a process

Threads, and stores that share a folder in one process, share one descriptor, so a table tells who of them holds what.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from typing import TypeAlias

from stoker.cache.folder import Folder
from stoker.errors import CacheError
from stoker.host.forks import open_in_forks

Lock: TypeAlias = contextlib.ExitStack

_SET = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_SET_AND_WAIT = getattr(fcntl, "F_OFD_SETLKW", fcntl.F_SETLKW)
_GET = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)
_IS_LINUX_LAYOUT = hasattr(fcntl, "F_OFD_SETLK")

# A lock's place is below 2**62. Two names that share a place only wait for each other.
_PLACE_BITS = 62
_NAME = "locks"
_BUSY = (errno.EAGAIN, errno.EACCES)


def _flock(kind: int, place: int) -> bytes:
    """Return `struct flock` for one byte at `place`."""
    if _IS_LINUX_LAYOUT:
        return struct.pack("@hhqqi4x", kind, os.SEEK_SET, place, 1, 0)
    return struct.pack("@qqihh", place, 1, 0, kind, os.SEEK_SET)  # macOS and the BSDs


def _place(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _PLACE_BITS)


_USAGE = _place("")  # nothing else is called so


class _LockFile:
    """The one descriptor of a lock file in this process, and the table of who holds what."""

    _open: dict[tuple[int, int, int], _LockFile] = {}  # noqa: RUF012  (the processes' own registry, by pid and inode)
    _registry = open_in_forks(threading.Lock())

    def __init__(self, fd: int, identity: tuple[int, int, int], *, is_writable: bool) -> None:
        self.fd = fd
        self.is_writable = is_writable
        self.mutex = threading.Lock()
        self.usage = threading.Lock()
        self.held: dict[int, int] = {}  # place -> number of shared holders, or -1
        self.pid = identity[0]
        self._identity = identity
        self._num_users = 0

    @classmethod
    def open(cls, folder: Folder) -> _LockFile:
        with cls._registry:
            with contextlib.suppress(FileNotFoundError):
                # Looked up before it is opened: a second descriptor, once closed, would drop POSIX locks.
                about = os.stat(_NAME, dir_fd=folder.root, follow_symlinks=False)
                known = cls._open.get(cls._identity_of(about))
                if known is not None:
                    known._num_users += 1
                    return known
            fd, is_writable = folder.open_own(_NAME)
            identity = cls._identity_of(os.fstat(fd))
            file = cls._open[identity] = cls(fd, identity, is_writable=is_writable)
            file._num_users += 1
            return file

    @staticmethod
    def _identity_of(about: os.stat_result) -> tuple[int, int, int]:
        # A forked child has its parent's table in memory but must not take part in its locks.
        return os.getpid(), about.st_dev, about.st_ino

    def close(self) -> None:
        with self._registry:
            self._num_users -= 1
            if self._num_users == 0:
                self._open.pop(self._identity, None)
                os.close(self.fd)

    def set(self, kind: int, place: int, *, waits: bool = False) -> bool:
        try:
            fcntl.fcntl(self.fd, _SET_AND_WAIT if waits else _SET, _flock(kind, place))
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def is_free_elsewhere(self, place: int) -> bool:
        answer = fcntl.fcntl(self.fd, _GET, _flock(fcntl.F_WRLCK, place))
        kind: int = struct.unpack_from("@h", answer, 0 if _IS_LINUX_LAYOUT else 20)[0]
        return kind == fcntl.F_UNLCK


class Locks:
    """The locks that one store holds; `close` gives them all back.

    Args:
        folder: The cache folder, in which the lock file is made if it is not there. On a disk that is read-only,
            shared locks still work.

    Raises:
        OSError: It can neither be made nor opened.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.path / _NAME
        self._opened = _LockFile.open(folder)
        self._mine: dict[Lock, int] = {}  # and where each lies
        self._is_closed = False

    @property
    def _file(self) -> _LockFile:
        """The lock file of this process: a forked child must neither take nor drop the locks of its parent."""
        if self._opened.pid != os.getpid():
            self._opened = _LockFile.open(self._folder)
            self._mine = {}
        return self._opened

    @property
    def is_writable(self) -> bool:
        """Whether exclusive locks can be had."""
        return self._file.is_writable

    def try_lock(self, name: str, *, is_shared: bool = False) -> Lock | None:
        """Return the lock, or None where another thread or process holds it. Never waits.

        It is held until it is closed, or the process ends. A name is a chunk's key, a data set's fingerprint or a
        writer's name, none of which is like another.

        Raises:
            CacheError: The file system knows no locks.
        """
        if not is_shared and not self.is_writable:
            return None
        place = _place(name)
        file = self._file
        with file.mutex:
            if self._is_closed:
                raise CacheError(f"the cache {self._path.parent} was closed", path=self._path.parent)
            num_shared = file.held.get(place, 0)
            if num_shared < 0 or (num_shared and not is_shared):
                return None
            if not num_shared:
                try:
                    if not file.set(fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK, place):
                        return None
                except OSError as error:
                    raise self._refused(error) from error
            file.held[place] = num_shared + 1 if is_shared else -1
            lock = Lock()
            lock.callback(self._release, lock, is_shared=is_shared)
            self._mine[lock] = place
            return lock

    def is_held(self, name: str, *, elsewhere: bool = False) -> bool:
        """Return whether anyone holds the lock; or, elsewhere, anyone but this store."""
        place = _place(name)
        file = self._file
        with file.mutex:
            num_mine = list(self._mine.values()).count(place) if elsewhere else 0
            return file.held.get(place, 0) not in (0, num_mine) or not file.is_free_elsewhere(place)

    @contextlib.contextmanager
    def usage(self) -> Iterator[None]:
        """Hold the one lock under which it is counted what is there.

        Blocks: while another thread or process holds it; nobody holds it while anything large is read or written.
        """
        file = self._file
        with file.usage:
            try:
                file.set(fcntl.F_WRLCK, _USAGE, waits=True)
            except OSError as error:
                raise self._refused(error) from error
            try:
                yield
            finally:
                file.set(fcntl.F_UNLCK, _USAGE)

    def close(self) -> None:
        """Give all locks back. Harmless when called again."""
        file = self._file
        with file.mutex:
            if self._is_closed:
                return
            self._is_closed = True
            mine = list(self._mine)
        for lock in mine:
            lock.close()
        file.close()

    def _release(self, lock: Lock, *, is_shared: bool) -> None:
        file = self._file
        with file.mutex:
            place = self._mine.pop(lock, None)
            if place is None:  # the parent's, in a fork
                return
            num_left = file.held[place] - 1 if is_shared else 0
            if num_left > 0:
                file.held[place] = num_left
                return
            del file.held[place]
            file.set(fcntl.F_UNLCK, place)

    def _refused(self, error: OSError) -> CacheError:
        return CacheError(
            f"{self._path} cannot be locked ({error.strerror}); put the cache on a local disk", path=self._path
        )
