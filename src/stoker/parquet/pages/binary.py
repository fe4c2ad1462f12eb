"""A column chunk of strings or binary while it is decoded.

pages     ┆ dictionary ┆ indices ┆ indices ┆ strings ┆ strings ┆    a writer gives a dictionary up that grows too large
arrays                 ┆ indices           ┆ strings           ┆    a call's rows each, in one
take              │···········│·················│               Arrow's dictionary, or strings
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import Pages, Progress, Room, split_byte_arrays
from stoker.fields.offsets import offsets_of
from stoker.parquet.pages.codecs import Bytes, decode_pages, unpacked
from stoker.parquet.pages.decoder import NO_BYTES, NO_OFFSETS, array_of
from stoker.parquet.pages.leaf import Leaf

_MOST_BYTES = (1 << 31) - 1


class BinaryDecoder:
    """As `decoder.Decoder`, of strings or binary.

    Args:
        leaf: What the column is.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than all pages have before they are compressed.
        as_dictionary: Whether rows are handed out as Arrow's dictionary, where they came by one.
    """

    def __init__(self, leaf: Leaf, *, codec: int, most_bytes: int, as_dictionary: bool = False) -> None:
        self._leaf = leaf
        self._codec = codec
        self._most_bytes = most_bytes
        self._as_dictionary = as_dictionary
        self._dictionary: pa.Array | None = None
        self._ready: deque[pa.Array] = deque()  # indices in the dictionary, int32, or strings
        self.num_rows = 0

    def make_room(self, num_rows: int, num_values: int) -> None:
        """Do nothing: there is room for what a call decodes."""

    def decode(self, pages: Pages, first: int = 0, stop: int | None = None) -> bool:
        """Decode pages; False where pyarrow is to decode the column chunk."""
        stop = len(pages) if stop is None else stop
        if pages.totals(first, stop).plain_bytes > self._most_bytes:
            return False
        if first < stop and pages[first].is_dictionary:
            if self._dictionary is not None:
                return False
            self._dictionary = self._read_dictionary(pages, first)
            if self._dictionary is None:
                return False
            first += 1
        num_by_dictionary = pages.num_by_dictionary(first, stop)
        if num_by_dictionary is None or (num_by_dictionary and self._dictionary is None):
            return False
        middle = first + num_by_dictionary
        indices = self._read_indices(pages, first, middle)
        if indices is None:
            return False
        found = indices if middle == stop else self._read_plain(pages, middle, stop, self._look_up(indices))
        if found is None:
            return False
        self._ready.append(found)
        self.num_rows += len(found)
        return True

    def take(self, num_rows: int) -> pa.Array | None:
        """Return the next rows, which are there; None where Arrow cannot hold them in one array."""
        taken: list[pa.Array] = []
        left = num_rows
        while left > 0:
            have = self._ready[0]
            taken.append(have.slice(0, left))
            if len(have) > left:
                self._ready[0] = have.slice(left)
            else:
                self._ready.popleft()
            left -= len(taken[-1])
        self.num_rows -= num_rows
        if self._dictionary is not None and all(pa.types.is_int32(one.type) for one in taken):
            indices = pa.concat_arrays([pa.array([], pa.int32()), *taken])
            if not self._as_dictionary:
                return self._look_up(indices)
            return pa.DictionaryArray.from_arrays(indices, self._dictionary, safe=False)
        strings = [self._look_up(one) for one in taken]
        if len(strings) == 1:
            return strings[0]
        if any(one is None for one in strings) or sum(one.nbytes for one in strings if one is not None) > _MOST_BYTES:
            return None
        return pa.concat_arrays([pa.array([], self._leaf.type), *strings])

    def _look_up(self, indices: pa.Array) -> pa.Array | None:
        """Return the strings at some indices of the dictionary, and what are strings already as they are.

        None where Arrow cannot hold them in one array.
        """
        if not pa.types.is_int32(indices.type):
            return indices
        if self._dictionary is None:
            return pa.array([], self._leaf.type)
        if indices.null_count == 0 and len(indices):
            # Of strings that are all different, each stands in the dictionary where it comes.
            numbers = indices.to_numpy()
            if numbers[-1] - numbers[0] == len(indices) - 1 and (np.diff(numbers) == 1).all():
                return self._dictionary.slice(int(numbers[0]), len(indices))
        # Few rows, or short strings, need no closer look.
        if len(indices) * self._dictionary.nbytes > _MOST_BYTES:
            lengths = pc.binary_length(self._dictionary).cast(pa.int64())
            is_long = len(indices) * (pc.max(lengths).as_py() or 0) > _MOST_BYTES
            if is_long and (pc.sum(lengths.take(indices)).as_py() or 0) > _MOST_BYTES:
                return None
        return pa.DictionaryArray.from_arrays(indices, self._dictionary, safe=False).dictionary_decode()

    # ------------------------------------------------------------------ pages

    def _read_dictionary(self, pages: Pages, i: int) -> pa.Array | None:
        num = pages[i].num_entries
        if not pages[i].is_plain or num * 4 > pages[i].plain_bytes:
            return None
        plain = unpacked(pages, i, self._codec)
        if plain is None:
            return None
        lengths, strings = np.empty(num, np.int32), np.empty(len(plain), np.uint8)
        if split_byte_arrays(plain, lengths, strings) < 0:
            return None
        return _binary_array(self._leaf.type, offsets_of(lengths.astype(np.int64)), strings, None)

    def _read_indices(self, pages: Pages, first: int, stop: int) -> pa.Array | None:
        """Return what pages of indices in the dictionary say, int32."""
        progress = Progress()
        progress.dictionary_values = 0 if self._dictionary is None else len(self._dictionary)
        values, valid = self._room(pages.totals(first, stop).num_entries)
        if not self._decode(pages, NO_BYTES, values, valid, progress, first, stop):
            return None
        return array_of(self._leaf, values, valid if progress.nulls else None)

    def _read_plain(self, pages: Pages, first: int, stop: int, before: pa.Array | None) -> pa.Array | None:
        """Return the strings of pages that have them as they are, behind others."""
        if before is None:
            return None
        totals, progress = pages.totals(first, stop), Progress()
        num = totals.num_entries
        offsets, content, valid = _parts_of(before)
        strings = np.frombuffer(pa.allocate_buffer(len(content) + totals.plain_bytes), np.uint8)
        strings[: len(content)] = content
        progress.string_bytes = len(content)
        lengths, here = self._room(num)
        if not self._decode(pages, strings, lengths, here, progress, first, stop):
            return None
        borders = np.empty(len(before) + num + 1, np.int64)
        borders[: len(before) + 1] = offsets
        np.cumsum(lengths.view(np.int32), out=borders[len(before) + 1 :])
        borders[len(before) + 1 :] += len(content)
        if valid is not None or progress.nulls:
            here = here if progress.nulls else np.ones(num, np.uint8)
            there = np.ones(len(before), np.uint8) if valid is None else valid
            valid = np.concatenate([there, here])
        return _binary_array(self._leaf.type, borders, strings[: borders[-1]], valid)

    def _room(self, num: int) -> tuple[Bytes, Bytes]:
        """Return room for the values of so many rows, and for which of them there are."""
        column = self._leaf.column
        values = np.frombuffer(pa.allocate_buffer(num * column.width), np.uint8)
        return values, np.empty(num if column.may_be_null else 0, np.uint8)

    def _decode(
        self,
        pages: Pages,
        strings: Bytes,
        values: Bytes,
        valid: Bytes,
        progress: Progress,
        first: int,
        stop: int,
    ) -> bool:
        room = Room(strings, values, valid, NO_OFFSETS)
        return decode_pages(pages, self._leaf, self._codec, room, progress, first=first, stop=stop)


def _parts_of(strings: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Bytes, Bytes | None]:
    """Return the borders of strings from 0 on, their bytes, and which are not null; None where all are."""
    if not len(strings):
        return np.zeros(1, np.int64), NO_BYTES, None
    _, borders, content = strings.buffers()
    kind = np.int64 if pa.types.is_large_string(strings.type) or pa.types.is_large_binary(strings.type) else np.int32
    offsets = np.frombuffer(borders, kind, len(strings) + 1, strings.offset * np.dtype(kind).itemsize).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    valid = None
    if strings.null_count:
        valid = strings.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    here = NO_BYTES if content is None else np.frombuffer(content, np.uint8)[begin:end]
    return offsets - begin, here, valid


def _binary_array(kind: pa.DataType, offsets: Any, strings: Bytes, valid: Bytes | None) -> pa.Array | None:
    """Return strings as an Arrow array; None where it cannot hold them."""
    num, borders = len(offsets) - 1, offsets
    if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        if offsets[-1] > _MOST_BYTES:
            return None
        borders = offsets.astype(np.int32)
    nulls, num_nulls = None, 0
    if valid is not None:
        nulls = pa.py_buffer(np.packbits(valid, bitorder="little"))
        num_nulls = num - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, num, [nulls, pa.py_buffer(borders), pa.py_buffer(strings)], num_nulls)
