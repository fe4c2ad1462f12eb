"""States saved on three ranks and loaded on two, of files that have moved and grown: through torch, by row ids."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.batches import ids_of
from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset, TorchLoader

torchdata = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),  # torchdata calls what torch has deprecated
]
OPTIONS = {"global_batch_size": 6, "shuffle": True, "seed": 3, "num_threads": 1}
ROADS = [
    ("TorchLoader", 0),
    ("StatefulDataLoader", 0),
    ("StatefulDataLoader", 2),
    *(pytest.param("StatefulDataLoader", n, marks=pytest.mark.slow) for n in (1, 3, 4)),
]


def add(root, name, ids):
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": np.array(ids), "half": np.array(ids) / 2}), root / name, row_group_size=10)


@pytest.fixture
def lake(tmp_path):
    for number in range(3):
        add(tmp_path / "lake", f"b{number}.parquet", range(30 * number, 30 * number + 30))
    return tmp_path / "lake"


def on_a_rank(road, num_workers, root, *, cache, state=None, allow=(), num_steps=None, **options):
    """Return the ids of steps, all of the epoch unless told, and the state behind them."""
    dataset, ids = root if isinstance(root, stoker.Mixture) else stoker.Dataset(root, chunk_size=400), []
    if road == "TorchLoader":
        with TorchLoader(dataset, device="cpu", cache=cache, **(OPTIONS | options)) as loader:
            if state is not None:
                loader.load_state_dict(state, allow=allow)
            for batch in loader:
                ids.append(batch["id"].tolist())
                if len(ids) == num_steps:
                    break
            return ids, loader.state_dict()
    with TorchDataset(dataset, allow=allow, cache=cache, **(OPTIONS | options)) as batches:
        loader = torchdata.StatefulDataLoader(batches, batch_size=None, num_workers=num_workers)
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            ids.append(batch["id"].tolist())
            if len(ids) == num_steps:
                return ids, loader.state_dict()
        return ids, loader.state_dict()


def on_ranks(world_size, road, num_workers, root, *, states=None, **options):
    """Return the ids of all steps over all ranks, and each rank's state; ranks begin with those of any other rank."""
    ranks = [
        on_a_rank(
            road, num_workers, root, rank=rank, world_size=world_size,
            state=None if states is None else states[rank % len(states)], **options,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    together = [[i for ids in step for i in ids] for step in zip(*(ids for ids, _ in ranks), strict=True)]
    return together, [state for _, state in ranks]


@pytest.mark.parametrize(("road", "num_workers"), ROADS)
def test_moved_files_go_on_exactly_on_fewer_ranks(lake, tmp_path, road, num_workers):
    options = {"cache": tmp_path / "cache"}
    uncut, _ = on_ranks(1, road, num_workers, lake, **options)
    before, states = on_ranks(3, road, num_workers, lake, num_steps=5, **options)
    moved = shutil.copytree(lake, tmp_path / "scratch" / "copy")
    after, _ = on_ranks(2, road, num_workers, moved, states=states, **options)
    assert before + after == uncut


@pytest.mark.parametrize(("road", "num_workers"), ROADS)
def test_grown_files_give_each_row_once_on_fewer_ranks_twice(lake, tmp_path, road, num_workers):
    options = {"cache": tmp_path / "cache"}
    uncut, _ = on_ranks(1, road, num_workers, lake, **options)
    seen, states = on_ranks(3, road, num_workers, lake, num_steps=5, **options)
    add(lake, "a.parquet", range(90, 110))
    more, states = on_ranks(2, road, num_workers, lake, states=states, allow={"files"}, num_steps=6, **options)
    assert seen + more == uncut[:11]
    add(lake, "c.parquet", range(110, 121))
    last, _ = on_ranks(3, road, num_workers, lake, states=states, allow={"files"}, **options)
    assert [i for step in (seen + more + last)[:15] for i in step] == [i for step in uncut for i in step]
    assert sorted(i for step in seen + more + last for i in step) == list(range(121))


@pytest.mark.parametrize(("road", "num_workers"), ROADS[:2])
def test_grown_files_without_a_word_are_refused_by_name(lake, tmp_path, road, num_workers):
    _, states = on_ranks(1, road, num_workers, lake, num_steps=5, cache=tmp_path / "cache")
    add(lake, "a.parquet", range(90, 110))
    with pytest.raises(stoker.ResumeError, match=r"1 file more: a\.parquet"):
        on_ranks(1, road, num_workers, lake, states=states, cache=tmp_path / "cache")


@pytest.mark.parametrize(("road", "num_workers"), ROADS)
def test_a_mixture_goes_on_by_other_weights_on_fewer_ranks(lake, tmp_path, road, num_workers):
    add(tmp_path / "other", "x.parquet", range(1000, 1060))

    def mixture(**weights):
        return stoker.Mixture(
            {"lake": stoker.Dataset(lake), "other": stoker.Dataset(tmp_path / "other")}, weights=weights
        )

    options = {"cache": tmp_path / "cache"}
    seen, states = on_ranks(3, road, num_workers, mixture(lake=2, other=1), num_steps=5, **options)
    even = mixture(lake=1, other=1)
    uncut, _ = on_ranks(1, road, num_workers, even, states=states, allow={"weights"}, **options)
    more, states = on_ranks(2, road, num_workers, even, states=states, allow={"weights"}, num_steps=4, **options)
    last, _ = on_ranks(3, road, num_workers, even, states=states, **options)
    assert more + last == uncut
    rows = [i for step in seen + uncut for i in step]
    assert len(rows) == len(set(rows))
    assert sorted(i for i in rows if i >= 1000) == list(range(1000, 1060))
    # From there on as many came of the lake as of the other one, which was used up.
    num_before = sum(i >= 1000 for step in seen for i in step)
    assert len(rows) == 30 + 2 * (60 - num_before)


def test_files_that_come_between_two_epochs_are_files_of_the_next_one(lake, tmp_path):
    """All batches came out of the loader, whose state says where the pass began and how many there were."""
    seen, states = on_ranks(1, "StatefulDataLoader", 0, lake, num_steps=15, cache=tmp_path / "cache")
    assert sorted(i for step in seen for i in step) == list(range(90))
    (lake / "b0.parquet").unlink()
    add(lake, "a.parquet", range(90, 110))
    options = {"cache": tmp_path / "cache", "allow": {"files"}}
    with TorchDataset(stoker.Dataset(lake, chunk_size=400), **(OPTIONS | options)) as batches:
        loader = torchdata.StatefulDataLoader(batches, batch_size=None)
        loader.load_state_dict(states[0])
        passes = [ids_of(loader) for _ in range(2)]
    assert passes[-1] != sorted(passes[-1])
    assert sorted(passes[-1]) == list(range(30, 110))


def test_the_position_of_a_torch_dataset_goes_on_in_any_loader_with_more_files(lake, tmp_path):
    seen, _ = on_ranks(1, "StatefulDataLoader", 0, lake, num_steps=5, cache=tmp_path / "cache")
    with TorchDataset(stoker.Dataset(lake, chunk_size=400), cache=tmp_path / "cache", **OPTIONS) as batches:
        state = json.loads(json.dumps(batches.state_after(5)))
    add(lake, "a.parquet", range(90, 110))
    with TorchDataset(stoker.Dataset(lake, chunk_size=400), cache=tmp_path / "cache", **OPTIONS) as batches:
        batches.load_state_dict(state, allow={"files"})
        assert len(batches) == 19
        rest = [ids_of(torchdata.StatefulDataLoader(batches, batch_size=None))]
        assert batches.state_after(14)["epoch"] == 1
        rest += [ids_of(torchdata.StatefulDataLoader(batches, batch_size=None))]
    assert sorted([i for step in seen for i in step] + rest[0]) == list(range(110))
    assert sorted(rest[1]) == list(range(110))
    assert rest[1][:60] != list(range(60))


def test_workers_that_were_begun_before_a_grown_state_was_loaded_say_so(lake, tmp_path):
    on_a_rank("TorchLoader", 0, lake, cache=tmp_path / "cache")
    with TorchDataset(stoker.Dataset(lake, chunk_size=400), cache=tmp_path / "cache", **OPTIONS) as batches:
        state = batches.state_after(5)
    add(lake, "a.parquet", range(90, 110))
    with TorchDataset(stoker.Dataset(lake, chunk_size=400), cache=tmp_path / "cache", **OPTIONS) as batches:
        loader = DataLoader(batches, batch_size=None, num_workers=1, persistent_workers=True)
        assert sorted(ids_of(loader)) == list(range(110))
        batches.load_state_dict(state, allow={"files"})
        with pytest.raises(RuntimeError, match="make the DataLoader anew behind load_state_dict"):
            next(iter(loader))
        del loader
        batches.load_state_dict(state, allow={"files"})  # the pass that failed was one
        anew = DataLoader(batches, batch_size=None, num_workers=1)
        assert len(ids_of(anew)) == 110 - 5 * 6
