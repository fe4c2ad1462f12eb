"""What of a file lies in memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

_PAGE_BYTES = mmap.PAGESIZE
# Linux 6.5; the same number on every processor.
_CACHESTAT = 451


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "in_writeback", "evicted", "recently_evicted")
    )


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = [ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return libc


_has_cachestat = os.name == "posix" and os.uname().sysname == "Linux"


def cached_bytes(fd: int, size_bytes: int) -> int:
    """Return how many bytes of a file lie in the page cache; all, where the system does not tell.

    Costs microseconds, and reads nothing.

    Args:
        fd: Open for reading.
        size_bytes: Of the file.

    Source:
        Linux man-pages, cachestat(2) and mincore(2): both tell only who owns the file or may write to it.
    """
    global _has_cachestat  # whether the system knows the call, once a process
    if _has_cachestat:
        asked, counts = _Range(0, size_bytes), _Counts()
        if _libc().syscall(_CACHESTAT, fd, ctypes.addressof(asked), ctypes.addressof(counts), 0) == 0:
            return min(size_bytes, int(counts.cached) * _PAGE_BYTES)
        _has_cachestat = ctypes.get_errno() != errno.ENOSYS
    return _mapped_bytes(fd, size_bytes)


def _mapped_bytes(fd: int, size_bytes: int) -> int:
    """Return the same by mapping the file, which older systems can tell of."""
    if not size_bytes:
        return 0
    num_pages = -(-size_bytes // _PAGE_BYTES)
    seen = ctypes.create_string_buffer(num_pages)
    try:
        with mmap.mmap(fd, size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as content:
            memory = ctypes.c_char.from_buffer(content)
            failed = _libc().mincore(ctypes.addressof(memory), size_bytes, seen)
            del memory
    except OSError:
        return size_bytes
    if failed:
        return size_bytes
    return min(size_bytes, int((np.frombuffer(seen.raw, np.uint8) & 1).sum()) * _PAGE_BYTES)
