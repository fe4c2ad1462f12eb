"""The epochs of one loader, one after the other, broken off, or elsewhere: each has the batches it always has."""

import itertools

import numpy as np
import pytest
from tests.batches import ids_of
from tests.strategies import write_files

import stoker

NUM_ROWS = 600


@pytest.fixture
def dataset(tmp_path):
    folder = write_files(tmp_path / "data", [200, 200, 200], row_group_size=50)
    return stoker.Dataset(folder, chunk_size=4000)


def loader_of(dataset, **options):
    options = {"batch_size": 50, "shuffle": True, "window": 2, "prefetch": 4, "num_threads": 2} | options
    return stoker.Loader(dataset, **options)


@pytest.fixture
def expected(dataset):
    """Ids of each epoch, each by a loader that makes batches when they are asked for."""
    with loader_of(dataset, prefetch=0) as loader:
        return [ids_of(loader) for _ in range(6)]


def test_a_loop_that_goes_on_elsewhere_gets_what_it_asks_for(dataset, expected):
    with loader_of(dataset) as loader:
        for ids in expected[:3]:
            assert ids_of(loader) == ids
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
        assert loader.stats().num_ready == 0
        assert loader.stats().num_samples == 7 * NUM_ROWS - len(first)


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


@pytest.mark.parametrize("num_steps", [1, 3])
def test_epochs_shorter_than_what_is_ahead_follow_each_other_too(dataset, num_steps):
    options = {"batch_size": -(-NUM_ROWS // num_steps), "remainder": "pad"}
    with loader_of(dataset, prefetch=0, **options) as loader:
        expected = [ids_of(loader) for _ in range(5)]
    with loader_of(dataset, **options) as loader:
        assert [ids_of(loader) for _ in range(5)] == expected
