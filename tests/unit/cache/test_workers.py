import functools
import multiprocessing
import os
import signal
import threading
import time

import pyarrow as pa
import pytest
from tests.strategies import write_files
from tests.unit.cache.chunk_files import read_arrays
from tests.unit.cache.transforms import changing, doubled, dying, failing, waiting

import stoker
from stoker import FieldMismatchError, TransformError
from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.cache.workers import TransformProcesses
from stoker.loader.fill import warm
from stoker.testing import MemoryStorage


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "cache") as store:
        yield store


@pytest.fixture
def made(tmp_path, store):
    """Open the data set with a transform, and give catalogue and builder."""
    builders = []

    def make(transform, *, num_processes=2):
        folder = write_files(tmp_path / "data", [100, 257, 64])
        dataset = stoker.Dataset(folder, chunk_size=4000, transform=transform, transform_version="1")
        catalogue = dataset.open(store.path)
        builder = Builder(catalogue, store, num_computing=num_processes, num_processes=num_processes)
        builders.append(builder)
        return catalogue, builder

    yield make
    for builder in builders:
        builder.close()
        builder.close()
    assert multiprocessing.active_children() == []


def test_processes_build_what_threads_would(made, store, tmp_path):
    catalogue, builder = made(doubled)
    assert warm(builder, pool=AdaptivePool(2)).num_done == len(catalogue)
    pids, ids = set(), []
    for i in range(len(catalogue)):
        arrays = read_arrays(store.path_of(catalogue.key(i)))
        pids |= set(arrays["pid"].tolist())
        ids += arrays["x"].tolist()
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert ids == [2 * i for i in range(421)]
    assert store.counts()["num_built"] == len(catalogue)


def test_an_exception_in_a_process_is_raised_here_with_its_traceback(made, store):
    catalogue, builder = made(functools.partial(failing, at=200), num_processes=1)
    i = next(i for i, f in enumerate(catalogue.fragments) if "part-00001" in f.url and f.row_groups.start == 1)
    for _ in range(2):
        with pytest.raises(TransformError, match="no such crossing") as caught:
            builder.build(i)
        assert caught.value.fragment == str(catalogue.fragments[i])
        assert any("in failing" in note for note in caught.value.__notes__)
    assert builder.build(0)
    assert builder.build(len(catalogue) - 1)


def test_the_kind_of_an_error_survives_the_way_back(made):
    _, builder = made(changing, num_processes=1)
    with pytest.raises(FieldMismatchError, match="its dtype is int32"):
        builder.build(1)


def test_a_process_that_dies_is_an_error_of_its_chunk_and_is_replaced(made):
    catalogue, builder = made(dying, num_processes=1)
    results = {}
    for i in range(len(catalogue)):
        try:
            results[i] = builder.build(i)
        except TransformError as error:
            results[i] = str(error)
    errors = [result for result in results.values() if result is not True]
    assert len(errors) == 1
    assert "exit code 7" in errors[0]


def test_what_an_interrupted_call_had_asked_for_is_not_the_answer_to_the_next_one(tmp_path):
    processes = TransformProcesses(functools.partial(waiting, folder=tmp_path), 1)

    def interrupt():
        while not (tmp_path / "begun").exists():
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            processes(pa.table({"id": [1, 2, 3]}), "one")
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    (tmp_path / "goes on").touch()
    assert processes(pa.table({"id": [4, 5, 6]}), "another")["x"].tolist() == [4, 5, 6]
    processes.close()
    assert multiprocessing.active_children() == []


def test_a_transform_that_cannot_be_sent_to_a_process_is_a_value_error_with_the_way_out(tmp_path):
    folder = write_files(tmp_path / "data", [10])
    dataset = stoker.Dataset(folder, transform=lambda table: table, transform_version="1")
    with pytest.raises(ValueError, match="module-level function"):
        stoker.Loader(dataset, batch_size=5, transform_in="processes")


def test_a_storage_that_no_process_could_be_told_of_reads_for_a_transform_in_processes(tmp_path):
    folder = write_files(tmp_path / "data", [10])
    storage = MemoryStorage({"lake/a.parquet": (folder / "part-00000.parquet").read_bytes()})
    dataset = stoker.Dataset("lake/", storage=storage, transform=doubled, transform_version="1")
    with stoker.Loader(dataset, batch_size=10, transform_in="processes", num_threads=1) as loader:
        (batch,) = loader
    assert batch["x"].tolist() == list(range(0, 20, 2))
    assert set(batch["pid"].tolist()) != {os.getpid()}


def test_no_process_is_started_where_nothing_is_missing(made, store):
    catalogue, builder = made(doubled)
    here = Builder(catalogue, store)
    assert all(here.build(i) for i in range(len(catalogue)))
    assert all(builder.build(i) for i in range(len(catalogue)))
    assert multiprocessing.active_children() == []
