"""Every change the cache makes to its disk, as a handful of calls: the seam that crash tests stop at."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Files:
    """The calls that change the disk. A crash can fall between any two of them, and nowhere else."""

    def create(self, path: Path, *, size_bytes: int = 0) -> int:
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

    def replace(self, source: Path, target: Path) -> None:
        """Give `source` the name `target`, at once, in place of what was there."""
        source.replace(target)

    def remove(self, path: Path) -> bool:
        """Remove a file and return whether there was one."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            return True
        return False

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
