"""Batches on a device of the test's own, which copies at once or as late as it may."""

from __future__ import annotations

import contextlib
import gc
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.batches import check_same, contents, ids_of, plain
from tests.laws.test_sharing import write
from tests.strategies import arrays_in, check_samples, write_files

torch = pytest.importorskip("torch")

from tests.device import DeviceLoader, Stream
from torch.overrides import TorchFunctionMode

import stoker
from stoker import Deduplicated, Ragged
from stoker.torch import TorchLoader
from stoker.torch.cuda import CudaStream

pytestmark = pytest.mark.torch

OPTIONS = {"batch_size": 32, "shuffle": True, "seed": 5}
RECORDS = ["id", "half", "flag", "vector"]  # without lists
NUM_ROWS = 511
QUERY = {"query_id": ["q_*"]}
SHARE = {"query_id": ["q_*"], "user": ["u_*"]}


@pytest.fixture
def dataset(tmp_path):
    return stoker.Dataset(write_files(tmp_path / "data", [300, 0, 211]), chunk_size=4000)


def batches(loader, num_epochs=1):
    with loader:
        return [batch for _ in range(num_epochs) for batch in contents(loader)]


def memory_of(batch):
    return {one.untyped_storage().data_ptr() for field in batch.values() for one in arrays_in(field)}


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("prefetch", [2, 24], ids=["alone", "together"])
def test_a_buffer_is_not_used_again_before_its_copy_has_happened(dataset, prefetch):
    stream = Stream(is_late=True)
    options = {"batch_size": 20, "shuffle": True, "num_threads": 1, "prefetch": prefetch}
    with DeviceLoader(dataset, stream=stream, **options) as loader:
        on_device, ids = [], []
        for batch in loader:
            on_device.append(dict(batch))
            del batch
            if len(on_device) % 7 == 0:
                stream.run()
        stream.run()
        for batch in on_device:
            arrays = {name: plain(field) for name, field in batch.items()}
            check_samples(arrays)
            ids += arrays["id"].tolist()
    assert sorted(ids) == list(range(NUM_ROWS))


def test_buffers_come_back_once_their_copies_have_happened(dataset):
    stream = Stream(is_late=True)
    with DeviceLoader(dataset, stream=stream, batch_size=10, num_threads=1, prefetch=1) as loader:
        for batch in loader:
            stream.run()
            del batch
    assert len(stream.waits) == 52
    # Of those that are under way at a time (one in the loop, one ready, one being made) with the gaps between them.
    assert stream.span_bytes <= 6 * stream.num_bytes / 52


def test_all_fixed_width_fields_cross_in_one_copy(dataset):
    with DeviceLoader(dataset, batch_size=100) as loader:
        batch = next(iter(loader))
        ((_, _, memory),) = loader.stream.waits
    fixed = [field for field in batch.values() if not isinstance(field, Ragged)]
    assert len(fixed) == 4
    assert len({field.untyped_storage().data_ptr() for field in fixed}) == 1
    assert len(memory) == 1 + 1 + 2  # the records; offsets of all lists; values of two ragged fields


def test_batches_that_are_ready_together_cross_as_one_and_each_stream_waits_for_them_once(dataset):
    expected = batches(stoker.Loader(dataset, **OPTIONS))
    found = []
    with DeviceLoader(dataset, prefetch=12, num_threads=1, **OPTIONS) as loader:
        stream = loader.stream
        for number, batch in enumerate(loader):
            stream.wait_for_blocks(4)  # a loop that takes its time: some are made in one go meanwhile
            stream.now = (number + 1) % 2  # and goes on elsewhere
            found.append(batch)
        assert loader.stats().stages["copy"].num_calls == len(found) == 16
    check_same(contents(found), expected)
    assert stream.num_blocks < 16
    assert stream.num_copies == 4 * stream.num_blocks
    waits = [(block, now) for block, now, _ in stream.waits]
    assert len(set(waits)) == len(waits) > len({block for block, _ in waits}) == stream.num_blocks
    assert {len(memory) for *_, memory in stream.waits} == {4}


def test_an_empty_batch_crosses_among_others(dataset):
    # Of the last row of 511 the first of three ranks has nothing.
    options = OPTIONS | {"batch_size": 17, "rank": 0, "world_size": 3}
    expected = batches(stoker.Loader(dataset, **options))
    found, num_waits = [], []
    with DeviceLoader(dataset, prefetch=24, num_threads=1, **options) as loader:
        for batch in loader:
            loader.stream.wait_for_blocks(4)
            found.append(batch)
            num_waits.append(len(loader.stream.waits))
    assert [len(batch["id"]) for batch in expected] == [17] * 10 + [0]
    check_same(contents(found), expected)
    assert num_waits[-1] == num_waits[-2]  # it came with the one before it


@pytest.mark.parametrize(
    "options",
    [
        {"sequence": stoker.NGram({0: ["id", "vector"], 1: ["id", "history"], 3: ["vector"]})},
        {"sequence": stoker.NGram(length=2)},
        {"sequence": stoker.Pack("history", length=8, per_segment=["id", "vector"])},
        {"group_by": "flag"},
        {"augment": lambda batch, _: batch | {"half": batch["half"] + 1}},
    ],
    ids=["uneven", "windows", "packed", "groups", "augmented"],
)
def test_what_the_order_counts_arrives_whole_and_all_its_memory_is_told_of(dataset, options):
    expected = batches(stoker.Loader(dataset, batch_size=16, **options))
    stream, found = Stream(is_late=True), []
    with DeviceLoader(dataset, stream=stream, batch_size=16, num_threads=1, **options) as loader:
        for batch in loader:
            stream.run()
            assert memory_of(batch) <= stream.memory
            found += contents([batch])
    check_same(found, expected)


def test_what_augment_returns_is_copied_field_by_field(dataset):
    def augment(batch, rng):
        return {
            "back": batch["half"][::-1],
            "constant": np.broadcast_to(np.float32(3), (2,)),
            "scalar": np.float32(4),
            "history": batch["history"],
            "new": rng.random(3),
        }

    with DeviceLoader(dataset, batch_size=8, augment=augment) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["back", "constant", "scalar", "history", "new"]
    assert batch["back"].tolist() == [i / 2 for i in range(7, -1, -1)]
    assert batch["constant"].tolist() == [3, 3]
    assert batch["scalar"].shape == ()
    assert batch["new"].dtype == torch.float64
    assert batch["history"].offsets.tolist()[-1] == len(batch["history"].values)


def test_an_error_while_copying_reaches_the_step(dataset):
    class Broken(Stream):
        def copy(self, array):
            if self.num_copies == 10:
                raise torch.OutOfMemoryError("no room on the device")
            return super().copy(array)

    with DeviceLoader(dataset, stream=Broken(), batch_size=50, num_threads=1) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            next(iterator)
        assert "needed by step 2" in caught.value.__notes__[0]


@pytest.mark.parametrize("failing", [0, 3, 10])
def test_a_batch_that_cannot_be_handed_over_is_not_counted(dataset, failing):
    class Full(Stream):
        def wait(self, mark, tensors):
            super().wait(mark, tensors)
            if len(self.waits) == failing + 1:
                raise MemoryError("no memory on the device")

    with DeviceLoader(dataset, stream=Full(), batch_size=50, prefetch=1) as loader:
        iterator = iter(loader)
        assert ids_of(next(iterator) for _ in range(failing)) == list(range(50 * failing))
        with pytest.raises(MemoryError):
            next(iterator)
        assert list(iterator) == []
        assert loader.stats().num_steps == failing
        loader.load_state_dict(loader.state_dict())
        assert ids_of(loader) == list(range(50 * failing, NUM_ROWS))


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_ranks_that_share_samples_get_their_part_of_each_sequence(tmp_path, layout):
    tokens = np.arange(90 * 12).reshape(90, 12)
    rows = {"id": np.arange(90), "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 12)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=30)
    for rank in range(2):
        part = stoker.SequenceShard(rank=rank, world_size=2, fields="tokens", layout=layout)
        with DeviceLoader(stoker.Dataset(tmp_path), sequence_shard=part, **OPTIONS) as loader:
            for batch in loader:
                expected = tokens[batch["id"].numpy()][:, part.positions(12)]
                assert batch["tokens"].tolist() == expected.tolist()
                assert memory_of(batch) <= loader.stream.memory


# ---------------------------------------------------------------------- what samples share


def dataset_in(folder, share, *, num_queries=30, length=8, **options):
    runs = [(i % 7, length) for i in range(num_queries)]
    write(folder, {"files": [(runs, 50)], "noise": 0, "seed": 1, "narrow": False})
    return stoker.Dataset(folder, deduplicate=share, chunk_size=3000, **options)


@pytest.mark.parametrize("order", [{}, {"group_by": "query_id", "batch_size": 4}])
@pytest.mark.parametrize("shared", ["expand", "unique"])
def test_tensors_are_those_without_sharing(tmp_path, shared, order):
    options = OPTIONS | order
    expected = batches(stoker.Loader(dataset_in(tmp_path, None), **options))
    dataset = dataset_in(tmp_path, SHARE)
    check_same(batches(TorchLoader(dataset, deduplicated=shared, **options)), expected)
    with DeviceLoader(dataset, deduplicated=shared, **options) as loader:
        found = list(loader)
        assert all(memory_of(batch) <= loader.stream.memory for batch in found)
    check_same(contents(found), expected)


@pytest.mark.parametrize("options", [{}, {"deduplicated": "expand"}, {"deduplicated": "unique"}], ids=str)
@pytest.mark.parametrize(
    ("order", "is_narrow"),
    [
        ({}, False),
        ({"group_by": "query_id", "batch_size": 4}, False),
        ({"group_by": "query_id", "batch_size": 4}, True),
        ({"weights": "query_id"}, True),
    ],
    ids=str,
)
def test_what_crosses_as_one_is_what_crosses_batch_by_batch(tmp_path, options, order, is_narrow):
    # Lists of lists cross by themselves.
    names = ["own_list", "q_number", "query_id", "q_list", "user", "q_word", "u_flag", "own", "q_vector"]
    narrow = {"q_number": "float16", "q_list": "int16", "own": "bfloat16", "own_list": "int32"} if is_narrow else {}
    fields = {name: stoker.Field(storage_dtype=storage_dtype) for name, storage_dtype in narrow.items()}
    alone, shared = (dataset_in(tmp_path, share, columns=names, fields=fields) for share in (None, SHARE))
    expected = batches(stoker.Loader(alone, **OPTIONS | order))
    options = OPTIONS | order | options | {"prefetch": 12, "num_threads": 1}
    with DeviceLoader(shared if "deduplicated" in options else alone, **options) as loader:
        found = []
        for batch in loader:
            loader.stream.wait_for_blocks(min(4, len(expected)))
            assert memory_of(batch) <= loader.stream.memory
            found.append(batch)
        assert loader.stats().stages["copy"].num_calls == len(found)
    check_same(contents(found), expected)
    assert loader.stream.num_blocks < len(found)


@pytest.mark.parametrize("order", [{}, {"group_by": "query_id", "batch_size": 4}])
@pytest.mark.parametrize("shared", [None, "expand", "unique"])
def test_a_mixture_arrives_as_it_does_on_the_host(tmp_path, shared, order):
    names = ["q_number", "query_id", "q_list", "user", "u_flag", "own"]
    share = SHARE if shared else None
    sets = {
        name: dataset_in(tmp_path / name, share, num_queries=num, columns=names) for name, num in (("a", 20), ("b", 11))
    }
    mixture = stoker.Mixture(sets, weights={"a": 2, "b": 1})
    options = OPTIONS | order | ({"deduplicated": shared} if shared else {})
    check_same(batches(DeviceLoader(mixture, **options)), batches(stoker.Loader(mixture, **options)))


def test_what_a_batch_shares_is_copied_to_the_device_once(tmp_path):
    num_bytes = {}
    for name, share in (("plain", None), ("shared", SHARE)):
        with DeviceLoader(dataset_in(tmp_path, share), batch_size=4, shuffle=True, group_by="query_id") as loader:
            for _ in loader:
                pass
        num_bytes[name] = loader.stream.num_bytes
    assert num_bytes["shared"] < 0.65 * num_bytes["plain"]


def test_a_batch_with_few_repeats_is_expanded_before_the_copy(tmp_path):
    # Every run one row, so keys come again only far apart, as runs of their own.
    sets = {name: dataset_in(tmp_path / name, share, length=1) for name, share in (("a", None), ("b", QUERY))}
    num_copies = {}
    for name, dataset in sets.items():
        with DeviceLoader(dataset, **OPTIONS) as loader:
            for batch in loader:
                assert not any(isinstance(field, Deduplicated) for field in batch.values())
        num_copies[name] = loader.stream.num_copies
    assert num_copies["a"] == num_copies["b"], "no place of any sample is copied"


# ---------------------------------------------------------------------- chunks that stay there

RESIDENT = OPTIONS | {"window": 3, "num_threads": 2}


def check_epochs(dataset, resident, options):
    """Three epochs with rows on the device are those of a plain loader, and no more than so many bytes lie there."""
    expected = batches(stoker.Loader(dataset, **options), 3)
    with DeviceLoader(dataset, resident=resident, **options) as loader:
        check_same([batch for _ in range(3) for batch in contents(loader)], expected)
        assert loader.rows.num_bytes <= resident


@pytest.mark.parametrize("resident", [64, 10_000, 1 << 20], ids=["nothing fits", "some", "all"])
@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({}, None),
        ({"remainder": "pad"}, None),
        ({"rank": 1, "world_size": 3}, None),
        ({"lanes": 2}, None),
        ({"remainder": "pad"}, RECORDS),
    ],
    ids=str,
)
def test_batches_are_the_same_whatever_lies_on_the_device(dataset, tmp_path, columns, resident, changed):
    dataset.columns = columns
    check_epochs(dataset, resident, RESIDENT | changed | {"cache": tmp_path / "cache"})


def test_fields_that_are_kept_narrow_are_widened_there(tmp_path):
    fields = {"half": stoker.Field(storage_dtype="float16"), "id": stoker.Field(storage_dtype="int32")}
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300]), fields=fields, chunk_size=4_000)
    check_epochs(dataset, 10_000, RESIDENT | {"cache": tmp_path / "cache"})


def test_lists_of_lists_cross_beside_what_lies_there(tmp_path):
    nested = [[[i] * (i % 3)] * (i % 4) for i in range(500)]
    pq.write_table(pa.table({"id": range(500), "nested": nested}), tmp_path / "data.parquet", row_group_size=100)
    dataset = stoker.Dataset(tmp_path / "data.parquet", chunk_size=800)
    check_epochs(dataset, 2_000, RESIDENT | {"cache": tmp_path / "cache"})


def test_what_lies_there_does_not_cross_again(dataset, tmp_path):
    dataset.columns = RECORDS
    with DeviceLoader(dataset, resident=1 << 20, cache=tmp_path / "cache", **RESIDENT) as loader:
        crossed = []
        for _ in range(3):
            before = loader.stream.num_bytes
            for _ in loader:
                pass
            crossed.append(loader.stream.num_bytes - before)
    # From then on a row is its place alone.
    assert crossed[1] == crossed[2] == NUM_ROWS * 8 < crossed[0]


def test_half_the_room_keeps_half_of_the_rows_there(dataset, tmp_path):
    dataset.columns = RECORDS
    options = RESIDENT | {"cache": tmp_path / "cache"}
    with DeviceLoader(dataset, **options) as loader:
        for _ in loader:
            pass
        width = loader.stream.num_bytes // NUM_ROWS
    limit = NUM_ROWS * width // 2
    with DeviceLoader(dataset, resident=limit, **options) as loader:
        for _ in loader:
            pass
        before = loader.stream.num_bytes
        for _ in loader:
            pass
        crossed = loader.stream.num_bytes - before
        num_there = loader.rows.num_bytes // width
        assert limit - 64 * width * 2 < loader.rows.num_bytes <= limit  # chunks are whole
        # The records of the others, and of each row where it goes; of what lies there, where that is, too.
        others = (NUM_ROWS - num_there) * width
        assert others + 8 * NUM_ROWS <= crossed <= others + 16 * NUM_ROWS


def test_it_goes_on_from_a_saved_position(dataset, tmp_path):
    options = RESIDENT | {"cache": tmp_path / "cache"}
    with DeviceLoader(dataset, resident=20_000, **options) as loader:
        iterator = iter(loader)
        found = contents(next(iterator) for _ in range(5))
        state = loader.state_dict()
    with DeviceLoader(dataset, resident=20_000, **options) as loader:
        loader.load_state_dict(state)
        found += [*contents(loader), *contents(loader)]
    check_same(found, batches(stoker.Loader(dataset, **options), 2))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"augment": lambda batch, _: batch}, "augment="),
        ({"group_by": "flag"}, "group_by="),
        ({"sequence": stoker.NGram(length=2)}, "sequence="),
        ({"resident": 1}, "one record has"),
    ],
)
def test_what_changes_rows_does_not_go_with_it_nor_less_room_than_a_record_takes(dataset, options, what):
    with pytest.raises(ValueError, match=what):
        DeviceLoader(dataset, **({"resident": 1 << 20, "batch_size": 8} | options))


def test_a_mixture_sharing_and_lists_alone_do_not_go_with_it(dataset):
    with pytest.raises(ValueError, match="Mixture"):
        DeviceLoader(stoker.Mixture({"a": dataset}), resident=1 << 20, batch_size=8)
    shared = stoker.Dataset(dataset.sources[0], deduplicate={"flag": ["half"]})
    with pytest.raises(ValueError, match="deduplicate"):
        DeviceLoader(shared, resident=1 << 20, batch_size=8)
    dataset.columns = ["history"]
    with pytest.raises(ValueError, match="all lists"):
        DeviceLoader(dataset, resident=1 << 20, batch_size=8)


# ---------------------------------------------------------------------- pinned memory, with a CUDA of the test's own


class Cuda:
    """Registers memory, unless it cannot, and notes what happens in which order."""

    def __init__(self, status=0):
        self.status = status
        self.registered = {}
        self.events = []

    def cudaHostRegister(self, address, num_bytes, flags):  # noqa: N802
        if self.status == 0:
            self.registered[address] = num_bytes
        return self.status

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.registered[address]
        self.events.append("unregistered")

    def synchronize(self):
        self.events.append("synchronized")

    def Stream(self, device):  # noqa: N802
        return self

    def device(self, device):
        return contextlib.nullcontext()

    def cudart(self):
        return self


def pinned(cuda, num_bytes):
    return CudaStream(torch.device("cuda", 0), cuda=cuda).allocate(num_bytes)


def test_memory_is_registered_as_long_as_anybody_looks_at_it():
    cuda = Cuda()
    buffer = pinned(cuda, 5_000)
    assert buffer.shape == (5_000,)
    assert cuda.registered == {buffer.ctypes.data: 5_000}
    view = torch.from_numpy(buffer[100:200])
    del buffer
    gc.collect()
    assert cuda.registered
    view.zero_()
    del view
    gc.collect()
    assert not cuda.registered
    assert cuda.events == ["synchronized", "unregistered"]  # nothing copies from it any more


def test_a_child_does_not_unregister_what_is_its_parents():
    cuda = Cuda()
    buffer = pinned(cuda, 64)
    child = os.fork()
    if child == 0:
        del buffer
        gc.collect()
        os._exit(0 if cuda.registered else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.registered == {buffer.ctypes.data: 64}


class OfCuda(TorchFunctionMode):
    """What torch does of CUDA where memory cannot be registered: tells whoever launches next, and pins its own."""

    num_told = num_pinned = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.pop("device", None) is not None:
            self.num_told += 1
            raise RuntimeError("CUDA error: operation not supported")
        self.num_pinned += kwargs.pop("pin_memory", False)
        return func(*args, **kwargs)


def test_memory_that_cannot_be_registered_is_pinned_by_torch():
    with OfCuda() as cuda:
        buffer = pinned(Cuda(status=801), 100)
    assert buffer.shape == (100,)
    assert (cuda.num_told, cuda.num_pinned) == (1, 1)
