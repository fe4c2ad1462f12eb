"""How batches become tensors: on the CPU at once, on a device by one copy ahead of the step."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from stoker.fields.spec import Array
from stoker.loader.batches import Delivery, Made
from stoker.loader.gather import Together
from stoker.torch.copies import Copies, Cut, begin
from stoker.torch.cuda import CudaStream, ResidentRows
from stoker.torch.tensors import Tensors, as_tensor, own_tensors


class CpuDelivery(Delivery):
    """Tensors that share the batch's memory; where asked for, those of fixed width are views of one storage.

    A tensor that goes to another process takes its storage along: tensors of their own would each carry the batch.
    """

    def __init__(self, *, in_one_storage: bool = False) -> None:
        self._in_one_storage, self.takes_together = in_one_storage, not in_one_storage

    def prepare(self, made: Made) -> Tensors:
        """Return the fields as tensors."""
        if self._in_one_storage or self.is_augmented or self.sequence_shard:
            return Copies(as_tensor).batch(made, self)
        return own_tensors(made.arrays)

    def prepare_together(self, together: Together) -> list[Tensors]:
        """Return the fields of several batches, which are pieces of what all of them have."""
        return begin(together, Copies(as_tensor), is_expanded=self.is_expanded)()


@dataclass(eq=False)
class Crossing:
    """Batches whose copy is under way: one, or several that are copied as one."""

    cut: Cut | None  # called once, for the first batch that is wanted; valid once `copied` is done
    memory: list[torch.Tensor]  # that own device memory among the batches or behind them
    copied: torch.cuda.Event
    source: Made | Together  # whose host memory is being read until then
    streams: set[Hashable] = field(default_factory=set)  # that wait for it already
    batches: dict[int, Tensors] = field(default_factory=dict)

    def take(self, number: int) -> Tensors:
        """Return the fields of one of the batches, once."""
        if self.cut is not None:
            self.batches, self.cut = dict(enumerate(self.cut())), None
        return self.batches.pop(number)


OnDevice: TypeAlias = tuple[Crossing, int]
"""One of the batches that cross: all of them, and its number."""


class DeviceDelivery(Delivery):
    """Tensors on a device: one copy a batch, or for several together, from pinned memory, on a stream of its own.

        assemble thread    gather ─► pinned buffer ─► copy ─► mark
        training loop                                          └─► waits for the mark alone ─► views of the record

    Two memories must outlive their readers. The pinned buffer goes back to the pool only when the copy has happened:
    `_in_flight` holds it until then. The device memory is allocated on the copy stream but used on the loop's, so
    the stream tells torch's allocator, which otherwise would give it to the next copy too early: once for all batches
    that crossed together, and each stream that they are used on.
    """

    copies = takes_together = True

    def __init__(self, stream: CudaStream, *, resident: ResidentRows | None = None) -> None:
        self._stream = stream
        self.resident: ResidentRows | None = resident
        self._lock = threading.Lock()
        self._in_flight: list[Crossing] = []

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory."""
        return self._stream.allocate(num_bytes)

    def prepare(self, made: Made) -> OnDevice:
        """Begin the copy."""
        copies = self._copies()
        with self._stream.copies():
            tensors = copies.batch(made, self)
            if self.sequence_shard is not None:  # where two pieces were put together, these own memory, too
                copies.memory += [one for one in tensors.values() if isinstance(one, torch.Tensor)]
            copied = self._stream.mark()
        return Crossing(lambda: [tensors], copies.memory, copied, made), 0

    def prepare_together(self, together: Together) -> list[OnDevice]:
        """Begin one copy for several batches."""
        copies = self._copies()
        with self._stream.copies():
            cut = begin(together, copies, is_expanded=self.is_expanded)
            copied = self._stream.mark()
        crossing = Crossing(cut, copies.memory, copied, together)
        return [(crossing, number) for number in range(len(together.sizes))]

    def _copies(self) -> Copies:
        def copy(array: Array) -> torch.Tensor:
            # Not ascontiguousarray, which gives an array without dimensions one.
            return self._stream.copy(np.asarray(array, order="C"))

        return Copies(copy, self.resident, {} if self.is_widened else self.compact)

    def deliver(self, prepared: OnDevice) -> Tensors:
        """Return the tensors; what the loop does with them on its stream waits for the copy."""
        crossing, number = prepared
        stream = self._stream.current()
        if stream not in crossing.streams:
            self._stream.wait(crossing.copied, crossing.memory)
            if not crossing.streams:
                with self._lock:
                    self._in_flight = [one for one in [*self._in_flight, crossing] if not one.copied.query()]
            crossing.streams.add(stream)
        return crossing.take(number)
