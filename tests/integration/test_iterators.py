"""Loaders and their iterators where threads and forks share them, and where an epoch has no step."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.batches import ids_of
from tests.processes import in_threads
from tests.strategies import write_files

import stoker

NUM_ROWS = 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("iterators"), [400, 500], row_group_size=50)


@pytest.fixture(params=["cache", "no cache"])
def options(request, tmp_path):
    return {"batch_size": 7, "shuffle": True, "cache": tmp_path / "cache" if request.param == "cache" else None}


def loader_of(folder, **options):
    return stoker.Loader(stoker.Dataset(folder, chunk_size=4000), num_threads=2, **options)


def in_a_fork(work: Callable[[], object]) -> object:
    """Return what a forked child makes of it, or the error; a child that hangs is ended by a signal."""
    receives, sends = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receives)
        signal.alarm(60)
        try:
            found: object = work()
        except BaseException as error:
            found = error
        with os.fdopen(sends, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(sends)
    with os.fdopen(receives, "rb") as file:
        told = file.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child hung, or died"
    return pickle.loads(told)


# ---------------------------------------------------------------------- forks


@pytest.mark.parametrize("prefetch", [None, 0])
def test_in_a_fork_a_loader_and_its_iterator_are_an_error_and_a_new_loader_works(folder, options, prefetch):
    with loader_of(folder, prefetch=prefetch, **options) as loader:
        fresh = in_a_fork(lambda: next(iter(loader)))
        assert isinstance(fresh, RuntimeError)
        assert "make a loader of your own" in str(fresh)
        batches = iter(loader)
        seen = ids_of([next(batches)])
        for use in (lambda: next(batches), lambda: next(iter(loader)), loader.stats):
            error = in_a_fork(use)
            assert isinstance(error, RuntimeError)
            assert f"belongs to process {os.getpid()}" in str(error)

        def own():
            with loader_of(folder, **options) as mine:
                return sorted(ids_of(mine))

        assert in_a_fork(own) == list(range(NUM_ROWS))
        seen += ids_of(batches)
        assert sorted(seen) == list(range(NUM_ROWS))


def test_a_fork_that_closes_a_loader_takes_nothing_from_its_parent(folder, options):
    with loader_of(folder, **options) as loader:
        batches = iter(loader)
        seen = ids_of([next(batches)])
        assert in_a_fork(loader.close) is None
        seen += ids_of(batches)
        assert sorted(seen) == list(range(NUM_ROWS))
        assert sorted(ids_of(loader)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("num_forks", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_loaders_made_in_forks_of_a_busy_process_have_every_row(folder, tmp_path, num_forks):
    for number in range(num_forks):
        options = {"batch_size": 5, "shuffle": True, "cache": tmp_path / f"cache-{number % 3}"}
        with loader_of(folder, **options) as loader:
            for step, _ in enumerate(loader):
                if step == number:  # another moment each time

                    def own(options=options):
                        with loader_of(folder, **options) as mine:
                            return sorted(ids_of(mine))

                    assert in_a_fork(own) == list(range(NUM_ROWS))
                    break


def test_a_fork_made_while_a_thread_connects_to_a_store_loads_from_another_one(folder):
    fsspec = pytest.importorskip("fsspec", reason="late:// is opened through fsspec: pip install 'stoker[fsspec]'")
    connecting, go_on = threading.Event(), threading.Event()

    class LateFileSystem(fsspec.AbstractFileSystem):
        protocol, cachable = "late", False

        def __init__(self, **options):
            super().__init__(**options)
            connecting.set()
            go_on.wait(120)

        def ls(self, path, detail=True, **options):
            raise FileNotFoundError(path)

    def own():
        with loader_of(folder, batch_size=7) as mine:
            return sorted(ids_of(mine))

    fsspec.register_implementation("late", LateFileSystem, clobber=True)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(stoker.Dataset("late://lake/data").open)
        try:
            assert connecting.wait(60)
            assert in_a_fork(own) == list(range(NUM_ROWS))
        finally:
            go_on.set()
        assert isinstance(opening.exception(60), stoker.SourceMissingError)


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("num_threads", [2, 5])
def test_threads_that_share_an_iterator_get_each_batch_once_and_all_come_to_the_end(folder, prefetch, num_threads):
    with loader_of(folder, batch_size=3, shuffle=True, prefetch=prefetch) as loader:
        for epoch in range(3):
            seen = in_threads(ids_of, [iter(loader)] * num_threads)  # each until there is no batch
            assert sorted(i for ids in seen for i in ids) == list(range(NUM_ROWS))
            assert loader.state_dict()["epoch"] == epoch + 1


@pytest.mark.parametrize("prefetch", [None, 0])
def test_where_a_loader_stands_only_goes_forward_for_threads_that_ask_while_another_takes_batches(folder, prefetch):
    with loader_of(folder, batch_size=3, shuffle=True, prefetch=prefetch) as loader:
        begin, is_over, lengths, told = threading.Barrier(4), threading.Event(), [], []

        def ask():
            begin.wait(timeout=60)
            lengths.append(len(loader))  # all at once, and perhaps the first to need its ranks
            found = []
            while not is_over.is_set():
                state, stats = loader.state_dict(), loader.stats()
                found.append((state["epoch"], state["num_consumed"], stats.num_steps))
            told.append(found)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        begin.wait(timeout=60)
        seen = [sorted(ids_of(loader)) for _ in range(2)]
        is_over.set()
        for thread in threads:
            thread.join(timeout=60)
        assert seen == [list(range(NUM_ROWS))] * 2
        assert lengths == [NUM_ROWS // 3] * 3
        assert len(told) == 3
        assert all(found == sorted(found) for found in told)


# ---------------------------------------------------------------------- epochs without steps


@pytest.mark.parametrize(
    ("filters", "options"),
    [
        (None, {"batch_size": NUM_ROWS + 1, "remainder": "drop"}),
        (None, {"batch_size": NUM_ROWS, "remainder": "drop", "rank": 1, "world_size": 2}),
        ([("id", "<", 0)], {"batch_size": 8}),
    ],
    ids=["too few for a batch", "too few for all ranks", "none left by the filter"],
)
def test_an_epoch_without_a_step_counts_and_says_why(folder, caplog, filters, options):
    num_batches = 0
    with stoker.Loader(stoker.Dataset(folder, filters=filters), **options) as loader:
        assert len(loader) == 0
        while loader.epoch < 3:
            num_batches += len(list(loader))
        assert num_batches == 0
        assert loader.state_dict()["epoch"] == 3
    assert sum("over without a step" in message for message in caplog.messages) == 3


def test_what_is_left_of_an_epoch_may_be_no_step_and_the_next_one_follows(folder):
    dataset = stoker.Dataset(folder)
    with stoker.Loader(dataset, batch_size=100) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        state = loader.state_dict()
    with stoker.Loader(dataset, batch_size=150, remainder="drop") as loader:
        loader.load_state_dict(state)  # 100 rows are left
        seen = []
        while loader.epoch < 2:
            seen += ids_of(loader)
        assert seen == list(range(NUM_ROWS))
