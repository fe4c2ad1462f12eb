"""What crosses to a device with a batch, or with several: copies that are begun, and what is made of them there.

Several batches cross as one, and are cut there:

    host    records │ 0 │ 1 │ 2 │ ──► one copy ──► fields of all, one operation each ──► cut: one each ──► 0, 1, 2
            in a thread that gathers ──────────┘   └── in the training loop, when it comes to the first of them

What a batch costs beside its bytes is calls, each of which gives the interpreter's lock up and wants it back. So nearly
all of them are for all batches at a time, and those that only look at what has been begun are left to the loop: it has
the lock, for which a thread that gathers waits behind each operation that the loop launches.

Small batches that the loop's own thread makes are cut the same way, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from stoker.fields.compact import Compact
from stoker.fields.spec import Array, Deduplicated, Ragged, Spec
from stoker.loader.batches import Delivery, Made
from stoker.loader.gather import Assembled, Together
from stoker.torch.cuda import ResidentRows
from stoker.torch.tensors import Tensors, cut, fields_of, torch_dtype, views_of, words_of

# What torch cannot gather from is gathered from as integers of the same size.
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Copies:
    """Copies of batches, to a device or none. To a device, it is used inside a block of the stream's.

    `copy` begins to copy an array, which must stay until that is done, or shows it where it lies. Records that stay on
    the device are those of `resident`; the fields of `compact` are widened there. Every tensor that owns memory there
    of what was copied and made so far is in `memory`.
    """

    def __init__(
        self,
        copy: Callable[[Array], torch.Tensor],
        resident: ResidentRows | None = None,
        compact: Mapping[str, Compact] | None = None,
    ) -> None:
        self._copy, self._resident, self.compact = copy, resident, compact or {}
        self.memory: list[torch.Tensor] = []

    def array(self, array: Array) -> torch.Tensor:
        """Begin to copy an array."""
        return self.own(self._copy(array))

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that owns memory on the device, noted."""
        self.memory.append(tensor)
        return tensor

    def batch(self, made: Made, delivery: Delivery) -> Tensors:
        """Begin to copy a batch, and return its fields: those of fixed width as views of the records, as one copy."""
        as_one: Tensors = {}
        if not delivery.is_augmented:
            if made.shaped is not None and made.assembled.spec.record_bytes:
                as_one = made.shaped(fields_of(self.records(made.assembled), made.assembled.spec))
            for rows, index in made.assembled.shared:
                as_one |= self._shared(rows, index, is_expanded=delivery.is_expanded)
        if delivery.is_widened:  # already: the arrays are no views of the records any more
            as_one = {name: field for name, field in as_one.items() if name not in delivery.compact}
        # The spec's order, then what was added.
        return {
            name: delivery.cut(name, self.widened(name, as_one[name] if name in as_one else self.field(array)))
            for name, array in made.arrays.items()
        }

    def field(self, field: Any) -> Any:
        """Begin to copy a field, whatever it is."""
        if type(field) is int:  # `max_seqlen`, which nobody wants to ask a device for
            return field
        return field.map(self.array) if isinstance(field, Ragged | Deduplicated) else self.array(field)

    def records(self, assembled: Assembled) -> torch.Tensor:
        """Begin to copy the records of samples, those aside that lie on the device; uint8, shape [B, record_bytes]."""
        if self._resident is None or assembled.resident is None:
            return self.array(assembled.records)
        return self.own(self._resident.gather(assembled.resident, assembled.records, self.array))

    def _shared(self, rows: Assembled, host_index: Array, *, is_expanded: bool) -> Tensors:
        """Begin to copy what samples share, each value once; expanded there, behind the copy, where that is wanted."""
        index = self.array(host_index)
        fields: Tensors = {}
        if rows.spec.record_bytes:
            records = self.array(rows.records)
            fields |= fields_of(self.own(expand_rows(records, index)) if is_expanded else records, rows.spec)
        for name, lists in rows.ragged.items():
            copied = self.field(lists)
            fields[name] = self.expanded(copied, index, lists, host_index) if is_expanded else copied
        return fields if is_expanded else {name: Deduplicated(field, index) for name, field in fields.items()}

    def expanded(self, lists: Ragged, index: torch.Tensor, host_lists: Ragged, host_index: Array) -> Ragged:
        """Return lists of the device, expanded there; the host has the same, and counts them."""
        found = expand_ragged(lists, index, expanded_totals(host_lists, host_index))
        self.memory += found.arrays
        return found

    def widened(self, name: str, field: Any) -> Any:
        """Return a field as it is delivered, behind the copy: itself, where it is not kept narrower."""
        if name not in self.compact:
            return field
        if isinstance(field, Ragged | Deduplicated):
            return replace(field, values=self.widened(name, field.values))
        return self.own(widen_tensor(field, self.compact[name]))


def widen_tensor(kept: torch.Tensor, compact: Compact) -> torch.Tensor:
    """Return values as they are delivered: those of `stoker.fields.compact.widen`, bit for bit."""
    dtype = torch_dtype(compact.dtype)
    if compact.form == "cast":
        return kept.to(dtype)
    if compact.form == "bfloat16":
        return kept.view(torch.bfloat16).to(dtype)
    if compact.form == "bits":
        shifts = torch.arange(8, dtype=torch.uint8, device=kept.device)
        bits = (kept.unsqueeze(-1) >> shifts) & 1
        return bits.flatten(-2)[..., : compact.shape[-1]].to(torch.bool)
    # Step and range as the narrow float that they are there, too.
    step, low = (float(compact.dtype.type(value)) for value in (compact.step, compact.low))
    return kept.to(dtype).mul_(step).add_(low)


def expand_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return `rows[index]`, of any dtype. Shape [B, ...], of rows [U, ...]; the index is int32 or int64."""
    signed = _AS_SIGNED.get(rows.dtype)
    if signed is not None:
        return rows.view(signed).index_select(0, index).view(rows.dtype)
    if rows.dtype == torch.uint8 and rows.ndim == 2:
        return words_of(rows).index_select(0, index).view(torch.uint8)
    return rows.index_select(0, index)


def expanded_totals(ragged: Ragged, index: Array) -> list[int]:
    """Return how many lists or values each level has in `ragged[index]`; counted on the host, which has it all."""
    starts: npt.NDArray[np.int64] = ragged.offsets
    totals = []
    values: Any = ragged
    while isinstance(values, Ragged):
        totals.append(int((starts[1:] - starts[:-1])[index].sum()))
        values = values.values
        if isinstance(values, Ragged):
            starts = values.offsets[starts]
    return totals


def expand_ragged(ragged: Ragged, index: torch.Tensor, totals: list[int]) -> Ragged:
    """Return `ragged[index]`, of tensors, whose totals are known: so the host does not wait for the device."""
    starts = ragged.offsets.index_select(0, index)
    lengths = ragged.offsets.diff().index_select(0, index)
    offsets = torch.zeros(len(index) + 1, dtype=torch.int64, device=index.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    total = totals[0]
    places = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
    places += torch.arange(total, device=index.device)
    if isinstance(ragged.values, Ragged):
        return Ragged(expand_ragged(ragged.values, places, totals[1:]), offsets)
    return Ragged(expand_rows(ragged.values, places), offsets)


# ---------------------------------------------------------------------------------------------- several as one


Cut: TypeAlias = Callable[[], list[Tensors]]
"""Takes what was begun apart: returns the fields of each batch, which are views of it."""

Piece: TypeAlias = Callable[[], dict[str, Sequence[Any]]]
"""Does so with some fields: returns each of them of every batch.

Each of torch's operations gives up the interpreter's lock, and beside threads that want it, it takes long to come back:
so there is one for each field, not for each field of each batch."""


def begin(together: Together, copies: Copies, *, is_expanded: bool) -> Cut:
    """Begin to copy several batches, and return what takes them apart; see `Delivery` for `is_expanded`."""
    pieces = _begin_own(together, copies)
    for rows, host_index in together.shared:
        index = copies.array(host_index)
        if is_expanded:
            pieces += _begin_expanded(rows, host_index, index, together.sizes, copies)
        else:
            pieces += [partial(_deduplicated, piece, index, together.sizes) for piece in _begin_own(rows, copies)]
    names = list(together.assembled.names or together.assembled.spec.names)
    if together.groups is not None:
        offsets, sizes = copies.array(together.groups[0]), [num + 1 for num in together.groups[1]]
        pieces.append(lambda: {"group_offsets": cut(offsets, sizes)})
        names.append("group_offsets")
    return partial(_take_apart, names, pieces)


def _take_apart(names: Sequence[str], pieces: Sequence[Piece]) -> list[Tensors]:
    fields: dict[str, Sequence[Any]] = {}
    for piece in pieces:
        fields |= piece()
    return [dict(zip(names, row, strict=True)) for row in zip(*(fields[name] for name in names), strict=True)]


def _begin_own(together: Together, copies: Copies) -> list[Piece]:
    """Begin to copy the fields of each batch but those that its samples share."""
    spec = together.assembled.spec
    pieces = [_begin_lists(together, copies)] if together.num_values else []
    if spec.record_bytes:
        pieces.append(_fixed(copies.records(together.assembled), spec, together.sizes, copies))
    return pieces


def _fixed(records: torch.Tensor, spec: Spec, sizes: Sequence[int], copies: Copies) -> Piece:
    """Return what gives the fixed-width fields of each batch; those that are kept narrower are widened now."""
    fields: Mapping[str, torch.Tensor] | None = None
    if any(entry.name in copies.compact for entry in spec.fixed):
        fields = {name: copies.widened(name, field) for name, field in views_of(records, spec).items()}
    return lambda: {name: cut(field, sizes) for name, field in (fields or views_of(records, spec)).items()}


def _begin_lists(together: Together, copies: Copies) -> Piece:
    """Begin to copy the lists of each batch."""
    num_offsets = [size + 1 for size in together.sizes]
    offsets = copies.array(together.offsets)
    values = {
        name: copies.widened(name, copies.array(np.asarray(one.values)))
        for name, one in together.assembled.ragged.items()
    }
    return lambda: {
        name: list(map(Ragged, cut(values[name], sizes), cut(own, num_offsets)))
        for name, own, sizes in zip(values, offsets.unbind(0), together.num_values, strict=True)
    }


def _deduplicated(piece: Piece, index: torch.Tensor, sizes: Sequence[int]) -> dict[str, Sequence[Any]]:
    """Return what the samples of each batch share, each value once, beside which of these every sample has."""
    of_each = cut(index, sizes)
    return {name: list(map(Deduplicated, values, of_each)) for name, values in piece().items()}


def _begin_expanded(
    rows: Together, host_index: Array, index: torch.Tensor, sizes: Sequence[int], copies: Copies
) -> list[Piece]:
    """Begin to copy what the samples of each batch share, and expand it behind the copy.

    The index says on either side which row of its batch each sample has, over all batches, of so many samples each.
    """
    spec, of_each, pieces = rows.assembled.spec, cut(index, sizes), list[Piece]()
    if spec.record_bytes:
        records = copies.array(rows.assembled.records)
        out = copies.own(torch.empty((len(index), spec.record_bytes), dtype=torch.uint8, device=records.device))
        for some, own, target in zip(cut(records, rows.sizes), of_each, cut(out, sizes), strict=True):
            torch.index_select(words_of(some), 0, own, out=words_of(target))
        pieces.append(_fixed(out, spec, sizes, copies))
    if rows.num_values:
        lists, places = _begin_lists(rows, copies)(), np.split(host_index, np.cumsum(sizes)[:-1])
        ends = np.cumsum([num + 1 for num in rows.sizes])[:-1]
        expanded: dict[str, Sequence[Any]] = {}
        for (name, host), offsets in zip(rows.assembled.ragged.items(), rows.offsets, strict=True):
            # Of values that are another batch's, too: only lengths are asked for.
            alike = [Ragged(host.values, borders) for borders in np.split(offsets, ends)]
            expanded[name] = list(map(copies.expanded, lists[name], of_each, alike, places))
        pieces.append(lambda: expanded)
    return pieces
