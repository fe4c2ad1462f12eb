"""Places in a range of addresses at which huge pages stay such, and records can be counted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.huge import HUGE_BYTES, PAGE_BYTES
from stoker.windows.places import next_place, room_for

PAGES = st.integers(0, 1_000).map(lambda i: i * PAGE_BYTES)
RECORDS = st.one_of(st.integers(1, 5_000), st.sampled_from([64, 640, 8_000, 150_016, 2 << 20, 4 << 20]))


@given(behind=st.integers(0, 1 << 40), offset=PAGES, record_bytes=RECORDS, size_bytes=st.integers(0, 64 << 20))
def test_a_place_is_the_first_that_suits_pages_and_records(behind, offset, record_bytes, size_bytes):
    at = next_place(behind, offset=offset, record_bytes=record_bytes, size_bytes=size_bytes)
    assert at >= behind
    assert at % record_bytes == 0
    assert (at - offset) % PAGE_BYTES == 0
    pages = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    assert at + pages <= behind + room_for(size_bytes, record_bytes=record_bytes)
    step = HUGE_BYTES if (at - offset) % HUGE_BYTES == 0 else PAGE_BYTES
    # What lies one step or more before it, and is not before `behind`, is no multiple of a record.
    earlier = np.arange(at - step, max(behind, at - 500 * step) - 1, -step, dtype=np.int64)
    assert not (earlier % record_bytes == 0).any()


@given(behind=st.integers(0, 1 << 40), offset=PAGES, record_bytes=st.sampled_from([1, 64, 128, 640, 1_024, 2_496]))
def test_large_files_of_usual_records_keep_their_huge_pages(behind, offset, record_bytes):
    at = next_place(behind, offset=offset, record_bytes=record_bytes, size_bytes=256 << 20)
    assert (at - offset) % HUGE_BYTES == 0
