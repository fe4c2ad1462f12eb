"""The first chunk is tried when a loader is made, and chunks of the first batches are built beside it."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, FieldError, Loader
from stoker.testing import MemoryStorage

NUM_CHUNKS, CHUNK_ROWS = 24, 2_000


class Noted(MemoryStorage):
    """One file of 24 row groups, each of which becomes a chunk; notes which of them were read.

    Args:
        bad_chunk: Number of one that holds a null.
    """

    def __init__(self, *, bad_chunk=None):
        ids = [*range(NUM_CHUNKS * CHUNK_ROWS)]
        if bad_chunk is not None:
            ids[bad_chunk * CHUNK_ROWS] = None
        table = pa.table({"id": pa.array(ids, pa.int64()), "x": np.random.default_rng(0).random(len(ids))})
        sink = pa.BufferOutputStream()
        # Without statistics, as some writers do it: otherwise the footer would already say where the null is.
        pq.write_table(table, sink, row_group_size=CHUNK_ROWS, write_statistics=bad_chunk is None)
        content = sink.getvalue().to_pybytes()
        super().__init__({"lake/data.parquet": content})
        groups = map(pq.read_metadata(pa.BufferReader(content)).row_group, range(NUM_CHUNKS))
        columns = [group.column(0) for group in groups]
        self._begins = np.array([one.dictionary_page_offset or one.data_page_offset for one in columns])
        self.chunks = []

    def read_version(self, info, offset, num_bytes):
        number = int(np.searchsorted(self._begins, offset))
        if number < NUM_CHUNKS and self._begins[number] - offset <= len(b"PAR1"):  # else it is the footer
            self.chunks.append(number)
        return super().read_version(info, offset, num_bytes)

    @property
    def dataset(self):
        return Dataset("lake/data.parquet", storage=self, chunk_size=CHUNK_ROWS * 16)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_as_many_chunks_are_begun_as_threads_may_compute_and_all_belong_to_the_first_batches(num_threads, tmp_path):
    lake, size = Noted(), CHUNK_ROWS + CHUNK_ROWS // 5
    options = {"batch_size": size, "shuffle": True, "seed": 5, "window": 6, "num_threads": num_threads}
    with Loader(lake.dataset, cache=tmp_path / "cache", **options) as loader:
        window = {int(chunk) for step in range(6 * CHUNK_ROWS // size) for chunk in loader.explain(step).chunk}
    assert len(window) == 6
    assert len(lake.chunks) == len(set(lake.chunks)) == num_threads
    assert set(lake.chunks) - window <= {0}
    with Loader(lake.dataset, cache=tmp_path / "cache", **options) as loader:
        assert len(lake.chunks) == num_threads, "the first chunk is there: nothing is tried"
        ids = [int(i) for batch in loader for i in batch["id"]]
        assert loader.stats().num_built == NUM_CHUNKS - num_threads
    assert sorted(ids) == list(range(NUM_CHUNKS * CHUNK_ROWS))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "window": 3, "lanes": 2, "rank": 1, "world_size": 2},
        {"shuffle": False, "window": 1, "rank": 2, "world_size": 3},
        {"shuffle": True, "window": 4, "lanes": 3, "rank": 0, "world_size": 4, "remainder": "pad"},
        {"shuffle": True, "window": 2, "group_by": "x"},
    ],
    ids=["lanes", "plain", "padded", "groups"],
)
def test_what_is_begun_beside_the_first_chunk_is_of_the_windows_of_the_first_batch(options):
    lake = Noted()
    with Loader(lake.dataset, batch_size=1_200, num_threads=9, **options) as loader:
        needed = {int(chunk) for chunk in loader.explain(0).chunk}
    assert needed <= set(lake.chunks)
    assert "group_by" in options or len(lake.chunks) <= 9


def test_a_small_cache_is_not_filled_with_chunks_before_they_are_used(tmp_path):
    lake = Noted()
    with Loader(
        lake.dataset, batch_size=60, shuffle=True, cache=tmp_path / "cache", cache_limit=NUM_CHUNKS * CHUNK_ROWS * 20
    ):
        assert lake.chunks == [0]


def test_a_bad_value_in_the_first_chunk_is_raised_at_once():
    with pytest.raises(FieldError, match="row group 0"):
        Loader(Noted(bad_chunk=0).dataset, batch_size=60, shuffle=True, num_threads=2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-build")]


@pytest.mark.parametrize("bad_chunk", [1, 7, NUM_CHUNKS - 1])
def test_a_bad_value_in_another_chunk_belongs_to_the_step_that_needs_it(bad_chunk):
    size = CHUNK_ROWS + CHUNK_ROWS // 5
    options = {"batch_size": size, "shuffle": True, "seed": 5, "window": 3, "num_threads": 8}
    with Loader(Noted(bad_chunk=bad_chunk).dataset, **options) as loader:
        chunks = [set(loader.explain(step).chunk.tolist()) for step in range(len(loader))]
        last = next(step for step, used in enumerate(chunks) if bad_chunk in used)
        first = 3 * CHUNK_ROWS * (last * size // (3 * CHUNK_ROWS)) // size  # of the window that has the chunk
        seen = []
        with pytest.raises(FieldError, match=f"row group {bad_chunk}"):
            seen.extend(loader)
        assert first <= len(seen) <= last
