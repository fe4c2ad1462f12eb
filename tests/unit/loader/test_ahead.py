"""Batches ahead of their step: how many are made, in which order, by whom, and who has them."""

from __future__ import annotations

import threading
import weakref

import pytest
from tests.processes import wait_until
from tests.strategies import write_files

from stoker import Dataset, Loader

NUM_ROWS = 600
PATIENCE_S = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset(write_files(tmp_path_factory.mktemp("ahead"), [NUM_ROWS], row_group_size=100))


def ids_of(batches):
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("prefetch", [0, 1, 3, 16, 100])
def test_batches_come_in_order_however_many_are_made_ahead(dataset, prefetch, num_threads):
    with Loader(dataset, batch_size=12, prefetch=prefetch, num_threads=num_threads) as loader:
        assert ids_of(loader) == list(range(NUM_ROWS))


@pytest.mark.parametrize(("prefetch", "num_threads"), [(1, 4), (3, 4), (3, 1), (8, 2), (16, 1), (40, 2)])
def test_no_more_are_made_ahead_than_may_be(dataset, prefetch, num_threads):
    made, changed = [], threading.Condition()

    def augment(batch, rng):
        with changed:
            made.append(int(batch["id"][0]))
            changed.notify_all()
        return batch

    options = {"prefetch": prefetch, "num_threads": num_threads, "augment": augment}
    with Loader(dataset, batch_size=5, **options) as loader:
        batches = iter(loader)
        for handed in range(1, 20):
            next(batches)
            with changed:
                # A thread waits until there is room for all that it makes at a time, less than half of them.
                assert changed.wait_for(lambda handed=handed: len(made) > handed + prefetch // 2, PATIENCE_S)
                assert len(made) <= handed + prefetch
    assert len(set(made)) == len(made)


def test_without_prefetch_each_is_made_by_the_caller_when_it_is_asked_for(dataset):
    made = []

    def augment(batch, rng):
        made.append((int(batch["id"][0]), threading.current_thread()))
        return batch

    with Loader(dataset, batch_size=10, prefetch=0, num_threads=4, augment=augment) as loader:
        batches = iter(loader)
        for step in range(5):
            assert len(made) == step
            next(batches)
            assert made[-1] == (10 * step, threading.current_thread())


def test_without_prefetch_small_ones_are_gathered_together_as_many_as_were_handed_over(dataset):
    with Loader(dataset, batch_size=10, prefetch=0, window="all", shuffle=True) as loader:
        gathers = [loader.stats().stages["gather"].num_calls for _ in loader]
    assert [gathers.index(num) for num in range(1, gathers[-1] + 1)] == [0, 1, 2, 4, 8, 16, 32]


def test_closing_waits_for_a_batch_that_the_caller_is_making(dataset):
    begun, may_end, events = threading.Event(), threading.Event(), []

    def augment(batch, rng):
        begun.set()
        assert may_end.wait(PATIENCE_S)
        events.append("made")
        return batch

    def close():
        loader.close()
        events.append("closed")

    loader = Loader(dataset, batch_size=10, prefetch=0, augment=augment)
    caller = threading.Thread(target=next, args=(iter(loader),))
    caller.start()
    assert begun.wait(PATIENCE_S)
    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.05)
    may_end.set()
    caller.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    assert events == ["made", "closed"]


def test_a_batch_that_was_handed_over_is_referred_to_by_nobody_else(dataset):
    with Loader(dataset, batch_size=5, prefetch=8, num_threads=2) as loader:
        batches = iter(loader)
        arrays = [weakref.ref(next(batches)["id"]) for _ in range(40)]
        # A thread drops the last it has made before it waits for room: soon, and without being asked.
        wait_until(lambda: not any(array() is not None for array in arrays))
