"""Every change the cache makes to its disk, as a handful of calls: the seam that crash tests stop at."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk answers."""


class Files:
    """The calls that change the disk. A crash can fall between any two of them, and nowhere else.

    Paths may be texts: a dozen `Path`s made for a chunk take a tenth of the time in which a small one is published.
    """

    def create(self, path: Path | str, *, size_bytes: int = 0) -> int:
        """Return a descriptor, open for reading and writing, of a new file of `size_bytes` zeros.

        Raises:
            FileExistsError: There is one.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(fd, size_bytes)
        except BaseException:
            os.close(fd)
            self.remove(path)
            raise
        return fd

    def write(self, fd: int, data: bytes | memoryview, *, offset: int) -> None:
        """Write all of `data`, bytes, at `offset`."""
        rest = memoryview(data)
        while rest:
            num_bytes = os.pwrite(fd, rest, offset)
            rest, offset = rest[num_bytes:], offset + num_bytes

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Have the disk find room for the first `size_bytes` of a file, where the file system can.

        A full disk then says so before anything is written; and what was found is not looked for again, 4 KiB at a
        time, by each write: on ext4 that is half of what writing into the page cache costs.

        Raises:
            OSError: There is no room. Anything else that is wrong shows when the file is written.
        """
        fallocate = _fallocate()
        if fallocate is not None and fallocate(fd, 0, 0, size_bytes) != 0:
            number = ctypes.get_errno()
            if number in NO_ROOM:
                raise OSError(number, os.strerror(number))

    def replace(self, source: Path | str, target: Path | str) -> None:
        """Give `source` the name `target`, at once, in place of what was there."""
        os.replace(source, target)  # noqa: PTH105

    def remove(self, path: Path | str) -> bool:
        """Remove a file and return whether there was one."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True

    def write_small(self, path: Path, data: bytes, *, aside: Path) -> None:
        """Write a small file whole or not at all, through `aside`, a path nobody else uses."""
        fd = self.create(aside)
        try:
            try:
                self.write(fd, data, offset=0)
            finally:
                os.close(fd)
            self.replace(aside, path)
        except BaseException:
            self.remove(aside)
            raise


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2), None where the system has none.

    Not `os.posix_fallocate`: where the file system cannot, that one writes to every block of the file.
    """
    found: Callable[[int, int, int, int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]  # type: ignore[attr-defined]
    return found
