"""Threads that help one which builds."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker.cache.threads import Helpers, Permits, overlapped

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
