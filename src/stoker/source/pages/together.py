"""Small column chunks, all of a row group in two calls: each call gives up the interpreter's lock, and waits for it.

    column chunks  ┆ a ┆ b ┆ c ┆ …        one behind the other
                     └───┴───┴── scan     how many values, lists and words there will be
    memory         ┆ a  ┆ b ┆ c    ┆      room for all of them
                     └───┴───┴── decode

Source:
    `decoder.Decoder` does the same with one column chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np
import pyarrow as pa

from stoker.source.pages.codecs import NO_UNPACKER, unpacker_of
from stoker.source.pages.decoder import array_of, lists_of
from stoker.source.pages.leaf import Leaf
from stoker.source.pages.loop import scratch
from stoker.source.pages.numbers import (
    DICTIONARY_VALUES,
    DONE,
    END,
    ENTRIES,
    HAS_CHECKSUMS,
    HAS_PACKED,
    MOST_BYTES,
    NULLS,
    NUM_PAGE_NUMBERS,
    NUM_PAGES,
    NUM_STATE_NUMBERS,
    NUM_SUMS,
    ROWS,
    VALUES,
    Bytes,
    Numbers,
)

# Arrow wants the values of an array to begin at a multiple of it.
_ALIGNED_BYTES = 64
# Pages that most column chunks have; there is room for more when it turns out to be needed.
_PAGES_EACH = 8
# Beyond it, sizes of all columns together might not be 64-bit numbers any more.
_MOST_NUMBER = 1 << 24


def read_together(
    kernels: ModuleType,
    content: Bytes,
    borders: Numbers,
    leaves: Sequence[Leaf],
    *,
    num_rows: int,
    num_values: Numbers,
    codec: int,
    most_bytes: Numbers,
) -> list[pa.Array | None] | None:
    """Return columns of one row group, None for each that is pyarrow's; None where each is to be tried by itself.

    Args:
        kernels: The compiled loops.
        content: The column chunks, one behind the other.
        borders: Where each begins in it, and the last one ends.
        leaves: What the columns are; of numbers, or lists of them.
        num_rows: Rows of the row group.
        num_values: Entries of all pages of each: values, nulls and empty lists.
        codec: What pages are compressed with, as a number of the format: one that the loops know.
        most_bytes: More than any page of each has before it is compressed.
    """
    num_columns = len(leaves)
    firsts, sums = np.empty(num_columns + 1, np.int64), np.zeros((num_columns, NUM_SUMS), np.int64)
    num_pages = _PAGES_EACH * num_columns
    while True:
        pages = np.empty((num_pages, NUM_PAGE_NUMBERS), np.int64)
        if kernels.scan_many(content, borders, pages, firsts, sums) == DONE:
            break
        num_pages *= 16
    entries = sums[:, ENTRIES]
    is_list, widths, may_be_null, is_stored_alike, forms = _about(tuple(leaves))
    is_known = (
        (sums[:, NUM_PAGES] > 0)
        & (sums[:, END] == np.diff(borders))
        & (sums[:, HAS_CHECKSUMS] == 0)
        & (sums[:, MOST_BYTES] <= most_bytes)
        & (np.maximum.reduce([entries, widths, sums[:, DICTIONARY_VALUES]]) < _MOST_NUMBER)
        & (entries == num_values)
    )
    if not is_known.all():
        return None
    has_valid = may_be_null & ~is_list
    room = np.stack(
        [
            sums[:, DICTIONARY_VALUES] * widths,
            -(-entries * widths // _ALIGNED_BYTES) * _ALIGNED_BYTES,
            has_valid * num_rows,
            is_list * (num_rows + 1),
        ],
        axis=1,
    )
    ends = np.cumsum(room, axis=0)
    num_words, num_bytes, num_valid, num_offsets = ends[-1].tolist()
    memory = pa.allocate_buffer(num_bytes)
    values, valid = np.frombuffer(memory, np.uint8), np.empty(num_valid, np.uint8)
    words, offsets = np.empty(num_words, np.uint8), np.empty(num_offsets, np.int64)
    states = np.zeros((num_columns, NUM_STATE_NUMBERS), np.int64)
    outcomes = np.empty(num_columns, np.int64)
    unpacker = unpacker_of(codec) if sums[:, HAS_PACKED].any() else NO_UNPACKER
    kernels.decode_many(
        pages,
        firsts,
        content,
        unpacker.function,
        unpacker.context,
        forms,
        ends,
        scratch(int(sums[:, MOST_BYTES].max()) + 8),
        words,
        values,
        valid,
        offsets,
        states,
        outcomes,
    )
    is_done = (outcomes == DONE) & (states[:, ROWS] == num_rows)
    is_plain = is_done & is_stored_alike & (states[:, NULLS] == 0)
    begins = ends - room
    found: list[pa.Array | None] = [None] * num_columns
    for i, at in zip(np.flatnonzero(is_plain).tolist(), begins[is_plain, 1].tolist(), strict=True):
        leaf = leaves[i]
        stored = memory.slice(at, num_rows * leaf.width)
        found[i] = pa.Array.from_buffers(leaf.value_type, num_rows, [None, stored], 0)
    for i in np.flatnonzero(is_done & ~is_plain).tolist():
        leaf, state = leaves[i], states[i].tolist()
        _, at, at_valid, at_offsets = begins[i].tolist()
        nulls = valid[at_valid : at_valid + num_rows] if state[NULLS] else None
        array = array_of(leaf, values[at : at + state[VALUES] * leaf.width], nulls)
        if leaf.is_list:
            lists = offsets[at_offsets : at_offsets + num_rows + 1]
            lists[num_rows] = state[VALUES]
            array = lists_of(leaf, array, lists)
        found[i] = array
    return found


@lru_cache(maxsize=64)
def _about(leaves: tuple[Leaf, ...]) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    """Return which leaves are of lists, their widths, which may be null, which are stored as in Arrow, and their forms.

    A form is what the loops are to know of one.
    """
    return (
        np.array([leaf.is_list for leaf in leaves]),
        np.array([leaf.width for leaf in leaves], np.int64),
        np.array([leaf.may_be_null for leaf in leaves]),
        np.array([not (leaf.is_list or leaf.is_bit or leaf.value_bytes != leaf.width) for leaf in leaves]),
        np.stack([leaf.form for leaf in leaves]),
    )
