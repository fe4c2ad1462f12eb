"""Every sample is where `explain` says, and `find` is its inverse."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import write_files

from stoker import Dataset, Loader


def ids_of(folder, explanation):
    """Read the ids of the rows that an explanation names, straight from the files."""
    groups = {}
    for row in explanation:
        if (row.url, row.row_group) not in groups:
            table = pq.ParquetFile(row.url).read_row_group(row.row_group, columns=["id"])
            groups[row.url, row.row_group] = table["id"].to_pylist()
    return np.array([groups[row.url, row.row_group][row.row] for row in explanation], dtype=np.int64)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [300, 0, 1, 170, 64], row_group_size=64)


@pytest.mark.parametrize("chunk_size", ["1kB", "6kB", "32MiB"], ids=["split", "joined", "whole files"])
@pytest.mark.parametrize("settings", [{"shuffle": False}, {"shuffle": True, "seed": 3, "window": 2}], ids=str)
def test_every_sample_of_every_step_is_the_row_that_is_named(folder, chunk_size, settings):
    dataset = Dataset(folder, chunk_size=chunk_size)
    for rank in range(3):
        with Loader(dataset, batch_size=20, rank=rank, world_size=3, **settings) as loader:
            for epoch in range(2):
                for step, batch in enumerate(loader):
                    explanation = loader.explain(step, epoch=epoch)
                    np.testing.assert_array_equal(ids_of(folder, explanation), np.asarray(batch["id"]))


def test_padding_is_marked_where_the_batch_is_filled_up(folder):
    with Loader(Dataset(folder), batch_size=100, remainder="pad") as loader:
        last = loader.explain(len(loader) - 1)
        batch = list(loader)[-1]
    np.testing.assert_array_equal([not row.is_padding for row in last], batch["sample_mask"])
    assert last.is_padding.sum() == 600 - 535


def test_a_dropped_row_has_no_step(folder):
    with Loader(Dataset(folder), batch_size=500, remainder="drop") as loader:
        assert loader.find("part-00000.parquet", 0, 5).step == 0
        assert loader.find("part-00004.parquet", 0, 63).step is None


def test_behind_a_filter_samples_are_named_by_their_place_among_those_that_pass(folder):
    dataset = Dataset(folder, filters=[("flag", "=", True)], chunk_size="6kB")
    with Loader(dataset, batch_size=40) as loader:
        row = loader.explain(0)[1]
        assert (row.row_group, row.row, row.chunk_row) == (None, None, 1)
        with pytest.raises(ValueError, match="not known without reading"):
            loader.find("part-00000.parquet", 0, 5)


def test_behind_a_filter_that_a_whole_fragment_passes_rows_are_known(folder):
    dataset = Dataset(folder, filters=[("id", ">=", 0)], chunk_size="6kB")
    with Loader(dataset, batch_size=40) as loader:
        for step, batch in enumerate(loader):
            np.testing.assert_array_equal(ids_of(folder, loader.explain(step, epoch=0)), np.asarray(batch["id"]))
        assert loader.find("part-00003.parquet", 1, 3).step == (300 + 1 + 64 + 3) // 40


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("nope.parquet", 0, 0), "no file 'nope.parquet'"),
        (("part-00000.parquet", 9, 0), "5 row groups"),
        (("part-00000.parquet", 4, 44), "44 rows"),
        (("part-00000.parquet", 0, -1), "64 rows"),
    ],
)
def test_a_place_that_does_not_exist_is_refused_with_what_does(folder, place, words):
    with Loader(Dataset(folder), batch_size=40) as loader, pytest.raises(ValueError, match=words):
        loader.find(*place)


def test_a_file_name_that_two_files_end_in_is_refused(tmp_path):
    for day in ("a", "b"):
        (tmp_path / day).mkdir()
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / day / "part.parquet")
    with Loader(Dataset(tmp_path), batch_size=1) as loader:
        with pytest.raises(ValueError, match="2 files of the data set end in"):
            loader.find("part.parquet", 0, 0)
        assert loader.find("b/part.parquet", 0, 1).step == 3


def test_a_step_that_does_not_exist_is_refused(folder):
    with Loader(Dataset(folder), batch_size=40) as loader, pytest.raises(ValueError, match="lies outside"):
        loader.explain(len(loader))
