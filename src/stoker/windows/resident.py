"""What of a file lies in memory, and how much memory there is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_PAGE_BYTES = mmap.PAGESIZE
# Linux 6.5; the same number on every processor.
_CACHESTAT = 451
_GROUPS = Path("/sys/fs/cgroup")


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


def available_bytes() -> int | None:
    """Return how much memory could be filled without anyone's being pushed out of it; None where nobody tells.

    What the system says, or what is left to the control group of this process, if that is less.

    Source:
        proc_meminfo(5), MemAvailable; the kernel's documentation of cgroup v2, memory.max and memory.stat.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if match is not None:
            found.append(int(match[1]) << 10)
    with contextlib.suppress(OSError, ValueError):
        # "0::/a/b" is version 2; a limit may stand at any level above.
        name = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        here = _GROUPS / name
        for group in (here, *here.parents[: len(Path(name).parts)]):
            left = _left_to(group)
            if left is not None:
                found.append(left)
    return min(found, default=None)


def _left_to(group: Path) -> int | None:
    """Return what a control group may still take, with what it has in the page cache; None without a limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        match = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return max(0, int(limit) - used + (int(match[1]) if match is not None else 0))
