"""The first chunk is tried when a loader is made, and chunks of the first batches are built beside it."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker.cache.builder
from stoker import Dataset, FieldError, Loader

NUM_CHUNKS, CHUNK_ROWS = 24, 50


def write(path, *, bad_chunk=None):
    """Write a file of 24 row groups, each of which becomes a chunk; one of them may hold a null."""
    ids = [*range(NUM_CHUNKS * CHUNK_ROWS)]
    if bad_chunk is not None:
        ids[bad_chunk * CHUNK_ROWS] = None
    table = pa.table({"id": pa.array(ids, pa.int64()), "x": np.zeros(len(ids))})
    # Without statistics, as some writers do it: otherwise the footer would already say where the null is.
    pq.write_table(table, path, row_group_size=CHUNK_ROWS, write_statistics=bad_chunk is None)


def dataset_in(tmp_path, **options):
    write(tmp_path / "data.parquet", **options)
    return Dataset(tmp_path / "data.parquet", chunk_size=CHUNK_ROWS * 16)


@pytest.fixture
def asked(monkeypatch):
    """Every chunk that was asked to be built."""
    numbers = []
    whole = stoker.cache.builder.Builder.build

    def noted(self, i, **options):
        numbers.append(i)
        return whole(self, i, **options)

    monkeypatch.setattr(stoker.cache.builder.Builder, "build", noted)
    return numbers


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_as_many_chunks_are_begun_as_threads_may_compute_and_all_belong_to_the_first_batches(
    num_threads, tmp_path, asked
):
    dataset = dataset_in(tmp_path)
    options = {"batch_size": 60, "shuffle": True, "seed": 5, "window": 6, "num_threads": num_threads}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        window = {int(chunk) for step in range(6 * CHUNK_ROWS // 60) for chunk in loader.explain(step).chunk}
    assert len(window) == 6
    assert len(asked) == len(set(asked)) == num_threads
    assert set(asked) - window <= {0}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        assert len(asked) == num_threads, "the first chunk is there: nothing is tried"
        ids = [int(i) for batch in loader for i in batch["id"]]
        assert loader.stats().num_built == NUM_CHUNKS - num_threads
    assert sorted(ids) == list(range(NUM_CHUNKS * CHUNK_ROWS))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "window": 3, "lanes": 2, "rank": 1, "world_size": 2},
        {"shuffle": False, "window": 1, "rank": 2, "world_size": 3},
        {"shuffle": True, "window": 4, "lanes": 3, "rank": 0, "world_size": 4, "remainder": "pad"},
        {"shuffle": True, "window": 2, "group_by": "x", "batch_size": 2},
    ],
    ids=["lanes", "plain", "padded", "groups"],
)
def test_what_is_begun_beside_the_first_chunk_is_of_the_windows_of_the_first_batch(options, tmp_path, asked):
    with Loader(dataset_in(tmp_path), **{"batch_size": 120, "num_threads": 9} | options) as loader:
        needed = {int(chunk) for chunk in loader.explain(0).chunk}
        assert needed <= set(asked)
        assert len(set(asked)) <= 9


def test_a_small_cache_is_not_filled_with_chunks_before_they_are_used(tmp_path, asked):
    with Loader(
        dataset_in(tmp_path), batch_size=60, shuffle=True, cache=tmp_path / "cache", cache_limit=NUM_CHUNKS << 10
    ):
        assert asked == [0]


def test_a_bad_value_in_the_first_chunk_is_raised_at_once(tmp_path):
    with pytest.raises(FieldError, match="row group 0"):
        Loader(dataset_in(tmp_path, bad_chunk=0), batch_size=60, shuffle=True, num_threads=2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-build")]


@pytest.mark.parametrize("bad_chunk", [1, 7, NUM_CHUNKS - 1])
def test_a_bad_value_in_another_chunk_belongs_to_the_step_that_needs_it(bad_chunk, tmp_path):
    options = {"batch_size": 60, "shuffle": True, "seed": 5, "window": 3, "num_threads": 8}
    with Loader(dataset_in(tmp_path, bad_chunk=bad_chunk), **options) as loader:
        chunks = [set(loader.explain(step).chunk.tolist()) for step in range(len(loader))]
        last = next(step for step, used in enumerate(chunks) if bad_chunk in used)
        first = 3 * CHUNK_ROWS * (last * 60 // (3 * CHUNK_ROWS)) // 60  # of the window that has the chunk
        seen = []
        with pytest.raises(FieldError, match=f"row group {bad_chunk}"):
            seen.extend(loader)
        assert first <= len(seen) <= last
