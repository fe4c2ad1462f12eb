"""Locks that the operating system drops when their holder dies: byte ranges of one file, which stays empty.

A lock is one byte of the file, at a place that a hash of its name decides. Nothing has to be cleaned up after a
process that was killed, and no lock file is ever left, because there is only the one.

    Linux      open-file-description locks: each store opens the file for itself, and is told from all others by that
    elsewhere  POSIX record locks, which a process has as a whole: two stores of one may build the same chunk

Threads of a store share its descriptor, so a table tells which locks it has. A fork has none of them.
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
from stoker.host.forks import close_here, closed_in_forks, open_in_forks, this_process

Lock: TypeAlias = contextlib.ExitStack

_KNOWS_DESCRIPTIONS = hasattr(fcntl, "F_OFD_SETLK")
_SET = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_SET_AND_WAIT = getattr(fcntl, "F_OFD_SETLKW", fcntl.F_SETLKW)
_GET = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)

# A lock's place is below 2**62. Two names that share a place only wait for each other.
_PLACE_BITS = 62
_NAME = "locks"
_BUSY = (errno.EAGAIN, errno.EACCES)


def _flock(kind: int, place: int) -> bytes:
    """Return `struct flock` for one byte at `place`."""
    if _KNOWS_DESCRIPTIONS:
        return struct.pack("@hhqqi4x", kind, os.SEEK_SET, place, 1, 0)
    return struct.pack("@qqihh", place, 1, 0, kind, os.SEEK_SET)  # macOS and the BSDs


def _place(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _PLACE_BITS)


_USAGE = _place("")  # nothing else is called so
_counting = open_in_forks(threading.Lock())  # the threads of all stores: a descriptor is not locked against its own


class Locks:
    """The locks of one store; `close` gives them all back. In a fork there are none to be had.

    Args:
        folder: The cache folder, in which the lock file is made if it is not there. On a disk that is read-only,
            shared locks still work.

    Attributes:
        is_writable: Whether exclusive locks can be had.

    Raises:
        OSError: It can neither be made nor opened.
    """

    def __init__(self, folder: Folder) -> None:
        self._path = folder.path / _NAME
        self._home, self._mutex = this_process(), threading.Lock()
        self._held: dict[int, int] = {}  # place -> how often it is held shared, or -1
        fd, self.is_writable = folder.open_own(_NAME)
        self._fd, self._is_closed = closed_in_forks(fd), False

    def try_lock(self, name: str, *, is_shared: bool = False) -> Lock | None:
        """Return the lock, or None where another thread, store or process holds it. Never waits.

        It is held until it is closed, or the process ends. A name is a chunk's key, a data set's fingerprint or a
        writer's name, none of which is like another.

        Raises:
            CacheError: The file system knows no locks, or this was closed.
            RuntimeError: This is a fork.
        """
        if not (is_shared or self.is_writable):
            return None
        place, lock = _place(name), Lock()
        self._home.check(f"the cache {self._path.parent}")
        with self._mutex:
            if self._is_closed:
                raise CacheError(f"the cache {self._path.parent} was closed", path=self._path.parent)
            num = self._held.get(place, 0)
            if num < 0 or (num and not is_shared):
                return None
            if not num and not self._set(_SET, fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK, place):
                return None
            self._held[place] = num + 1 if is_shared else -1
        lock.callback(self._release, place)
        return lock

    def is_held(self, name: str, *, elsewhere: bool = False) -> bool:
        """Return whether anyone holds the lock; or, elsewhere, anyone but this store."""
        place = _place(name)
        if place in self._held and not elsewhere:
            return True
        answer = fcntl.fcntl(self._fd, _GET, _flock(fcntl.F_WRLCK, place))
        kind: int = struct.unpack_from("@h", answer, 0 if _KNOWS_DESCRIPTIONS else 20)[0]
        return kind != fcntl.F_UNLCK

    @contextlib.contextmanager
    def usage(self) -> Iterator[None]:
        """Hold the one lock under which the bytes of all chunks are counted, and data sets begin to be in use.

        Blocks: while another thread or process holds it; nobody holds it while anything large is read or written.
        """
        self._home.check(f"the cache {self._path.parent}")
        with _counting:
            self._set(_SET_AND_WAIT, fcntl.F_WRLCK, _USAGE)
            try:
                yield
            finally:
                self._set(_SET, fcntl.F_UNLCK, _USAGE)

    def close(self) -> None:
        """Give all locks back. Harmless when called again, and in a fork."""
        if self._is_closed or not self._home.is_here:
            return
        with self._mutex:
            self._is_closed = True
            for place in self._held:
                self._set(_SET, fcntl.F_UNLCK, place)
            self._held.clear()
        if _KNOWS_DESCRIPTIONS:  # elsewhere other stores of this process would lose their locks with it
            close_here(self._fd)

    def _release(self, place: int) -> None:
        if not self._home.is_here:
            return
        with self._mutex:
            num = self._held.pop(place, 0)
            if num > 1:
                self._held[place] = num - 1
            elif num:
                self._set(_SET, fcntl.F_UNLCK, place)

    def _set(self, command: int, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._fd, command, _flock(kind, place))
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise CacheError(
                f"{self._path} cannot be locked ({error.strerror}); put the cache on a local disk", path=self._path
            ) from error
        return True
