"""Handing batches to a device, with a device that copies as late as it may."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import arrays_in, check_samples, sample_table, write_files
from tests.unit.cache.chunk_files import window_of_files, write_chunk
from tests.unit.loader.gather.test_buffers import used_bytes
from tests.unit.test_torch_sharing import PromptStream

torch = pytest.importorskip("torch")

import stoker
from stoker import Loader, Ragged
from stoker.columns import plan_spec, to_arrays
from stoker.loader import buffers
from stoker.loader.batches import Made
from stoker.loader.gather import Part, assemble, side_by_side
from stoker.torch import TorchLoader
from stoker.torch.delivery import CpuDelivery, DeviceDelivery

pytestmark = pytest.mark.torch


class LateMark:
    def __init__(self, stream, number):
        self._stream, self._number = stream, number

    def query(self):
        return self._stream.num_done >= self._number


class LateStream:
    """A side stream whose copies happen when the test says so.

    What is read from host memory is what lies there at that moment, and nobody is kept from using it again: a buffer
    that was used again too early shows. What is no memory of the stream's own is read at once, as a device does.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pending = []
        self._num_begun = 0
        self._inside = 0
        self.num_done = 0
        self.num_waits = 0
        self.copies_per_wait = []
        self.recorded = []
        self._buffers = []

    def allocate(self, num_bytes):
        buffer = torch.empty(num_bytes, dtype=torch.uint8).numpy()
        self._buffers.append((buffer.ctypes.data, buffer.ctypes.data + num_bytes))
        return buffer

    @contextmanager
    def copies(self):
        with self._lock:
            self._inside += 1
        yield
        with self._lock:
            self._inside -= 1

    def copy(self, array):
        assert self._inside
        assert array.flags.c_contiguous
        target = torch.full_like(torch.from_numpy(array), 1)
        address = array.ctypes.data
        if any(begin <= address < end for begin, end in self._buffers):
            source = (ctypes.c_uint8 * array.nbytes).from_address(address)  # which does not keep it
        else:
            source = (ctypes.c_uint8 * array.nbytes).from_buffer_copy(array.tobytes())
        with self._lock:
            self._num_begun += 1
            self._pending.append((self._num_begun, source, target))
        return target

    def mark(self):
        assert self._inside
        return LateMark(self, self._num_begun)

    def current(self):
        return 0

    def wait(self, mark, tensors):
        self.num_waits += 1
        self.recorded += tensors
        self.copies_per_wait.append(len(tensors))

    def run(self):
        """Do all copies that were begun."""
        with self._lock:
            for number, source, target in self._pending:
                there = target.numpy()
                there[...] = np.frombuffer(source, there.dtype).reshape(there.shape) if there.size else 0
                self.num_done = number
            self._pending.clear()


@pytest.mark.parametrize(
    "options",
    [
        {"sequence": stoker.NGram({0: ["id", "vector"], 1: ["id", "history"], 3: ["vector"]})},
        {"sequence": stoker.NGram(length=2)},
        {"sequence": stoker.Pack("history", length=8, per_segment=["id", "vector"])},
        {"group_by": "flag"},
    ],
    ids=["uneven", "windows", "packed", "groups"],
)
def test_what_the_order_counts_arrives_whole_and_all_its_memory_is_told_of(tmp_path, options):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [150]))
    with Loader(dataset, batch_size=16, **options) as loader:
        expected = list(loader)
    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, batch_size=16, num_threads=1, **options) as loader:
        for batch, arrays in zip(loader, expected, strict=True):
            stream.run()
            assert list(batch) == list(arrays)
            known = {tensor.untyped_storage().data_ptr() for tensor in stream.recorded}
            for name, array in arrays.items():
                for field, one in zip(*map(arrays_in, (batch[name], array)), strict=True):
                    np.testing.assert_array_equal(field.numpy(), one)
                    assert field.untyped_storage().data_ptr() in known


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence": stoker.NGram(length=2)},
        {"group_by": "flag", "deduplicated": "unique"},
        {"remainder": "pad"},
    ],
    ids=["rows", "windows", "unique", "padded"],
)
@pytest.mark.parametrize("place", ["cpu", "calling thread", "device", "worker"])
def test_each_field_is_a_tensor_of_its_own_to_write_to_beside_gradients(tmp_path, options, place):
    share = {"flag": ["vector"]} if "deduplicated" in options else None
    dataset = stoker.Dataset(write_files(tmp_path / "data", [60]), deduplicate=share)
    stream = LateStream()
    kinds = {
        "cpu": lambda: TorchLoader(dataset, batch_size=16, **options),
        "calling thread": lambda: TorchLoader(dataset, batch_size=4, prefetch=0, **options),
        "device": lambda: DeviceLoader(dataset, stream=stream, batch_size=16, num_threads=1, **options),
        "worker": lambda: WorkerLoader(dataset, batch_size=16, num_threads=1, **options),
    }
    with kinds[place]() as loader:
        batch = next(islice(loader, 5 if place == "calling thread" else 0, None))  # not the first, which comes alone
    stream.run()
    found = [field for name in batch for field in all_tensors(batch[name])]
    floats = [field for field in found if field.dtype == torch.float32]
    assert len(found) > len(floats) > 0
    weight = torch.ones((), requires_grad=True)
    loss = sum((field * weight).sum() for field in floats)
    for field in found:
        if field.dtype != torch.float32:
            field.zero_()  # nothing that the gradient needs: all that it needs is in the others
    loss.backward()
    assert weight.grad is not None
    for field in floats:
        field.mul_(weight)
        assert field.requires_grad


def all_tensors(field):
    return [field] if isinstance(field, torch.Tensor) else field.arrays


class WorkerLoader(Loader):
    """A loader whose batches go to another process."""

    def _make_delivery(self):
        return CpuDelivery(in_one_storage=True)


class DeviceLoader(Loader):
    """A loader to a device of the test's own."""

    def __init__(self, dataset, *, stream, **options):
        self.stream = stream
        super().__init__(dataset, **options)

    def _make_delivery(self):
        return DeviceDelivery(self.stream)


@pytest.fixture
def dataset(tmp_path):
    return stoker.Dataset(write_files(tmp_path / "data", [300, 0, 211]), chunk_size=4000)


def to_numpy(field):
    return field.map(to_numpy) if isinstance(field, Ragged) else field.numpy()


@pytest.mark.parametrize("prefetch", [2, 24], ids=["alone", "together"])
def test_a_buffer_is_not_used_again_before_its_copy_has_happened(dataset, prefetch):
    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, batch_size=20, shuffle=True, num_threads=1, prefetch=prefetch) as loader:
        on_device, ids = [], []
        for batch in loader:
            on_device.append(dict(batch))
            del batch
            if len(on_device) % 7 == 0:
                stream.run()
        stream.run()
        for batch in on_device:
            arrays = {name: to_numpy(field) for name, field in batch.items()}
            check_samples(arrays)
            ids += arrays["id"].tolist()
    assert sorted(ids) == list(range(511))


def test_buffers_come_back_once_their_copies_have_happened(dataset):
    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, batch_size=10, num_threads=1, prefetch=1) as loader:
        for batch in loader:
            stream.run()
            del batch
        stream.run()
        assert stream.num_waits == 52
        assert used_bytes(loader._batches.pool) <= 10 * loader.spec.record_bytes  # of one batch, not of 52


@pytest.mark.parametrize("failing", [0, 3, 10])
def test_a_batch_that_cannot_be_handed_over_is_not_counted(dataset, failing):
    class FullStream(PromptStream):
        num_waits = 0

        def wait(self, mark, tensors):
            self.num_waits += 1
            if self.num_waits == failing + 1:
                raise MemoryError("no memory on the device")

    def ids_of(batches):
        return [i for batch in batches for i in batch["id"].tolist()]

    with DeviceLoader(dataset, stream=FullStream(), batch_size=50, prefetch=1) as loader:
        batches = iter(loader)
        assert ids_of(islice(batches, failing)) == list(range(50 * failing))
        with pytest.raises(MemoryError):
            next(batches)
        assert list(batches) == []
        assert loader.stats().num_steps == failing
        loader.load_state_dict(loader.state_dict())
        assert ids_of(loader) == list(range(50 * failing, 511))


def test_all_fixed_width_fields_cross_in_one_copy(dataset):
    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, batch_size=100) as loader:
        batch = next(iter(loader))
    fixed = [field for field in batch.values() if not isinstance(field, Ragged)]
    assert len(fixed) == 4
    assert len({field.untyped_storage().data_ptr() for field in fixed}) == 1
    assert stream.copies_per_wait == [1 + 1 + 2]  # the records; offsets of all lists; values of two ragged fields
    assert len(stream.recorded) == 4


def window_of(folder, columns):
    """Return a window of one chunk of 30 rows."""
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(30 * 16, dtype=np.float32)), 16)
    table = sample_table(30).append_column("wide", wide).select(columns)
    spec = plan_spec(table.schema, {})
    write_chunk(folder / "chunk", to_arrays(table, {}, where=""), spec, num_samples=30)
    return window_of_files([folder / "chunk"], spec)


@pytest.mark.parametrize("columns", [["id", "wide"], ["history"], ["wide", "word", "id", "history"]])
@pytest.mark.parametrize("sizes", [[7, 7, 7], [5, 0, 9, 1], [12]], ids=str)
def test_batches_that_leave_as_one_are_those_that_leave_one_by_one(tmp_path, columns, sizes):
    window = window_of(tmp_path, columns)
    rows = np.random.default_rng(3).integers(0, 30, sum(sizes))
    pool = buffers.BufferPool()
    whole = assemble(window.layout.spec, [Part.at(window, np.zeros_like(rows), rows)], pool)
    stream = LateStream()
    delivery = DeviceDelivery(stream)
    alone = [delivery.prepare(Made(batch.views(), batch, batch.num_samples)) for batch in whole.cut(sizes)]
    num_alone = stream._num_begun
    together = delivery.prepare_together(side_by_side(whole, sizes, pool))
    assert stream._num_begun - num_alone == num_alone // len(sizes) - max(0, len(whole.ragged) - 1)
    stream.run()
    assert len(together) == len(sizes)
    for one, other in zip(together, alone, strict=True):
        fields, expected = (delivery.deliver(batch) for batch in (one, other))
        assert list(fields) == list(expected) == columns
        known = {tensor.untyped_storage().data_ptr() for tensor in one[0].memory}
        for name in columns:
            for mine, right in zip(all_tensors(fields[name]), all_tensors(expected[name]), strict=True):
                assert mine.dtype == right.dtype
                assert torch.equal(mine, right)
                assert mine.untyped_storage().data_ptr() in known
    window.close()


def test_a_stream_waits_once_for_batches_that_crossed_together(tmp_path):
    class TwoStreams(LateStream):
        now = 0

        def current(self):
            return self.now

    window = window_of(tmp_path, ["id", "history"])
    rows = np.arange(12)
    pool = buffers.BufferPool()
    whole = assemble(window.layout.spec, [Part.at(window, np.zeros_like(rows), rows)], pool)
    stream = TwoStreams()
    delivery = DeviceDelivery(stream)
    batches = delivery.prepare_together(side_by_side(whole, [4, 4, 4], pool))
    ids = [delivery.deliver(batches[0])["id"], delivery.deliver(batches[1])["id"]]
    assert stream.num_waits == 1
    stream.now = 1  # the loop goes on elsewhere
    ids.append(delivery.deliver(batches[2])["id"])
    assert stream.num_waits == 2
    assert len(stream.recorded) == 2 * len(batches[0][0].memory)
    stream.run()
    assert torch.cat(ids).tolist() == list(range(12))
    window.close()


def test_what_augment_returns_is_copied_field_by_field(dataset):
    def augment(batch, rng):
        return {
            "back": batch["half"][::-1],
            "constant": np.broadcast_to(np.float32(3), (2,)),
            "scalar": np.float32(4),
            "history": batch["history"],
            "new": rng.random(3),
        }

    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, batch_size=8, augment=augment) as loader:
        batch = next(iter(loader))
        stream.run()
    assert list(batch) == ["back", "constant", "scalar", "history", "new"]
    assert batch["back"].tolist() == [i / 2 for i in range(7, -1, -1)]
    assert batch["constant"].tolist() == [3, 3]
    assert batch["scalar"].shape == ()
    assert batch["new"].dtype == torch.float64
    assert batch["history"].offsets.tolist()[-1] == len(batch["history"].values)


def test_padding_marks_and_batches_without_samples_cross_too(dataset):
    stream = LateStream()
    options = {"batch_size": 100, "remainder": "pad", "world_size": 2, "rank": 1}
    with DeviceLoader(dataset, stream=stream, **options) as loader:
        batches = list(loader)
        stream.run()
    assert [int(batch["sample_mask"].sum()) for batch in batches] == [100, 100, 11]

    stream = LateStream()
    with DeviceLoader(dataset, stream=stream, global_batch_size=510, rank=0, world_size=2) as loader:
        batches = list(loader)
        stream.run()
    assert [len(batch["id"]) for batch in batches] == [255, 0]
    assert batches[1]["vector"].shape == (0, 3)


def test_an_error_while_copying_reaches_the_step(dataset):
    class Broken(LateStream):
        def copy(self, array):
            if self._num_begun == 10:
                raise torch.OutOfMemoryError("no room on the device")
            return super().copy(array)

    with DeviceLoader(dataset, stream=Broken(), batch_size=50, num_threads=1) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            next(iterator)
        assert "needed by step 2" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        ("gpu", ValueError, "none that torch knows"),
        ("meta", ValueError, "not supported"),
        ("cuda:99", ValueError, "no device cuda:99"),
        (0, TypeError, "device"),
    ],
)
def test_a_wrong_device_is_said_before_anything_is_read(device, error, words):
    with pytest.raises(error, match=words):
        TorchLoader(stoker.Dataset("nowhere"), batch_size=8, device=device)
