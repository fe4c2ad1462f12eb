"""How many threads build from a local disk."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Cache, Dataset, Field
from stoker.doctor.sample import SampledDataset
from stoker.loader.config import LoaderConfig
from stoker.loader.opened import open_datasets

NUM_THREADS = 4


def folder_of(path, *, num_files, num_rows, width=1):
    path.mkdir()
    rng = np.random.default_rng(0)
    for i in range(num_files):
        columns = {f"x{k}": rng.random(num_rows) for k in range(width)}
        pq.write_table(
            pa.table({"id": np.arange(i * num_rows, (i + 1) * num_rows), **columns}), path / f"{i:03}.parquet"
        )
    return str(path)


def crew_size(dataset, cache, *, cores=NUM_THREADS):
    with closing(open_datasets(dataset, LoaderConfig(batch_size=1, cache=Cache(cache)))) as opened:
        return opened.datasets[0].num_builders(NUM_THREADS, cores=cores)[0]


@pytest.mark.parametrize(
    ("num_rows", "size"),
    [
        (1_000, 1),  # 16 kB: nothing but Python
        (40_000, 2),  # 0.6 MB
        (150_000, NUM_THREADS),  # 2.4 MB
        (600_000, NUM_THREADS + 1),  # 9.6 MB: and one that publishes
    ],
)
def test_small_chunks_are_built_by_few_threads(tmp_path, num_rows, size):
    dataset = Dataset(folder_of(tmp_path / "lake", num_files=2, num_rows=num_rows))
    assert crew_size(dataset, tmp_path / "cache") == size


def test_with_a_core_left_one_more_publishes_chunks_of_any_size(tmp_path):
    dataset = Dataset(folder_of(tmp_path / "lake", num_files=2, num_rows=150_000))
    assert crew_size(dataset, tmp_path / "cache", cores=NUM_THREADS + 1) == NUM_THREADS + 1


def test_a_transform_is_run_by_as_many_threads_as_may(tmp_path):
    source = folder_of(tmp_path / "lake", num_files=2, num_rows=100)
    dataset = Dataset(source, transform=lambda table: table, transform_version="1")
    assert crew_size(dataset, tmp_path / "cache") == NUM_THREADS


@pytest.mark.parametrize(
    "options",
    [
        {"filters": [("id", "<", 100)]},
        {"columns": ["id"], "filters": [("x0", "<", 0.0001)]},
        {"fields": {f"x{k}": Field("float16") for k in range(8)}},
    ],
    ids=["filter", "filter of another column", "narrower"],
)
def test_what_is_read_for_a_chunk_counts_where_it_is_more_than_the_chunk(tmp_path, options):
    dataset = Dataset(folder_of(tmp_path / "lake", num_files=2, num_rows=30_000, width=8), **options)
    assert crew_size(dataset, tmp_path / "cache") == NUM_THREADS


def test_a_sample_of_a_data_set_is_built_by_as_many_threads_as_all_of_it(tmp_path):
    catalogue = Dataset(folder_of(tmp_path / "lake", num_files=100, num_rows=1_000)).open()
    sample = SampledDataset(catalogue, [catalogue.unit(3)], num_times=2)
    assert crew_size(sample, tmp_path / "cache") == 1
