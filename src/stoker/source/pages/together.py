"""Small column chunks, all of a row group at once: each call gives up the interpreter's lock, and waits for it.

    column chunks  ┆ a ┆ b ┆ c ┆ …        one behind the other
                     └───┴───┴── scan     how many values, lists and words there will be
    memory         ┆ a  ┆ b ┆ c    ┆      room for all of them
                     └───┴───┴── decode

Source:
    `decoder.Decoder` does the same with one column chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stoker._native import ColumnChunks, Room
from stoker.source.pages.codecs import Bytes
from stoker.source.pages.decoder import Offsets, array_of, lists_of
from stoker.source.pages.leaf import Leaf


def read_together(
    content: Bytes,
    borders: Offsets,
    leaves: Sequence[Leaf],
    *,
    num_rows: int,
    num_values: Offsets,
    codec: int,
    most_bytes: Offsets,
) -> list[pa.Array | None] | None:
    """Return columns of one row group, None for each that is pyarrow's; None where each is to be tried by itself.

    Args:
        content: The column chunks, one behind the other.
        borders: Where each begins in it, and the last one ends.
        leaves: What the columns are; of numbers, or lists of them.
        num_rows: Rows of the row group.
        num_values: Entries of all pages of each: values, nulls and empty lists.
        codec: What pages are compressed with, as a number of the format: one that the native decoder knows.
        most_bytes: More than any page of each has before it is compressed.
    """
    chunks = ColumnChunks(content, borders)
    size = chunks.lay_out([leaf.column for leaf in leaves], num_rows, num_values, most_bytes)
    if size is None:
        return None
    num_words, num_bytes, num_valid, num_offsets = size
    memory = pa.allocate_buffer(num_bytes)
    values, valid = np.frombuffer(memory, np.uint8), np.empty(num_valid, np.uint8)
    words, offsets = np.empty(num_words, np.uint8), np.empty(num_offsets, np.int64)
    found: list[pa.Array | None] = []
    outcomes = chunks.decode(codec, Room(words, values, valid, offsets))
    for leaf, (is_done, num, num_nulls, at, at_valid, at_offsets) in zip(leaves, outcomes, strict=True):
        num_stored = num * leaf.column.width
        if not is_done:
            found.append(None)
        elif leaf.is_stored_alike and not num_nulls:
            found.append(pa.Array.from_buffers(leaf.value_type, num, [None, memory.slice(at, num_stored)], 0))
        else:
            nulls = valid[at_valid : at_valid + num] if num_nulls else None
            array = array_of(leaf, values[at : at + num_stored], nulls)
            if leaf.column.is_list:
                lists = offsets[at_offsets : at_offsets + num_rows + 1]
                lists[num_rows] = num
                array = lists_of(leaf, array, lists)
            found.append(array)
    return found
