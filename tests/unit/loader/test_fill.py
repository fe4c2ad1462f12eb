"""Chunks are built in the order in which they are asked for, each once, by as many threads as find work."""

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import CacheFullError, Dataset
from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.loader.fill import Filler, warm


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


# ---------------------------------------------------------------------- filling a cache


def test_parts_of_a_row_group_are_counted_while_the_others_are_still_to_come(tmp_path):
    """One huge row group, which is read in one go, between two small ones."""
    for name, num_rows in (("a", 10), ("b", 20_000), ("c", 10)):
        pq.write_table(pa.table({"x": range(num_rows)}), tmp_path / f"{name}.parquet", row_group_size=num_rows)
    catalogue = Dataset([tmp_path / f"{name}.parquet" for name in "abc"], chunk_size="16kB").open()
    assert len(catalogue) > 8
    told, seen = [], threading.Event()

    class Slow(Builder):
        """Does not finish a row group before some of its parts have been counted."""

        def build(self, i, **options):
            is_built = super().build(i, **options)
            if len(catalogue.unit(i)) > 1:
                assert seen.wait(60)
            return is_built

    def on_progress(progress):
        told.append(progress)
        if progress.num_done > 3:
            seen.set()

    with Store(tmp_path / "cache") as store:
        assert warm(Slow(catalogue, store), pool=AdaptivePool(1), on_progress=on_progress).is_complete
    assert [progress.num_done for progress in told] == list(range(len(catalogue) + 1))


def test_threads_of_a_part_that_all_find_no_room_come_to_an_end():
    tries, stop_event, tried_again = Counter(), threading.Event(), threading.Event()

    class Two:
        fingerprint, key = "", str

        def __len__(self):
            return 2

        def unit(self, i):
            return [i]

    class Full:
        """What it builds never fits, nothing can be removed; the first try of chunk 1 ends behind two of chunk 0."""

        catalogue = Two()
        store = SimpleNamespace(
            mirror=SimpleNamespace(sizes=dict, drain=lambda stop_event: 0, take_uploaded=set),
            discard_unless_used=lambda fingerprint, keys: 0,
        )

        def size_of(self, i):
            return None

        def build(self, i, **options):
            tries[i] += 1
            if tries.total() > 40:
                stop_event.set()
            if (i, tries[i]) == (0, 2):
                tried_again.set()
            elif (i, tries[i]) == (1, 1):
                assert tried_again.wait(60)
            raise CacheFullError("no room", path=Path("cache"))

    with pytest.raises(CacheFullError):
        warm(Full(), pool=AdaptivePool(2), part=(0, 1), stop_event=stop_event)
    assert tries.total() < 20
