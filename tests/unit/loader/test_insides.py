"""What a loader chooses by arithmetic, and failures that nobody can bring about from outside."""

from __future__ import annotations

import sys
import threading
from contextlib import closing, nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import in_threads

from stoker import Cache, Dataset, Field
from stoker.doctor.sample import SampledDataset
from stoker.loader import temporary
from stoker.loader.config import LoaderConfig, default_prefetch
from stoker.loader.epoch_run import ReadyQueue
from stoker.loader.lane import num_windows_ahead
from stoker.loader.opened import open_datasets
from stoker.loader.orders import MAX_WINDOW_CHUNKS, WINDOW_BYTES, window_chunks
from stoker.loader.temporary import OwnedFolder
from stoker.loader.window import PageCacheTrial

# ---------------------------------------------------------------------- batches ahead, and the window


@pytest.mark.parametrize(
    ("batch_bytes", "expected"), [(None, 12), (0.5, 40), (640 * 4096, 40), (4 << 20, 32), (1 << 30, 12)]
)
def test_small_batches_are_made_further_ahead(batch_bytes, expected):
    assert default_prefetch(batch_bytes) == expected


@given(st.floats(min_value=0, max_value=1e15), st.booleans())
def test_more_than_the_least_never_takes_more_than_128_mib_or_twice_as_much_of_a_device(batch_bytes, crosses):
    num_ahead = default_prefetch(batch_bytes, crosses=crosses)
    assert 12 <= num_ahead <= 40
    assert num_ahead == 12 or num_ahead * batch_bytes <= (256 if crosses else 128) << 20
    assert num_ahead >= default_prefetch(batch_bytes)


@pytest.mark.parametrize("num_chunks", [3, 40, 5000])
@pytest.mark.parametrize("record_bytes", [64, 640, 150_000])
@pytest.mark.parametrize("size", [1 / 4, 1, 2])
def test_chunks_of_about_the_usual_size_make_no_more_than_512_mib(num_chunks, record_bytes, size):
    rows = int(Dataset("never-opened.parquet").chunk_bytes * size) // record_bytes
    window = window_chunks(None, np.full(num_chunks, rows), record_bytes)
    # A chunk ends where a row does: so many whole ones take a little less.
    assert 0.9 * WINDOW_BYTES < window * rows * record_bytes <= WINDOW_BYTES


def test_large_chunks_are_still_mixed_with_others_and_tiny_ones_not_without_end():
    assert window_chunks(None, np.full(100, 1 << 20), 4096) >= 8
    assert window_chunks(None, np.full(100_000, 3), 64) == MAX_WINDOW_CHUNKS


@given(st.integers(1, 200), st.floats(0.1, 1000), st.integers(0, 100))
def test_each_builder_finds_another_chunk_while_the_next_window_is_waited_for(num_builders, window_chunks, number):
    num_ahead = num_windows_ahead(num_builders, window_chunks, number)
    assert (num_ahead - 1) * window_chunks >= num_builders
    # Up to what is lost by rounding: 597 are 60.00000000000001 times 9.95.
    most = (3 if number == 0 else 25) * num_builders * (1 + 1e-9)
    assert num_ahead == 2 or (num_ahead - 1) * window_chunks < most
    assert number < 4 or num_ahead * window_chunks >= 25 * num_builders * (1 - 1e-9)


def test_what_interrupts_a_caller_who_makes_several_batches_does_so_at_once():
    def make(first, num_wanted):
        for i in range(first, first + num_wanted):
            if i == 3:
                raise KeyboardInterrupt
            yield i, 1

    options = {"depth": 0, "num_threads": 1, "max_together": 4, "waiting": nullcontext}
    with closing(ReadyQueue(make, num_results=12, **options)) as queue:
        assert [queue.get() for _ in range(2)] == [(0, 1), (1, 1)]
        with pytest.raises(KeyboardInterrupt):
            queue.get()  # 2 is made, but nobody waits for it any more


@pytest.mark.parametrize("depth", [0, 8])
def test_what_fails_of_several_batches_made_together_comes_behind_those_before_it(depth):
    def make(first, num_wanted):
        for i in range(first, first + num_wanted):
            if i == 3:
                raise ValueError("of batch 3")
            yield i, 1

    options = {"depth": depth, "num_threads": 1, "max_together": 4, "waiting": nullcontext}
    with closing(ReadyQueue(make, num_results=12, **options)) as queue:
        assert [queue.get() for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
        with pytest.raises(ValueError, match="of batch 3"):
            queue.get()


# ---------------------------------------------------------------------- threads that build from a local disk

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


def num_builders(dataset, cache, *, cores=NUM_THREADS):
    with closing(open_datasets(dataset, LoaderConfig(batch_size=1, cache=Cache(cache)))) as opened:
        return opened.datasets[0].num_builders(NUM_THREADS, cores=cores)[0]


@pytest.mark.parametrize(
    ("num_rows", "cores", "expected"),
    [
        (1_000, NUM_THREADS, 1),  # 16 kB: nothing but Python
        (40_000, NUM_THREADS, 2),  # 0.6 MB
        (150_000, NUM_THREADS, NUM_THREADS),  # 2.4 MB
        (150_000, NUM_THREADS + 1, NUM_THREADS + 1),  # with a core left, one more publishes
        (600_000, NUM_THREADS, NUM_THREADS + 1),  # 9.6 MB: and one that publishes
    ],
)
def test_small_chunks_are_built_by_few_threads(tmp_path, num_rows, cores, expected):
    dataset = Dataset(folder_of(tmp_path / "lake", num_files=2, num_rows=num_rows))
    assert num_builders(dataset, tmp_path / "cache", cores=cores) == expected


@pytest.mark.parametrize(
    ("num_rows", "options"),
    [
        (100, {"transform": lambda table: table, "transform_version": "1"}),
        (30_000, {"filters": [("id", "<", 100)]}),
        (30_000, {"columns": ["id"], "filters": [("x0", "<", 0.0001)]}),
        (30_000, {"fields": {f"x{k}": Field("float16") for k in range(8)}}),
    ],
    ids=["transform", "filter", "filter of another column", "narrower"],
)
def test_what_is_done_for_a_chunk_counts_where_it_is_more_than_the_chunk(tmp_path, num_rows, options):
    dataset = Dataset(folder_of(tmp_path / "lake", num_files=2, num_rows=num_rows, width=8), **options)
    assert num_builders(dataset, tmp_path / "cache") == NUM_THREADS


def test_a_sample_of_a_data_set_is_built_by_as_many_threads_as_all_of_it(tmp_path):
    catalogue = Dataset(folder_of(tmp_path / "lake", num_files=100, num_rows=1_000)).open()
    sample = SampledDataset(catalogue, [catalogue.unit(3)], num_times=2)
    assert num_builders(sample, tmp_path / "cache") == 1


# ---------------------------------------------------------------------- windows brought back into the page cache

NUM_CHUNKS, WINDOW = 60, 6


class PageCache:
    """A data set whose chunks stay in the page cache, or do not; and what a trial brings back into it."""

    def __init__(self, *, stays, seed=0):
        self.trial = PageCacheTrial()
        self.stays = stays
        self.there = set()
        self.rng = np.random.default_rng(seed)

    def epoch(self, *, rank=0, num_ranks=1):
        """Return how many windows were brought back, and in how many something was gone."""
        order = self.rng.permutation(NUM_CHUNKS)[rank::num_ranks].tolist()
        num_back = num_gone = 0
        for begin in range(0, len(order), WINDOW):
            chunks = order[begin : begin + WINDOW]
            gone = [chunk for chunk in chunks if chunk not in self.there]
            num_gone += bool(gone)
            if self.trial.brings_back(chunks, gone, may=bool(gone)):
                num_back += 1
                self.there.update(gone)
        if not self.stays:
            self.there.clear()
        return num_back, num_gone


@pytest.mark.parametrize("seed", range(5))
def test_while_nothing_stays_one_window_is_tried_in_ever_fewer_epochs(seed):
    cache = PageCache(stays=False, seed=seed)
    num_back = [cache.epoch()[0] for _ in range(17)]
    assert num_back == [int(number in (1, 2, 4, 8, 16)) for number in range(1, 18)]


@pytest.mark.parametrize("seed", range(5))
def test_where_it_stays_all_of_it_is_brought_back_in_the_epochs_after_the_trial(seed):
    cache = PageCache(stays=True, seed=seed)
    assert cache.epoch()[0] == 1
    cache.epoch()
    cache.epoch()
    assert cache.epoch() == (0, 0)


def test_what_a_job_pushed_out_comes_back_when_it_has_ended():
    cache = PageCache(stays=False)
    for _ in range(5):
        cache.epoch()
    cache.stays = True
    num_gone = [cache.epoch()[1] for _ in range(8)]
    assert num_gone[-1] == 0


def test_what_is_lost_again_ends_it_within_the_window_that_shows_it():
    cache = PageCache(stays=True)
    for _ in range(5):
        cache.epoch()
    cache.there.clear()
    assert cache.epoch()[0] <= 1  # a trial may have been due
    for _ in range(8):
        cache.epoch()
    assert cache.epoch() == (0, 0)


def test_one_of_several_ranks_finds_out_though_it_meets_few_of_its_chunks_again():
    cache = PageCache(stays=True)
    for _ in range(20):
        cache.epoch(rank=1, num_ranks=4)
    assert cache.epoch(rank=1, num_ranks=4) == (0, 0)


# ---------------------------------------------------------------------- folders that go with whoever made them


def folder_in(parent):
    return OwnedFolder(parent, prefix="stoker-test-", family="stoker-test-")


def interrupted_at(line, folder):
    """Make a folder, raise KeyboardInterrupt at the so-manieth line of it, and return whether there was one."""
    num_lines = 0

    def trace(frame, event, _argument):
        nonlocal num_lines
        if frame.f_code.co_filename != temporary.__file__:
            return None
        if event == "line":
            num_lines += 1
            if num_lines == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        folder.make()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_whoever_is_interrupted_while_making_a_folder_leaves_nothing(tmp_path):
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        folder = folder_in(tmp_path)
        was_interrupted = interrupted_at(line, folder)
        folder.close()
        assert list(tmp_path.iterdir()) == []
    assert line > 5


def test_a_thread_that_still_writes_to_a_folder_leaves_nothing(tmp_path):
    folder = folder_in(tmp_path)
    folder.make()
    stops = threading.Event()
    num_refused = threading.Semaphore(0)

    def write():
        number = 0
        while not stops.is_set():
            number += 1
            try:
                (folder.path / f"{number}").write_bytes(b"chunk")
            except OSError:
                num_refused.release()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        while len(list(folder.path.iterdir())) < 50:
            pass
        folder.close()
        assert num_refused.acquire(timeout=60)
        assert list(tmp_path.iterdir()) == []
    finally:
        stops.set()
        for writer in writers:
            writer.join()


def test_whoever_makes_a_folder_while_others_sweep_has_it(tmp_path):
    lost = []

    def make(_):
        for _ in range(60):
            folder = folder_in(tmp_path)
            folder.make()
            if not (folder.path / "owner").exists():
                lost.append(folder.path)
            folder.close()

    in_threads(make, range(8))
    assert lost == []
    assert list(tmp_path.iterdir()) == []
