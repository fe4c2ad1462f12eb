"""How batches become tensors: on the CPU at once, on a device by one copy ahead of the step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stoker.compact import Compact
from stoker.feed.handover import Leaving
from stoker.feed.units.make import Made
from stoker.gather.assemble import Assembled, SharedRows
from stoker.gather.buffers import plain_buffer
from stoker.gather.together import Together
from stoker.spec import Array, Ragged, Shared
from stoker.torch.compact import widen_tensor
from stoker.torch.expand import expand_ragged, expand_rows, expanded_totals
from stoker.torch.resident import ResidentRows
from stoker.torch.stream import Mark, SideStream
from stoker.torch.tensors import Tensors, as_tensors, cut, fields_of, fields_of_each, own_tensors


class CpuHandover:
    """Tensors that share the batch's memory.

    Args:
        in_one_storage: Whether the fixed-width fields are views of one storage. A tensor that goes to another process
            takes its whole storage along, so tensors of their own would each carry the whole batch.
    """

    copies = False
    expands = False
    widens = False
    resident = None
    prepare_together = None

    def __init__(self, *, in_one_storage: bool = False) -> None:
        self._in_one_storage = in_one_storage

    def allocate(self, num_bytes: int) -> Array:
        """Return ordinary memory."""
        return plain_buffer(num_bytes)

    def prepare(self, made: Made, leaving: Leaving) -> Tensors:
        """Return the fields as tensors."""
        if not (self._in_one_storage or leaving.is_augmented or leaving.sequence_shard):
            return own_tensors(made.arrays)
        together: Tensors = {}
        # What was widened is no view of the records any more.
        if self._in_one_storage and not leaving.is_augmented:
            if _has_records(made):
                together = _fields(torch.from_numpy(made.assembled.records), made)
            together |= _shared_in_one_storage(made)
            together = {name: field for name, field in together.items() if name not in leaving.compact}
        whole = {name: together[name] if name in together else as_tensors(a) for name, a in made.arrays.items()}
        if leaving.sequence_shard is None:
            return whole
        return {name: leaving.cut(name, one) for name, one in whole.items()}

    def hand_over(self, prepared: Tensors) -> Tensors:
        """Return the tensors."""
        return prepared


@dataclass(frozen=True)
class OnDevice:
    """A batch whose copy is under way.

    Attributes:
        tensors: Its fields on the device, valid once `copied` is done.
        memory: Every tensor that owns device memory among them or behind them.
        copied: Behind the copy.
        source: The host memory that is being read until then; the same for batches that are copied as one.
    """

    tensors: Tensors
    memory: list[torch.Tensor]
    copied: Mark
    source: Made | Together


class DeviceHandover:
    """Tensors on a device: one copy a batch, or for several together, from pinned memory, on a stream of its own.

        assemble thread    gather ─► pinned buffer ─► copy ─► mark
        training loop                                          └─► waits for the mark alone ─► views of the record

    Two memories must outlive their readers. The pinned buffer goes back to the pool only when the copy has happened:
    `_in_flight` holds it until then. The device memory is allocated on the copy stream but used on the loop's, so
    the stream tells torch's allocator, which otherwise would give it to the next copy too early.

    Args:
        stream: Copies.
        resident: Records that stay on the device; None keeps none there.
    """

    copies = True
    expands = True
    widens = True

    def __init__(self, stream: SideStream, *, resident: ResidentRows | None = None) -> None:
        self._stream = stream
        self.resident = resident
        self._lock = threading.Lock()
        self._in_flight: list[OnDevice] = []

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory."""
        return self._stream.allocate(num_bytes)

    def prepare(self, made: Made, leaving: Leaving) -> OnDevice:
        """Begin the copy."""
        memory: list[torch.Tensor] = []
        with self._stream.copies():
            together: Tensors = {}
            if not leaving.is_augmented:
                if _has_records(made):
                    together = _fields(self._copy_records(made.assembled, memory), made)
                for shared in made.assembled.shared:
                    together |= self._copy_shared(shared, memory, is_expanded=leaving.is_expanded)
            if leaving.is_widened:
                together = {name: field for name, field in together.items() if name not in leaving.compact}
            # The spec's order, then what was added; what the record copy has brought is not copied again.
            tensors: Tensors = {
                name: together[name] if name in together else self._copy_field(array, memory)
                for name, array in made.arrays.items()
            }
            if not leaving.is_widened:
                for name in leaving.compact.keys() & tensors.keys():
                    tensors[name] = self._widened(tensors[name], leaving.compact[name], memory)
            if leaving.sequence_shard is not None:
                tensors = {name: leaving.cut(name, tensor) for name, tensor in tensors.items()}
                # Where two pieces were put together, these own memory, too.
                memory += [one for one in tensors.values() if isinstance(one, torch.Tensor)]
            copied = self._stream.mark()
        return OnDevice(tensors, memory, copied, made)

    def prepare_together(self, together: Together, leaving: Leaving) -> list[OnDevice]:
        """Begin one copy for several batches, and return each of them.

        What a batch costs beside its bytes is calls, each of which waits for the interpreter's lock beside other
        threads: so nearly all of them are for all batches at a time.
        """
        spec, memory = together.assembled.spec, list[torch.Tensor]()
        with self._stream.copies():
            batches: list[Tensors] = [{} for _ in together.sizes]
            if spec.record_bytes:
                records = self._copy_records(together.assembled, memory)
                batches = fields_of_each(records, spec, together.sizes)
            if together.assembled.ragged:
                self._copy_lists(together, batches, memory)
            owned: list[list[torch.Tensor]] = [[] for _ in batches]
            for name in () if leaving.is_widened else leaving.compact:
                for fields, own in zip(batches, owned, strict=True):
                    fields[name] = self._widened(fields[name], leaving.compact[name], own)
            copied = self._stream.mark()
        if spec.ragged:
            batches = [{name: fields[name] for name in spec.names} for fields in batches]
        return [OnDevice(fields, [*memory, *own], copied, together) for fields, own in zip(batches, owned, strict=True)]

    def hand_over(self, prepared: OnDevice) -> Tensors:
        """Return the tensors; what the loop does with them on its stream waits for the copy."""
        self._stream.wait(prepared.copied, prepared.memory)
        with self._lock:
            self._in_flight = [batch for batch in self._in_flight if not batch.copied.query()]
            if not any(batch.source is prepared.source for batch in self._in_flight) and not prepared.copied.query():
                self._in_flight.append(prepared)
        return prepared.tensors

    def _copy_records(self, assembled: Assembled, memory: list[torch.Tensor]) -> torch.Tensor:
        if self.resident is None or assembled.residence is None:
            return self._copy(assembled.records, memory)
        records = self.resident.gather(assembled.residence, assembled.records, lambda array: self._copy(array, memory))
        memory.append(records)
        return records

    def _copy_lists(self, together: Together, batches: list[Tensors], memory: list[torch.Tensor]) -> None:
        """Begin to copy the lists of several batches, and add them to these."""
        offsets = self._copy(together.offsets, memory).unbind(0)
        num_offsets = [size + 1 for size in together.sizes]
        named = together.assembled.ragged.items()
        for (name, lists), borders, num_values in zip(named, offsets, together.num_values, strict=True):
            values = self._copy(np.asarray(lists.values), memory)
            pieces = zip(batches, cut(values, num_values), cut(borders, num_offsets), strict=True)
            for fields, some, own in pieces:
                fields[name] = Ragged(some, own)

    def _copy_shared(self, shared: SharedRows, memory: list[torch.Tensor], *, is_expanded: bool) -> Tensors:
        """Begin to copy what samples share, each value once; expanded there, behind the copy, where that is wanted."""
        index = self._copy(shared.index, memory)
        fields: Tensors = {}
        rows = shared.rows
        if rows.spec.record_bytes:
            records = self._copy(rows.records, memory)
            if is_expanded:
                records = expand_rows(records, index)
                memory.append(records)
            fields |= fields_of(records, rows.spec)
        for name, lists in rows.ragged.items():
            copied = self._copy_field(lists, memory)
            if is_expanded:
                copied = expand_ragged(copied, index, expanded_totals(lists, shared.index))
                memory += _tensors_of(copied)
            fields[name] = copied
        return fields if is_expanded else {name: Shared(field, index) for name, field in fields.items()}

    def _widened(self, field: Any, compact: Compact, memory: list[torch.Tensor]) -> Any:
        """Return a field as it is delivered, behind the copy."""
        if isinstance(field, Shared):
            return Shared(self._widened(field.values, compact, memory), field.index)
        if isinstance(field, Ragged):
            return Ragged(self._widened(field.values, compact, memory), field.offsets)
        memory.append(widen_tensor(field, compact))
        return memory[-1]

    def _copy_field(self, array: Any, memory: list[torch.Tensor]) -> Any:
        if isinstance(array, Shared):
            return Shared(self._copy_field(array.values, memory), self._copy_field(array.index, memory))
        if isinstance(array, Ragged):
            return Ragged(self._copy_field(array.values, memory), self._copy_field(array.offsets, memory))
        return self._copy(np.asarray(array), memory)

    def _copy(self, array: Array, memory: list[torch.Tensor]) -> torch.Tensor:
        # Not ascontiguousarray, which gives an array without dimensions one.
        tensor = self._stream.copy(np.asarray(array, order="C"))
        memory.append(tensor)
        return tensor


def _shared_in_one_storage(made: Made) -> Tensors:
    """Return what samples share as tensors, the fixed-width fields of a key as views of one storage."""
    fields: Tensors = {}
    for shared in made.assembled.shared:
        index, rows = torch.from_numpy(shared.index), shared.rows
        if rows.spec.record_bytes:
            views = fields_of(torch.from_numpy(rows.records), rows.spec)
            fields |= {name: Shared(field, index) for name, field in views.items()}
        fields |= {name: Shared(as_tensors(lists), index) for name, lists in rows.ragged.items()}
    return fields


def _tensors_of(ragged: Ragged) -> list[torch.Tensor]:
    inner = ragged.values
    return [ragged.offsets, *(_tensors_of(inner) if isinstance(inner, Ragged) else [inner])]


def _has_records(made: Made) -> bool:
    return made.has_records and made.assembled.spec.record_bytes > 0


def _fields(records: torch.Tensor, made: Made) -> Tensors:
    """Return the fixed-width fields of a batch as views of its records, wherever these are."""
    fields = fields_of(records, made.assembled.spec)
    shaping = made.shaping
    if shaping is None:
        return dict(fields)
    # Places that are no slice would be a copy, in memory of its own and by an index that has to cross first: NumPy has
    # made that copy already.
    views = [name for name, place in shaping.places.items() if isinstance(place, slice)]
    return {name: shaping.apply(name, fields[name]) for name in views}
