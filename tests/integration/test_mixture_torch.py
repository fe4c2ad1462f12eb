"""Mixtures as tensors: in a loop of one's own, and inside DataLoaders with any kind of worker."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from tests.strategies import sample_table

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset, TorchLoader

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch-mixture")
    for name, first, size in (("web", 1000, 170), ("code", 5000, 90)):
        (folder / name).mkdir()
        pq.write_table(sample_table(size, first=first), folder / name / "x.parquet", row_group_size=40)
    return folder


def mixture_of(place) -> stoker.Mixture:
    datasets = {name: stoker.Dataset(place / name, chunk_size=4000) for name in ("web", "code")}
    return stoker.Mixture(datasets, weights={"web": 3, "code": 2}, until="last", source_field="source")


def options_of(place, **options):
    return {"batch_size": 24, "shuffle": True, "seed": 2, "window": 2, "cache": place / "cache"} | options


def ids_of(batches) -> list[list[int]]:
    found = []
    for batch in batches:
        assert batch["source"].dtype == torch.int32
        assert batch["source"].tolist() == [int(i >= 5000) for i in batch["id"].tolist()]
        found.append(batch["id"].tolist())
    return found


@pytest.fixture(scope="module")
def epochs(place):
    with stoker.Loader(mixture_of(place), **options_of(place)) as loader:
        return [[batch["id"].tolist() for batch in loader] for _ in range(3)]


def test_tensors_come_as_arrays_do(place, epochs):
    with TorchLoader(mixture_of(place), **options_of(place)) as loader:
        assert [ids_of(loader) for _ in range(3)] == epochs


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_give_the_same_batches_and_hear_of_epochs(place, epochs, context):
    dataset = TorchDataset(mixture_of(place), **options_of(place))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )
    assert len(loader) == len(epochs[0])
    for epoch in (0, 2, 1):
        dataset.set_epoch(epoch)
        assert ids_of(loader) == epochs[epoch]


def test_a_checkpoint_goes_on_with_other_ranks_and_workers(place, epochs):
    dataset = TorchDataset(mixture_of(place), **options_of(place))
    dataset.set_epoch(1)
    state = json.loads(json.dumps(dataset.state_after(3)))
    rest = []
    for rank in range(3):
        resumed = TorchDataset(mixture_of(place), **options_of(place, rank=rank, world_size=3, batch_size=10))
        resumed.load_state_dict(state)
        rest.append(ids_of(DataLoader(resumed, batch_size=None, num_workers=rank)))
        resumed.close()
    together = [i for step in zip(*rest, strict=True) for ids in step for i in ids]
    assert together == [i for ids in epochs[1][3:] for i in ids]


def test_a_stateful_data_loader_goes_on_exactly_where_it_was(place, epochs):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    for num_before in (0, 4):
        dataset = TorchDataset(mixture_of(place), **options_of(place))
        loader = stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=2)
        iterator = iter(loader)
        before = ids_of(next(iterator) for _ in range(num_before))
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator, loader
        dataset = TorchDataset(mixture_of(place), **options_of(place))
        loader = stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=2)
        loader.load_state_dict(state)
        assert before + ids_of(loader) == epochs[0]
