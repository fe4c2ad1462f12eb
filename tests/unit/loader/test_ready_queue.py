import threading
import weakref

import pytest

from stoker.loader.epoch_run import ReadyQueue


def one_by_one(make):
    """Give results that are made one at a time, however many are wanted."""
    return lambda first, _: iter([make(first)])


def drain(queue):
    results = []
    while True:
        try:
            results.append(queue.get())
        except StopIteration:
            return results


def test_close_in_the_middle_ends_all_threads():
    queue = ReadyQueue(one_by_one(lambda i: i), num_results=10**9, depth=5, num_threads=3)
    assert queue.get() == 0
    queue.close()
    queue.close()
    assert not any(t.name.startswith("stoker-batch") for t in threading.enumerate())


def test_nothing_to_make_ends_at_once():
    queue = ReadyQueue(one_by_one(lambda i: i), num_results=0, depth=5, num_threads=3)
    assert drain(queue) == []
    queue.close()


def test_without_depth_each_result_is_made_by_the_caller_when_it_is_asked_for():
    made = []
    queue = ReadyQueue(
        one_by_one(lambda i: made.append((i, threading.current_thread()))), num_results=3, depth=0, num_threads=4
    )
    assert made == []
    queue.get()
    assert made == [(0, threading.current_thread())]
    queue.close()
    with pytest.raises(InterruptedError):
        queue.get()


def test_closing_waits_for_a_result_that_the_caller_is_making():
    begun, may_end, events = threading.Event(), threading.Event(), []

    def make(i):
        begun.set()
        assert may_end.wait(30)
        events.append("made")
        return i

    queue = ReadyQueue(one_by_one(make), num_results=2, depth=0, num_threads=1)
    caller = threading.Thread(target=queue.get)
    caller.start()
    assert begun.wait(30)

    def close():
        queue.close()
        events.append("closed")

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.05)
    may_end.set()
    caller.join(30)
    closer.join(30)
    assert events == ["made", "closed"]


# ---------------------------------------------------------------------- several at a time


def some_of(make, wanted, at_most=100):
    """Give as many as are wanted, but `at_most`, and note how many were wanted."""

    def several(first, num_wanted):
        wanted.append(num_wanted)
        stop = first + min(num_wanted, at_most)
        for i in range(first, stop):
            yield make(i)

    return several


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("depth", [0, 1, 3, 16, 100])
@pytest.mark.parametrize("at_most", [1, 2, 100])
def test_results_made_together_come_in_order(num_threads, depth, at_most):
    wanted = []
    queue = ReadyQueue(
        some_of(lambda i: i * i, wanted, at_most),
        num_results=50,
        depth=depth,
        num_threads=num_threads,
        max_together=4,
    )
    assert drain(queue) == [i * i for i in range(50)]
    queue.close()
    assert wanted[0] == 1  # the caller waits for it
    assert max(wanted) <= 4
    assert at_most < 100 or sum(wanted) == 50


@pytest.mark.parametrize(("depth", "num_threads", "together"), [(3, 4, 1), (3, 1, 3), (8, 2, 4), (9, 2, 4)])
def test_no_more_than_depth_are_made_ahead_however_many_together(depth, num_threads, together):
    made = []
    changed = threading.Condition()

    def make(i):
        with changed:
            made.append(i)
            changed.notify_all()
        return i

    wanted = []
    queue = ReadyQueue(
        some_of(make, wanted), num_results=1000, depth=depth, num_threads=num_threads, max_together=together
    )
    # The look-ahead may stay one unit short of full: a thread waits until there is room for a whole one.
    with changed:
        assert changed.wait_for(lambda: len(made) > depth - together, timeout=30)
        changed.wait_for(lambda: len(made) > depth, timeout=0.05)
        assert len(made) <= depth
    for handed in range(1, 20):
        assert queue.get() == handed - 1
        with changed:
            assert changed.wait_for(lambda handed=handed: len(made) > handed + depth - 2 * together, timeout=30)
            assert len(made) <= handed + depth
    queue.close()


@pytest.mark.parametrize("depth", [0, 8])
@pytest.mark.parametrize("failing", range(12))
def test_an_error_among_results_made_together_comes_behind_those_before_it(failing, depth):
    def make(i):
        if i == failing:
            raise KeyError(f"result {i}")
        return i

    queue = ReadyQueue(some_of(make, []), num_results=12, depth=depth, num_threads=2, max_together=4)
    assert [queue.get() for _ in range(failing)] == list(range(failing))
    with pytest.raises(KeyError, match=f"result {failing}"):
        queue.get()
    with pytest.raises((StopIteration, KeyError)):
        queue.get()
    queue.close()


def test_without_depth_as_many_are_made_together_as_were_handed_over():
    wanted, made = [], []
    queue = ReadyQueue(some_of(made.append, wanted), num_results=30, depth=0, num_threads=1, max_together=8)
    for handed in range(1, 31):
        queue.get()
        assert handed <= len(made) < handed + 8
    assert wanted == [1, 1, 2, 4, 8, 8, 6]
    queue.close()


def test_what_interrupts_a_caller_who_makes_results_does_so_at_once():
    def make(i):
        if i == 3:
            raise KeyboardInterrupt
        return i

    queue = ReadyQueue(some_of(make, []), num_results=12, depth=0, num_threads=1, max_together=4)
    assert [queue.get() for _ in range(2)] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        queue.get()  # 2 is made, but nobody waits for it any more
    queue.close()


def test_a_result_that_was_handed_over_is_referred_to_by_nobody_else():
    class Result:
        pass

    made = {}  # by number: of two threads, one may be late with its own

    def make(i):
        result = Result()
        made[i] = weakref.ref(result)
        return result

    queue = ReadyQueue(some_of(make, []), num_results=1000, depth=8, num_threads=2, max_together=4)
    for _ in range(40):
        queue.get()
    # A thread drops the last it has made before it waits for room: soon, and without being asked.
    wait = threading.Event().wait
    assert any(not wait(0.01) and [made[i]() for i in range(40)] == [None] * 40 for _ in range(3000))
    queue.close()
