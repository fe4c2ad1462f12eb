"""Batches that were gathered side by side and leave as one: cut where they arrive, behind a single copy.

records     │ batch 0 │ batch 1 │ …                       as they were gathered
values      │ batch 0 │ batch 1 │ …
offsets     0 2 5 9 11 …    ──►    0 2 5 9 ┆ 0 2 …        each batch's from zero on, in memory to copy from
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array, Ragged
from stoker.loader.gather.assemble import Assembled
from stoker.loader.gather.buffers import BufferPool


class Groups(NamedTuple):
    """Groups of several batches of rows.

    Attributes:
        offsets: Of the groups of each batch, from zero on, side by side. int64, shape [G + N].
        sizes: Groups of each batch; G together. [N].
    """

    offsets: Array
    sizes: Sequence[int]


class Together(NamedTuple):
    """Several batches of rows, as one.

    Attributes:
        assembled: All of them.
        sizes: Samples of each.
        offsets: Of the lists of each ragged field, those of each batch from zero on. int64, shape [F, B + N].
        num_values: Of each ragged field, in each batch. [F][N].
        shared: What they share by each key: the different rows of each batch, side by side, and which of its batch's
            each sample has, int32, shape [B].
        groups: Where the order counts groups.
    """

    assembled: Assembled
    sizes: Sequence[int]
    offsets: Array
    num_values: list[list[int]]
    shared: list[tuple[Together, Array]]
    groups: Groups | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All fields in batch order, without those of groups."""
        return self.assembled.names or self.assembled.spec.names


def side_by_side(
    assembled: Assembled,
    sizes: Sequence[int],
    pool: BufferPool,
    *,
    groups: Groups | None = None,
) -> Together | None:
    """Return batches as one that can be copied whole; None where they must be cut before.

    Args:
        assembled: The batches, gathered side by side.
        sizes: Samples of each.
        pool: Gives memory that can be copied from.
        groups: Where the order counts groups; their offsets go on through all batches.
    """
    lists = assembled.ragged.values()
    is_nested = any(isinstance(one.values, Ragged) for one in lists)
    if is_nested or (assembled.spec.fixed and not assembled.spec.record_bytes):
        return None
    shared = []
    for one in assembled.shared:
        counts = [one.rows.num_samples] if one.counts is None else one.counts.tolist()
        rows = side_by_side(one.rows, counts, pool)
        if rows is None:
            return None
        index = pool.take(one.index.nbytes)[: one.index.nbytes].view(one.index.dtype)
        np.copyto(index, one.index)
        shared.append((rows, index))
    offsets = _offsets_in(pool, len(lists), sizes)
    num_values = _from_zero([one.offsets for one in lists], sizes, offsets)
    if groups is not None:
        out = _offsets_in(pool, 1, groups.sizes)
        _from_zero([groups.offsets], groups.sizes, out)
        groups = groups._replace(offsets=out[0])
    return Together(assembled, sizes, offsets, num_values, shared, groups)


def _offsets_in(pool: BufferPool, num_fields: int, sizes: Sequence[int]) -> Array:
    num_offsets = sum(sizes) + len(sizes)
    num_bytes = 8 * num_fields * num_offsets
    return pool.take(num_bytes)[:num_bytes].view(np.int64).reshape(num_fields, num_offsets)


def _from_zero(fields: Sequence[Array], sizes: Sequence[int], out: Array) -> list[list[int]]:
    """Write the offsets of fields through all batches as those of each batch.

    Args:
        fields: Offsets of each, of lists or of groups.
        sizes: How many of these each batch has. [N].
        out: Gets the offsets of all fields. Shape [F, B + N].

    Returns:
        How many values, or samples, of each field each batch has. [F][N].
    """
    if not fields:
        return []
    borders = offsets_of(np.array(sizes, dtype=np.int64))
    begins, ends = borders[:-1], borders[1:]
    is_even = len(set(sizes)) == 1
    num_values = []
    for offsets, row in zip(fields, out, strict=True):
        first = offsets[begins]
        if is_even:
            # In one go: what works on thousands of numbers gives the interpreter's lock up, and wants it back.
            step = offsets.itemsize
            each = np.ndarray((len(sizes), sizes[0] + 1), offsets.dtype, offsets, strides=(sizes[0] * step, step))
            np.subtract(each, first[:, None], out=row.reshape(each.shape))
        else:
            for i, (begin, end) in enumerate(pairwise(borders.tolist())):
                np.subtract(offsets[begin : end + 1], first[i], out=row[begin + i : end + i + 1])
        num_values.append((offsets[ends] - first).tolist())
    return num_values
