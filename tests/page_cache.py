"""What of files lies in the system's page cache, asked of the system itself."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import pytest


def cached_bytes(path: Path) -> int:
    """Return how many bytes of a file lie in the page cache, whole pages, as `mincore` tells it."""
    size, libc = path.stat().st_size, ctypes.CDLL(None, use_errno=True)
    if not size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as whole:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(whole)
        answer = libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), pages)
        del begin
    assert answer == 0, os.strerror(ctypes.get_errno())
    return min(size, mmap.PAGESIZE * sum(page & 1 for page in pages))


def drop(paths: Iterable[Path]) -> int:
    """Drop files from the page cache, and return how many bytes of them stay: of those that somebody has mapped."""
    left = 0
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left += cached_bytes(path)
    return left


def drop_all(paths: Iterable[Path]) -> None:
    """Drop files that nobody has mapped; skip the test where the file system keeps them or cannot do without."""
    if drop(paths):
        pytest.skip("the file system keeps its files in memory")
