"""How batches become tensors: on the CPU at once, on a device by one copy ahead of the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TypeAlias

import torch

from stoker.fields.spec import Array, Deduplicated
from stoker.loader.batches import Delivery, DeliveryForm, Made
from stoker.loader.gather import Together
from stoker.torch.copies import Copies
from stoker.torch.cuda import CudaStream
from stoker.torch.resident import ResidentRows
from stoker.torch.tensors import Tensors, as_tensor, as_tensors, fields_of, own_tensors
from stoker.torch.together import Cut, begin


class CpuDelivery(Delivery):
    """Tensors that share the batch's memory.

    Args:
        in_one_storage: Whether the fixed-width fields are views of one storage. A tensor that goes to another process
            takes its whole storage along, so tensors of their own would each carry the whole batch.
    """

    def __init__(self, *, in_one_storage: bool = False) -> None:
        self._in_one_storage = in_one_storage

    def prepare(self, made: Made, form: DeliveryForm) -> Tensors:
        """Return the fields as tensors."""
        if not (self._in_one_storage or form.is_augmented or form.sequence_shard):
            return own_tensors(made.arrays)
        together: Tensors = {}
        # What was widened is no view of the records any more.
        if self._in_one_storage and not form.is_augmented:
            if _has_records(made):
                together = _fields(torch.from_numpy(made.assembled.records), made)
            together |= _shared_in_one_storage(made)
            together = {name: field for name, field in together.items() if name not in form.compact}
        whole = {name: together[name] if name in together else as_tensors(a) for name, a in made.arrays.items()}
        if form.sequence_shard is None:
            return whole
        return {name: form.cut(name, one) for name, one in whole.items()}

    @property
    def prepare_together(self) -> Callable[[Together, DeliveryForm], list[Tensors]] | None:
        """Does what `prepare` does for several batches, whose fields are pieces of what all of them have."""
        return None if self._in_one_storage else _cut_here


def _cut_here(together: Together, form: DeliveryForm) -> list[Tensors]:
    return begin(together, Copies(as_tensor, None, {}), form)()


class Crossing:
    """Batches whose copy is under way: one, or several that are copied as one.

    Args:
        cut: Returns the fields of each batch, valid once `copied` is done; called once, for the first that is wanted.
        memory: Every tensor that owns device memory among them or behind them.
        copied: Behind the copy.
        source: The host memory that is being read until then.
    """

    def __init__(self, cut: Cut, memory: list[torch.Tensor], copied: torch.cuda.Event, source: Made | Together) -> None:
        self._cut: Cut | None = cut
        self._batches: list[Tensors | None] = []
        self.memory = memory
        self.copied = copied
        self.source = source
        self.streams: set[Hashable] = set()
        """Streams that wait for it already."""

    def take(self, number: int) -> Tensors:
        """Return the fields of one of the batches, once."""
        if self._cut is not None:
            self._batches, self._cut = [*self._cut()], None
        fields, self._batches[number] = self._batches[number], None
        assert fields is not None
        return fields


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

    Args:
        stream: Copies.
        resident: Records that stay on the device; None keeps none there.
    """

    copies = True
    expands = True
    widens = True

    def __init__(self, stream: CudaStream, *, resident: ResidentRows | None = None) -> None:
        self._stream = stream
        self.resident = self._resident = resident
        self._lock = threading.Lock()
        self._in_flight: list[Crossing] = []

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory."""
        return self._stream.allocate(num_bytes)

    def prepare(self, made: Made, form: DeliveryForm) -> OnDevice:
        """Begin the copy."""
        copies = self._copies(form)
        with self._stream.copies():
            together: Tensors = {}
            if not form.is_augmented:
                if _has_records(made):
                    together = _fields(copies.records(made.assembled), made)
                for shared in made.assembled.shared:
                    together |= copies.shared(shared, is_expanded=form.is_expanded)
            if form.is_widened:
                together = {name: field for name, field in together.items() if name not in form.compact}
            # The spec's order, then what was added; what the record copy has brought is not copied again.
            tensors: Tensors = {
                name: together[name] if name in together else copies.field(array) for name, array in made.arrays.items()
            }
            tensors = {name: copies.widened(name, tensor) for name, tensor in tensors.items()}
            if form.sequence_shard is not None:
                tensors = {name: form.cut(name, tensor) for name, tensor in tensors.items()}
                # Where two pieces were put together, these own memory, too.
                copies.memory += [one for one in tensors.values() if isinstance(one, torch.Tensor)]
            copied = self._stream.mark()
        return Crossing(lambda: [tensors], copies.memory, copied, made), 0

    @property
    def prepare_together(self) -> Callable[[Together, DeliveryForm], list[OnDevice]]:
        """Begins one copy for several batches."""
        return self._prepare_together

    def _prepare_together(self, together: Together, form: DeliveryForm) -> list[OnDevice]:
        """Begin one copy for several batches, and return each of them."""
        copies = self._copies(form)
        with self._stream.copies():
            cut = begin(together, copies, form)
            copied = self._stream.mark()
        crossing = Crossing(cut, copies.memory, copied, together)
        return [(crossing, number) for number in range(len(together.sizes))]

    def _copies(self, form: DeliveryForm) -> Copies:
        return Copies(self._stream.copy, self._resident, {} if form.is_widened else form.compact)

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


def _shared_in_one_storage(made: Made) -> Tensors:
    """Return what samples share as tensors, the fixed-width fields of a key as views of one storage."""
    fields: Tensors = {}
    for shared in made.assembled.shared:
        index, rows = torch.from_numpy(shared.index), shared.rows
        if rows.spec.record_bytes:
            views = fields_of(torch.from_numpy(rows.records), rows.spec)
            fields |= {name: Deduplicated(field, index) for name, field in views.items()}
        fields |= {name: Deduplicated(as_tensors(lists), index) for name, lists in rows.ragged.items()}
    return fields


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
