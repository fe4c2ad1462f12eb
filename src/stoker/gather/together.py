"""Batches that were gathered side by side and leave as one: cut where they arrive, behind a single copy.

gathered    records  │ 0 │ 1 │ 2 │        lists  │ 0 │ 1 │ 2 │
offsets     0 2 5 9 ┆ 9 11 ┆ ..    ──►    0 2 5 9 ┆ 0 2 ┆ ..     each batch's from zero on, in memory to copy from
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stoker.gather.assemble import Assembled
from stoker.gather.buffers import BufferPool
from stoker.offsets import offsets_of
from stoker.spec import Array, Ragged


class Together(NamedTuple):
    """Several batches of rows, as one.

    Attributes:
        assembled: All of them.
        sizes: Samples of each.
        offsets: Of the lists of each ragged field, those of each batch counted from its own first value. int64, shape
            [F, B + N], each batch having one more than samples.
        num_values: Of each ragged field, in each batch. [F][N].
    """

    assembled: Assembled
    sizes: Sequence[int]
    offsets: Array
    num_values: list[list[int]]


def side_by_side(assembled: Assembled, sizes: Sequence[int], pool: BufferPool) -> Together | None:
    """Return batches as one that can be copied whole; None where they must be cut before.

    Args:
        assembled: The batches, gathered side by side.
        sizes: Samples of each.
        pool: Gives memory that can be copied from.
    """
    lists = list(assembled.ragged.values())
    has_more = assembled.shared or any(isinstance(one.values, Ragged) for one in lists)
    if has_more or (assembled.spec.fixed and not assembled.spec.record_bytes):
        return None
    borders = offsets_of(np.array(sizes, dtype=np.int64)).tolist()
    num = borders[-1] + len(sizes)
    offsets = pool.take(8 * len(lists) * num)[: 8 * len(lists) * num].view(np.int64).reshape(len(lists), num)
    num_values = []
    for one, out in zip(lists, offsets, strict=True):
        for i, (begin, end) in enumerate(pairwise(borders)):
            np.subtract(one.offsets[begin : end + 1], one.offsets[begin], out=out[begin + i : end + i + 1])
        num_values.append(np.diff(one.offsets[borders]).tolist())
    return Together(assembled, sizes, offsets, num_values)
