"""What a loader does when something goes wrong, is let go, or is told to go somewhere else."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes import wait_until
from tests.strategies import check_samples, sample_table, write_files

import stoker
from stoker.testing import MemoryStorage, write_parquet

NUM_ROWS = 600
PATIENCE_S = 60


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three files of 200 rows, row groups of 50; with chunks of 4,000 bytes each row group is a chunk."""
    return write_files(tmp_path / "data", [200, 200, 200], row_group_size=50)


def dataset_of(folder, **options) -> stoker.Dataset:
    return stoker.Dataset(folder, chunk_size=4000, **options)


def ids_of(batches) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


def told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


# ---------------------------------------------------------------------- errors reach the step


def fails_at_450(table: pa.Table) -> pa.Table:
    if 450 in table["id"].to_pylist():
        raise ZeroDivisionError("four hundred and fifty")
    return table


@pytest.mark.parametrize("transform_in", ["threads", "processes"])
def test_an_error_in_the_transform_reaches_the_step_that_needs_its_rows(folder, transform_in, tmp_path):
    dataset = dataset_of(folder, transform=fails_at_450, transform_version="1")
    seen = []
    options = {"cache": tmp_path / "cache", "transform_in": transform_in}
    with stoker.Loader(dataset, batch_size=30, window=1, **options) as loader:
        with pytest.raises(stoker.TransformError) as caught:
            seen.extend(loader)
        assert ids_of(seen) == list(range(450))
        assert loader.state_dict()["num_consumed"] == 450
    text = told(caught.value)
    for word in ("four hundred and fifty", "part-00002.parquet", "row group 1", "transform", "needed by step 15"):
        assert word in text, text


def test_without_shuffling_the_first_batches_do_not_wait_for_chunks_far_ahead(folder):
    dataset = dataset_of(
        folder, transform=fails_at_450, transform_version="1"
    )  # in the last of three windows of four chunks
    seen = []
    with stoker.Loader(dataset, batch_size=50, num_threads=1) as loader:
        with pytest.raises(stoker.TransformError):
            seen.extend(loader)
        assert ids_of(seen) == list(range(400))


def test_after_an_error_the_next_for_begins_the_epoch_again(folder):
    dataset = dataset_of(folder, transform=fails_at_450, transform_version="1")
    with stoker.Loader(dataset, batch_size=50, window=1) as loader:
        for _ in range(2):
            seen = []
            with pytest.raises(stoker.TransformError):
                seen.extend(loader)
            assert ids_of(seen) == list(range(450))


def test_a_corrupt_page_is_a_source_error_that_names_file_and_row_group(folder):
    path = folder / "part-00001.parquet"
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    with stoker.Loader(dataset_of(folder), batch_size=50, window=1) as loader:
        seen = []
        with pytest.raises(stoker.SourceError) as caught:
            seen.extend(loader)
    assert ids_of(seen) == list(range(300))
    assert caught.value.url.endswith("part-00001.parquet")
    assert "row group 2" in told(caught.value)
    assert "needed by step 6" in told(caught.value)


def test_a_file_that_is_removed_in_mid_epoch_is_a_missing_source(tmp_path):
    storage = MemoryStorage()
    num_files = 20  # more chunks than are built ahead of the first batch
    for i in range(num_files):
        write_parquet(storage, sample_table(200, first=200 * i), url=f"lake/{i:02}.parquet", row_group_size=50)
    dataset = stoker.Dataset("lake", storage=storage, chunk_size=4000)
    with stoker.Loader(dataset, batch_size=50, window=1, prefetch=1, num_threads=1) as loader:
        iterator = iter(loader)
        seen = [next(iterator)]
        storage.delete(f"lake/{num_files - 1}.parquet")
        with pytest.raises(stoker.SourceMissingError, match=r"lake/19\.parquet"):
            seen.extend(iterator)
    # All that other files hold came, in order. The file was read whole with its footer, and those bytes serve whichever
    # of its chunks is built first: often, but not always, the one that is needed first.
    num_before = 200 * (num_files - 1)
    assert ids_of(seen) in (list(range(num_before)), list(range(num_before + 50)))


def test_a_file_that_changes_in_mid_epoch_is_a_changed_source(tmp_path):
    folder = write_files(tmp_path / "data", [200] * 20, row_group_size=50)  # more than is built ahead
    with stoker.Loader(dataset_of(folder), batch_size=50, window=1, prefetch=1, num_threads=1) as loader:
        iterator = iter(loader)
        next(iterator)
        path = folder / "part-00019.parquet"
        pq.write_table(sample_table(200, first=5000), path, row_group_size=50)
        os.utime(path, ns=(1, 1))
        with pytest.raises(stoker.SourceChangedError, match=r"part-00019\.parquet"):
            list(iterator)


@pytest.mark.parametrize(("num_threads", "prefetch"), [(1, 16), (2, 8), (1, 0)])
@pytest.mark.parametrize("failing", [0, 1, 2, 9, 17, 18, 30])
def test_an_error_in_augment_reaches_its_step_behind_the_batches_made_together_with_it(
    folder, failing, num_threads, prefetch
):
    def augment(batch, rng):
        if batch["id"][0] == 10 * failing:
            raise ValueError("not this one")
        return batch

    options = {"num_threads": num_threads, "prefetch": prefetch, "augment": augment}
    with stoker.Loader(dataset_of(folder), batch_size=10, **options) as loader:
        batches = iter(loader)
        assert ids_of([next(batches) for _ in range(failing)]) == list(range(10 * failing))
        with pytest.raises(ValueError, match="not this one") as caught:
            next(batches)
        assert f"needed by step {failing} " in told(caught.value)
        assert list(batches) == []


# ---------------------------------------------------------------------- nothing is left behind


def stoker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker")]


def assert_threads_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("stoker"):
            thread.join(PATIENCE_S)
    assert stoker_threads() == []


def test_an_iterator_that_is_let_go_ends_its_threads(folder):
    with stoker.Loader(dataset_of(folder), batch_size=10) as loader:
        for _ in loader:
            assert stoker_threads()
            break
        assert_threads_end()


def test_a_loader_and_iterator_in_a_cycle_of_garbage_end_their_threads(folder):
    loader = stoker.Loader(dataset_of(folder), batch_size=10)
    cycle = {"iterator": iter(loader), "loader": loader}
    next(cycle["iterator"])
    cycle["self"] = cycle
    del cycle, loader
    gc.collect()
    assert_threads_end()


def test_garbage_that_is_collected_in_a_thread_of_its_own_run_ends_its_threads(folder):
    """Python collects garbage in whatever thread is running, also in one that assembles the garbage's batches."""
    is_abandoned, collected = threading.Event(), threading.Event()
    turn = threading.Lock()  # never given back: who collects beside a collection is told at once that it is done

    def augment(batch, rng):
        if batch["id"][0] >= 10 and is_abandoned.wait(PATIENCE_S) and turn.acquire(blocking=False):
            gc.collect()
            collected.set()
        return batch

    gc.disable()
    try:
        loader = stoker.Loader(dataset_of(folder), batch_size=10, augment=augment, num_threads=2, prefetch=2)
        cycle = {"iterator": iter(loader), "loader": loader}
        cycle["self"] = cycle
        next(cycle["iterator"])
        del cycle, loader
        is_abandoned.set()
        assert collected.wait(PATIENCE_S)
    finally:
        gc.enable()
    assert_threads_end()


def test_an_exception_in_the_body_closes_the_loader_and_is_the_one_that_comes_out(folder):
    def train():
        with stoker.Loader(dataset_of(folder), batch_size=10) as loader:
            for _ in loader:
                raise KeyError("the body's own")

    with pytest.raises(KeyError, match="the body"):
        train()
    gc.collect()
    assert stoker_threads() == []


def test_batches_stay_what_they_were_when_the_loader_is_closed(folder):
    with stoker.Loader(dataset_of(folder), batch_size=70, shuffle=True) as loader:
        batches = list(loader)
    assert sorted(ids_of(batches)) == list(range(NUM_ROWS))
    for batch in batches:
        check_samples(batch)


def test_a_closed_loader_says_so_instead_of_ending_the_epoch_early(folder):
    loader = stoker.Loader(dataset_of(folder), batch_size=10)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)
    assert loader.state_dict()["num_consumed"] == 10


def test_a_loader_that_a_signals_handler_closes_while_its_first_batch_is_asked_for_says_so(folder):
    class Signalling(logging.Handler):
        def emit(self, record):
            signal.raise_signal(signal.SIGUSR1)

    # A loader warns, in the middle of finding its share, that one of its ranks gets nothing.
    loader = stoker.Loader(dataset_of(folder), global_batch_size=1, rank=0, world_size=2)
    handler, log = Signalling(logging.WARNING), logging.getLogger("stoker")
    before = signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    log.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="the loader is closed"):
            next(iter(loader))
    finally:
        log.removeHandler(handler)
        signal.signal(signal.SIGUSR1, before)


class HeldStorage(MemoryStorage):
    """Objects in memory; once told to, reads wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.is_reading = threading.Event()
        self.let_go = threading.Event()

    def read(self, url, offset, num_bytes):
        if self.holds:
            self.is_reading.set()
            assert self.let_go.wait(timeout=PATIENCE_S)
        return super().read(url, offset, num_bytes)


def test_close_frees_a_loop_that_waits_for_a_batch():
    storage = HeldStorage()
    write_parquet(storage, sample_table(400), url="lake/a.parquet", row_group_size=50)
    loader = stoker.Loader(stoker.Dataset("lake", storage=storage, chunk_size=4000), batch_size=200)
    storage.holds = True
    raised = []

    def train():
        try:
            list(loader)
        except RuntimeError as error:
            raised.append(str(error))

    loop = threading.Thread(target=train)
    loop.start()
    assert storage.is_reading.wait(timeout=60)
    closing = threading.Thread(target=loader.close)
    closing.start()
    wait_until(lambda: not any(name.startswith("stoker-batch") for name in stoker_threads()))  # it is being closed
    storage.let_go.set()
    loop.join(timeout=60)
    closing.join(timeout=60)
    assert not loop.is_alive()
    assert not closing.is_alive()
    assert len(raised) == 1
    assert "closed" in raised[0]


def test_closing_tries_no_read_again_that_fails_meanwhile():
    failed = []

    class FailingStorage(HeldStorage):
        def read(self, url, offset, num_bytes):
            data = super().read(url, offset, num_bytes)
            if self.holds:
                failed.append(offset)
                raise ConnectionResetError("reset by peer")
            return data

    storage = FailingStorage()
    write_parquet(storage, sample_table(400), url="lake/a.parquet", row_group_size=50)
    loader = stoker.Loader(stoker.Dataset("lake", storage=storage, chunk_size=4000), batch_size=200)
    storage.holds = True
    batches = iter(loader)

    def train():
        with pytest.raises((RuntimeError, stoker.SourceError)):
            next(batches)

    loop = threading.Thread(target=train)
    loop.start()
    assert storage.is_reading.wait(timeout=60)
    closing = threading.Thread(target=loader.close)
    closing.start()
    loop.join(timeout=1)  # it may have to wait for its own run's close
    storage.let_go.set()
    loop.join(timeout=60)
    closing.join(timeout=60)
    assert not loop.is_alive()
    assert not closing.is_alive()
    assert failed
    assert len(set(failed)) == len(failed)


def test_letting_an_iterator_go_waits_for_nothing_and_the_next_epoch_has_all_its_rows(folder):
    """A Ctrl-C during such a wait would be lost: nothing is raised from where Python lets go of an object."""
    is_held, goes_on = threading.Event(), threading.Event()

    def augment(batch, rng):
        if batch["id"][0] >= 100:
            is_held.set()
            assert goes_on.wait(PATIENCE_S)
        return batch

    with stoker.Loader(dataset_of(folder), batch_size=10, augment=augment, prefetch=2, num_threads=1) as loader:
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        assert is_held.wait(PATIENCE_S)
        del batches
        assert "stoker-close" in stoker_threads()
        goes_on.set()
        assert ids_of(loader) == list(range(NUM_ROWS))


def test_closing_goes_on_when_it_is_interrupted(folder):
    """A folder in memory that Ctrl-C left behind would take its room until another process sweeps it."""
    is_held, goes_on = threading.Event(), threading.Event()

    def augment(batch, rng):
        if batch["id"][0] >= 10:
            is_held.set()
            assert goes_on.wait(PATIENCE_S)
        return batch

    loader = stoker.Loader(dataset_of(folder), batch_size=10, augment=augment, prefetch=2, num_threads=1)
    (temporary,) = Path("/dev/shm").glob(f"stoker-{os.getpid()}-*")
    batches = iter(loader)
    next(batches)
    assert is_held.wait(PATIENCE_S)

    def interrupt():
        # Closing has begun, and waits for the batch that is made.
        wait_until(lambda: not any(name.startswith("stoker-build") for name in stoker_threads()))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        goes_on.set()

    interrupting = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background may have ignored
    try:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            loader.close()
    finally:
        interrupting.join(PATIENCE_S)
        signal.signal(signal.SIGINT, before)
    with pytest.raises(RuntimeError, match="closed"):
        list(batches)
    assert_threads_end()
    assert not temporary.exists()


TRAINING = """
    import signal, sys
    import stoker
    from tests.strategies import sample_table
    from stoker.testing import MemoryStorage, SlowStorage, write_parquet

    def passes(table):
        return table

    def main():
        # Whoever started the tests in the background of a shell has had Ctrl-C ignored, for all that follows.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        folder, cache, transform_in, latency_s = sys.argv[1], sys.argv[2] or None, sys.argv[3], float(sys.argv[4])
        transform = dict(transform=passes, transform_version="1") if transform_in == "processes" else {}
        storage = None
        if latency_s:
            inner = MemoryStorage()
            write_parquet(inner, sample_table(4000), url="lake/a.parquet", row_group_size=50)
            storage, folder = SlowStorage(inner, latency_s=latency_s), "lake"
        dataset = stoker.Dataset(folder, chunk_size=4000, storage=storage, **transform)
        with stoker.Loader(dataset, batch_size=40, cache=cache, transform_in=transform_in) as loader:
            while True:
                for batch in loader:
                    print("step", flush=True)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("has_cache", "transform_in", "latency_s"),
    [(False, "threads", 0.0), (True, "threads", 0.2), (False, "processes", 0.0)],
)
def test_ctrl_c_ends_a_training_loop_and_leaves_nothing(folder, tmp_path, has_cache, transform_in, latency_s):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    root = Path(__file__).resolve().parent.parent.parent
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    arguments = [str(folder), str(tmp_path / "cache") if has_cache else "", transform_in, str(latency_s)]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(3)] == ["step"] * 3
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt"), errors
    assert list(Path("/dev/shm").glob(f"stoker-{process.pid}-*")) == []
    if has_cache:
        left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and "new" in path.suffix]
        assert left == []


KILLED = """
    import glob, os, signal, sys
    import stoker

    loader = stoker.Loader(stoker.Dataset(sys.argv[1]), batch_size=40)
    assert glob.glob(f"/dev/shm/stoker-{os.getpid()}-*")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_in_memory_goes_with_the_next_loader_and_what_is_in_use_stays(folder):
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), str(folder)], env=environ)
    assert killed.wait(60) == -signal.SIGKILL

    def left_by(pid):
        return list(Path("/dev/shm").glob(f"stoker-{pid}-*"))

    with stoker.Loader(dataset_of(folder), batch_size=40) as first:
        assert left_by(killed.pid) == []
        with stoker.Loader(dataset_of(folder), batch_size=40):
            assert len(left_by(os.getpid())) == 2
            assert ids_of(first) == list(range(NUM_ROWS))


# ---------------------------------------------------------------------- where it stands


def test_two_iterators_of_one_loader_give_the_same_epoch(folder):
    with stoker.Loader(dataset_of(folder), batch_size=64, shuffle=True, seed=1, window=2) as loader:
        pairs = list(zip(loader, loader, strict=True))
        assert len(pairs) == len(loader)
        for one, other in pairs:
            np.testing.assert_array_equal(one["id"], other["id"])
            assert not np.shares_memory(one["id"], other["id"])
        assert loader.epoch == 1
        following = ids_of(loader)
    assert sorted(following) == list(range(NUM_ROWS))
    assert following != ids_of(one for one, _ in pairs)


def test_a_state_is_that_of_the_loop_that_was_handed_a_batch_last(folder):
    with stoker.Loader(dataset_of(folder), batch_size=50, seed=7) as loader:
        first, second = iter(loader), iter(loader)
        told = []
        for turn in (first, first, second, first, second):
            next(turn)
            told.append(loader.state_dict()["num_consumed"])
        assert told == [50, 100, 50, 150, 100]
        iter(loader)  # one more, which is asked for nothing
        assert loader.state_dict()["num_consumed"] == 100


def test_an_iterator_that_is_asked_for_nothing_uses_no_position_up(folder):
    """Some frameworks make one to look at a loader, or before they load the state of what it is made from."""
    with stoker.Loader(dataset_of(folder), batch_size=100, shuffle=True, seed=5) as loader:
        loader.set_epoch(2)
        before = ids_of([next(iter(loader))])
        state = loader.state_dict()
    with stoker.Loader(dataset_of(folder), batch_size=100, shuffle=True, seed=5) as loader:
        iter(loader)
        batches = iter(loader)
        loader.load_state_dict(state)
        iter(loader)
        assert loader.state_dict() == state
        rest = ids_of(batches)
        loader.set_epoch(2)
        assert before + rest == ids_of(loader)


def test_each_for_is_the_next_epoch_and_one_left_early_is_begun_again(folder):
    with stoker.Loader(dataset_of(folder), batch_size=100, shuffle=True, seed=5) as loader:
        epochs = [ids_of(loader) for _ in range(3)]
        assert len({tuple(epoch) for epoch in epochs}) == 3
        loader.set_epoch(1)
        left_early = ids_of([next(iter(loader))])
        assert loader.epoch == 1
        assert left_early == epochs[1][:100]
        assert ids_of(loader) == epochs[1]
        assert loader.epoch == 2


def test_set_epoch_never_clobbers_a_restored_position(folder):
    options = {"batch_size": 100, "shuffle": True, "seed": 5}
    with stoker.Loader(dataset_of(folder), **options) as loader:
        epochs = [ids_of(loader) for _ in range(3)]
        loader.set_epoch(1)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 1000
    with stoker.Loader(dataset_of(folder), **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert loader.epoch == 1
        loader.set_epoch(0)  # as loops do that count from where they think they are
        assert loader.state_dict() == state
        assert ids_of(loader) == epochs[1][200:]
        assert ids_of(loader) == epochs[2]
        loader.set_epoch(0)
        assert ids_of(loader) == epochs[0]


def test_a_state_read_while_batches_are_made_ahead_counts_those_handed_over(folder):
    with stoker.Loader(dataset_of(folder), batch_size=60, prefetch=8) as loader:
        for step, _ in enumerate(loader):
            state = loader.state_dict()
            expected = (1, 0) if step == 9 else (0, 60 * (step + 1))
            assert (state["epoch"], state["num_consumed"]) == expected


def test_an_end_of_epoch_state_begins_the_next_epoch(folder):
    with stoker.Loader(dataset_of(folder), batch_size=64, shuffle=True) as loader:
        epochs = [ids_of(loader)]
        state = loader.state_dict()
        epochs.append(ids_of(loader))
    with stoker.Loader(dataset_of(folder), batch_size=7, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert ids_of(loader) == epochs[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, ["the seed", "was 1", "is 2"]),
        ({"shuffle": False}, ["shuffle"]),
        ({"window": 3}, ["the window", "was 2", "is 3"]),
        ({"lanes": 2}, ["the number of lanes", "was 1", "is 2"]),
    ],
)
def test_a_state_of_another_order_is_refused_with_what_differs(folder, change, words):
    options = {"batch_size": 50, "shuffle": True, "seed": 1, "window": 2}
    with stoker.Loader(dataset_of(folder), **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with stoker.Loader(dataset_of(folder), **(options | change)) as loader:
        before = loader.state_dict()
        with pytest.raises(stoker.ResumeError) as caught:
            loader.load_state_dict(state)
        assert loader.state_dict() == before
    for word in words:
        assert word in str(caught.value)
    assert set(change) == set(caught.value.saved)


def test_a_state_of_another_data_set_or_of_nothing_is_refused(folder, tmp_path):
    with stoker.Loader(dataset_of(folder), batch_size=50) as loader:
        state = loader.state_dict()
    other = write_files(tmp_path / "other", [10])
    with stoker.Loader(dataset_of(other), batch_size=5) as loader:
        with pytest.raises(stoker.ResumeError, match="fewer"):
            loader.load_state_dict(state)
        with pytest.raises(stoker.ResumeError, match="format"):
            loader.load_state_dict({})
        with pytest.raises(stoker.ResumeError, match="format"):
            loader.load_state_dict(state | {"format_version": 99})
        with pytest.raises(stoker.ResumeError, match="num_consumed"):
            loader.load_state_dict(loader.state_dict() | {"num_consumed": "7"})
        mine = loader.state_dict()
        for forged in ({"fingerprint": "?"}, {}):
            datasets = [mine["datasets"][0] | {"num_files": 10**15, "files": None} | forged]
            with pytest.raises(stoker.ResumeError, match="its files are others: 1,000,000,000,000,000 files"):
                loader.load_state_dict(mine | {"datasets": datasets})


def test_a_state_from_beyond_the_epoch_is_refused_as_unsound(folder):
    with stoker.Loader(dataset_of(folder), batch_size=50) as loader:
        state = loader.state_dict()
        with pytest.raises(stoker.ResumeError, match="601"):
            loader.load_state_dict(state | {"num_consumed": 601})
        assert loader.state_dict() == state


# ---------------------------------------------------------------------- wrong arguments


class UntouchedStorage:
    """Fails the test that lets anything come near it."""

    def list(self, url):
        raise AssertionError(f"listed {url}")

    def stat(self, url):
        raise AssertionError(f"looked at {url}")

    def read(self, url, offset, num_bytes):
        raise AssertionError(f"read {url}")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, TypeError, "batch_size"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, TypeError, "batch_size"),
        ({"batch_size": True}, TypeError, "batch_size"),
        ({"batch_size": "8", "global_batch_size": 8}, TypeError, "batch_size"),
        ({"global_batch_size": 0}, ValueError, "global_batch_size"),
        ({"batch_size": 3, "global_batch_size": 7, "rank": 0, "world_size": 2}, ValueError, "global batch"),
        ({"batch_size": 8, "shuffle": "yes"}, TypeError, "shuffle"),
        ({"batch_size": 8, "seed": 1.5}, TypeError, "seed"),
        ({"batch_size": 8, "seed": None}, TypeError, "seed"),
        ({"batch_size": 8, "window": 0}, ValueError, "window"),
        ({"batch_size": 8, "window": "some"}, TypeError, "window must be a number of chunks, 'all' or None"),
        ({"batch_size": 8, "lanes": 0}, ValueError, "lanes"),
        ({"global_batch_size": 8, "lanes": 3}, ValueError, "lanes"),
        ({"batch_size": 8, "remainder": "ignore"}, ValueError, "remainder"),
        ({"batch_size": 8, "rank": 1}, ValueError, "rank"),
        ({"batch_size": 8, "rank": -1, "world_size": 2}, ValueError, "rank"),
        ({"batch_size": 8, "world_size": 0}, ValueError, "world_size"),
        ({"batch_size": 8, "world_size": 2}, ValueError, "which rank"),
        ({"batch_size": 8, "shard": stoker.Shard(0, 2), "rank": 0}, ValueError, "shard"),
        ({"batch_size": 8, "shard": (0, 2)}, TypeError, "shard"),
        ({"batch_size": 8, "cache": 7}, TypeError, "cache"),
        ({"batch_size": 8, "cache_limit": "lots"}, ValueError, "cache_limit"),
        ({"batch_size": 8, "cache_limit": -1}, ValueError, "cache_limit"),
        ({"batch_size": 8, "cache_limit": 1.5}, TypeError, "cache_limit"),
        ({"batch_size": 8, "num_threads": 0}, ValueError, "num_threads"),
        ({"batch_size": 8, "prefetch": -1}, ValueError, "prefetch"),
        ({"batch_size": 8, "prefetch": "4"}, TypeError, "prefetch"),
        ({"batch_size": 8, "transform_in": "fibres"}, ValueError, "transform_in"),
        ({"batch_size": 8, "augment": "flip"}, TypeError, "augment"),
    ],
)
def test_a_wrong_argument_is_said_before_anything_is_read(options, error, words):
    with pytest.raises(error, match=words):
        stoker.Loader(stoker.Dataset("lake", storage=UntouchedStorage()), **options)


def test_a_path_in_place_of_a_dataset_is_answered_with_the_way_out():
    with pytest.raises(TypeError, match=r"Dataset\("):
        stoker.Loader("lake", batch_size=8)


# ---------------------------------------------------------------------- augment


def with_noise(batch, rng):
    return batch | {"noise": rng.random(len(batch["id"]))}


def noise_by_id(loader) -> dict[int, float]:
    return {int(i): float(x) for batch in loader for i, x in zip(batch["id"], batch["noise"], strict=True)}


def test_augment_gets_the_same_randomness_with_any_threads_and_after_a_resume(folder):
    options = {"batch_size": 40, "shuffle": True, "seed": 2, "augment": with_noise}
    with stoker.Loader(dataset_of(folder), num_threads=1, **options) as loader:
        first, second = noise_by_id(loader), noise_by_id(loader)
    assert len(set(first.values())) == NUM_ROWS
    assert first != second
    with stoker.Loader(dataset_of(folder), num_threads=8, prefetch=16, **options) as loader:
        assert noise_by_id(loader) == first
        iterator = iter(loader)
        seen = noise_by_id([next(iterator) for _ in range(4)])
        state = loader.state_dict()
    with stoker.Loader(dataset_of(folder), **options) as loader:
        loader.load_state_dict(state)
        assert seen | noise_by_id(loader) == second


def test_a_batch_does_not_wait_for_augment_of_the_batches_made_with_it(folder):
    """Batches are made several at a time once some are ahead, but nobody knows how long a user's function takes."""
    num_ahead = 8
    handed = [threading.Event() for _ in range(NUM_ROWS // 10)]

    def augment(batch, rng):
        step = int(batch["id"][0]) // 10
        if step >= num_ahead and not handed[step - 1].wait(PATIENCE_S):
            raise TimeoutError(f"step {step - 1} was not handed over before step {step} was made")
        return batch

    with stoker.Loader(dataset_of(folder), batch_size=10, augment=augment, num_threads=1, prefetch=16) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: loader.stats().num_ready >= num_ahead - 1)
        handed[0].set()
        for event, _ in zip(handed[1:], batches, strict=True):
            event.set()


@pytest.mark.parametrize(("world_size", "is_told"), [(4, False), (5, True)])
def test_ranks_that_would_get_nothing_are_told_by_a_warning(folder, world_size, is_told, caplog):
    with stoker.Loader(dataset_of(folder), global_batch_size=4, rank=0, world_size=world_size) as loader:
        assert len(loader) > 0
        assert any("without any" in message for message in caplog.messages) == is_told
