import threading

import pytest

from stoker.feed.prefetch import Prefetch


def drain(prefetch):
    results = []
    while True:
        try:
            results.append(prefetch.get())
        except StopIteration:
            return results


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("depth", [0, 1, 3, 100])
def test_results_come_in_order(num_threads, depth):
    prefetch = Prefetch(lambda i: i * i, num_results=50, depth=depth, num_threads=num_threads)
    assert drain(prefetch) == [i * i for i in range(50)]
    prefetch.close()


def test_no_more_than_depth_are_made_ahead():
    made = threading.Semaphore(0)
    highest = []

    def make(i):
        highest.append(i)
        made.release()
        return i

    prefetch = Prefetch(make, num_results=100, depth=3, num_threads=4)
    for _ in range(3):
        assert made.acquire(timeout=30)
    assert not made.acquire(timeout=0.05)
    assert max(highest) == 2
    assert prefetch.get() == 0
    assert made.acquire(timeout=30)
    assert max(highest) == 3
    prefetch.close()


def test_an_error_comes_where_its_result_was_due_and_ends_the_sequence():
    def make(i):
        if i == 5:
            raise KeyError("five")
        return i

    prefetch = Prefetch(make, num_results=10, depth=10, num_threads=3)
    assert [prefetch.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        prefetch.get()
    with pytest.raises((StopIteration, KeyError)):
        prefetch.get()
    prefetch.close()


def test_close_in_the_middle_ends_all_threads():
    prefetch = Prefetch(lambda i: i, num_results=10**9, depth=5, num_threads=3)
    assert prefetch.get() == 0
    prefetch.close()
    prefetch.close()
    assert not any(t.name.startswith("stoker-batch") for t in threading.enumerate())


def test_nothing_to_make_ends_at_once():
    prefetch = Prefetch(lambda i: i, num_results=0, depth=5, num_threads=3)
    assert drain(prefetch) == []
    prefetch.close()


def test_without_depth_each_result_is_made_by_the_caller_when_it_is_asked_for():
    made = []
    prefetch = Prefetch(lambda i: made.append((i, threading.current_thread())), num_results=3, depth=0, num_threads=4)
    assert made == []
    prefetch.get()
    assert made == [(0, threading.current_thread())]
    prefetch.close()
    with pytest.raises(InterruptedError):
        prefetch.get()


def test_closing_waits_for_a_result_that_the_caller_is_making():
    begun, may_end, events = threading.Event(), threading.Event(), []

    def make(i):
        begun.set()
        assert may_end.wait(30)
        events.append("made")
        return i

    prefetch = Prefetch(make, num_results=2, depth=0, num_threads=1)
    caller = threading.Thread(target=prefetch.get)
    caller.start()
    assert begun.wait(30)

    def close():
        prefetch.close()
        events.append("closed")

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.05)
    may_end.set()
    caller.join(30)
    closer.join(30)
    assert events == ["made", "closed"]
