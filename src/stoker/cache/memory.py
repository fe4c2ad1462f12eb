"""Chunks that the cache folder cannot take, for as long as somebody is about to use them: in memory.

    publish   ──► the folder is full, read-only, gone ──► memory ──► opened by each process that needs it ──► gone

    /dev/shm/stoker.chunk.{user}.{folder}.{key} ──► /proc/{process}/fd/{number}      a link says who has it

Memory has no name (memfd), so that it goes with its process, however that ends, and /dev/shm may be as small as
containers have it. The processes of a user on this host find each other's by links; where these are not to be had, a
process keeps its chunks for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

_SHM = Path("/dev/shm")
# Chunks that this process has opened and leaves for the others: about what those that run beside it are behind.
_NUM_LEFT = 8
# What memory is sealed against, and so known to be whole: becoming shorter or longer.
_IS_WHOLE = 0x2 | 0x4  # F_SEAL_SHRINK | F_SEAL_GROW, which only Linux has


class MemoryChunks:
    """Chunks in memory, of the cache folder `path`, by whose name other processes find them; None tells no other."""

    def __init__(self, path: Path | None) -> None:
        self._names: str | None = None
        self._family = f"stoker.chunk.{os.geteuid()}."
        if path is not None and hasattr(os, "memfd_create") and _SHM.is_dir():
            folder = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=12).hexdigest()
            self._names = f"{self._family}{folder}."
        self._mutex = threading.Lock()
        self._mine: dict[str, int] = {}  # descriptors of what this process has put
        self._opened: dict[str, None] = {}  # those of them that were opened since, the oldest first

    def put(self, key: str, write: Callable[[int], object]) -> None:
        """Keep a chunk, which is written to a descriptor, until some others were opened after it."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(f"stoker-{key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            write(fd)
            if hasattr(os, "memfd_create"):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _IS_WHOLE)
        except BaseException:
            os.close(fd)
            raise
        with self._mutex:
            self._drop(key)
            if self._names is not None:
                if not self._mine:
                    for path in _SHM.glob(f"{self._family}*"):  # what killed processes left leads nowhere
                        with contextlib.suppress(OSError):  # another user may have made it
                            if not path.exists():
                                path.unlink()
                with contextlib.suppress(OSError):
                    self._link(key).unlink(missing_ok=True)
                    self._link(key).symlink_to(_place(fd))
            self._mine[key] = fd

    def open(self, key: str, *, is_use: bool = True) -> int | None:
        """Return a descriptor of a chunk, to be read with `pread` and closed, or None; opening is a use unless told."""
        with self._mutex:
            own = self._mine.get(key)
            if own is None:
                return self._find(key)
            fd = os.dup(own)
            if is_use:
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
            if self._names is not None:
                with contextlib.suppress(OSError):
                    self._link(key).unlink()

    def close(self) -> None:
        """Let go of all chunks. Harmless when called again, and in a fork."""
        with self._mutex:
            for key in list(self._mine):
                self._drop(key)

    def _drop(self, key: str) -> None:
        self._opened.pop(key, None)
        fd = self._mine.pop(key, None)
        if fd is None:
            return
        with contextlib.suppress(OSError):  # in a fork, the link is its parent's
            if self._names is not None and str(self._link(key).readlink()) == _place(fd):
                self._link(key).unlink()
        os.close(fd)

    def _link(self, key: str) -> Path:
        return _SHM / f"{self._names}{key}"

    def _find(self, key: str) -> int | None:
        """Return a chunk that another process of this user has, open for reading."""
        link = self._link(key)
        with contextlib.suppress(OSError):
            if self._names is not None and link.lstat().st_uid == os.geteuid():  # the folder is everybody's
                fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                with contextlib.suppress(OSError):
                    # A process or a file may have that number now that is another one, or the same chunk half written.
                    is_it = str(Path(f"/proc/self/fd/{fd}").readlink()) == f"/memfd:stoker-{key} (deleted)"
                    if is_it and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _IS_WHOLE == _IS_WHOLE:
                        return fd
                os.close(fd)
        return None


def _place(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"
