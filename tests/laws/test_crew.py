"""However a store behaves, the pool comes to a size that gives nearly all there is, and never to more than it may.

And threads that help one which builds do each part of its work once.
"""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker.cache.threads import AT_WORK, WORTH, AdaptivePool, Helpers, Permits, overlapped

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
    tried = []  # a size that is being tried is left again, or stays
    for _ in range(300):
        store.build(pool)
        tried.append(pool.size)
    size = min(tried)
    if size > LEAST:
        assert store.rate(size) >= WORTH * 0.99 * store.rate(size // 2)


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


# ---------------------------------------------------------------------- threads that help

PATIENCE_S = 30


def take(permits, num=1):
    """Take permits for threads that never give theirs back."""
    for _ in range(num):
        thread = threading.Thread(target=permits.take)
        thread.start()
        thread.join()


@pytest.fixture
def helpers():
    helpers = Helpers(Permits(2))
    yield helpers
    helpers.close()


@examples(20)
@given(
    num=st.integers(0, 40),
    num_permits=st.integers(1, 4),
    num_taken=st.integers(0, 4),
    failing=st.sets(st.integers(0, 39), max_size=3),
)
def test_every_number_is_worked_on_once_and_every_place_is_given_back(num, num_permits, num_taken, failing):
    permits = Permits(num_permits)
    helpers = Helpers(permits)
    num_taken = min(num_taken, num_permits)
    take(permits, num_taken)
    done = []

    def work(i):
        done.append(i)
        if i in failing:
            raise ValueError(i)

    fails = [i for i in failing if i < num]
    if fails:
        with pytest.raises(ValueError, match=r"\d"):
            helpers.share_out(num, work)
        assert len(set(done)) == len(done)
        assert set(done) & set(fails)
    else:
        helpers.share_out(num, work)
        assert sorted(done) == list(range(num))
    assert permits.num_free == num_permits - num_taken
    helpers.close()


def test_who_has_a_place_is_helped_by_who_finds_one(helpers):
    meeting = threading.Barrier(2)
    helpers.share_out(2, lambda _: meeting.wait(PATIENCE_S))  # one thread alone would wait for ever


def test_nobody_helps_where_no_place_is_free():
    permits = Permits(2)
    take(permits, 2)
    helpers = Helpers(permits)
    threads = set()
    helpers.share_out(8, lambda _: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


def test_after_an_error_nothing_more_is_begun(helpers):
    met = threading.Barrier(2)
    begun = []

    def work(i):
        begun.append(i)
        met.wait(PATIENCE_S)
        raise ValueError(str(i))

    with pytest.raises(ValueError, match=r"[01]"):
        helpers.share_out(100, work)
    assert sorted(begun) == [0, 1]


def test_what_follows_a_step_is_done_beside_the_next_ones_and_no_three_at_once(helpers):
    let_go, mutex = threading.Event(), threading.Lock()
    begun, done, most = [], [], []

    def work(i):
        with mutex:
            begun.append(i)
            most.append(len(begun) - len(done))
        assert let_go.wait(PATIENCE_S)
        with mutex:
            done.append(i)

    with overlapped(helpers) as do:
        do(lambda: work(0))
        do(lambda: work(1))
        assert done == []
        threading.Timer(0.05, let_go.set).start()
        do(lambda: work(2))  # there is no room before the first is done
        assert 0 in done
        do(lambda: work(3))
    assert sorted(done) == [0, 1, 2, 3]
    assert max(most) <= 2


@pytest.mark.parametrize("is_busy", [False, True])
def test_who_finds_no_helper_does_it_at_once(is_busy):
    permits = Permits(2)
    helpers = Helpers(permits) if is_busy else None
    take(permits)
    threads = []
    with overlapped(helpers) as do:
        do(lambda: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]


def test_the_error_of_what_was_begun_is_raised_at_a_later_step_or_at_the_end(helpers):
    def fail():
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), overlapped(helpers) as do:
        do(fail)

    def steps():
        with overlapped(helpers) as do:
            for work in (fail, fail, lambda: pytest.fail("is not done")):
                do(work)

    with pytest.raises(ValueError, match="no room"):
        steps()


def test_an_error_waits_for_what_was_begun_and_is_the_one_that_is_raised(helpers):
    let_go, done = threading.Event(), []

    def slow():
        assert let_go.wait(PATIENCE_S)
        done.append(True)
        raise ValueError("later")

    def steps():
        with overlapped(helpers) as do:
            do(slow)
            let_go.set()
            raise KeyError("earlier")

    with pytest.raises(KeyError, match="earlier"):
        steps()
    assert done == [True]
