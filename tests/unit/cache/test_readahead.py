"""A file is brought in by huge pages before it is read, as long as these come cheaply."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache import format as chunk_format
from stoker.cache.format import Readahead
from stoker.host.huge import HUGE_BYTES

BLOCK = 8 << 20


@pytest.fixture
def brought(monkeypatch):
    """The parts that were brought in; the processor's clock stands still unless told."""
    parts = []
    monkeypatch.setattr(chunk_format, "bring_in", lambda *part: parts.append(part))
    monkeypatch.setattr(chunk_format, "_costs_much", threading.Event())
    monkeypatch.setattr(chunk_format.time, "thread_time", lambda: 0.0)
    return parts


@given(size=st.integers(HUGE_BYTES, 100 << 20), ends=st.lists(st.integers(1, 100 << 20), max_size=20))
def test_what_is_reached_has_been_brought_in_once(size, ends):
    with pytest.MonkeyPatch.context() as patched:
        parts = []
        patched.setattr(chunk_format, "bring_in", lambda _fd, begin, num: parts.append((begin, begin + num)))
        patched.setattr(chunk_format, "_costs_much", threading.Event())
        patched.setattr(chunk_format.time, "thread_time", lambda: 0.0)
        one = Readahead(7, size)
        for end in ends:
            one.reach(end)
            assert parts[-1][1] >= min(end, size)
        for (_, stop), (begin, _) in pairwise(parts):
            assert begin == stop
        assert all(begin % BLOCK == 0 and begin < stop <= size for begin, stop in parts)


def test_small_files_are_left_to_the_system(brought):
    Readahead(7, HUGE_BYTES - 1).reach(HUGE_BYTES - 1)
    assert brought == []


def test_where_pages_cost_much_nobody_asks_for_more(brought, monkeypatch):
    clock = iter([0.0, 0.016])  # after the first block, and when all of it has been read
    monkeypatch.setattr(chunk_format.time, "thread_time", lambda: next(clock))
    one = Readahead(7, 3 * BLOCK)
    one.reach(BLOCK)
    one.reach(BLOCK + 1)
    one.reach(2 * BLOCK + 1)
    Readahead(8, 3 * BLOCK).reach(1)  # what one file has shown holds for all
    assert brought == [(7, 0, BLOCK)]
