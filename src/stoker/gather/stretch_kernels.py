"""Compiled loops that find the rows of consecutive positions and copy them, in one call."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.gather.kernels import take_lines, take_rows, where_lists_lie
from stoker.gather.moves import BYTES, OUT_BYTES, OUT_INT64, compiled
from stoker.order.kernels import TABLES, locate_range_into


@compiled(types.int64, *TABLES, BYTES, types.int64, OUT_BYTES)
def take_stretch(
    first,
    start,
    stop,
    key,
    shuffle,
    slot_starts,
    shifts,
    guide,
    guide_shift,
    first_slot,
    memory,
    num_bytes,
    out,
):
    """Find the records of consecutive positions and copy them. See `take.take_located`."""
    num = len(out) // num_bytes
    slot, row = np.empty(num, dtype=np.int64), np.empty(num, dtype=np.int64)
    locate_range_into(first, start, stop, key, shuffle, slot_starts, shifts, guide, guide_shift, first_slot, slot, row)
    take_lines(memory, row, num_bytes, out, num_bytes, 0)


@compiled(
    *(types.int64, *TABLES),
    *(BYTES, OUT_INT64, types.int64, OUT_BYTES, *where_lists_lie(OUT_INT64)),
    returns=types.int64,
)
def take_rows_of_stretch(
    first_position,
    start,
    stop,
    key,
    shuffle,
    slot_starts,
    shifts,
    guide,
    guide_shift,
    first_slot,
    records,
    row,
    num_bytes,
    out,
    words,
    halves,
    memory,
    first_place,
    first_byte,
    value_bytes,
    slot,
    sources,
    offsets,
    begins,
    values,
):
    """Find the rows of consecutive positions and copy their records and lists. See `take.take_rows`."""
    locate_range_into(
        first_position, start, stop, key, shuffle, slot_starts, shifts, guide, guide_shift, first_slot, slot, row
    )
    return take_rows(
        records,
        row,
        num_bytes,
        out,
        words,
        halves,
        memory,
        first_place,
        first_byte,
        value_bytes,
        slot,
        sources,
        offsets,
        begins,
        values,
    )
