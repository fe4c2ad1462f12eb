"""Huge pages: where random rows lie in them, the processor need not look up where nearly every row is.

A page of 4 KiB holds six records of 640 bytes, one of 2 MiB more than three thousand. A file has huge pages when it is
written, or read, 2 MiB at a time, on file systems that know them (XFS, ext4 from Linux 6.16 on), and they stay huge
where file and addresses are mapped alike, 2 MiB for 2 MiB. Elsewhere all of this changes nothing. Figures:
docs/decisions/0014.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = mmap.PAGESIZE
HUGE_BYTES = 2 << 20
"""Of a huge page, on x86 and, with pages of 4 KiB, on ARM."""

# Gaps between files are addresses without memory, but a process has no more than 128 TiB of those.
_MOST_TIMES = 2
# Linux alone has it.
ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def memory(num_bytes: int) -> npt.NDArray[Any]:
    """Return new memory of this process, in huge pages as far as it fills them: uint8, shape [num_bytes].

    It begins at a huge page's border. What is not touched takes no memory. Freed with the last array that refers to it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    whole = mmap.mmap(-1, max(num_bytes, 1) + HUGE_BYTES, flags=flags)
    if ADVICE is not None:
        whole.madvise(ADVICE)
    begin = -np.frombuffer(whole, dtype=np.uint8).ctypes.data % HUGE_BYTES
    # By way of a memoryview: a view of a slice of an array would refer to that array, not be one of its own.
    return np.frombuffer(memoryview(whole)[begin : begin + num_bytes], dtype=np.uint8)


def next_place(behind: int, *, offset: int, record_bytes: int, size_bytes: int) -> int:
    """Return where to map what lies at `offset` of a file: the first fitting place that is not before `behind`.

    Records begin at a multiple of their size there, so that they can be counted through many files:

        file         ┆ header ┆ records ............................ ┆
                     0        offset
        addresses    ┆ . . . .┆ records ............................ ┆
                     0        place: as far from a huge page's border as in the file, and a multiple of record_bytes

    Where records and huge pages meet too seldom, or the file has none, only as far from a page's border.

    Args:
        behind: Places are counted from a huge page's border.
        offset: A multiple of the page.
        record_bytes: Of a record; 1 where they need not be counted.
        size_bytes: What is mapped.
    """
    step = _step(record_bytes, size_bytes)
    if offset % math.gcd(step, record_bytes):
        step = PAGE_BYTES
    common = math.gcd(step, record_bytes)
    # place = offset + k * step, and that is 0 modulo record_bytes: k is known modulo record_bytes / common.
    period = record_bytes // common
    first = -(offset // common) * pow(step // common, -1, period) % period if period > 1 else 0
    k = -((offset - behind) // step)
    return offset + (k + (first - k) % period) * step


def room_for(size_bytes: int, *, record_bytes: int) -> int:
    """Return how many addresses to keep for `next_place`, wherever they begin, and the size that is mapped there."""
    pages = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    return pages + math.lcm(_step(record_bytes, size_bytes), record_bytes)


def _step(record_bytes: int, size_bytes: int) -> int:
    is_huge = size_bytes >= HUGE_BYTES and math.lcm(HUGE_BYTES, record_bytes) <= _MOST_TIMES * size_bytes
    return HUGE_BYTES if is_huge else PAGE_BYTES
