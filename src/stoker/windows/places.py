"""Where in a range of addresses a file is mapped, so that records count through and huge pages stay huge."""

from __future__ import annotations

import math

from stoker.huge import HUGE_BYTES, PAGE_BYTES

# Gaps between files are addresses without memory, but a process has no more than 128 TiB of those: so many times the
# size of a file.
_MOST_ROOM = 2


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
    is_huge = size_bytes >= HUGE_BYTES and math.lcm(HUGE_BYTES, record_bytes) <= _MOST_ROOM * size_bytes
    return HUGE_BYTES if is_huge else PAGE_BYTES
