"""A column chunk of numbers, or lists of them, while it is decoded: the rows that are there, and room for more."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import Pages, Progress, Room
from stoker.parquet.pages.codecs import Bytes, decode_pages
from stoker.parquet.pages.leaf import Leaf

Offsets: TypeAlias = npt.NDArray[np.int64]

NO_BYTES, NO_OFFSETS = np.zeros(0, np.uint8), np.zeros(0, np.int64)


class Decoder:
    """Decodes pages of one column chunk, in their order, and hands rows out.

        decode   ┆ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ ┆ ▒▒▒▒▒▒▒▒▒▒ …    a page at a time, or many
        take     │·······│·······│·······│··            views; rows that are left are copied when more are decoded

    Args:
        leaf: What the column is.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than any page has before it is compressed.
    """

    def __init__(self, leaf: Leaf, *, codec: int, most_bytes: int) -> None:
        self._leaf = leaf
        self._codec = codec
        self._most_bytes = most_bytes
        self._dictionary, self._values, self._valid, self._offsets = NO_BYTES, NO_BYTES, NO_BYTES, NO_OFFSETS
        self._progress = Progress()
        self._most = (0, 0)  # rows and values that were there when more were decoded
        self._num_taken = 0  # of the rows in memory, the first ones
        self._ready: pa.Array | None = None  # rows in memory as Arrow has them, all of them or all but the last one

    @property
    def num_rows(self) -> int:
        """Rows that are there. Of lists the last one may go on in the next page."""
        return self._progress.rows - self._num_taken

    def make_room(self, num_rows: int, num_values: int) -> None:
        """Make room for so many rows and values more, of which the values of lists are most."""
        self._ready = None
        if self._num_taken:
            self._leave_taken()
        self._grow(num_rows, num_values)

    def _grow(self, num_rows: int, num_values: int) -> None:
        rows, values = self._progress.rows + num_rows, self._progress.values + num_values
        column = self._leaf.column
        self._values = _grown(self._values, values * column.width, is_shared=True)
        if column.may_be_null and not column.is_list:
            self._valid = _grown(self._valid, rows)
        if column.is_list:
            self._offsets = _grown(self._offsets, rows + 1)

    def decode(self, pages: Pages, first: int = 0, stop: int | None = None) -> bool:
        """Decode pages for which there is room; False where pyarrow is to decode the column chunk."""
        totals = pages.totals(first, stop)
        if totals.most_bytes > self._most_bytes:
            return False
        if totals.num_dictionary_values:
            if len(self._dictionary):
                return False  # a second dictionary
            self._dictionary = np.empty(totals.num_dictionary_values * self._leaf.column.width, np.uint8)
        room = Room(self._dictionary, self._values, self._valid, self._offsets)
        return decode_pages(pages, self._leaf, self._codec, room, self._progress, first=first, stop=stop)

    # ------------------------------------------------------------------ rows

    def take(self, num_rows: int) -> pa.Array | None:
        """Return the next rows, which are there; None where Arrow cannot hold them."""
        first, stop = self._num_taken, self._num_taken + num_rows
        if self._ready is None or len(self._ready) < stop:
            have = self._progress.rows
            # Of lists the last one may go on: it is left out until it is asked for.
            self._ready = self._array(have - 1 if self._leaf.column.is_list and stop < have else have)
            if self._ready is None:
                return None
        taken = self._ready if num_rows == len(self._ready) else self._ready.slice(first, num_rows)
        self._num_taken = stop
        if not self.num_rows:
            self._ready = None
            self._leave_taken()
        return taken

    def _array(self, num_rows: int) -> pa.Array | None:
        """Return the first rows in memory; None where Arrow cannot hold them."""
        leaf, progress, offsets = self._leaf, self._progress, self._offsets
        is_all = num_rows == progress.rows
        stop = progress.values if is_all else int(offsets[num_rows]) if leaf.column.is_list else num_rows
        valid = self._valid[:num_rows] if progress.nulls else None
        array = array_of(leaf, self._values[: stop * leaf.column.width], valid)
        if leaf.column.is_list:
            if is_all:
                offsets[num_rows] = stop
            array = lists_of(leaf, array, offsets[: num_rows + 1])
        return array

    def _leave_taken(self) -> None:
        """Lay rows that are left at the beginning of new memory: what was handed out is not written to again."""
        column, progress = self._leaf.column, self._progress
        first, have, end = self._num_taken, progress.rows, progress.values
        values, valid, offsets, num_nulls = self._values, self._valid, self._offsets, progress.nulls
        begin = first if not column.is_list else end if first == have else int(offsets[first])
        self._values, self._valid, self._offsets = NO_BYTES, NO_BYTES, NO_OFFSETS
        self._num_taken = 0
        progress.rows = progress.values = progress.nulls = 0
        self._most = max(self._most[0], have), max(self._most[1], end)
        if first == have:
            return
        self._grow(*self._most)  # there will be about as many before the next ones are left
        self._values[: (end - begin) * column.width] = values[begin * column.width : end * column.width]
        if num_nulls:
            self._valid[: have - first] = valid[first:have]
            progress.nulls = have - first - int(np.count_nonzero(valid[first:have]))
        if column.is_list:
            self._offsets[: have - first] = offsets[first:have] - begin
        progress.rows, progress.values = have - first, end - begin


def _grown(array: Any, num: int, *, is_shared: bool = False) -> Any:
    """Return an array with room for `num` items, and what it held; by half larger than that if it grows again."""
    if len(array) >= num:
        return array
    if len(array):
        num += num // 2
    # What is handed out lies in Arrow's memory, which is the quicker one to get again.
    grown = np.frombuffer(pa.allocate_buffer(num), array.dtype) if is_shared else np.empty(num, array.dtype)
    grown[: len(array)] = array
    return grown


def array_of(leaf: Leaf, stored: Bytes, valid: Bytes | None) -> pa.Array:
    """Return values as an Arrow array of their type; `valid` says which are there, None that all are."""
    width = leaf.column.width
    num = len(stored) // width
    if leaf.value_bytes != width:  # one or two bytes lie in four
        stored = stored.view("<u4").astype(f"<u{leaf.value_bytes}")
    if leaf.column.is_bit:
        stored = np.packbits(stored, bitorder="little")
    nulls, num_nulls = None, 0
    if valid is not None:
        nulls = pa.py_buffer(np.packbits(valid, bitorder="little"))
        num_nulls = len(valid) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(leaf.value_type, num, [nulls, pa.py_buffer(stored)], num_nulls)


def lists_of(leaf: Leaf, values: pa.Array, offsets: Offsets) -> pa.Array | None:
    """Return lists of `values`; None where they are not as long as their type says."""
    num_rows = len(offsets) - 1
    if isinstance(leaf.type, pa.FixedSizeListType):
        if (np.diff(offsets) != leaf.type.list_size).any() or not leaf.type.list_size:
            return None
        return pa.Array.from_buffers(leaf.type, num_rows, [None], 0, children=[values])
    borders: Any = offsets
    if isinstance(leaf.type, pa.ListType):
        if offsets[-1] >= 1 << 31:
            return None
        borders = offsets.astype(np.int32)
    return pa.Array.from_buffers(leaf.type, num_rows, [None, pa.py_buffer(borders)], 0, children=[values])
