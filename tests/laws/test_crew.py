"""However a store behaves, the pool comes to a size that gives nearly all there is, and never to more than it may."""

import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Cache, Dataset, Loader, Mixture
from stoker.cache.threads import AT_WORK, WORTH, AdaptivePool, Permits
from stoker.loader.config import LoaderConfig
from stoker.loader.fill import warm
from stoker.loader.opened import open_datasets
from stoker.loader.opened import pool_of as builders_of
from stoker.testing import MemoryStorage

LEAST, MOST = 8, 64


class Store:
    """A store, a link and a few that compute, by arithmetic: `rate(n)` chunks a second come where n are fetched."""

    def __init__(self, *, latency_s, link_s, compute_s, num_permits):
        self.latency_s, self.link_s, self.compute_s, self.num_permits = latency_s, link_s, compute_s, num_permits
        self.now = 0.0
        self.permits = Permits(num_permits, clock=lambda: self.now)

    def rate(self, size):
        fetching = size / (self.latency_s + self.link_s + self.compute_s)
        return min(fetching, 1 / self.link_s, self.num_permits / self.compute_s)

    def build(self, pool, *, is_hungry=True, num_samples=100):
        """Pass the time until one more chunk is built, and tell the pool."""
        with self.permits:
            self.permits.take()
            self.now += self.compute_s
        self.now += 1 / self.rate(pool.size) - self.compute_s
        return pool.built(num_samples, is_hungry=is_hungry)


stores = st.builds(
    Store,
    latency_s=st.floats(0.001, 10.0),
    link_s=st.floats(1e-4, 1.0),
    compute_s=st.floats(1e-4, 0.5),
    num_permits=st.integers(1, 16),
)


def pool_of(store, **changed):
    return AdaptivePool(LEAST, **{"most": MOST, "permits": [store.permits], "clock": lambda: store.now, **changed})


@given(stores)
def test_it_ends_with_nearly_all_that_any_size_gives(store):
    pool = pool_of(store)
    for _ in range(1_500):
        store.build(pool)
        assert LEAST <= pool.size <= MOST
    best = max(store.rate(size) for size in range(LEAST, MOST + 1))
    # It stops where those that compute are at work nearly all the time, or where twice as many bring hardly more.
    assert store.rate(pool.size) >= min(AT_WORK, 1 / WORTH) * best * 0.99


@given(stores)
def test_it_is_no_larger_than_what_brought_more(store):
    pool = pool_of(store)
    for _ in range(1_500):
        store.build(pool)
    while pool._before is not None:  # one that is being tried
        store.build(pool)
    if pool.size > LEAST:
        assert store.rate(pool.size) >= WORTH * 0.99 * store.rate(pool.size // 2)


@given(stores)
def test_where_chunks_are_not_waited_for_it_stays_as_it_is(store):
    pool = pool_of(store)
    for _ in range(300):
        assert not store.build(pool, is_hungry=False)
    assert pool.size == LEAST


@given(stores, st.integers(1, 200))
def test_a_crew_without_places_or_room_never_grows(store, num_chunks):
    for pool in (pool_of(store, permits=()), pool_of(store, most=LEAST), pool_of(store, most=None)):
        for _ in range(num_chunks):
            store.build(pool)
        assert pool.size == LEAST


@given(stores)
def test_nothing_is_tried_while_those_that_compute_are_at_work(store):
    if store.rate(LEAST) * store.compute_s / store.num_permits > AT_WORK + 0.01:
        pool = pool_of(store)
        for _ in range(300):
            store.build(pool)
            assert pool.size == LEAST


def test_it_tries_again_behind_a_while_for_the_link_may_be_another_one():
    store = Store(latency_s=0.01, link_s=0.1, compute_s=0.001, num_permits=2)
    pool = pool_of(store)
    for _ in range(200):
        store.build(pool)
    assert pool.size == LEAST
    store.link_s, store.latency_s = 1e-4, 2.0
    for _ in range(3_000):
        store.build(pool)
    assert pool.size == MOST


def test_it_goes_to_the_larger_size_again_once_its_own_gives_less_than_that_gave():
    # In the beginning nobody takes batches yet: what eight give then, they do not give for long.
    store = Store(latency_s=0.1, link_s=1e-4, compute_s=0.001, num_permits=16)
    store.link_s = (store.latency_s + store.compute_s) / (1.1 * LEAST - 1)  # twice as many bring a tenth more
    pool = pool_of(store, most=2 * LEAST)
    while pool.size == LEAST:
        store.build(pool)
    while pool.size > LEAST:
        store.build(pool)
    store.link_s, store.latency_s = 1e-4, 0.2
    for _ in range(200):
        store.build(pool)
    assert pool.size == 2 * LEAST


def test_places_count_the_time_for_which_they_were_taken():
    now = [0.0]
    permits = Permits(2, clock=lambda: now[0])

    def work():
        with permits:
            permits.take()
            now[0] = 3.0

    with permits:
        permits.take()
        permits.take()
        now[0] = 1.0
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert permits.num_free == 2
    assert permits.busy_s == pytest.approx(3.0 + 2.0)


class Late:
    """A store that answers late, and counts how many wait for it at once."""

    def __init__(self, inner, wait_s):
        self.inner, self.wait_s = inner, wait_s
        self.list, self.stat = inner.list, inner.stat
        self.num_waiting = self.most_waiting = 0
        self.mutex = threading.Lock()

    def read(self, url, offset, num_bytes):
        with self.mutex:
            self.num_waiting += 1
            self.most_waiting = max(self.most_waiting, self.num_waiting)
        try:
            time.sleep(self.wait_s)
            return self.inner.read(url, offset, num_bytes)
        finally:
            with self.mutex:
                self.num_waiting -= 1


def lake(num_files, name="lake"):
    files = {}
    for i in range(num_files):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"x": np.arange(100 * i, 100 * i + 100)}), sink)
        files[f"{name}/{i:03}.parquet"] = sink.getvalue().to_pybytes()
    return MemoryStorage(files)


def test_a_loader_fetches_more_at_once_from_a_store_that_answers_late_and_gives_the_same():
    def epoch(storage):
        with Loader(Dataset("lake", storage=storage), batch_size=64, shuffle=True, window=100, num_threads=1) as loader:
            storage.most_waiting = 0
            return [batch["x"].copy() for batch in loader]

    inner = lake(60)
    late = Late(inner, 0.1)  # far longer than it takes to compute, on a busy machine, too
    found = epoch(late)
    assert late.most_waiting > 7  # of one that computes, and the six beside it
    expected = epoch(inner)
    assert len(found) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_warming_fetches_more_at_once_too(tmp_path):
    late = Late(lake(60), 0.1)
    config = LoaderConfig(batch_size=1, cache=Cache(tmp_path), num_threads=1)
    opened = open_datasets(Dataset("lake", storage=late), config)
    try:
        late.most_waiting = 0
        (one,) = opened.datasets
        assert warm(one.builder, pool=builders_of([one], 1)).is_complete
    finally:
        opened.close()
    assert late.most_waiting > 7


@pytest.mark.parametrize("is_tight", [False, True])
def test_where_one_cache_of_a_mixture_is_tight_the_crew_stays_small(is_tight, tmp_path):
    small, large = (Dataset(name, storage=lake(num, name)) for name, num in (("small", 2), ("large", 200)))
    # Twice as much as the small one has, and not as the large one has.
    limit_bytes = 200 * 100 * 8 if is_tight else 1 << 30
    config = LoaderConfig(batch_size=1, cache=Cache(tmp_path, limit=limit_bytes), num_threads=1)
    opened = open_datasets(Mixture({"small": small, "large": large}), config)
    try:
        assert [one.windows.is_tight for one in opened.datasets] == [False, is_tight]
        pool = builders_of(opened.datasets, 1)
        assert pool.most == (pool.size if is_tight else MOST)
    finally:
        opened.close()
