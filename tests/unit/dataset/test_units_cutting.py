"""Fragments are cut between runs where row groups allow it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.fragments import plan_fragments


def plan(sizes, cutting=(), begins=None, *, chunk_bytes=10):
    groups = [(size, size) for size in sizes]
    return [
        (piece.start, piece.stop, piece.row_start, piece.row_stop)
        for piece in plan_fragments(
            groups,
            chunk_bytes=chunk_bytes,
            is_cutting=lambda g: g in cutting,
            begins_in=lambda g: np.array((begins or {}).get(g, []), dtype=np.int64),
        )
    ]


def test_the_drawing_in_the_docstring_is_true():
    assert plan([4, 4, 4, 4, 4, 30], cutting={2, 4, 5}, begins={5: [0, 11, 20]}) == [
        (0, 1, -1, -1),
        (1, 3, -1, -1),
        (3, 5, -1, -1),
        (5, 6, 0, 11),
        (5, 6, 11, 20),
        (5, 6, 20, 30),
    ]


def test_row_groups_are_joined_beyond_the_chunk_size_to_reach_a_whole_run():
    assert plan([6, 6, 6], cutting={1}) == [(0, 2, -1, -1), (2, 3, -1, -1)]


def test_a_run_that_is_longer_than_two_chunks_is_cut_all_the_same():
    assert plan([8] * 6, cutting={1, 2, 3, 4, 5}) == [(0, 2, -1, -1), (2, 4, -1, -1), (4, 6, -1, -1)]
    assert plan([40], begins={0: [0]}) == [(0, 1, n, n + 10) for n in range(0, 40, 10)]


def test_a_huge_row_group_is_cut_at_runs_that_are_as_long_as_two_parts():
    assert plan([30], begins={0: [0, 15]}) == [(0, 1, 0, 15), (0, 1, 15, 30)]
    assert plan([60], begins={0: [0, 18, 36, 54]}) == [
        (0, 1, *rows) for rows in ((0, 18), (18, 36), (36, 54), (54, 60))
    ]


@given(runs=st.lists(st.integers(1, 20), min_size=2, max_size=40), chunk_bytes=st.just(10))
def test_no_run_of_a_huge_row_group_is_cut_that_is_no_longer_than_half_a_part(runs, chunk_bytes):
    begins = np.cumsum([0, *(min(run, chunk_bytes // 2) for run in runs)]).tolist()
    found = plan([begins[-1]], begins={0: begins[:-1]}, chunk_bytes=chunk_bytes)
    assert {row_start for *_, row_start, _ in found if row_start >= 0} <= set(begins)


@given(
    sizes=st.lists(st.integers(0, 60), max_size=20),
    cutting=st.sets(st.integers(1, 20)),
    borders=st.lists(st.integers(0, 60), max_size=8),
    chunk_bytes=st.integers(1, 40),
)
def test_every_row_is_in_one_fragment_and_none_is_huge(sizes, cutting, borders, chunk_bytes):
    begins = {g: sorted({b for b in borders if b < size}) for g, size in enumerate(sizes)}
    rows = []
    for start, stop, row_start, row_stop in plan(sizes, cutting, begins, chunk_bytes=chunk_bytes):
        if row_start >= 0:
            rows += [(start, row) for row in range(row_start, row_stop)]
            assert row_stop - row_start <= 3 * chunk_bytes
        else:
            rows += [(g, row) for g in range(start, stop) for row in range(sizes[g])]
            assert sum(sizes[start:stop]) <= 4 * chunk_bytes
    assert rows == [(g, row) for g, size in enumerate(sizes) for row in range(size)]
