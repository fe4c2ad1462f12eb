"""How much of remote files is read, in which requests, and what becomes of those that get no answer."""

from __future__ import annotations

import functools
import io
import itertools
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Dataset, SourceChangedError
from stoker.testing import MemoryStorage

MOST_REQUEST_BYTES = 16 << 20


def plain(table, *, row_group_size=None):
    """A file of which each value takes the same room, whatever it is."""
    file = io.BytesIO()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table(table), file, row_group_size=row_group_size, **options)
    return file.getvalue()


def column(catalogue, name):
    parts = [table[name].to_numpy() for i in range(len(catalogue)) for _, table in catalogue.read(i)]
    return np.concatenate(parts)


class Noted(MemoryStorage):
    """Notes where is read, and lets so many reads wait for each other."""

    def note(self, num_at_once):
        self.asked, self.together = [], threading.Barrier(num_at_once)

    def read(self, url, offset, num_bytes):
        if hasattr(self, "together"):
            self.asked.append((offset, offset + num_bytes))
            self.together.wait(20)
        return super().read(url, offset, num_bytes)


def test_a_large_column_comes_in_requests_of_one_size_at_once():
    values = np.arange(2_500_000)
    storage = Noted({"a.parquet": plain({"v": values})})
    catalogue = Dataset("a.parquet", storage=storage, chunk_size="100MB").open()
    storage.note(num_at_once=2)
    assert np.array_equal(column(catalogue, "v"), values)
    (begin, middle), (then, end) = sorted(storage.asked)
    assert middle == then
    assert abs((middle - begin) - (end - then)) <= 1
    assert values.nbytes <= end - begin <= 2 * MOST_REQUEST_BYTES


@functools.cache
def lake_of_times():
    """A file of a type that pyarrow decodes, too large to be read whole, in many small column chunks."""
    rng = np.random.default_rng(0)
    table = pa.table({f"x_{i}": pa.array(rng.integers(0, 1 << 36, 5_000), pa.time64("us")) for i in range(9)})
    return table, MemoryStorage({"a.parquet": plain(table, row_group_size=1_000)})


@given(
    columns=st.lists(st.sampled_from([f"x_{i}" for i in range(9)]), min_size=1, unique=True),
    chunk_size=st.integers(20_000, 1_000_000),
)
def test_any_columns_of_what_pyarrow_decodes_read_as_they_were_written(columns, chunk_size):
    table, storage = lake_of_times()
    catalogue = Dataset("a.parquet", storage=storage, columns=columns, chunk_size=chunk_size).open()
    found = [part for i in {catalogue.unit(i)[0] for i in range(len(catalogue))} for _, part in catalogue.read(i)]
    found = pa.concat_tables(found).sort_by([(columns[0], "ascending")])
    assert found.equals(table.select(columns).sort_by([(columns[0], "ascending")]))


def test_a_huge_row_group_is_read_once_window_by_window():
    table = {"v": np.arange(200_000), "w": np.arange(200_000) / 2}
    storage = Noted({"a.parquet": plain(table)})
    catalogue = Dataset("a.parquet", storage=storage, chunk_size=600_000).open()
    storage.note(num_at_once=1)
    (unit,) = {catalogue.unit(i) for i in range(len(catalogue))}
    tables = [part for _, part in catalogue.read(unit[0])]
    assert len(tables) == len(unit) > 4
    assert pa.concat_tables(tables).combine_chunks().equals(pa.table(table))
    asked = sorted(storage.asked)
    assert len(asked) > 8
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(asked))
    assert max(stop - start for start, stop in asked) <= 600_000


def test_ctrl_c_is_raised_even_where_reading_a_file_before_failed_as_well():
    class Interrupted(MemoryStorage):
        together = threading.Barrier(2)

        def read(self, url, offset, num_bytes):
            self.together.wait(20)
            raise KeyboardInterrupt if url == "t/1.parquet" else ValueError

    with pytest.raises(KeyboardInterrupt):
        Dataset("t", storage=Interrupted({"t/0.parquet": bytes(100), "t/1.parquet": bytes(100)})).open()


# ---------------------------------------------------------------------- objects that change


class Unproven:
    """A storage that cannot prove of which version is what it reads."""

    def __init__(self, inner):
        self.list, self.stat, self.read = inner.list, inner.stat, inner.read


@pytest.mark.parametrize("kind", [lambda storage: storage, Unproven], ids=["each read proves it", "none does"])
@pytest.mark.parametrize(("num_rows", "words"), [(50_000, "version .* then"), (40_000, "bytes then, .* now")])
def test_an_object_that_changed_is_not_read(kind, num_rows, words):
    storage = MemoryStorage({"a.parquet": plain({"v": np.zeros(50_000, int)})})
    catalogue = Dataset("a.parquet", storage=kind(storage)).open()
    storage.put("a.parquet", plain({"v": np.ones(num_rows, int)}))
    with pytest.raises(SourceChangedError, match=rf"a\.parquet has changed.*{words}.*refresh=True"):
        list(catalogue.read(0))


def test_an_object_overwritten_between_look_up_and_read_is_never_taken_for_the_old_one():
    class Overwritten(MemoryStorage):
        """Overwritten right before a read, whatever was looked up before."""

        is_armed = False

        def read(self, url, offset, num_bytes):
            if self.is_armed:
                self.is_armed = False
                self.put(url, plain({"v": np.ones(50_000, int)}))
            return super().read(url, offset, num_bytes)

    storage = Overwritten({"a.parquet": plain({"v": np.zeros(50_000, int)})})
    for kind in (lambda storage: storage, Unproven):
        catalogue = Dataset("a.parquet", storage=kind(storage)).open()
        storage.is_armed = True
        with pytest.raises(SourceChangedError, match=r"a\.parquet"):
            list(catalogue.read(0))
        storage.put("a.parquet", plain({"v": np.zeros(50_000, int)}))


# ---------------------------------------------------------------------- requests that get no answer


class Stuck(MemoryStorage):
    """Whose first read from when it is told to gets no answer before a second one is asked for."""

    turns = itertools.repeat(-1)

    def stick(self, *, fails):
        self.fails, self.turns = fails, itertools.count()
        self.is_asked_again, self.has_failed, self.is_over = (threading.Event() for _ in range(3))

    def read(self, url, offset, num_bytes):
        turn = next(self.turns)
        if turn == 0:
            assert self.is_asked_again.wait(60)
            self.has_failed.set()
            assert self.fails or self.is_over.wait(60)
            raise PermissionError("too late")
        if turn == 1:
            self.is_asked_again.set()
            assert not self.fails or self.has_failed.wait(60)
        return super().read(url, offset, num_bytes)


@pytest.mark.parametrize("fails", [False, True], ids=["never answered", "an error in the end"])
def test_a_request_that_is_far_slower_than_its_peers_is_asked_a_second_time_and_that_answer_counts(fails):
    values = np.arange(24 * 2_000)
    storage = Stuck({"a.parquet": plain({"v": values}, row_group_size=2_000)})
    catalogue = Dataset("a.parquet", storage=storage, chunk_size=20_000).open()
    assert len(catalogue) == 24
    for i in range(20):
        list(catalogue.read(i))
    storage.stick(fails=fails)
    try:
        ((_, table),) = catalogue.read(20)
    finally:
        storage.is_over.set()
    assert table["v"].to_pylist() == values[40_000:42_000].tolist()
