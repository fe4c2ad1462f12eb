"""Loaders of others, and our own, watched: the same batches, and what was planted in them is found."""

import copy
import pickle
import time

import numpy as np
import pytest
from tests.strategies import write_files

import stoker

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from stoker.torch import TorchLoader


def at_once(i, worker):
    return 0.0


class Numbers(Dataset):
    """Sample i is i; `wait` says how long it takes in a worker."""

    def __init__(self, num, wait=at_once):
        self.num, self.wait = num, wait

    def __len__(self):
        return self.num

    def __getitem__(self, i):
        worker = get_worker_info()
        seconds = self.wait(i, worker.id if worker else 0)
        if seconds:
            time.sleep(seconds)  # the planted wait itself, nothing is waited for here
        return torch.tensor(i)


def slow_in_worker_0(i, worker):
    return 0.02 if worker == 0 else 0.0


def slow_everywhere(i, worker):
    return 0.02


def fails_at_9(i, worker):
    if i == 9:
        raise ValueError("sample 9 is broken")
    return 0.0


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_gives_the_same_batches_in_every_epoch(num_workers):
    loader = DataLoader(Numbers(20), batch_size=4, num_workers=num_workers)
    watched = stoker.watch(loader)
    assert len(watched) == 5
    assert watched.batch_size == 4
    for _ in range(2):
        assert [batch.tolist() for batch in watched] == [list(range(k, k + 4)) for k in range(0, 20, 4)]
    for _ in watched:
        break
    assert watched.report().num_epochs == 3


@pytest.mark.torch
def test_an_exception_of_the_data_set_arrives_as_it_would_unwatched():
    loader = DataLoader(Numbers(20, fails_at_9), batch_size=4)
    with pytest.raises(ValueError, match="sample 9 is broken"):
        list(stoker.watch(loader))


@pytest.mark.torch
@pytest.mark.parametrize(("wait", "name"), [(slow_in_worker_0, "slow-worker"), (slow_everywhere, "too-few-workers")])
def test_one_slow_worker_of_a_dataloader_is_told_from_too_few(wait, name):
    loader = DataLoader(Numbers(200, wait), batch_size=1, num_workers=2)
    watched = stoker.watch(loader, warmup=3)
    for _ in watched:
        pass
    report = watched.report()
    assert report.verdict.limit == "data"
    assert [finding.name for finding in report.findings][:1] == [name]
    if name == "slow-worker":
        assert (report.findings[0].period, report.findings[0].place) == (2, 0)


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_watched_dataloader_copies_pickles_and_indexes_as_its_own_does(num_workers):
    watched = stoker.watch(DataLoader(Numbers(6), batch_size=2, num_workers=num_workers), warmup=0)
    expected = [[0, 1], [2, 3], [4, 5]]
    for other in (copy.copy(watched), copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        assert isinstance(other, stoker.Watched)
        assert other.batch_size == 2
        assert [batch.tolist() for batch in other] == expected
        assert other.report().num_steps == 3
    assert watched.report().num_steps == 0
    with pytest.raises(TypeError, match="not subscriptable"):
        watched[0]
    assert {"dataset", "report"} <= set(dir(watched))


@pytest.mark.torch
def test_an_iterable_data_set_without_a_length_stays_one():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(6)

    watched = stoker.watch(DataLoader(Stream(), batch_size=2))
    assert [batch.tolist() for batch in watched] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError):
        len(watched)


def test_our_own_loaders_keep_their_state_and_their_end(tmp_path):
    write_files(tmp_path / "data", [300, 200])
    dataset = stoker.Dataset(tmp_path / "data")
    with stoker.watch(stoker.Loader(dataset, batch_size=64, shuffle=True, seed=7)) as loader:
        assert len(loader) == 8
        epochs = [np.concatenate([batch["id"] for batch in loader]) for _ in range(2)]
        assert all(sorted(epoch.tolist()) == list(range(500)) for epoch in epochs)
        assert loader.epoch == 2
        for batch in loader:
            saved, first = loader.state_dict(), batch["id"].copy()
            break
        loader.load_state_dict(saved)
        assert not np.array_equal(next(iter(loader))["id"], first)
        assert loader.report().num_steps == 18
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


@pytest.mark.torch
def test_a_torch_loader_is_watched_with_a_replay(tmp_path):
    write_files(tmp_path / "data", [300, 200])
    with stoker.watch(TorchLoader(stoker.Dataset(tmp_path / "data"), batch_size=64), replay=4, warmup=1) as loader:
        assert sum(1 for _ in loader) == 8 + 4
        assert loader.report().replay.num_bytes > 0


def test_a_datasets_iterator_is_watched():
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    rows = datasets.Dataset.from_dict({"x": list(range(10))})
    assert [row["x"] for row in stoker.watch(rows)] == list(range(10))
    stream = stoker.watch(rows.to_iterable_dataset().batch(5))
    assert [row["x"] for row in stream] == [list(range(5)), list(range(5, 10))]


def test_a_grain_loader_is_watched():
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    data = grain.MapDataset.source(list(range(12))).batch(4)
    assert [batch.tolist() for batch in stoker.watch(data.to_iter_dataset())] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    watched = stoker.watch(iter(data.to_iter_dataset()))
    assert next(watched).tolist() == [0, 1, 2, 3]
    assert watched.get_state()
    assert len(list(watched)) == 2


def test_a_litdata_stream_is_watched(tmp_path):
    litdata = pytest.importorskip("litdata", reason="litData is not installed")
    writer = litdata.streaming.writer.BinaryWriter if hasattr(litdata.streaming, "writer") else None
    if writer is None:
        pytest.skip("this litData has no BinaryWriter where it is looked for")
    cache = litdata.streaming.Cache(str(tmp_path), chunk_size=4)
    for i in range(12):
        cache[i] = i
    cache.done()
    cache.merge()
    stream = litdata.StreamingDataset(str(tmp_path))
    loader = stoker.watch(litdata.StreamingDataLoader(stream, batch_size=4))
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(12))
    assert len(loader) == 3


def test_a_mosaic_stream_is_watched(tmp_path):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    with streaming.MDSWriter(out=str(tmp_path), columns={"x": "int"}) as out:
        for i in range(12):
            out.write({"x": i})
    stream = streaming.StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=False)
    loader = stoker.watch(streaming.StreamingDataLoader(stream, batch_size=4))
    assert sorted(i for batch in loader for i in batch["x"].tolist()) == list(range(12))
