"""The next epoch, begun before the one under way has ended: nothing a loop gets is another for it."""

import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest
from tests.strategies import write_files

import stoker
from stoker.loader.window import Window

NUM_ROWS = 600
PREFETCH = 4


@pytest.fixture
def dataset(tmp_path):
    folder = write_files(tmp_path / "data", [200, 200, 200], row_group_size=50)
    return stoker.Dataset(folder, chunk_size=4000)


def loader_of(dataset, **options):
    options = {"batch_size": 50, "shuffle": True, "window": 2, "prefetch": PREFETCH, "num_threads": 2} | options
    return stoker.Loader(dataset, **options)


def ids_of(batches):
    return [int(i) for batch in batches for i in batch["id"]]


def threads_of_batches():
    return {thread for thread in threading.enumerate() if thread.name.startswith("stoker-batch")}


def wait_until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_begun(loader):
    """Whether another epoch has been begun; if so, two of its batches are ready."""
    if loader._epochs._begun is None:
        return False
    wait_until(lambda: loader._epochs.num_ready == 2)
    return True


@pytest.fixture
def expected(dataset):
    """Ids of each epoch, each by a loader that makes batches when they are asked for."""
    with loader_of(dataset, prefetch=0) as loader:
        return [ids_of(loader) for _ in range(6)]


def test_epochs_that_follow_each_other_are_begun_ahead_from_the_third_on(dataset, expected):
    before = threads_of_batches()
    with loader_of(dataset) as loader:
        begun = []
        for ids in expected:
            assert ids_of(loader) == ids
            begun.append(is_begun(loader))
        assert begun == [False, True, True, True, True, True]
        assert loader.stats().num_ready == 0  # what nobody has asked for is not ready for a step
        assert loader.stats().num_samples == len(expected) * NUM_ROWS
    assert threads_of_batches() <= before


def test_the_batches_of_two_epochs_are_never_more_than_one_may_have_ahead(dataset, monkeypatch):
    made, handed, most = itertools.count(1), itertools.count(1), []
    num_handed = 0
    prepare, deliver = stoker.loader.batches.Delivery.prepare, stoker.loader.batches.Delivery.deliver

    def prepared(self, made_now, leaving):
        most.append(next(made) - num_handed)
        return prepare(self, made_now, leaving)

    def handed_over(self, content):
        nonlocal num_handed
        num_handed = next(handed)
        return deliver(self, content)

    monkeypatch.setattr(stoker.loader.batches.Delivery, "prepare", prepared)
    monkeypatch.setattr(stoker.loader.batches.Delivery, "deliver", handed_over)
    with loader_of(dataset) as loader:
        for _ in range(5):
            for _batch in loader:
                pass
        assert is_begun(loader)
    # One more than are ahead: the loop has it, but has not yet been counted as having it.
    assert max(most) <= PREFETCH + 1


def test_no_more_windows_are_open_than_in_the_middle_of_an_epoch(dataset, monkeypatch):
    lock = threading.Lock()
    num_open, most = 0, 0

    def gone():
        nonlocal num_open
        with lock:
            num_open -= 1

    def counted(*chunks):
        nonlocal num_open, most
        window = Window(*chunks)
        weakref.finalize(window, gone)
        with lock:
            num_open += 1
            most = max(most, num_open)
        return window

    monkeypatch.setattr("stoker.loader.window.Window", counted)
    with loader_of(dataset, batch_size=10) as loader:  # what is ahead lies in two windows at most
        for _ in range(6):
            for _batch in loader:
                pass
        assert is_begun(loader)
    gc.collect()
    # The one in use, the next one, whose batches are made ahead, and the one behind that.
    assert most <= 3
    assert num_open == 0


def test_a_loop_that_goes_on_elsewhere_gets_what_it_asks_for(dataset, expected):
    with loader_of(dataset) as loader:
        for ids in expected[:3]:
            assert ids_of(loader) == ids
        assert is_begun(loader)
        loader.set_epoch(1)
        assert ids_of(loader) == expected[1]
        loader.set_epoch(4)
        batches = iter(loader)
        first = ids_of(itertools.islice(batches, 3))
        state = loader.state_dict()
        assert first + ids_of(batches) == expected[4]
        loader.load_state_dict(state)
        assert first + ids_of(loader) == expected[4]
        assert ids_of(loader) == expected[5]


def test_an_epoch_that_is_broken_off_is_begun_again(dataset, expected):
    with loader_of(dataset) as loader:
        for ids in expected[:2]:
            assert ids_of(loader) == ids
        for num_steps in (1, 11):
            batches = iter(loader)
            assert ids_of(itertools.islice(batches, num_steps)) == expected[2][: num_steps * 50]
            del batches
        loader.set_epoch(2)
        assert ids_of(loader) == expected[2]


def test_what_was_begun_for_nobody_ends_with_the_loader(dataset):
    before = threads_of_batches()
    loader = loader_of(dataset)
    for _ in range(3):
        ids_of(loader)
    assert is_begun(loader)
    del loader
    gc.collect()
    wait_until(lambda: threads_of_batches() <= before)


def test_a_function_that_may_change_between_epochs_is_not_asked_before_its_epoch_begins(dataset):
    epoch = 0
    seen = set()

    def augment(batch, rng):
        seen.add(epoch)
        return batch | {"epoch": np.full(len(batch["id"]), epoch)}

    with loader_of(dataset, augment=augment) as loader:
        for epoch in range(4):
            assert {int(one) for batch in loader for one in batch["epoch"]} == {epoch}
    assert seen == {0, 1, 2, 3}


def test_an_epoch_that_cannot_begin_says_so_when_it_is_asked_for(dataset, expected, monkeypatch):
    with loader_of(dataset) as loader:
        for ids in expected[:2]:
            assert ids_of(loader) == ids
        lanes = loader._orders.order.lanes_of_epoch

        def fails_at_3(epoch):
            if epoch == 3:
                raise MemoryError("no memory for another epoch")
            return lanes(epoch)

        monkeypatch.setattr(loader._orders.order, "lanes_of_epoch", fails_at_3)
        assert ids_of(loader) == expected[2]
        with pytest.raises(MemoryError, match="another epoch"):
            next(iter(loader))


@pytest.mark.parametrize("num_steps", [1, 3])
def test_epochs_shorter_than_what_is_ahead_follow_each_other_too(dataset, num_steps):
    options = {"batch_size": -(-NUM_ROWS // num_steps), "remainder": "pad"}
    with loader_of(dataset, prefetch=0, **options) as loader:
        expected = [ids_of(loader) for _ in range(5)]
    with loader_of(dataset, **options) as loader:
        assert [ids_of(loader) for _ in range(5)] == expected
