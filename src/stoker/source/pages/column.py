"""A column chunk to an Arrow array, by compiled loops; None for whatever they do not know, which pyarrow decodes."""

from __future__ import annotations

import threading
import zlib
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.source.pages.codecs import NO_UNPACKER, UNCOMPRESSED, Unpacker, arrow_codec, unpacker_of
from stoker.source.pages.leaf import Leaf
from stoker.source.pages.numbers import (
    AT,
    CRC,
    DEFINITION,
    DICTIONARY,
    DICTIONARY_VALUES,
    DONE,
    ENCODING,
    ENTRIES,
    HAS_CHECKSUMS,
    HAS_PACKED,
    IS_PACKED,
    KIND,
    MOST_BYTES,
    NULLS,
    NUM_ENTRIES,
    NUM_PAGE_NUMBERS,
    NUM_PAGES,
    NUM_STATE_NUMBERS,
    NUM_SUMS,
    PLAIN_BYTES,
    REPETITION,
    ROWS,
    STORED_BYTES,
    TOO_MANY,
    VALUES,
    WORDS,
)
from stoker.source.storage import BytesLike
from stoker.spec import Array

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

# More pages than a column chunk has that was written in earnest: one of 1 GiB in pages of 8 KiB has 131,072.
_MOST_PAGES = 1 << 18
_FEW_PAGES = 64
# What is kept of a thread's scratch: the largest page that is usual, several times.
_KEPT_BYTES = 16 << 20
# Encodings, as numbers of the format, of a dictionary and of places in one.
_DICTIONARIES, _BY_DICTIONARY = (0, 2), (2, 8)
_NO_BYTES, _NO_NUMBERS = np.zeros(0, np.uint8), np.zeros(0, np.int64)


def read_leaf(
    kernels: ModuleType, data: BytesLike, leaf: Leaf, *, num_rows: int, codec: int, most_bytes: int
) -> pa.Array | None:
    """Return a column of one row group.

    Args:
        kernels: The compiled loops.
        data: The column chunk: all of its pages.
        leaf: What the column is.
        num_rows: Rows of the row group.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than any page has before it is compressed.

    Returns:
        The column; None where pyarrow is to decode it, or to say what is wrong with it.
    """
    content = np.frombuffer(data, np.uint8)
    sums = np.empty(NUM_SUMS, np.int64)
    pages = _scan(kernels, content, sums)
    num_entries, is_list = int(sums[ENTRIES]), leaf.is_list
    if pages is None or not len(pages) or sums[MOST_BYTES] > most_bytes:
        return None
    if num_entries < num_rows or (num_entries > num_rows and not is_list):
        return None
    if sums[HAS_CHECKSUMS] and not _are_sound(content, pages):
        return None
    dictionary = None
    if leaf.is_words:
        dictionary = _dictionary(kernels, content, pages, leaf, codec)
        if dictionary is None:
            return None
        pages = pages[1:]
    values = pa.allocate_buffer(num_entries * leaf.width)
    offsets = np.empty(num_rows + 1, np.int64) if is_list else _NO_NUMBERS
    valid = np.empty(num_rows, np.uint8) if leaf.may_be_null and not is_list else _NO_BYTES
    words = _scratch("words", int(sums[DICTIONARY_VALUES]) * leaf.width)
    state = np.zeros(NUM_STATE_NUMBERS, np.int64)
    if dictionary is not None:
        # A place in the dictionary is what stands there: all the loops have to look up.
        words.view(np.int32)[: len(dictionary)] = np.arange(len(dictionary), dtype=np.int32)
        state[WORDS] = len(dictionary)
    into = (words, np.frombuffer(values, np.uint8), valid, offsets, state)
    is_done = _decode(kernels, content, pages, leaf, codec if sums[HAS_PACKED] else UNCOMPRESSED, num_rows, sums, into)
    if not is_done or state[ROWS] != num_rows:
        return None
    num_values, num_nulls = int(state[VALUES]), int(state[NULLS])
    stored = values if num_values == num_entries else values.slice(0, num_values * leaf.width)
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if num_nulls else None
    array = _array(leaf, stored, num_values, nulls, num_nulls)
    if dictionary is not None:
        return pa.DictionaryArray.from_arrays(array, dictionary, safe=False).dictionary_decode()
    return _listed(leaf, array, offsets, num_values) if is_list else array


def _dictionary(kernels: ModuleType, content: Bytes, pages: Numbers, leaf: Leaf, codec: int) -> pa.Array | None:
    """Return the dictionary of a column of words; None where not all of its pages refer to one."""
    first, *rest = pages.tolist()
    if (
        first[KIND] != DICTIONARY
        or first[ENCODING] not in _DICTIONARIES
        or first[NUM_ENTRIES] * 4 > first[PLAIN_BYTES]
        or any(page[KIND] == DICTIONARY or page[ENCODING] not in _BY_DICTIONARY for page in rest)
    ):
        return None
    if codec == UNCOMPRESSED:
        plain = content[first[AT] : first[AT] + first[STORED_BYTES]]
    else:
        unpack = arrow_codec(codec)
        if unpack is None:
            return None
        plain = _unpacked(content, pages[0], unpack)
    offsets = np.empty(first[NUM_ENTRIES] + 1, np.int64)
    words = np.empty(len(plain), np.uint8)
    if kernels.take_words_apart(plain, offsets, words) != DONE or (offsets[-1] >= 1 << 31 and not _is_large(leaf.type)):
        return None
    borders = offsets if _is_large(leaf.type) else offsets.astype(np.int32)
    return pa.Array.from_buffers(leaf.type, len(offsets) - 1, [None, pa.py_buffer(borders), pa.py_buffer(words)], 0)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _scan(kernels: ModuleType, content: Bytes, sums: Numbers) -> Numbers | None:
    """Return the numbers of all pages of a column chunk; None where they are not what they should be."""
    pages: Numbers | None = getattr(_kept, "pages", None)
    if pages is None:
        pages = _kept.pages = np.empty((_FEW_PAGES, NUM_PAGE_NUMBERS), np.int64)
    while True:
        try:
            done = kernels.scan(content, pages, sums)
        except (IndexError, ValueError):
            return None
        if done == DONE:
            return pages[: sums[NUM_PAGES]]
        if done != TOO_MANY or len(pages) > _MOST_PAGES:
            return None
        pages = np.empty((len(pages) * 16, NUM_PAGE_NUMBERS), np.int64)


def _are_sound(content: Bytes, pages: Numbers) -> bool:
    """Whether pages are what their checksums say."""
    for page in pages[pages[:, CRC] >= 0].tolist():
        if zlib.crc32(content[page[AT] : page[AT] + page[STORED_BYTES]].data) != page[CRC]:
            return False
    return True


def _decode(
    kernels: ModuleType,
    content: Bytes,
    pages: Numbers,
    leaf: Leaf,
    codec: int,
    num_rows: int,
    sums: Numbers,
    into: tuple[Array, ...],
) -> bool:
    """Decode all pages, and return whether all is as it should be."""

    def decoded(content: Bytes, pages: Numbers, unpacker: Unpacker, scratch: Bytes) -> bool:
        base = content.__array_interface__["data"][0]
        function, context = unpacker.function, unpacker.context
        size = len(content)
        done = kernels.decode(pages, base, size, function, context, leaf.form, num_rows, scratch, *into)
        return bool(done == DONE)

    if codec == UNCOMPRESSED:
        return decoded(content, pages, NO_UNPACKER, _NO_BYTES)
    unpacker = unpacker_of(codec)
    if unpacker.function:
        return decoded(content, pages, unpacker, _scratch("page", int(sums[MOST_BYTES]) + 8))
    unpack = arrow_codec(codec)
    if unpack is None:
        return False
    for page in pages:
        plain = _unpacked(content, page, unpack)
        one = page[None].copy()
        one[0, AT], one[0, STORED_BYTES] = 0, len(plain)
        if not decoded(plain, one, NO_UNPACKER, _NO_BYTES):
            return False
    return True


def _unpacked(content: Bytes, page: Numbers, codec: pa.Codec) -> Bytes:
    """Return a page as it was before it was compressed; nothing where it cannot have been."""
    begin, levels = int(page[AT]), int(page[DEFINITION] + page[REPETITION])
    end = begin + int(page[STORED_BYTES])
    if not page[IS_PACKED]:
        return content[begin:end]
    try:
        rest = codec.decompress(pa.py_buffer(content[begin + levels : end]), int(page[PLAIN_BYTES]) - levels)
    except (OSError, ValueError):
        return _NO_BYTES
    plain = np.frombuffer(rest, np.uint8)
    return np.concatenate([content[begin : begin + levels], plain]) if levels else plain


def _array(leaf: Leaf, values: pa.Buffer, num: int, nulls: pa.Buffer | None, num_nulls: int) -> pa.Array:
    """Return values as an Arrow array of their type."""
    if leaf.value_bytes != leaf.width:  # one or two bytes lie in four
        lower = np.frombuffer(values, np.uint8).reshape(num, leaf.width)[:, : leaf.value_bytes]
        values = pa.py_buffer(np.ascontiguousarray(lower))
    return pa.Array.from_buffers(leaf.value_type, num, [nulls, values], num_nulls)


def _listed(leaf: Leaf, values: pa.Array, offsets: Numbers, num_values: int) -> pa.Array | None:
    """Return lists of `values`; None where they are not as long as their type says."""
    offsets[-1] = num_values
    num_rows = len(offsets) - 1
    if isinstance(leaf.type, pa.FixedSizeListType):
        if (np.diff(offsets) != leaf.type.list_size).any() or not leaf.type.list_size:
            return None
        return pa.Array.from_buffers(leaf.type, num_rows, [None], 0, children=[values])
    if isinstance(leaf.type, pa.ListType):
        if num_values >= 1 << 31:
            return None
        borders: Any = offsets.astype(np.int32)
    else:
        borders = offsets
    return pa.Array.from_buffers(leaf.type, num_rows, [None, pa.py_buffer(borders)], 0, children=[values])


_kept = threading.local()


def _scratch(name: str, num_bytes: int) -> Bytes:
    """Return so many bytes that this thread uses again: fresh memory costs more than filling it."""
    if num_bytes > _KEPT_BYTES:
        return np.empty(num_bytes, np.uint8)
    kept: Bytes | None = getattr(_kept, name, None)
    if kept is None or len(kept) < num_bytes:
        kept = np.empty(max(num_bytes, 1 << 16), np.uint8)
        setattr(_kept, name, kept)
    return kept
