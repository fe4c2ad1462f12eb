"""A column chunk while it is decoded: its dictionary, the rows that are there, and room for more."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.source.pages.codecs import NO_UNPACKER, UNCOMPRESSED, Unpacker, arrow_codec, unpacked, unpacker_of
from stoker.source.pages.leaf import Leaf
from stoker.source.pages.numbers import (
    AT,
    DICTIONARY,
    DONE,
    ENCODING,
    KIND,
    NULLS,
    NUM_ENTRIES,
    NUM_STATE_NUMBERS,
    PLAIN_BYTES,
    ROWS,
    STORED_BYTES,
    VALUES,
    WORDS,
    Bytes,
    Numbers,
)
from stoker.source.pages.scan import Pages

# What is kept of a thread's scratch: the largest page that is usual, several times.
_KEPT_BYTES = 16 << 20
# Encodings, as numbers of the format, of a dictionary and of places in one.
_DICTIONARIES, _BY_DICTIONARY = (0, 2), (2, 8)
_NO_BYTES, _NO_NUMBERS = np.zeros(0, np.uint8), np.zeros(0, np.int64)


class Decoder:
    """Decodes pages of one column chunk, in their order, and hands rows out.

        decode   ┆ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ ┆ ▒▒▒▒▒▒▒▒▒▒ …    a page at a time, or many
        take     │·······│·······│·······│··            views; rows that are left are copied when more are decoded

    Args:
        kernels: The compiled loops.
        leaf: What the column is.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than any page has before it is compressed.
        keeps_words: Whether strings are handed out as Arrow's dictionary, which whoever numbers them looks at once.
    """

    def __init__(
        self, kernels: ModuleType, leaf: Leaf, *, codec: int, most_bytes: int, keeps_words: bool = False
    ) -> None:
        self._kernels = kernels
        self._leaf = leaf
        self._codec = codec
        self._most_bytes = most_bytes
        self._keeps_words = keeps_words
        self._state = np.zeros(NUM_STATE_NUMBERS, np.int64)
        self._words = _NO_BYTES
        self._dictionary: pa.Array | None = None  # of strings: what values are places in
        self._has_valid = leaf.may_be_null and not leaf.is_list
        self._values = _NO_BYTES
        self._valid = _NO_BYTES
        self._offsets = _NO_NUMBERS
        self._most = (0, 0)  # rows and values that were there when more were decoded
        self._num_taken = 0  # of the rows in memory, the first ones
        self._ready: pa.Array | None = None  # rows in memory as Arrow has them, all of them or all but the last one

    @property
    def num_rows(self) -> int:
        """Rows that are there. Of lists the last one may go on in the next page."""
        return int(self._state[ROWS]) - self._num_taken

    def make_room(self, num_rows: int, num_values: int) -> None:
        """Make room for so many rows and values more, of which the values of lists are most."""
        self._ready = None
        if self._num_taken:
            self._leave_taken()
        self._grow(num_rows, num_values)

    def _grow(self, num_rows: int, num_values: int) -> None:
        rows, values = int(self._state[ROWS]) + num_rows, int(self._state[VALUES]) + num_values
        self._values = _grown(self._values, values * self._leaf.width, is_shared=True)
        if self._has_valid:
            self._valid = _grown(self._valid, rows)
        if self._leaf.is_list:
            self._offsets = _grown(self._offsets, rows + 1)

    def decode(self, pages: Pages) -> bool:
        """Decode pages for which there is room; False where pyarrow is to decode the column chunk."""
        if pages.most_bytes > self._most_bytes:
            return False
        table = pages.table
        codec = self._codec if pages.is_packed else UNCOMPRESSED
        if self._leaf.is_words:
            if not self._takes_words(pages, codec):
                return False
            table = table[1:] if pages.num_words else table
        elif pages.num_words:
            self._words = np.empty(pages.num_words * self._leaf.width, np.uint8)
        if codec == UNCOMPRESSED:
            return self._decoded(pages.content, table, NO_UNPACKER, _NO_BYTES)
        unpacker = unpacker_of(codec)
        if unpacker.function:
            return self._decoded(pages.content, table, unpacker, scratch(pages.most_bytes + 8))
        unpack = arrow_codec(codec)
        if unpack is None:
            return False
        for page in table:
            plain = unpacked(pages.content, page, unpack)
            one = page[None].copy()
            one[0, AT], one[0, STORED_BYTES] = 0, len(plain)
            if not self._decoded(plain, one, NO_UNPACKER, _NO_BYTES):
                return False
        return True

    def _decoded(self, content: Bytes, table: Numbers, unpacker: Unpacker, scratch: Bytes) -> bool:
        done = self._kernels.decode(
            table,
            content,
            unpacker.function,
            unpacker.context,
            self._leaf.form,
            scratch,
            self._words,
            self._values,
            self._valid,
            self._offsets,
            self._state,
        )
        return bool(done == DONE)

    # ------------------------------------------------------------------ strings

    def _takes_words(self, pages: Pages, codec: int) -> bool:
        """Read the dictionary of strings, where it comes; False where a page does without one."""
        table = pages.table.tolist()
        if pages.num_words:
            first = table.pop(0)
            if first[KIND] != DICTIONARY or self._dictionary is not None:
                return False
            self._dictionary = self._read_words(pages, first, codec)
        if self._dictionary is None or any(
            page[KIND] == DICTIONARY or page[ENCODING] not in _BY_DICTIONARY for page in table
        ):
            return False
        if pages.num_words:
            # A place in the dictionary is what stands there: all the loops have to look up.
            self._words = np.arange(len(self._dictionary), dtype=np.int32).view(np.uint8)
            self._state[WORDS] = len(self._dictionary)
        return True

    def _read_words(self, pages: Pages, page: list[int], codec: int) -> pa.Array | None:
        num, kind = page[NUM_ENTRIES], self._leaf.type
        if page[ENCODING] not in _DICTIONARIES or num * 4 > page[PLAIN_BYTES]:
            return None
        plain = pages.content[page[AT] : page[AT] + page[STORED_BYTES]]
        if codec != UNCOMPRESSED:
            unpack = arrow_codec(codec)
            if unpack is None:
                return None
            plain = unpacked(pages.content, pages.table[0], unpack)
        offsets, words = np.empty(num + 1, np.int64), np.empty(len(plain), np.uint8)
        if self._kernels.take_words_apart(plain, offsets, words) != DONE:
            return None
        borders: Any = offsets
        if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
            borders = offsets.astype(np.int32)
        return pa.Array.from_buffers(kind, num, [None, pa.py_buffer(borders), pa.py_buffer(words)], 0)

    # ------------------------------------------------------------------ rows

    def take(self, num_rows: int) -> pa.Array | None:
        """Return the next rows, which are there; None where Arrow cannot hold them."""
        first, stop = self._num_taken, self._num_taken + num_rows
        if self._ready is None or len(self._ready) < stop:
            have = int(self._state[ROWS])
            # Of lists the last one may go on: it is left out until it is asked for.
            self._ready = self._array(have - 1 if self._leaf.is_list and stop < have else have)
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
        leaf, state, offsets = self._leaf, self._state, self._offsets
        is_all = num_rows == state[ROWS]
        stop = int(state[VALUES]) if is_all else int(offsets[num_rows]) if leaf.is_list else num_rows
        array = array_of(leaf, self._values[: stop * leaf.width], self._valid[:num_rows] if state[NULLS] else None)
        if self._dictionary is not None:
            array = pa.DictionaryArray.from_arrays(array, self._dictionary, safe=False)
            if not self._keeps_words:
                array = array.dictionary_decode()
        if leaf.is_list:
            if is_all:
                offsets[num_rows] = stop
            array = lists_of(leaf, array, offsets[: num_rows + 1])
        return array

    def _leave_taken(self) -> None:
        """Lay rows that are left at the beginning of new memory: what was handed out is not written to again."""
        first, have, end = self._num_taken, int(self._state[ROWS]), int(self._state[VALUES])
        values, valid, offsets = self._values, self._valid, self._offsets
        is_list, num_nulls = self._leaf.is_list, int(self._state[NULLS])
        begin = first if not is_list else end if first == have else int(offsets[first])
        self._values, self._valid, self._offsets = _NO_BYTES, _NO_BYTES, _NO_NUMBERS
        self._num_taken = 0
        self._state[ROWS] = self._state[VALUES] = self._state[NULLS] = 0
        self._most = max(self._most[0], have), max(self._most[1], end)
        if first == have:
            return
        self._grow(*self._most)  # there will be about as many before the next ones are left
        width = self._leaf.width
        self._values[: (end - begin) * width] = values[begin * width : end * width]
        if num_nulls:
            self._valid[: have - first] = valid[first:have]
            self._state[NULLS] = have - first - int(np.count_nonzero(valid[first:have]))
        if is_list:
            self._offsets[: have - first] = offsets[first:have] - begin
        self._state[ROWS], self._state[VALUES] = have - first, end - begin


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
    num = len(stored) // leaf.width
    if leaf.value_bytes != leaf.width:  # one or two bytes lie in four
        stored = stored.view("<u4").astype(f"<u{leaf.value_bytes}")
    if leaf.is_bit:
        stored = np.packbits(stored, bitorder="little")
    nulls, num_nulls = None, 0
    if valid is not None:
        nulls = pa.py_buffer(np.packbits(valid, bitorder="little"))
        num_nulls = len(valid) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(leaf.value_type, num, [nulls, pa.py_buffer(stored)], num_nulls)


def lists_of(leaf: Leaf, values: pa.Array, offsets: Numbers) -> pa.Array | None:
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


_kept = threading.local()


def scratch(num_bytes: int) -> Bytes:
    """Return so many bytes that this thread uses again: fresh memory costs more than filling it."""
    if num_bytes > _KEPT_BYTES:
        return np.empty(num_bytes, np.uint8)
    kept: Bytes | None = getattr(_kept, "page", None)
    if kept is None or len(kept) < num_bytes:
        kept = _kept.page = np.empty(max(num_bytes, 1 << 16), np.uint8)
    return kept
