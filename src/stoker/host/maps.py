"""Maps of files at chosen addresses: calls that Python lacks, or makes with the interpreter's lock held."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

MAP_FIXED = 0x10
"""The same number on Linux and macOS, on every processor; the mmap module knows all flags but this one."""
MADV_POPULATE_READ = 22
"""Linux 5.14; the mmap module does not know it yet. Where it is unknown the system says so, and nothing is lost."""

_FAILED = ctypes.c_void_p(-1).value


@cache
def libc() -> Any:
    """Return the C library: `mmap`, `munmap` and `madvise` give up the interpreter's lock while they run."""
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


def map_at(address: int | None, num_bytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    """Return the address of a new map, as mmap(2) makes it.

    Raises:
        OSError: The system refused.
    """
    got = libc().mmap(address, num_bytes, protection, flags, fd, offset)
    if got == _FAILED:
        errno = ctypes.get_errno()
        raise OSError(errno, f"mmap of {num_bytes} bytes: {os.strerror(errno)}")
    return int(got)


class _Addresses:
    """Addresses as NumPy takes them, to be read only. A ctypes array would leave a type behind for every size."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (num_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def memory_at(address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return addresses as an array, to be read only, shape [num_bytes]; nothing is kept alive by it, or looked at."""
    return np.asarray(_Addresses(address, num_bytes))
