"""Several batches that cross to a device as one, and are cut there.

host      records │ 0 │ 1 │ 2 │ ──► one copy ──► fields of all, one operation each ──► cut: one each ──► 0, 1, 2
          in a thread that gathers ──────────┘   └── in the training loop, when it comes to the first of them

What a batch costs beside its bytes is calls, each of which gives the interpreter's lock up and wants it back. So nearly
all of them are for all batches at a time, and those that only look at what has been begun are left to the loop: it has
the lock, for which a thread that gathers waits behind each operation that the loop launches.

Small batches that the loop's own thread makes are cut the same way, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from stoker.fields.spec import Array, Deduplicated, Ragged, Spec
from stoker.loader.gather import Together
from stoker.torch.copies import Copies, expand_records
from stoker.torch.tensors import Tensors, cut, views_of

Cut: TypeAlias = Callable[[], list[Tensors]]
"""Takes what was begun apart: returns the fields of each batch, which are views of it."""

Piece: TypeAlias = Callable[[], dict[str, Sequence[Any]]]
"""Does so with some fields: returns each of them of every batch.

Each of torch's operations gives up the interpreter's lock, and beside threads that want it, it takes long to come back:
so there is one for each field, not for each field of each batch."""


def begin(together: Together, copies: Copies, *, is_expanded: bool) -> Cut:
    """Begin to copy several batches, and return what takes them apart; see `Delivery` for `is_expanded`."""
    pieces = _begin_own(together, copies)
    for rows, index in together.shared:
        begin_shared = _begin_expanded if is_expanded else _begin_once
        pieces += begin_shared(rows, index, copies.array(index), together.sizes, copies)
    names = list(together.names)
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


def _begin_once(rows: Together, _: Array, index: torch.Tensor, sizes: Sequence[int], copies: Copies) -> list[Piece]:
    """Begin to copy what the samples of each batch share, each value once, beside which of these every sample has."""

    def deduplicated(piece: Piece) -> dict[str, Sequence[Any]]:
        return {name: list(map(Deduplicated, values, cut(index, sizes))) for name, values in piece().items()}

    return [partial(deduplicated, piece) for piece in _begin_own(rows, copies)]


def _begin_expanded(
    rows: Together, host_index: Array, index: torch.Tensor, sizes: Sequence[int], copies: Copies
) -> list[Piece]:
    """Begin to copy what the samples of each batch share, and expand it behind the copy.

    Args:
        rows: The different ones of each batch.
        host_index: Which of its batch's each sample has. Shape [B], B over all batches.
        index: The same on the device.
        sizes: Samples of each batch.
        copies: Copies.
    """
    spec, of_each, pieces = rows.assembled.spec, cut(index, sizes), list[Piece]()
    if spec.record_bytes:
        records = copies.array(rows.assembled.records)
        out = copies.own(torch.empty((len(index), spec.record_bytes), dtype=torch.uint8, device=records.device))
        for some, own, target in zip(cut(records, rows.sizes), of_each, cut(out, sizes), strict=True):
            expand_records(some, own, out=target)
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
