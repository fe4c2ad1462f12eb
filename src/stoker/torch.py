"""Batches as torch tensors, on the CPU or on the device that trains.

from stoker.torch import TorchLoader
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
import torch.distributed as dist

from stoker.feed.buffers import plain_buffer
from stoker.feed.handover import Batch
from stoker.feed.loader import Loader, LoaderOptions
from stoker.source.dataset import Dataset
from stoker.spec import Array, Entry, Ragged, Spec

Tensors: TypeAlias = dict[str, "torch.Tensor | Ragged"]


class TorchLoader(Loader):
    """A `stoker.Loader` whose batches are dicts of torch tensors.

        assemble threads    gather ──► pinned buffer ──► copy on a side stream ─┐
        training loop                              step waits for that copy alone ──► views on the device

    On the CPU, tensors share the batch's memory and nothing is copied. On a GPU, all fixed-width fields of a batch
    cross in one copy, while earlier steps compute, and the fields are views of it there.

    Ragged fields are `Ragged(values, offsets)` of tensors; `to_nested` makes torch's own nested tensors of them.

    Args:
        dataset: What to load.
        device: Where the tensors are wanted: "cpu", "cuda", "cuda:1", ...
        options: Those of `stoker.Loader`. `rank` and `world_size` default to those of an initialised
            `torch.distributed`, so that a loader made after `init_process_group` reads its own share.

    Raises:
        ValueError: The device does not exist here.
    """

    def __init__(
        self, dataset: Dataset, *, device: str | torch.device = "cpu", **options: Unpack[LoaderOptions]
    ) -> None:
        if dist.is_available() and dist.is_initialized():
            options.setdefault("rank", dist.get_rank())
            options.setdefault("world_size", dist.get_world_size())
        self._handover = _handover_to(torch.device(device))
        super().__init__(dataset, **options)

    def _make_handover(self) -> CpuHandover | CudaHandover:
        return self._handover


def to_nested(ragged: Ragged) -> torch.Tensor:
    """Return a ragged field as torch's nested tensor with the jagged layout: `[B, *, ...]`, sharing the values.

    Raises:
        ValueError: The field has lists of lists, which that layout cannot hold.
    """
    if isinstance(ragged.values, Ragged):
        raise ValueError("torch's jagged layout holds one ragged dimension; convert `.values` for the inner lists")
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)


def _handover_to(device: torch.device) -> CpuHandover | CudaHandover:
    if device.type == "cpu":
        return CpuHandover()
    if device.type != "cuda":
        raise ValueError(f"device {device} is not supported: 'cpu' or 'cuda'; move the tensors yourself")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {device} here; torch sees {torch.cuda.device_count()} GPUs")
    return CudaHandover(device)


class CpuHandover:
    """Tensors that share the batch's memory."""

    def allocate(self, num_bytes: int) -> Array:
        """Return ordinary memory."""
        return plain_buffer(num_bytes)

    def prepare(self, batch: Batch) -> Tensors:
        """Return the fields as tensors."""
        return {name: _share(array) for name, array in batch.arrays.items()}

    def hand_over(self, prepared: Tensors) -> Tensors:
        """Return the tensors."""
        return prepared


def _share(array: Array | Ragged) -> Any:
    if isinstance(array, Ragged):
        return Ragged(_share(array.values), _share(array.offsets))
    return torch.from_numpy(array)


@dataclass(frozen=True)
class OnDevice:
    """A batch whose copy is under way.

    Attributes:
        tensors: Its fields on the device, valid once `copied` has happened.
        memory: Every tensor that owns device memory among them or behind them.
        copied: Happens when the copy is done.
        batch: The host memory that is being read until then.
    """

    tensors: Tensors
    memory: list[torch.Tensor]
    copied: torch.cuda.Event
    batch: Batch


class CudaHandover:
    """Tensors on a GPU: one copy a batch from pinned memory, on a stream of its own.

    Two memories must outlive their readers. The pinned buffer goes back to the pool only when the copy has happened:
    `_in_flight` holds it until then. The device memory is allocated on the copy stream but used on the loop's:
    `record_stream` tells torch's allocator, which otherwise would give it to the next copy too early.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._in_flight: deque[OnDevice] = deque()

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory, from which the GPU copies by itself."""
        buffer: Array = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return buffer

    def prepare(self, batch: Batch) -> OnDevice:
        """Begin the copy."""
        memory: list[torch.Tensor] = []
        with torch.cuda.stream(self._stream):
            tensors: Tensors = {}
            if not batch.is_augmented and batch.assembled.spec.record_bytes:
                records = self._copy(batch.assembled.records, memory)
                tensors = dict(fields_of(records, batch.assembled.spec))
            # The spec's order, then what was added; what the record copy has brought is not copied again.
            tensors = {
                name: tensors[name] if name in tensors else self._copy_field(array, memory)
                for name, array in batch.arrays.items()
            }
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return OnDevice(tensors, memory, copied, batch)

    def hand_over(self, prepared: OnDevice) -> Tensors:
        """Return the tensors; what the loop does with them on its stream waits for the copy."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(prepared.copied)
        for tensor in prepared.memory:
            tensor.record_stream(stream)
        self._in_flight.append(prepared)
        while self._in_flight and self._in_flight[0].copied.query():
            self._in_flight.popleft()
        return prepared.tensors

    def _copy_field(self, array: Array | Ragged, memory: list[torch.Tensor]) -> Any:
        if isinstance(array, Ragged):
            return Ragged(self._copy_field(array.values, memory), self._copy_field(array.offsets, memory))
        return self._copy(array, memory)

    def _copy(self, array: Array, memory: list[torch.Tensor]) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
        memory.append(tensor)
        return tensor


def fields_of(records: torch.Tensor, spec: Spec) -> dict[str, torch.Tensor]:
    """Return the fixed-width fields of records as views, wherever the records lie.

    Args:
        records: uint8, shape [B, record_bytes].
        spec: Spec of the samples.
    """
    return {entry.name: _field_of(records, entry, spec.record_offsets[entry.name]) for entry in spec.fixed}


def _field_of(records: torch.Tensor, entry: Entry, offset: int) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, dtype=entry.dtype)).dtype
    if entry.value_bytes == 0:
        return torch.empty((len(records), *entry.shape), dtype=dtype, device=records.device)
    field = records[:, offset : offset + entry.value_bytes].view(dtype)
    return field.unflatten(1, entry.shape) if entry.shape else field.squeeze(1)
