"""Ready batches inside torch's DataLoader and torchdata's StatefulDataLoader."""

from __future__ import annotations

import copy
import json
import multiprocessing.context
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.batches import check_same, contents
from tests.laws.test_sharing import write
from tests.strategies import check_samples, sample_table, write_files

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import stoker
from stoker import Ragged
from stoker.torch import TorchDataset, TorchLoader

pytestmark = [
    pytest.mark.torch,
    # Newer Pythons warn of any fork beside threads; those of Arrow and torch are theirs to look after.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),  # torchdata calls what torch has deprecated
]

OPTIONS = {"batch_size": 48, "shuffle": True, "seed": 3, "window": 2}
NUM_SAMPLES = 450


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch-dataset")
    write_files(folder / "data", [200, 0, 150, 100], row_group_size=50)
    for name, first, size in (("web", 1000, 170), ("code", 5000, 90)):
        pq.write_table(sample_table(size, first=first), folder / f"{name}.parquet", row_group_size=40)
    return folder


def source_of(place, **options) -> stoker.Dataset:
    return stoker.Dataset(place / "data", chunk_size=4000, **options)


def mixture_of(place) -> stoker.Mixture:
    datasets = {name: stoker.Dataset(place / f"{name}.parquet", chunk_size=4000) for name in ("web", "code")}
    return stoker.Mixture(datasets, weights={"web": 3, "code": 2}, until="last", source_field="source")


def dataset_of(place, source=None, **options) -> TorchDataset:
    return TorchDataset(source or source_of(place), **(OPTIONS | {"cache": place / "cache"} | options))


def ids_of(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def flat(lists) -> list[int]:
    return [i for ids in lists for i in ids]


@pytest.fixture(scope="module")
def epochs(place) -> list[list[list[int]]]:
    """Ids of every batch of three epochs, from a loop without a DataLoader."""
    with TorchLoader(source_of(place), cache=place / "cache", **OPTIONS) as loader:
        return [ids_of(loader) for _ in range(3)]


@pytest.fixture(scope="module", params=[source_of, mixture_of], ids=["files", "mixture"])
def source(request, place) -> stoker.Dataset | stoker.Mixture:
    return request.param(place)


@pytest.fixture(scope="module")
def arrays(place, source) -> list[list[dict]]:
    """Batches of three epochs as arrays."""
    with stoker.Loader(source, cache=place / "cache", **OPTIONS) as loader:
        return [contents(loader) for _ in range(3)]


@pytest.mark.parametrize("num_workers", [0, 1, 3, pytest.param(11, marks=pytest.mark.slow)])
def test_batches_are_the_same_and_in_the_same_order_for_any_number_of_workers(place, epochs, num_workers):
    dataset = dataset_of(place)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    assert len(loader) == len(epochs[0]) == 10
    for epoch in (0, 2):
        dataset.set_epoch(epoch)
        batches = contents(loader)
        assert ids_of(batches) == epochs[epoch]
        for batch in batches:
            check_samples(batch)
    assert sorted(flat(epochs[0])) == list(range(NUM_SAMPLES))
    dataset.close()


def test_workers_that_are_spawned_give_the_same_batches(place, source, arrays):
    loader = DataLoader(dataset_of(place, source), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    check_same(contents(loader), arrays[0])


def test_persistent_workers_give_the_batches_of_arrays_and_hear_of_new_epochs(place, source, arrays):
    dataset = dataset_of(place, source)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert len(loader) == len(arrays[0])
    for epoch in (0, 1, 2, 1):
        dataset.set_epoch(epoch)
        check_same(contents(loader), arrays[epoch])
    next(iter(loader))  # left early
    dataset.set_epoch(2)
    check_same(contents(loader), arrays[2])


def test_workers_hand_over_what_samples_share(tmp_path):
    runs = [(i % 7, 8) for i in range(30)]
    write(tmp_path / "data", {"files": [(runs, 50)], "noise": 0, "seed": 1, "narrow": False})
    plain, shared = (
        stoker.Dataset(tmp_path / "data", deduplicate=share, chunk_size=3000) for share in (None, {"query_id": ["q_*"]})
    )
    dataset = TorchDataset(shared, deduplicated="unique", cache=tmp_path / "cache", **OPTIONS)
    with stoker.Loader(plain, **OPTIONS) as loader:
        check_same(contents(DataLoader(dataset, batch_size=None, num_workers=2)), contents(loader))


def test_batches_that_are_kept_stay_intact(place):
    kept = list(DataLoader(dataset_of(place), batch_size=None, num_workers=2, prefetch_factor=4))
    assert sorted(flat(ids_of(kept))) == list(range(NUM_SAMPLES))
    for batch in contents(kept):
        check_samples(batch)


def test_the_fixed_width_fields_of_a_batch_travel_in_one_storage(place):
    batch = next(iter(DataLoader(dataset_of(place), batch_size=None, num_workers=1)))
    fixed = [field for field in batch.values() if not isinstance(field, Ragged)]
    assert len({field.untyped_storage().data_ptr() for field in fixed}) == 1


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 3, "persistent_workers": True}])
def test_each_pass_is_the_next_epoch_by_itself(place, epochs, options):
    dataset = dataset_of(place)
    loader = DataLoader(dataset, batch_size=None, **options)
    assert ids_of(loader) == epochs[0]
    torch.manual_seed(1)  # as training loops do that shall be the same each time
    assert ids_of(batch for batch, _ in zip(loader, range(len(loader)), strict=False)) == epochs[1]  # no StopIteration
    torch.manual_seed(1)
    assert ids_of(loader) == epochs[2]
    dataset.set_epoch(0)
    next(iter(loader))  # left early
    torch.manual_seed(1)
    assert ids_of(loader) == epochs[1]
    dataset.set_epoch(2)  # what comes anyway
    dataset.set_epoch(2)
    assert (dataset.epoch, dataset.next_epoch) == (2, 2)
    assert ids_of(loader) == epochs[2]
    assert (dataset.epoch, dataset.next_epoch) == (2, 3)
    dataset.close()


def test_workers_that_begin_a_pass_at_the_same_time_are_in_the_same_one(place):
    dataset = dataset_of(place)
    order = dataset_of(place)
    for _ in range(2):  # each time workers that are new, which come as they please
        loader = DataLoader(dataset, batch_size=None, num_workers=6, persistent_workers=True)
        for _ in range(8):
            assert ids_of(loader) == ids_of(order)
    dataset.close()
    order.close()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_pass_that_was_begun_keeps_its_epoch_whatever_is_named_while_its_workers_start(place, epochs, context):
    dataset = dataset_of(place)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    begun = iter(loader)
    dataset.set_epoch(2)
    assert (dataset.epoch, dataset.next_epoch) == (2, 2)
    assert ids_of(begun) == epochs[0]
    assert ids_of(loader) == epochs[2]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_goes_through_the_epochs_by_itself(place, epochs, copied):
    dataset = copied(dataset_of(place))
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert [ids_of(loader) for _ in range(3)] == epochs


def test_two_data_loaders_of_one_data_set_take_turns(place, epochs):
    dataset = dataset_of(place)
    loaders = [DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True) for _ in range(2)]
    for _ in range(3):
        torch.manual_seed(1)
        first, second = (iter(loader) for loader in loaders)
        dataset.set_epoch(0)
        assert (ids_of(first), ids_of(second)) == (epochs[0], epochs[1])


class InTurn(multiprocessing.context.ForkContext):
    """Starts processes when it is its turn, among those of others."""

    def __init__(self, name, turns):
        self._name, self._turns, self._taken = name, turns, turns.setdefault("taken", threading.Condition())

    def Process(self, **options):  # noqa: N802
        process = multiprocessing.get_context("fork").Process(**options)
        start = process.start

        def in_turn():
            with self._taken:
                assert self._taken.wait_for(lambda: self._turns["names"][0] == self._name, timeout=60)
                start()
                self._turns["names"].pop(0)
                self._taken.notify_all()

        process.start = in_turn
        return process


@pytest.mark.parametrize("num_datasets", [1, 2])
@pytest.mark.parametrize("names", [["a", "b", "a", "b"], ["a", "b", "b", "a"]])
def test_data_loaders_that_start_their_workers_at_the_same_time_each_have_an_epoch(place, epochs, names, num_datasets):
    datasets, turns, found = [dataset_of(place) for _ in range(num_datasets)], {"names": [*names]}, {}

    def loop(name):
        dataset, context = datasets["ab".index(name) % num_datasets], InTurn(name, turns)
        found[name] = ids_of(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context))

    # Threads of no pool: a process forked in a pool's thread would join that thread, itself, and so fail at its end.
    threads = [threading.Thread(target=loop, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Those of one data set take turns; another's take no epoch of it.
    assert found == {"a": epochs[0], "b": epochs[1 if num_datasets == 1 else 0]}
    assert [dataset.next_epoch for dataset in datasets] == [2] if num_datasets == 1 else [1, 1]


def test_loops_of_many_threads_each_have_an_epoch(place, epochs):
    num_threads, at_once = 3, threading.Barrier(3)

    def loop(dataset):
        loader = DataLoader(dataset, batch_size=None)
        at_once.wait(60)
        return ids_of(loader)

    with dataset_of(place) as dataset, ThreadPoolExecutor(num_threads) as pool:
        found = list(pool.map(loop, [dataset] * num_threads))
    assert sorted(found) == sorted(epochs)


def test_threads_that_share_an_iterator_have_each_row_once(place, epochs):
    with dataset_of(place) as dataset:
        batches = iter(DataLoader(dataset, batch_size=None))
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda _: ids_of(iter(lambda: next(batches, None), None)), range(4))
        assert sorted(ids for part in found for ids in part) == sorted(epochs[0])


def test_passes_are_counted_on_with_other_workers(place, epochs):
    dataset = dataset_of(place)
    for epoch, num_workers in enumerate((1, 3, 0)):
        assert ids_of(DataLoader(dataset, batch_size=None, num_workers=num_workers)) == epochs[epoch]
    dataset.close()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {},
        {"batch_size": 2, "drop_last": True},
        *(  # a worker that failed is waited for during 5 s
            pytest.param({"num_workers": 1, "multiprocessing_context": way}, marks=pytest.mark.slow)
            for way in ("fork", "spawn")
        ),
    ],
)
def test_a_data_loader_that_would_batch_batches_is_told_so(place, options):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    for kind in (DataLoader, stateful.StatefulDataLoader):
        assert "give it batch_size=None" in failure_of(kind(dataset_of(place), **options))


@pytest.mark.parametrize(
    ("source", "num_workers", "world_size"),
    [(source_of, 0, 1), (source_of, 0, 3), (source_of, 2, 1), (source_of, 2, 3), (mixture_of, 1, 3)],
    indirect=["source"],
)
def test_a_checkpoint_goes_on_with_other_ranks_and_workers(place, source, arrays, num_workers, world_size):
    dataset = dataset_of(place, source)
    dataset.set_epoch(1)
    assert dataset.state_after(0)["num_consumed"] == 0
    seen = flat(ids_of(batch for batch, _ in zip(DataLoader(dataset, batch_size=None), range(4), strict=False)))
    state = json.loads(json.dumps(dataset.state_after(4)))
    dataset.close()

    rest = []
    for rank in range(world_size):
        resumed = dataset_of(place, source, rank=rank, world_size=world_size, batch_size=20)
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # a restored position stays
        assert resumed.epoch == 1
        rest.append(ids_of(DataLoader(resumed, batch_size=None, num_workers=num_workers)))
        resumed.set_epoch(2)
        assert resumed.epoch == 2
        resumed.close()
    assert len({len(batches) for batches in rest}) == 1
    together = [i for step in zip(*rest, strict=True) for ids in step for i in ids]
    assert seen + together == flat(ids_of(arrays[1]))


def test_a_state_is_the_one_of_a_loader_and_ends_in_the_next_epoch(place):
    dataset = dataset_of(place)
    with TorchLoader(source_of(place), cache=place / "cache", **OPTIONS) as loader:
        for step, _ in enumerate(loader):
            assert dataset.state_after(step + 1) == loader.state_dict()
    assert dataset.state_after(len(dataset))["epoch"] == 1
    with pytest.raises(ValueError, match="10 steps, not 11"):
        dataset.state_after(11)
    with pytest.raises(stoker.ResumeError, match="the seed"):
        dataset_of(place, seed=4).load_state_dict(dataset.state_after(3))
    with pytest.raises(stoker.ResumeError, match="not sound"):
        dataset.load_state_dict(dataset.state_after(3) | {"num_consumed": 451})


def test_a_state_is_not_to_blame_for_a_batch_size_that_does_not_fit_the_lanes(place):
    state = dataset_of(place, lanes=2).state_after(1)
    dataset = dataset_of(place, lanes=2, batch_size=15)
    with pytest.raises(ValueError, match="global batch of 15 samples cannot be cut into 2 equal lanes"):
        dataset.load_state_dict(state)


def test_a_state_that_is_refused_changes_nothing(place, epochs, monkeypatch):
    dataset, other = dataset_of(place), dataset_of(place, seed=4).state_after(2)
    for state in ({}, other, other | {"seed": 3, "num_consumed": 451}):
        with pytest.raises(stoker.ResumeError):
            dataset.load_state_dict(state)
    monkeypatch.setenv("RANK", "1")  # of which nobody knew before
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(dataset) == len(epochs[0]) / 2
    assert dataset.epoch == 0
    found = ids_of(DataLoader(dataset, batch_size=None))
    dataset.close()
    assert found[:4] == epochs[0][1:8:2]


@pytest.mark.parametrize("state", [{}, {"start": "null"}, {"start": "{", "num_before": 0}, {"position": 3}])
def test_what_is_no_state_of_a_worker_is_said_to_be_none(place, state):
    with dataset_of(place) as dataset, pytest.raises(stoker.ResumeError):
        iter(dataset).load_state_dict(state)


def test_an_error_in_a_worker_names_what_failed(place, tmp_path):
    dataset = TorchDataset(
        source_of(place, transform=fails_at_300, transform_version="1"),
        batch_size=50,
        window=1,
        cache=tmp_path / "cache",
    )
    message = failure_of(DataLoader(dataset, batch_size=None, num_workers=2))
    for word in ("no three hundred", "part-00002.parquet row group 2", "needed by step 6"):
        assert word in message, message


def failure_of(loader) -> str:
    """Return what a pass fails with; what torch's iterator began ends with this call, not with the traceback."""
    try:
        list(loader)
    except Exception as error:
        return str(error)
    return ""


def fails_at_300(table):
    if 300 in table["id"].to_pylist():
        raise ZeroDivisionError("no three hundred")
    return table


def test_augment_is_the_same_in_every_worker(place):
    def noise_of(num_workers):
        dataset = dataset_of(place, augment=with_noise)
        batches = contents(DataLoader(dataset, batch_size=None, num_workers=num_workers))
        dataset.close()
        return np.concatenate([batch["noise"] for batch in batches])

    expected = noise_of(0)
    assert len(np.unique(expected)) == NUM_SAMPLES
    np.testing.assert_array_equal(noise_of(3), expected)


def with_noise(batch, rng):
    return batch | {"noise": rng.random(len(batch["id"]))}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cache": None}, TypeError, "cache"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"device": "cuda"}, TypeError, "device"),
    ],
)
def test_wrong_arguments_are_said_in_the_process_that_makes_them(place, options, error, words):
    with pytest.raises(error, match=words):
        dataset_of(place, **options)


def test_an_epoch_must_be_a_number(place):
    for epoch in (-1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="epoch"):
            dataset_of(place).set_epoch(epoch)


# ---------------------------------------------------------------------- torchdata


def stateful_of(dataset, **options):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful.StatefulDataLoader(dataset, batch_size=None, **options)


def take(loader, num_steps) -> list[list[int]]:
    iterator = iter(loader)
    return ids_of(next(iterator) for _ in range(num_steps))


@pytest.mark.parametrize(
    ("source", "num_workers"),
    [
        (source_of, 0),
        (source_of, 1),
        (source_of, 2),
        (mixture_of, 2),
        pytest.param(source_of, 4, marks=pytest.mark.slow),
    ],
    indirect=["source"],
)
def test_a_stateful_data_loader_goes_on_exactly_where_it_was_again_and_again(place, source, arrays, num_workers):
    """Left in mid-epoch, twice, then at its end by a loop that counts, then between two epochs."""
    state, before, epochs = None, [], [ids_of(epoch) for epoch in arrays]
    for num_steps in (0, 3, 1, len(epochs[1]) - 4):
        with dataset_of(place, source) as dataset:
            dataset.set_epoch(1)
            loader = stateful_of(dataset, num_workers=num_workers)
            if state is not None:
                loader.load_state_dict(state)
            before += take(loader, num_steps)
            state = json.loads(json.dumps(loader.state_dict()))
    assert before == epochs[1]
    with dataset_of(place, source) as dataset:
        loader = stateful_of(dataset, num_workers=num_workers)
        loader.load_state_dict(state)
        assert ids_of(loader) == epochs[2]
        state = json.loads(json.dumps(loader.state_dict()))
        dataset.set_epoch(1)
        assert ids_of(loader) == epochs[1]
    with dataset_of(place, source) as dataset, TorchLoader(source, cache=place / "cache", **OPTIONS) as plain_loader:
        loader = stateful_of(dataset, num_workers=num_workers)
        loader.load_state_dict(state)
        plain_loader.set_epoch(3)
        assert ids_of(loader) == ids_of(plain_loader)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_passes_after_a_loaded_state_are_the_epochs_that_follow(place, epochs, persistent_workers):
    options = {"num_workers": 2, "persistent_workers": persistent_workers}
    loader = stateful_of(dataset_of(place), **options)
    before = take(loader, 3)
    state = loader.state_dict()
    del loader
    dataset = dataset_of(place)
    loader = stateful_of(dataset, **options)
    loader.load_state_dict(state)
    assert before + ids_of(loader) == epochs[0]
    for epoch in (1, 2):
        assert ids_of(loader) == epochs[epoch]
    dataset.set_epoch(1)
    assert ids_of(loader) == epochs[1]


@pytest.mark.parametrize("save_every", [2, 5])
def test_states_between_the_snapshots_of_workers_are_exact(place, epochs, save_every):
    loader = stateful_of(dataset_of(place), num_workers=2, snapshot_every_n_steps=save_every)
    before = take(loader, 7)
    state = loader.state_dict()
    del loader
    loader = stateful_of(dataset_of(place), num_workers=2, snapshot_every_n_steps=save_every)
    loader.load_state_dict(state)
    assert before + ids_of(loader) == epochs[0]


@pytest.mark.parametrize(
    ("num_workers", "changed"),
    [
        (0, {"batch_size": 30}),
        (0, {"batch_size": 100}),
        (0, {"batch_size": 24, "world_size": 2}),
        (0, {"batch_size": 25, "world_size": 3}),
        (0, {"remainder": "drop"}),
        (1, {"batch_size": 25, "world_size": 3}),
        (2, {"batch_size": 24, "world_size": 2}),
        (2, {"remainder": "drop"}),
    ],
    ids=str,
)
def test_with_other_batches_or_ranks_a_state_is_exact_or_says_what_differs(place, epochs, num_workers, changed):
    with dataset_of(place) as dataset:
        loader = stateful_of(dataset, num_workers=num_workers)
        before = take(loader, 4)
        state = loader.state_dict()
        del loader
    ranks = changed.get("world_size", 1)
    global_batch_size = changed.get("batch_size", 48) * ranks
    rest = []
    for rank in range(ranks):
        with dataset_of(place, **({"rank": rank} if ranks > 1 else {}), **changed) as dataset:
            loader = stateful_of(dataset, num_workers=num_workers)
            loader.load_state_dict(state)
            if num_workers and (global_batch_size != 48 or "remainder" in changed):
                word = "remainder" if "remainder" in changed else f"global_batch_size was 48 and is {global_batch_size}"
                assert word in failure_of(loader)
                return
            rest.append(ids_of(loader))
    after = flat(ids for step in zip(*rest, strict=True) for ids in step)
    expected = flat(epochs[0])
    if "remainder" in changed:
        expected = expected[: len(expected) // 48 * 48]
    assert flat(before) + after == expected


@pytest.mark.parametrize(("num_before", "num_after"), [(1, 2), (2, 1)])
def test_a_state_of_other_workers_is_refused_by_their_number(place, num_before, num_after):
    loader = stateful_of(dataset_of(place), num_workers=num_before)
    take(loader, 4)
    state = loader.state_dict()
    del loader
    loader = stateful_of(dataset_of(place), num_workers=num_after)
    loader.load_state_dict(state)
    assert f"num_workers was {num_before} and is {num_after}" in failure_of(loader)
