"""Joining and splitting row groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.fragments import Fragment, plan_fragments


def groups(*sizes, rows=100):
    return [(rows, size) for size in sizes]


def test_small_row_groups_are_joined_and_huge_ones_split():
    pieces = plan_fragments(groups(2, 3, 2, 2, 9, 40, 1), chunk_bytes=10)
    assert [(p.start, p.stop) for p in pieces] == [(0, 4), (4, 5), (5, 6), (5, 6), (5, 6), (5, 6), (6, 7)]
    assert [(p.row_start, p.row_stop) for p in pieces[2:6]] == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert [p.num_rows for p in pieces] == [400, 100, 25, 25, 25, 25, 100]


def test_up_to_twice_the_chunk_size_a_row_group_stays_whole():
    assert len(plan_fragments(groups(20), chunk_bytes=10)) == 1
    assert len(plan_fragments(groups(21), chunk_bytes=10)) == 3


def test_row_groups_that_are_not_needed_cost_nothing_and_end_no_fragment():
    not_needed = (0, 1000)
    pieces = plan_fragments(
        [not_needed, *groups(4), not_needed, *groups(4), not_needed, *groups(4), not_needed], chunk_bytes=10
    )
    assert [(p.start, p.stop, p.num_rows) for p in pieces] == [(1, 4, 200), (5, 6, 100)]


def test_empty_row_groups_make_no_fragment():
    assert plan_fragments([(0, 0), (0, 10)], chunk_bytes=10) == []
    assert plan_fragments([], chunk_bytes=10) == []


def test_a_row_group_is_never_cut_below_a_row():
    pieces = plan_fragments([(3, 1000), (1, 1000)], chunk_bytes=10)
    assert [p.num_rows for p in pieces] == [1, 1, 1, 1]
    assert pieces[-1].row_start == -1


@pytest.mark.parametrize("wrong", [(-1, 10), (2**62, 2**62)])
def test_absurd_row_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="claims"):
        plan_fragments([wrong], chunk_bytes=10)


@given(
    st.lists(st.tuples(st.integers(0, 1000) | st.just(0), st.integers(0, 500)), max_size=30),
    st.integers(1, 200),
)
def test_every_needed_row_lies_in_exactly_one_fragment(row_groups, chunk_bytes):
    pieces = plan_fragments(row_groups, chunk_bytes=chunk_bytes)
    rows = []
    for piece in pieces:
        assert piece.num_rows > 0
        here = []
        for g in range(piece.start, piece.stop):
            first, last = (piece.row_start, piece.row_stop) if piece.row_start >= 0 else (0, row_groups[g][0])
            here += [(g, r) for r in range(first, last)]
        assert len(here) == piece.num_rows
        rows += here
    assert rows == [(g, r) for g, (num_rows, _) in enumerate(row_groups) for r in range(num_rows)]
    for piece in pieces:
        if piece.stop - piece.start > 1:
            # An empty one costs nothing, whatever it claims to take.
            inside = row_groups[piece.start : piece.stop]
            assert sum(num_bytes for num_rows, num_bytes in inside if num_rows) <= chunk_bytes


def test_a_fragment_says_where_it_is():
    assert str(Fragment(url="s3://a.parquet", row_groups=range(3, 6))) == "s3://a.parquet row groups 3-5"
    assert str(Fragment(url="a", row_groups=range(3, 4))) == "a row group 3"
    assert str(Fragment(url="a", row_groups=range(1), rows=(0, 10))) == "a row group 0 rows 0-9"
