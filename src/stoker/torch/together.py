"""Several batches that cross to a device as one, and are cut there.

host      records │ 0 │ 1 │ 2 │ ──► one copy ──► fields of all, one operation each ──► cut: one each ──► 0, 1, 2

What a batch costs beside its bytes is calls, each of which gives the interpreter's lock up and waits for it beside the
threads that gather: so nearly all of them are for all batches at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stoker.feed.handover import Leaving
from stoker.gather.together import Together
from stoker.spec import Array, Ragged, Shared, Spec
from stoker.torch.copies import Copies
from stoker.torch.expand import expand_records
from stoker.torch.tensors import Tensors, cut, cut_each, fields_of


def batches_of(together: Together, copies: Copies, leaving: Leaving) -> list[Tensors]:
    """Begin to copy several batches, and return the fields of each.

    Args:
        together: The batches.
        copies: Copies.
        leaving: How they leave: not augmented, and all of each sequence.
    """
    batches = _own(together, copies)
    for rows, index in together.shared:
        of_each = cut(copies.array(index), together.sizes)
        shared = _expanded(rows, index, of_each, copies) if leaving.is_expanded else _once(rows, of_each, copies)
        for fields, more in zip(batches, shared, strict=True):
            fields |= more
    batches = [{name: fields[name] for name in together.names} for fields in batches]
    if together.groups is not None:
        offsets = copies.array(together.groups.offsets)
        for fields, own in zip(batches, cut(offsets, [num + 1 for num in together.groups.sizes]), strict=True):
            fields["group_offsets"] = own
    return batches


def _own(together: Together, copies: Copies) -> list[Tensors]:
    """Return the fields of each batch but those that its samples share."""
    batches: list[Tensors] = [{} for _ in together.sizes]
    spec = together.assembled.spec
    if spec.record_bytes:
        batches = _fixed(copies.records(together.assembled), spec, together.sizes, copies)
    for fields, lists in zip(batches, _lists(together, copies), strict=True):
        fields |= lists
    return batches


def _fixed(records: torch.Tensor, spec: Spec, sizes: Sequence[int], copies: Copies) -> list[Tensors]:
    """Return the fixed-width fields of each batch."""
    fields = fields_of(records, spec)
    return cut_each({name: copies.widened(name, field) for name, field in fields.items()}, sizes)


def _lists(together: Together, copies: Copies) -> list[dict[str, Ragged]]:
    """Return the lists of each batch."""
    batches: list[dict[str, Ragged]] = [{} for _ in together.sizes]
    if not together.num_values:
        return batches
    num_offsets = [size + 1 for size in together.sizes]
    named, offsets = together.assembled.ragged.items(), copies.array(together.offsets).unbind(0)
    for (name, lists), of_field, num_values in zip(named, offsets, together.num_values, strict=True):
        values = copies.widened(name, copies.array(np.asarray(lists.values)))
        for fields, some, own in zip(batches, cut(values, num_values), cut(of_field, num_offsets), strict=True):
            fields[name] = Ragged(some, own)
    return batches


def _once(rows: Together, of_each: Sequence[torch.Tensor], copies: Copies) -> list[Tensors]:
    """Return what the samples of each batch share, each value once, and which of these every sample has."""
    return [
        {name: Shared(field, index) for name, field in fields.items()}
        for fields, index in zip(_own(rows, copies), of_each, strict=True)
    ]


def _expanded(rows: Together, index: Array, of_each: Sequence[torch.Tensor], copies: Copies) -> list[Tensors]:
    """Return what the samples of each batch share as each sample's, expanded behind the copy.

    Args:
        rows: The different ones of each batch.
        index: Which of its batch's each sample has. Shape [B], B over all batches.
        of_each: The same of each batch, on the device.
        copies: Copies.
    """
    spec, sizes = rows.assembled.spec, [len(own) for own in of_each]
    batches: list[Tensors] = [{} for _ in sizes]
    if spec.record_bytes:
        records = copies.array(rows.assembled.records)
        out = copies.own(torch.empty((len(index), spec.record_bytes), dtype=torch.uint8, device=records.device))
        for some, own, target in zip(cut(records, rows.sizes), of_each, cut(out, sizes), strict=True):
            expand_records(some, own, out=target)
        batches = _fixed(out, spec, sizes, copies)
    lists, places = _lists(rows, copies), np.split(index, np.cumsum(sizes)[:-1])
    ends = np.cumsum([num + 1 for num in rows.sizes])[:-1]
    for (name, alike), offsets in zip(rows.assembled.ragged.items(), rows.offsets, strict=True):
        for i, borders in enumerate(np.split(offsets, ends)):
            here = Ragged(alike.values, borders)  # whose values are another batch's, too: only lengths are asked for
            batches[i][name] = copies.expanded(lists[i][name], of_each[i], here, places[i])
    return batches
