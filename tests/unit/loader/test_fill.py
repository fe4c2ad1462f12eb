"""Chunks are built in the order in which they are asked for, each once, by as many threads as find work."""

import threading
from contextlib import closing

import pytest

from stoker.cache.threads import AdaptivePool
from stoker.loader.fill import Filler


@pytest.mark.parametrize("num_threads", [1, 4])
def test_each_missing_chunk_is_built_once_and_errors_stay_with_their_chunk(num_threads):
    there, built, lock = {0, 2}, [], threading.Lock()

    def build(chunk):
        if chunk in there:
            return True
        with lock:
            built.append(chunk)
        if chunk == 5:
            raise ValueError("chunk five")
        there.add(chunk)
        return True

    filler = Filler(is_there=there.__contains__, build=build, pool=AdaptivePool(num_threads))
    filler.request(range(8))
    filler.request(range(8))
    for chunk in range(8):
        if chunk == 5:
            with pytest.raises(ValueError, match="chunk five"):
                filler.wait(chunk)
        else:
            filler.wait(chunk)
    filler.close()
    assert sorted(built) == [1, 3, 4, 5, 6, 7]


def test_a_chunk_that_gets_there_while_it_is_asked_for_again_is_not_put_behind_all_others():
    there, may_build, asks = set(), threading.Event(), threading.Event()
    built = threading.Semaphore(0)

    def is_there(chunk):
        found = chunk in there
        if chunk == 0 and may_build.is_set():  # looked for, not there, and there a moment later
            built.acquire()
        return found

    def build(chunk):
        if chunk == 0:
            may_build.wait()
        elif chunk == 1:
            asks.wait()
        there.add(chunk)
        built.release()
        return True

    filler = Filler(is_there=is_there, build=build, pool=AdaptivePool(1))
    filler.request(range(3))
    may_build.set()
    filler.request([0])
    waiter = threading.Thread(target=filler.wait, args=(0,))
    waiter.start()
    waiter.join(10)
    is_waiting = waiter.is_alive()
    asks.set()
    waiter.join()
    filler.close()
    assert not is_waiting


def test_a_thread_that_waited_for_room_goes_on_once_there_is_no_limit_any_more():
    built, limits, asked, is_full = [], [1], [], threading.Event()

    def max_ahead():
        asked.extend(built)
        if len(asked) == 2:  # when chunk 0 was built, and before the thread waits, with the lock that `wait` takes
            is_full.set()
        return limits[0]

    def build(chunk):
        built.append(chunk)
        return True

    filler = Filler(is_there=built.__contains__, build=build, pool=AdaptivePool(1), max_ahead=max_ahead)
    with closing(filler):
        filler.request(range(3))
        assert is_full.wait(60)
        limits[0] = None
        waiter = threading.Thread(target=filler.wait, args=(2,))
        waiter.start()
        waiter.join(60)
        assert not waiter.is_alive()
    assert built == [0, 1, 2]


def test_a_chunk_another_process_builds_is_waited_for_while_others_get_built():
    there, asked = set(), []

    def build(chunk):
        asked.append(chunk)
        if chunk == 0 and len(there) < 3:
            return False  # the other process is done when ours has built the rest
        there.add(chunk)
        return True

    filler = Filler(is_there=there.__contains__, build=build, pool=AdaptivePool(1))
    filler.request(range(4))
    filler.wait(0)
    filler.close()
    assert asked[0] == 0
    assert there == {0, 1, 2, 3}


def test_no_thread_is_started_where_nothing_is_missing():
    filler = Filler(is_there=lambda chunk: True, build=lambda chunk: False, pool=AdaptivePool(4))
    filler.request(range(100))
    filler.wait(50)
    assert not any(t.name.startswith("stoker-build") for t in threading.enumerate())
    filler.close()


def test_a_chunk_that_is_built_wakes_none_of_those_that_have_nothing_to_build():
    num_threads, num_chunks, there = 16, 200, set()
    all_at_it = threading.Barrier(num_threads + 1)

    class Counted:
        """A pool that counts how often threads look whether they may build; they do so with the filler's lock."""

        num_looks = 0

        @property
        def size(self):
            self.num_looks += 1
            return num_threads

        def built(self, num_samples, *, is_hungry):
            return False

    def build(chunk):
        if chunk < num_threads:
            all_at_it.wait(30)
        there.add(chunk)
        return True

    pool = Counted()
    filler = Filler(is_there=there.__contains__, build=build, pool=pool)
    filler.request(range(num_threads))  # every thread is started, and has nothing to do when these are built
    all_at_it.wait(30)
    for chunk in range(num_threads):
        filler.wait(chunk)
    pool.num_looks = 0
    for chunk in range(num_threads, num_threads + num_chunks):
        filler.request([chunk])
        filler.wait(chunk)
    filler.close()
    # Whoever asks looks whether a thread is to be started, and wakes one, which looks for a chunk, and again behind it;
    # whoever waits wakes one; and who was still on the way to the queue looks once.
    assert num_chunks < pool.num_looks <= 4 * num_chunks + 2 * num_threads


def test_a_chunk_another_process_builds_is_looked_for_by_one_thread_while_the_others_rest():
    def num_that_look():
        num_threads, there, all_at_it, looked = 8, set(), threading.Barrier(8), []

        def build(chunk):
            if chunk < num_threads:
                all_at_it.wait(30)
            else:
                looked.append(threading.current_thread().name)
                if len(looked) < 10:
                    return False
            there.add(chunk)
            return True

        with closing(Filler(is_there=there.__contains__, build=build, pool=AdaptivePool(num_threads))) as filler:
            filler.request(range(num_threads))
            for chunk in range(num_threads):
                filler.wait(chunk)
            filler.request([num_threads])
            filler.wait(num_threads)
        assert len(looked) == 10
        return len(set(looked))

    # Whoever waits wakes a second one; and some may have been on their way to the queue.
    assert any(num_that_look() <= 2 for _ in range(20))


def test_a_crew_that_grows_again_wakes_those_that_it_had_no_use_for():
    there, all_at_it = set(), threading.Barrier(4)

    class Regrown(AdaptivePool):
        num_built = 0

        def built(self, num_samples, *, is_hungry):
            del num_samples, is_hungry
            self.num_built += 1
            if self.num_built in (1, 6):
                self.size = 1 if self.num_built == 1 else 4
            return self.num_built == 6

    def build(chunk):
        if chunk not in (4, 5):  # those are built by one, and so come the others to have nothing to do
            all_at_it.wait(30)
        there.add(chunk)
        return True

    with closing(Filler(is_there=there.__contains__, build=build, pool=Regrown(4))) as filler:
        filler.request(range(14))
        for chunk in range(14):
            filler.wait(chunk)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_no_more_chunks_are_built_ahead_than_may_be_and_evicted_ones_are_built_again(num_threads):
    there, lock, highest = set(), threading.Lock(), []

    def build(chunk):
        with lock:
            there.add(chunk)
            highest.append(len(there))
        return True

    filler = Filler(is_there=there.__contains__, build=build, pool=AdaptivePool(num_threads), max_ahead=lambda: 2)
    filler.request(range(30))
    for chunk in range(30):
        filler.wait(chunk)
        with lock:
            assert chunk in there
            there.discard(chunk)  # evicted right away
        if chunk % 7 == 0:
            filler.request([chunk])
            filler.wait(chunk)
            with lock:
                there.remove(chunk)
    filler.close()
    assert max(highest) <= 2 + num_threads
