"""Memory: what a loader takes is known, and epochs add nothing to it."""

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.page_cache import drop, drop_all

from stoker import Dataset, Loader

SMAPS = Path("/proc/self/smaps_rollup")
pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="the system does not tell")

# What an interpreter may take now and then for other things, 1 MiB at a time, or a window that is needed for the first
# time: epochs that each kept 105 kB would show.
GROWTH_BYTES = 3 << 20


def private_bytes(*, collects=True):
    """Memory that is this process's own."""
    if collects:
        gc.collect()
    lines = [line.split() for line in SMAPS.read_text().splitlines()[1:]]
    found = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}
    return found["Anonymous"]


def write(path, *, num_rows, rows_per_chunk, width):
    table = pa.table({f"x_{i}": np.arange(num_rows, dtype=np.int64) + i for i in range(width)})
    pq.write_table(table, path, row_group_size=rows_per_chunk, compression="none", use_dictionary=False)
    return Dataset(path, chunk_size=rows_per_chunk * width * 8)


@pytest.mark.parametrize("way", ["standing", "mapped", "read"])
def test_forty_epochs_take_no_more_memory_than_ten(way, tmp_path):
    cache, options = tmp_path / "cache", {"batch_size": 256, "shuffle": True, "window": 7, "num_threads": 2}
    dataset = write(tmp_path / "data.parquet", num_rows=40_000, rows_per_chunk=1_000, width=8)
    with Loader(dataset, cache=cache, **options) as loader:
        next(iter(loader))
    if way == "read":
        drop_all((cache / "chunks").glob("*"))
    # Where all chunks fit, but not twice, none stays mapped.
    with Loader(dataset, cache=cache, cache_limit="1GB" if way == "standing" else "4MB", **options) as loader:

        def epochs(num):
            for _ in range(num):
                if way == "read":
                    drop((cache / "chunks").glob("*"))  # but for what is mapped of the last window
                assert sum(len(batch["x_0"]) for batch in loader) == 40_000

        def growth_of_thirty():
            before = private_bytes()
            epochs(30)
            return private_bytes() - before

        epochs(10)
        # What the system rounds up to huge pages, of all that this process ran before, comes once; what epochs keep
        # comes again.
        assert growth_of_thirty() < GROWTH_BYTES or growth_of_thirty() < GROWTH_BYTES


def test_windows_that_are_read_take_three_times_their_bytes_at_most(tmp_path):
    num_rows, rows_per_chunk, width, window, batch_size = 1 << 17, 1 << 11, 32, 16, 512
    dataset = write(tmp_path / "data.parquet", num_rows=num_rows, rows_per_chunk=rows_per_chunk, width=width)
    with Loader(dataset, batch_size=batch_size, shuffle=True, cache=tmp_path / "cache", num_threads=2) as loader:
        for _ in loader:
            pass
    drop_all((tmp_path / "cache" / "chunks").glob("*"))
    before = private_bytes()
    # All chunks fit into the limit, but not twice: none stays mapped.
    options = {"window": window, "num_threads": 2, "prefetch": 4, "cache_limit": "50MB"}
    with Loader(dataset, batch_size=batch_size, shuffle=True, cache=tmp_path / "cache", **options) as loader:
        most = 0
        for step, _ in enumerate(loader):
            if step % 32 == 0:
                most = max(most, private_bytes() - before)
        window_bytes = window * rows_per_chunk * width * 8
        batch_bytes = batch_size * width * 8
        # Batches that wait, are made, are handed over, and lie unused; and what the interpreter takes beside.
        budget = 3 * window_bytes + 32 * batch_bytes
        assert window_bytes < most < 1.1 * budget
    assert private_bytes() - before < GROWTH_BYTES + 32 * batch_bytes


def test_a_closed_loader_leaves_no_memory_to_the_collector_of_garbage(tmp_path):
    """Who makes a loader an epoch has as much memory in use as with one; batches that are kept stay what they are."""
    dataset = write(tmp_path / "data.parquet", num_rows=40_000, rows_per_chunk=1_000, width=64)
    options = {"batch_size": 1024, "shuffle": True, "cache": tmp_path / "cache", "num_threads": 2}

    def epoch():
        with Loader(dataset, **options) as loader:
            batches = iter(loader)
            kept = next(batches)
            expected = kept["x_0"].copy()
            for _ in range(20):
                next(batches)
        assert np.array_equal(kept["x_0"], expected)

    epoch()
    before = private_bytes()
    gc.disable()
    try:
        for _ in range(3):
            epoch()
        taken = private_bytes(collects=False) - before
    finally:
        gc.enable()
    assert taken < 40 * 1024 * 64 * 8  # the batches of one
