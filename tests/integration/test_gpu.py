"""A real GPU: what comes there is what comes to the CPU, however late its copies and however late the loop reads."""

from __future__ import annotations

import gc
import os

import pyarrow.parquet as pq
import pytest
from tests.batches import check_same, contents
from tests.integration.test_torch_loader import wide_table
from tests.laws.test_compact_loader import fields as narrow_fields
from tests.laws.test_compact_loader import write as write_narrow
from tests.laws.test_sharing import write as write_shared
from tests.strategies import arrays_in, check_samples, write_files

torch = pytest.importorskip("torch")

from tests.device import DeviceLoader, HeldUp, hold_up
from torch.utils.data import DataLoader

import stoker
from stoker import Deduplicated, Ragged
from stoker.torch import TorchDataset, TorchLoader

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]

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


@pytest.fixture(params=["prompt", "late"])
def on_gpu(request):
    """Makes a loader to the GPU, whose copies come at once, or behind work that holds their stream up."""
    if request.param == "prompt":
        return lambda dataset, **options: TorchLoader(dataset, device="cuda:0", **options)
    return lambda dataset, **options: DeviceLoader(dataset, stream=HeldUp(torch.device("cuda", 0)), **options)


def copied(field):
    """A copy of a field that the loop's stream makes when it comes to it."""
    assert all(array.is_cuda for array in arrays_in(field))
    return field.map(torch.clone) if isinstance(field, Ragged | Deduplicated) else field.clone()


def check_epochs(on_gpu, dataset, *, num_epochs=2, resident=None, **options):
    """Read batches behind work that holds the loop's stream up, and hold them against those of the CPU."""
    options = {"batch_size": 16, "seed": 5} | options
    with stoker.Loader(dataset, **options) as loader:
        expected = [batch for _ in range(num_epochs) for batch in contents(loader, expands=False)]
    with on_gpu(dataset, resident=resident, **options) as loader:
        found = []
        for _ in range(num_epochs):
            for batch in loader:
                hold_up()
                found.append({name: copied(field) for name, field in batch.items()})
                del batch  # whose memory the next copies may have now, but not before the loop has read it
    check_same(contents(found, expands=False), expected)


@pytest.mark.parametrize("how", ROWS)
def test_batches_are_those_of_the_cpu(tmp_path, on_gpu, how):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300, 0, 200]), chunk_size=4_000)
    check_epochs(on_gpu, dataset, cache=tmp_path / "cache", **ROWS[how])


def test_every_dtype_and_nesting_comes_through(tmp_path, on_gpu):
    pq.write_table(wide_table(200), tmp_path / "wide.parquet")
    check_epochs(on_gpu, stoker.Dataset(tmp_path / "wide.parquet"), shuffle=True)


@pytest.mark.parametrize("shared", ["expand", "unique"])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_what_samples_share_is_expanded_there(tmp_path, on_gpu, shared, batch_size):
    write_shared(tmp_path / "data", RUNS)
    dataset = stoker.Dataset(tmp_path / "data", deduplicate=SHARE, chunk_size=3_000)
    check_epochs(on_gpu, dataset, shuffle=True, deduplicated=shared, batch_size=batch_size)


def test_what_is_kept_narrow_is_widened_there(tmp_path, on_gpu):
    dataset = stoker.Dataset(write_narrow(tmp_path / "data"), fields=narrow_fields(is_compact=True), chunk_size=8_000)
    check_epochs(on_gpu, dataset, shuffle=True)


@pytest.mark.parametrize("columns", [None, ["id", "half", "flag", "vector"]], ids=["with lists", "records alone"])
@pytest.mark.parametrize("resident", [64, 10_000, 1 << 20], ids=["nothing fits", "some", "all"])
def test_batches_are_the_same_whatever_stays_there(tmp_path, on_gpu, columns, resident):
    data = write_files(tmp_path / "data", [300, 0, 200])
    dataset = stoker.Dataset(data, columns=columns, chunk_size=4_000)
    options = {"shuffle": True, "window": 3, "cache": tmp_path / "cache"}
    check_epochs(on_gpu, dataset, num_epochs=3, resident=resident, **options)


def test_batches_that_are_kept_stay_intact_whatever_is_written_to_others(tmp_path, on_gpu):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    kept = []
    with on_gpu(dataset, batch_size=10, shuffle=True) as loader:
        for number, batch in enumerate(loader):
            if number % 2:
                batch["id"].fill_(-1)
                batch["history"].values.zero_()
            else:
                kept.append(batch)
    for batch in contents(kept):
        check_samples(batch)


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


def test_a_loop_on_a_stream_of_its_own_waits_for_its_batch(tmp_path, on_gpu):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300]), chunk_size=4_000)
    own, found = torch.cuda.Stream(), []
    with on_gpu(dataset, batch_size=16) as loader, torch.cuda.stream(own):
        for batch in loader:
            hold_up()
            found.append(batch["id"].clone())
            del batch
    own.synchronize()
    assert torch.cat(found).tolist() == list(range(300))


def test_a_loader_that_is_left_in_the_middle_leaves_nothing_behind(tmp_path, on_gpu):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for num_steps in range(4):
        with on_gpu(dataset, batch_size=16, shuffle=True, cache=tmp_path / "cache") as loader:
            batches = iter(loader)
            for _ in range(num_steps):
                next(batches)
            del batches
    del loader
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_memory_that_batches_cross_from_is_pinned_and_not_inherited(tmp_path, on_gpu):
    assert torch.from_numpy(HeldUp(torch.device("cuda", 0)).allocate(5 << 20)).is_pinned()
    dataset = stoker.Dataset(write_files(tmp_path / "data", [500]), chunk_size=4_000)
    with on_gpu(dataset, batch_size=10, shuffle=True, cache=tmp_path / "cache") as loader:
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
    for batch in contents(batches):
        check_samples(batch)


def test_a_data_loader_pins_and_moves_what_workers_make(tmp_path):
    data = write_files(tmp_path / "data", [100])
    with TorchDataset(stoker.Dataset(data), cache=tmp_path / "cache", batch_size=16) as dataset:
        loader = DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True, multiprocessing_context="spawn")
        found = [batch["id"].to("cuda", non_blocking=True) for batch in loader]
    assert torch.cat(found).tolist() == list(range(100))
