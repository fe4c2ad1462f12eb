"""Row groups are joined and split into fragments, between runs of equal keys where row groups allow it."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import Dataset, NGram
from stoker.dataset.fragments import plan_fragments
from stoker.testing import MemoryStorage

SCHEMA = pa.schema([("v", pa.int64())])


def catalogue_of(groups, *, chunk_rows=10, by_key=False, **options):
    """Open one file "a": of each row group its values, of which a row takes 8 bytes."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA) as writer:
        for values in groups:
            writer.write_table(pa.table([pa.array(values, pa.int64())], schema=SCHEMA))
    dataset = Dataset("a", storage=MemoryStorage({"a": sink.getvalue()}), chunk_size=int(8 * chunk_rows), **options)
    return dataset.open(runs=NGram(length=1, keys="v").rule if by_key else None)


def fragments_of(sizes, **options):
    return ranges_in(catalogue_of([range(size) for size in sizes], **options))


def ranges_in(catalogue):
    """Return of each fragment its row groups, and its rows of one that is split."""
    return [(one.row_groups.start, one.row_groups.stop, one.rows) for one in catalogue.fragments]


def in_runs(sizes, *, cutting=(), begins=None):
    """Return keys of row groups: another one where runs begin, but in front of groups that cut a run."""
    groups, key = [], 0
    for group, size in enumerate(sizes):
        borders = {*(begins or {}).get(group, ()), *(() if group in cutting else (0,))}
        steps = np.isin(np.arange(size), list(borders))
        groups.append((key + np.cumsum(steps)).tolist())
        key += int(steps.sum())
    return groups


def cut(sizes, *, cutting=(), begins=None, chunk_rows=10):
    groups = in_runs(sizes, cutting=cutting, begins=begins)
    return ranges_in(catalogue_of(groups, by_key=True, chunk_rows=chunk_rows))


def test_small_row_groups_are_joined_and_huge_ones_split():
    catalogue = catalogue_of([range(size) for size in (2, 3, 2, 2, 9, 40, 1)])
    assert list(map(str, catalogue.fragments)) == [
        "a row groups 0-3",
        "a row group 4",
        *(f"a row group 5 rows {first}-{first + 9}" for first in (0, 10, 20, 30)),
        "a row group 6",
    ]
    assert catalogue.num_rows.tolist() == [9, 9, 10, 10, 10, 10, 1]


def test_up_to_twice_the_chunk_size_a_row_group_stays_whole():
    assert fragments_of([20]) == [(0, 1, None)]
    assert fragments_of([21]) == [(0, 1, (0, 7)), (0, 1, (7, 14)), (0, 1, (14, 21))]


def test_row_groups_that_are_not_needed_cost_nothing_and_end_no_fragment():
    ruled_out, some = [-1] * 1000, [1] * 4
    groups = [ruled_out, some, ruled_out, some, ruled_out, some, ruled_out]
    catalogue = catalogue_of(groups, filters=[("v", ">", 0)])
    assert ranges_in(catalogue) == [(1, 4, None), (5, 6, None)]
    assert catalogue.num_rows.tolist() == [8, 4]


def test_empty_row_groups_make_no_fragment():
    assert fragments_of([0, 0]) == fragments_of([]) == []
    assert fragments_of([0, 4, 0, 4, 0]) == [(1, 4, None)]


def test_a_row_group_is_never_cut_below_a_row():
    assert fragments_of([3, 1], chunk_rows=1 / 8) == [(0, 1, (0, 1)), (0, 1, (1, 2)), (0, 1, (2, 3)), (1, 2, None)]


@pytest.mark.parametrize("wrong", [(-1, 10), (2**62, 2**62)])
def test_absurd_row_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="claims"):
        plan_fragments([wrong], chunk_bytes=10)


def test_fragments_end_where_runs_do():
    # The drawing of the planner: joined up to whole runs, and a huge row group is split at a run.
    assert cut([4, 4, 4, 4, 4, 30], cutting={2, 4, 5}, begins={5: [11, 20]}) == [
        (0, 1, None),
        (1, 3, None),
        (3, 5, None),
        (5, 6, (0, 11)),
        (5, 6, (11, 20)),
        (5, 6, (20, 30)),
    ]


def test_row_groups_are_joined_beyond_the_chunk_size_to_reach_a_whole_run():
    assert cut([6, 6, 6], cutting={1}) == [(0, 2, None), (2, 3, None)]


def test_a_run_that_is_longer_than_two_chunks_is_cut_all_the_same():
    assert cut([8] * 6, cutting={1, 2, 3, 4, 5}) == [(0, 2, None), (2, 4, None), (4, 6, None)]
    assert cut([40]) == [(0, 1, (first, first + 10)) for first in range(0, 40, 10)]


def test_a_huge_row_group_is_cut_at_runs_that_are_as_long_as_two_parts():
    assert cut([30], begins={0: [15]}) == [(0, 1, (0, 15)), (0, 1, (15, 30))]
    assert cut([60], begins={0: [18, 36, 54]}) == [(0, 1, rows) for rows in ((0, 18), (18, 36), (36, 54), (54, 60))]


@examples(15)
@given(runs=st.lists(st.integers(1, 5), min_size=2, max_size=40))
def test_no_run_of_a_huge_row_group_is_cut_that_is_no_longer_than_half_a_part(runs):
    begins = np.cumsum([0, *runs]).tolist()
    found = cut([begins[-1]], begins={0: begins[:-1]})
    assert {rows[0] for *_, rows in found if rows is not None} <= set(begins)


@examples(40)
@given(
    sizes=st.lists(st.integers(0, 60), max_size=14),
    cutting=st.sets(st.integers(1, 13)),
    borders=st.lists(st.integers(0, 60), max_size=8),
    chunk_rows=st.integers(1, 40),
    by_key=st.booleans(),
)
def test_every_row_is_in_one_fragment_and_none_is_huge(sizes, cutting, borders, chunk_rows, by_key):
    begins = {g: [border for border in borders if border < size] for g, size in enumerate(sizes)}
    groups = in_runs(sizes, cutting=cutting, begins=begins)
    catalogue, found = catalogue_of(groups, by_key=by_key, chunk_rows=chunk_rows), []
    for (start, stop, rows), num_rows in zip(ranges_in(catalogue), catalogue.num_rows.tolist(), strict=True):
        here = [(g, row) for g in range(start, stop) for row in range(*(rows or (0, sizes[g])))]
        assert 0 < len(here) == num_rows
        assert num_rows <= (4 if by_key else 2 if stop - start == 1 else 1) * chunk_rows
        found += here
    assert found == [(g, row) for g, size in enumerate(sizes) for row in range(size)]
