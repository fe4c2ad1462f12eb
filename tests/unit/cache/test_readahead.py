"""A file is brought in by huge pages before it is read, as long as these come cheaply."""

from __future__ import annotations

import threading
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.format import Readahead
from stoker.host.huge import HUGE_BYTES

BLOCK = 8 << 20


def reach(size, ends, *, cpu_s=lambda: 0.0, costs_much=None):
    """Reach so far in a file, and return after each time what parts have been brought in."""
    parts, after = [], []
    one = Readahead(
        7,
        size,
        bring_in=lambda _, begin, num: parts.append((begin, begin + num)),
        cpu_s=cpu_s,
        costs_much=costs_much or threading.Event(),
    )
    for end in ends:
        one.reach(end)
        after.append([*parts])
    return after


@given(size=st.integers(HUGE_BYTES, 100 << 20), ends=st.lists(st.integers(1, 100 << 20), min_size=1, max_size=20))
def test_what_is_reached_has_been_brought_in_once(size, ends):
    after = reach(size, ends)
    assert all(parts[-1][1] >= min(end, size) for parts, end in zip(after, ends, strict=True))
    assert all(stop == begin for (_, stop), (begin, _) in pairwise(after[-1]))
    assert all(begin % BLOCK == 0 and begin < stop <= size for begin, stop in after[-1])


def test_small_files_are_left_to_the_system():
    assert reach(HUGE_BYTES - 1, [HUGE_BYTES - 1]) == [[]]


def test_where_pages_cost_much_nobody_asks_for_more():
    clock = iter([0.0, 0.016])  # after the first block, and when all of it has been read
    costs_much = threading.Event()
    ends = [BLOCK, BLOCK + 1, 2 * BLOCK + 1]
    assert reach(3 * BLOCK, ends, cpu_s=lambda: next(clock), costs_much=costs_much) == [[(0, BLOCK)]] * 3
    assert reach(3 * BLOCK, [1], costs_much=costs_much) == [[]]  # what one file has shown holds for all
