"""One reserved range of addresses, in which files are mapped side by side."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from stoker.spec import Array

PAGE_BYTES = mmap.PAGESIZE

# The same number on Linux and macOS, on every processor; the mmap module knows all flags but this one.
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

# Linux 5.14; the mmap module does not know it yet. Where it is unknown the system says so, and nothing is lost.
_MADV_POPULATE_READ = 22
# Entered in one call: some 2 milliseconds where it lies in memory, which is how long whoever stops it may wait.
_PIECE_BYTES = 64 << 20
# Pages looked at to see whether a file lies in memory.
_NUM_SAMPLED = 4

CAN_MAP_SIDE_BY_SIDE = sys.platform in ("linux", "darwin")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return libc


def _mmap(address: int | None, num_bytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    got = _libc().mmap(address, num_bytes, protection, flags, fd, offset)
    if got == _FAILED:
        errno = ctypes.get_errno()
        raise OSError(errno, f"mmap of {num_bytes} bytes: {os.strerror(errno)}")
    return int(got)


class Region:
    """A range of addresses that files are placed in; seen as one array of bytes.

        reserve   ┆ . . . . . . . . . . . . . . . . ┆   addresses without memory, zero where read
        place     ┆ chunk 7 ┆ . chunk 2    ┆ chunk 5 ┆   the page cache itself, nothing is copied

    Stitched like this, random rows of many files are one `np.take` on one array. Where files cannot be mapped at a
    given address, the range is plain memory and `place` reads into it: the same layout, one copy more.

    Whoever holds `bytes` or a view of it must let go before `close`: afterwards the addresses lead nowhere.

    Args:
        size_bytes: Size of the range, rounded up to whole pages.
        is_mapped: False for plain memory; None for what the platform can.
    """

    def __init__(self, size_bytes: int, *, is_mapped: bool | None = None) -> None:
        self.size_bytes = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
        self.is_mapped = CAN_MAP_SIDE_BY_SIDE if is_mapped is None else is_mapped
        self._placed: list[tuple[int, int]] = []
        self.bytes: Array
        if self.is_mapped:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            # Readable, as zeros: loops that copy lists by whole blocks read up to 64 bytes behind the last one, which
            # may be the last of its page. Pages that are only read cost no memory and are not accounted for.
            self._address = _mmap(None, self.size_bytes, mmap.PROT_READ, flags, -1, 0)
            memory: Any = (ctypes.c_uint8 * self.size_bytes).from_address(self._address)
            self.bytes = np.frombuffer(memory, dtype=np.uint8)
        else:
            self._address = 0
            # int64, so that every aligned view of the bytes is aligned in memory too.
            self.bytes = np.empty(self.size_bytes // 8, dtype=np.int64).view(np.uint8)
        self.bytes.flags.writeable = not self.is_mapped

    def place(self, fd: int, *, offset: int, num_bytes: int, at: int) -> None:
        """Put `num_bytes` of an open file, from `offset` on, at position `at` of the range.

        The file descriptor may be closed afterwards, and the file removed: what is mapped stays readable.

        Args:
            fd: Open for reading.
            offset: In the file, a multiple of the page size.
            num_bytes: Up to the end of the file at most.
            at: In the range, a multiple of the page size.

        Raises:
            OSError: The system refused (too many maps, an I/O error, ...).
        """
        if num_bytes == 0:
            return
        if offset % PAGE_BYTES or at % PAGE_BYTES or at + num_bytes > self.size_bytes:
            raise ValueError(f"cannot place {num_bytes} bytes from {offset} at {at} of {self.size_bytes}")
        if self.is_mapped:
            _mmap(self._address + at, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, offset)
            self._placed.append((self._address + at, num_bytes))
            return
        target = self.bytes.data[at : at + num_bytes]
        while len(target):
            got = os.preadv(fd, [target], offset)
            if got == 0:
                raise OSError(f"the file ends {len(target)} bytes too early")
            target, offset = target[got:], offset + got

    def is_in_memory(self) -> bool:
        """Return whether what was placed seems to lie in memory, by a look at a few pages of each file."""
        seen = ctypes.create_string_buffer(1)
        for address, num_bytes in self._placed:
            num_pages = -(-num_bytes // PAGE_BYTES)
            for page in {i * (num_pages - 1) // (_NUM_SAMPLED - 1) for i in range(_NUM_SAMPLED)}:
                failed = _libc().mincore(address + page * PAGE_BYTES, PAGE_BYTES, seen)
                if failed or not ord(seen.raw) & 1:
                    return False
        return True

    def settle(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Read what was placed into memory and enter its pages, so that nobody has to stop at them later.

        Costs about 25 milliseconds a gigabyte that lies in memory already. Threads may read meanwhile.

        Args:
            goes_on: Asked every few milliseconds; False ends it early.
        """
        for address, num_bytes in self._placed:
            for begin in range(0, num_bytes, _PIECE_BYTES):
                if not goes_on():
                    return
                piece = min(_PIECE_BYTES, num_bytes - begin)
                if _libc().madvise(address + begin, piece, _MADV_POPULATE_READ):
                    _libc().madvise(address + begin, piece, mmap.MADV_WILLNEED)  # an older system: read, at least

    def close(self) -> None:
        """Give the addresses back. Harmless when called again."""
        self.bytes = np.empty(0, dtype=np.uint8)
        if self._address:
            _libc().munmap(self._address, self.size_bytes)
            self._address = 0
