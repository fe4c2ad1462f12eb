"""Several batches that cross to a device as one, and are cut there.

host      records │ 0 │ 1 │ 2 │ ──► one copy ──► fields of all, one operation each ──► cut: one each ──► 0, 1, 2
          in a thread that gathers ──────────┘   └── in the training loop, when it comes to the first of them

What a batch costs beside its bytes is calls, each of which gives the interpreter's lock up and wants it back. So nearly
all of them are for all batches at a time, and those that only look at what has been begun are left to the loop: it has
the lock, for which a thread that gathers waits behind each operation that the loop launches.

Small batches that the loop's own thread makes are cut the same way, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import torch

from stoker.fields.spec import Array, Deduplicated, Ragged, Spec
from stoker.loader.delivery import DeliveryForm
from stoker.loader.gather import Together
from stoker.torch.copies import Copies, expand_records
from stoker.torch.tensors import Tensors, cut, cut_each, views_of

Cut: TypeAlias = Callable[[], list[Tensors]]
"""Takes what was begun apart: returns the fields of each batch, which are views of it."""


def begin(together: Together, copies: Copies, form: DeliveryForm) -> Cut:
    """Begin to copy several batches, and return what takes them apart.

    Args:
        together: The batches.
        copies: Copies.
        form: How they leave: not augmented, and all of each sequence.
    """
    pieces = [_begin_own(together, copies)]
    for rows, index in together.shared:
        begin_shared = _begin_expanded if form.is_expanded else _begin_once
        pieces.append(begin_shared(rows, index, copies.array(index), together.sizes, copies))
    names = list(together.names)
    if (groups := together.groups) is not None:
        pieces.append(partial(_cut_groups, copies.array(groups.offsets), groups.sizes))
        names.append("group_offsets")
    return partial(_in_order, names, pieces)


def _in_order(names: Sequence[str], pieces: Sequence[Cut]) -> list[Tensors]:
    batches = _beside(pieces)
    if list(batches[0]) == names:
        return batches
    return [{name: fields[name] for name in names} for fields in batches]


def _beside(pieces: Sequence[Cut]) -> list[Tensors]:
    """Return the fields of each batch out of pieces that each have some of them."""
    batches, *others = [piece() for piece in pieces]
    for other in others:
        for fields, more in zip(batches, other, strict=True):
            fields |= more
    return batches


def _begin_own(together: Together, copies: Copies) -> Cut:
    """Begin to copy the fields of each batch but those that its samples share."""
    spec = together.assembled.spec
    lists = _begin_lists(together, copies)
    if not spec.record_bytes:
        return lists
    return partial(_beside, [_fixed(copies.records(together.assembled), spec, together.sizes, copies), lists])


def _fixed(records: torch.Tensor, spec: Spec, sizes: Sequence[int], copies: Copies) -> Cut:
    """Return what gives the fixed-width fields of each batch; those that are kept narrower are widened now."""
    if not copies.has_narrow(spec):
        return lambda: cut_each(views_of(records, spec), sizes)
    return partial(cut_each, {name: copies.widened(name, one) for name, one in views_of(records, spec).items()}, sizes)


def _begin_lists(together: Together, copies: Copies) -> Cut:
    if not together.num_values:
        return partial(_empty, len(together.sizes))
    lists = together.assembled.ragged
    offsets = copies.array(together.offsets)
    values = {name: copies.widened(name, copies.array(np.asarray(one.values))) for name, one in lists.items()}
    return partial(_cut_lists, values, offsets, together.num_values, [size + 1 for size in together.sizes])


def _cut_lists(
    values: dict[str, torch.Tensor], offsets: torch.Tensor, num_values: list[list[int]], num_offsets: list[int]
) -> list[Tensors]:
    batches = _empty(len(num_offsets))
    for name, borders, sizes in zip(values, offsets.unbind(0), num_values, strict=True):
        parts = zip(batches, cut(values[name], sizes), cut(borders, num_offsets), strict=True)
        for fields, some, own in parts:
            fields[name] = Ragged(some, own)
    return batches


def _cut_groups(offsets: torch.Tensor, sizes: Sequence[int]) -> list[Tensors]:
    return [{"group_offsets": own} for own in cut(offsets, [num + 1 for num in sizes])]


def _begin_once(rows: Together, _: Array, index: torch.Tensor, sizes: Sequence[int], copies: Copies) -> Cut:
    """Begin to copy what the samples of each batch share, each value once, beside which of these every sample has."""
    own = _begin_own(rows, copies)
    return lambda: [
        {name: Deduplicated(field, some) for name, field in fields.items()}
        for fields, some in zip(own(), cut(index, sizes), strict=True)
    ]


def _begin_expanded(
    rows: Together, host_index: Array, index: torch.Tensor, sizes: Sequence[int], copies: Copies
) -> Cut:
    """Begin to copy what the samples of each batch share, and expand it behind the copy.

    Args:
        rows: The different ones of each batch.
        host_index: Which of its batch's each sample has. Shape [B], B over all batches.
        index: The same on the device.
        sizes: Samples of each batch.
        copies: Copies.
    """
    spec, of_each, pieces = rows.assembled.spec, cut(index, sizes), list[Cut]()
    if spec.record_bytes:
        records = copies.array(rows.assembled.records)
        out = copies.own(torch.empty((len(index), spec.record_bytes), dtype=torch.uint8, device=records.device))
        for some, own, target in zip(cut(records, rows.sizes), of_each, cut(out, sizes), strict=True):
            expand_records(some, own, out=target)
        pieces.append(_fixed(out, spec, sizes, copies))
    lists, places = _begin_lists(rows, copies)(), np.split(host_index, np.cumsum(sizes)[:-1])
    ends = np.cumsum([num + 1 for num in rows.sizes])[:-1]
    expanded = _empty(len(sizes))
    for (name, alike), offsets in zip(rows.assembled.ragged.items(), rows.offsets, strict=True):
        for i, borders in enumerate(np.split(offsets, ends)):
            here = Ragged(alike.values, borders)  # whose values are another batch's, too: only lengths are asked for
            expanded[i][name] = copies.expanded(cast("Ragged", lists[i][name]), of_each[i], here, places[i])
    return partial(_beside, [*pieces, lambda: expanded])


def _empty(num: int) -> list[Tensors]:
    return [{} for _ in range(num)]
