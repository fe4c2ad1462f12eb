"""Transforms in processes of their own."""

import functools
import multiprocessing
import os

import pytest
from tests.strategies import write_files
from tests.unit.cache.transforms import changing, doubled, dying, failing

import stoker
from stoker import FieldMismatchError, TransformError
from stoker.testing import MemoryStorage


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def loader_of(tmp_path):
    """Return a loader of 421 rows in three files, in chunks of a row group, with a transform."""
    data = write_files(tmp_path / "data", [100, 257, 64])

    def make(transform, *, transform_in="processes", num_threads=1):
        dataset = stoker.Dataset(data, chunk_size=4000, transform=transform, transform_version="1")
        options = {"num_threads": num_threads, "transform_in": transform_in, "cache": tmp_path / "cache"}
        return stoker.Loader(dataset, batch_size=20, **options)

    return make


def test_processes_build_what_threads_would_and_are_not_started_where_nothing_is_missing(loader_of):
    for num_built in (7, 0):
        with loader_of(doubled, num_threads=2) as loader:
            batches = [(batch["x"].tolist(), batch["pid"].tolist()) for batch in loader]
            assert loader.stats().num_built == num_built
            assert len(multiprocessing.active_children()) in ((1, 2) if num_built else (0,))
        assert [x for some, _ in batches for x in some] == [2 * i for i in range(421)]
        pids = {pid for _, some in batches for pid in some}
        assert len(pids) <= 2
        assert os.getpid() not in pids


def test_an_exception_in_a_process_is_raised_here_with_its_traceback_and_the_next_call_is_answered(loader_of):
    with loader_of(functools.partial(failing, at=200)) as loader:
        for _ in range(2):
            seen = []
            with pytest.raises(TransformError, match="no such crossing") as caught:
                seen.extend(x for batch in loader for x in batch["x"].tolist())
            assert "part-00001.parquet row group 1" in caught.value.fragment
            assert any("in failing" in note for note in caught.value.__notes__)
            assert seen == list(range(160))


def test_the_kind_of_an_error_survives_the_way_back(loader_of):
    with loader_of(changing) as loader, pytest.raises(FieldMismatchError, match="its dtype is int32"):
        list(loader)


def test_a_process_that_dies_is_an_error_of_its_chunk_and_is_replaced(loader_of):
    with loader_of(dying) as loader:
        for _ in range(2):
            with pytest.raises(TransformError, match=r"exit code 7 while it had .*part-00001\.parquet row groups 3-4"):
                list(loader)


def test_a_transform_that_cannot_be_sent_to_a_process_is_a_value_error_with_the_way_out(loader_of):
    with pytest.raises(ValueError, match="module-level function"):
        loader_of(lambda table: table)


def test_a_storage_that_no_process_could_be_told_of_reads_for_a_transform_in_processes(tmp_path):
    folder = write_files(tmp_path / "data", [10])
    storage = MemoryStorage({"lake/a.parquet": (folder / "part-00000.parquet").read_bytes()})
    dataset = stoker.Dataset("lake/", storage=storage, transform=doubled, transform_version="1")
    with stoker.Loader(dataset, batch_size=10, transform_in="processes", num_threads=1) as loader:
        (batch,) = loader
    assert batch["x"].tolist() == list(range(0, 20, 2))
    assert set(batch["pid"].tolist()) != {os.getpid()}
