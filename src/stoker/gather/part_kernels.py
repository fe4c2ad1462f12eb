"""Compiled loops that put the rows of one window after the other where they go in a batch of several.

window 3   rows 7 1 4 ──► places 0 2 5 ┐
window 9   rows 0 9 8 ──► places 1 3 4 ┴► records, and of each list where it lies and how long it is
then                                      the lists themselves, of all windows, in the batch's order
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.gather.join_kernels import add_up, put_lists
from stoker.gather.kernels import copy_fields, put_lines, strip_extents, value_extents
from stoker.gather.moves import BYTES, INT64, INT64_2D, OUT_BYTES, OUT_INT64, OUT_INT64_2D, UINT32, compiled

__all__ = ["copy_all_lists", "copy_fields", "put_rows"]


@compiled(
    *(INT64, INT64, BYTES, types.int64, INT64, OUT_BYTES),
    *(INT64, UINT32, INT64, INT64, INT64, types.int64, OUT_INT64_2D, OUT_INT64_2D),
)
def put_rows(
    slot,
    row,
    records,
    num_bytes,
    places,
    out,
    words,
    halves,
    first_place,
    first_byte,
    value_bytes,
    begin,
    all_sources,
    all_lengths,
):
    """Copy the records of rows to their places, and write there where their lists lie. See `several.take_several`."""
    num, num_fields = len(row), len(value_bytes)
    if num_bytes:
        put_lines(records, row, num_bytes, places, out, num_bytes, 0)
    if num_fields == 0:
        return
    sources, offsets = np.empty((num_fields, num), dtype=np.int64), np.empty((num_fields, num + 1), dtype=np.int64)
    if num_fields == 1:  # see `windows.list_places.Fields`
        value_extents(words, first_place, first_byte, value_bytes[0], slot, row, sources[0], offsets[0])
    else:
        strip_extents(halves, first_place, first_byte, value_bytes, slot, row, sources, offsets)
    put_lists(sources, offsets, begin, 0, places, all_sources, all_lengths)


@compiled(BYTES, INT64, INT64_2D, OUT_INT64_2D, OUT_INT64, OUT_BYTES, returns=types.int64)
def copy_all_lists(memory, value_bytes, sources, lengths, begins, values):
    """Make offsets of lengths, and copy all lists where there is room; returns how much these take."""
    add_up(lengths)
    return copy_fields(memory, value_bytes, sources, lengths, begins, values)
