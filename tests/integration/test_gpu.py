"""A real GPU: what comes there is what comes to the CPU, however late its copies and however late the loop reads."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.integration.test_torch_loader import wide_table
from tests.laws.test_compact_loader import fields as narrow_fields
from tests.laws.test_compact_loader import write as write_narrow
from tests.laws.test_sharing import write as write_shared
from tests.strategies import check_samples, write_files

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import stoker
from stoker import Deduplicated, Ragged
from stoker.torch import TorchDataset, TorchLoader
from stoker.torch.cuda import CudaStream

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]

# A millisecond or two of a GPU: longer than any copy here, so that what is read or used again too early shows.
SLEEP_CYCLES = 3_000_000
SHARE = {"query_id": ["q_*"], "user": ["u_*"]}
RUNS = {"files": [([(k % 7, 1 + k % 9) for k in range(60)], 50)] * 2, "noise": 0.1, "seed": 3, "narrow": False}
ROWS = {
    "rows": {"shuffle": True},
    "one at a time": {"shuffle": True, "batch_size": 1, "num_threads": 1, "prefetch": 1},
    "in the loop's thread": {"shuffle": True, "prefetch": 0},
    "padded": {"remainder": "pad", "rank": 1, "world_size": 3},
    "lanes": {"shuffle": True, "lanes": 2},
    "windows": {"shuffle": True, "sequence": stoker.NGram(length=2)},
    "at places": {"sequence": stoker.NGram({0: ["id", "vector"], 1: ["id", "history"], 3: ["vector"]})},
    "packed": {"sequence": stoker.Pack("history", length=8, per_segment=["id", "vector"])},
    "groups": {"shuffle": True, "group_by": "flag"},
    "augmented": {"augment": lambda batch, _: {"id": batch["id"][::-1], "more": batch["vector"] + 1}},
}


def to_host(field):
    """A field of a batch on the GPU, as arrays."""
    if isinstance(field, Ragged | Deduplicated):
        return field.map(to_host)
    assert field.is_cuda
    return field.cpu().numpy()


def assert_same(field, expected):
    assert type(field) is type(expected)
    if isinstance(expected, Ragged | Deduplicated):
        for mine, right in zip(field.arrays, expected.arrays, strict=True):
            assert_same(mine, right)
        return
    assert field.dtype == expected.dtype
    np.testing.assert_array_equal(field, expected)


def assert_epochs_same(dataset, *, num_epochs=2, resident=None, **options):
    """Read batches behind work that holds the loop's stream up, and hold them against those of the CPU."""
    options = {"batch_size": 16, "seed": 5} | options
    with stoker.Loader(dataset, **options) as loader:
        expected = [dict(batch) for _ in range(num_epochs) for batch in loader]
    with TorchLoader(dataset, device="cuda", resident=resident, **options) as loader:
        found = []
        for _ in range(num_epochs):
            for batch in loader:
                torch.cuda._sleep(SLEEP_CYCLES)
                found.append({name: copied(field) for name, field in batch.items()})
                del batch  # whose memory the next copies may have now, but not before the loop has read it
    assert len(found) == len(expected)
    for batch, right in zip(found, expected, strict=True):
        assert list(batch) == list(right)
        for name, field in batch.items():
            assert_same(to_host(field), right[name])


def copied(field):
    """A copy of a field that the loop's stream makes when it comes to it."""
    if isinstance(field, Ragged | Deduplicated):
        return field.map(copied)
    return field.clone()


@pytest.fixture(params=["prompt", "late"])
def copies(request, monkeypatch):
    """Copies that come at once, or behind work that holds their stream up."""
    if request.param == "prompt":
        return
    prompt = CudaStream.copies

    @contextmanager
    def late(self):
        with prompt(self):
            torch.cuda._sleep(SLEEP_CYCLES)
            yield

    monkeypatch.setattr(CudaStream, "copies", late)


@pytest.mark.parametrize("how", ROWS)
def test_batches_are_those_of_the_cpu(tmp_path, copies, how):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300, 0, 200]), chunk_size=4_000)
    assert_epochs_same(dataset, cache=tmp_path / "cache", **ROWS[how])


def test_every_dtype_and_nesting_comes_through(tmp_path, copies):
    pq.write_table(wide_table(200), tmp_path / "wide.parquet")
    assert_epochs_same(stoker.Dataset(tmp_path / "wide.parquet"), shuffle=True)


@pytest.mark.parametrize("shared", ["expand", "unique"])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_what_samples_share_is_expanded_there(tmp_path, copies, shared, batch_size):
    write_shared(tmp_path / "data", RUNS)
    dataset = stoker.Dataset(tmp_path / "data", deduplicate=SHARE, chunk_size=3_000)
    assert_epochs_same(dataset, shuffle=True, deduplicated=shared, batch_size=batch_size)


def test_what_is_kept_narrow_is_widened_there(tmp_path, copies):
    dataset = stoker.Dataset(write_narrow(tmp_path / "data"), fields=narrow_fields(is_compact=True), chunk_size=8_000)
    assert_epochs_same(dataset, shuffle=True)


@pytest.mark.parametrize("columns", [None, ["id", "half", "flag", "vector"]], ids=["with lists", "records alone"])
@pytest.mark.parametrize("resident", [64, 10_000, "1MB"], ids=["nothing fits", "some", "all"])
def test_batches_are_the_same_whatever_stays_there(tmp_path, copies, columns, resident):
    data = write_files(tmp_path / "data", [300, 0, 200])
    dataset = stoker.Dataset(data, columns=columns, chunk_size=4_000)
    options = {"shuffle": True, "window": 3, "cache": tmp_path / "cache"}
    assert_epochs_same(dataset, num_epochs=3, resident=resident, **options)


def test_batches_that_are_kept_stay_intact_whatever_is_written_to_others(tmp_path, copies):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    kept = []
    with TorchLoader(dataset, device="cuda", batch_size=10, shuffle=True) as loader:
        for number, batch in enumerate(loader):
            if number % 2:
                batch["id"].fill_(-1)
                batch["history"].values.zero_()
            else:
                kept.append(batch)
    for batch in kept:
        check_samples({name: to_host(field) for name, field in batch.items()})


def test_memory_of_the_device_does_not_grow_with_epochs_and_is_given_back(tmp_path):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [2_000]), chunk_size=4_000)
    gc.collect()
    before = torch.cuda.memory_allocated()
    with TorchLoader(dataset, device="cuda", batch_size=16, shuffle=True, cache=tmp_path / "cache") as loader:
        reserved = []
        for _ in range(6):
            for batch in loader:
                batch["vector"].sum()
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
        assert reserved[-1] == reserved[2]
    del batch, loader
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_loop_on_a_stream_of_its_own_waits_for_its_batch(tmp_path, copies):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300]), chunk_size=4_000)
    own, found = torch.cuda.Stream(), []
    with TorchLoader(dataset, device="cuda:0", batch_size=16) as loader, torch.cuda.stream(own):
        for batch in loader:
            torch.cuda._sleep(SLEEP_CYCLES)
            found.append(batch["id"].clone())
            del batch
    own.synchronize()
    assert torch.cat(found).tolist() == list(range(300))


def test_a_loader_that_is_left_in_the_middle_leaves_nothing_behind(tmp_path, copies):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for num_steps in range(4):
        with TorchLoader(dataset, device="cuda", batch_size=16, shuffle=True, cache=tmp_path / "cache") as loader:
            batches = iter(loader)
            for _ in range(num_steps):
                next(batches)
            del batches
    del loader
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_memory_that_batches_cross_from_is_pinned_and_not_inherited(tmp_path, copies):
    assert torch.from_numpy(CudaStream(torch.device("cuda", 0)).allocate(5 << 20)).is_pinned()
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    with TorchLoader(dataset, device="cuda", batch_size=10, shuffle=True, cache=tmp_path / "cache") as loader:
        batches = [next(iter(loader)) for _ in range(2)]
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:  # holds on to what it has until the parent is done
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        try:
            for _ in range(3):
                batches += list(loader)
        finally:
            os.close(theirs)
            os.waitpid(child, 0)
    for batch in batches:
        check_samples({name: to_host(field) for name, field in batch.items()})


def test_a_data_loader_pins_and_moves_what_workers_make(tmp_path):
    data = write_files(tmp_path / "data", [100])
    with TorchDataset(stoker.Dataset(data), cache=tmp_path / "cache", batch_size=16) as dataset:
        loader = DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True, multiprocessing_context="spawn")
        found = [batch["id"].to("cuda", non_blocking=True) for batch in loader]
    assert torch.cat(found).tolist() == list(range(100))


def test_a_gpu_that_is_not_there_is_an_error(tmp_path):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [10]))
    with pytest.raises(ValueError, match="there is no device cuda:99 here"):
        TorchLoader(dataset, device="cuda:99", batch_size=2)
