"""The columns of row groups that are decoded here: small ones all at once, others one by one, or some rows at a time.

Each call of the native module gives up the interpreter's lock, and waits for it:

    column chunks  ┆ a ┆ b ┆ c ┆ …        one behind the other
                     └───┴───┴── scan     how many values, lists and dictionary values there will be
    memory         ┆ a  ┆ b ┆ c    ┆      room for all of them
                     └───┴───┴── decode
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import ColumnChunks, Room, can_decompress
from stoker.parquet.footer_numbers import Numbers
from stoker.parquet.pages.codecs import Bytes
from stoker.parquet.pages.column import LeafStream, read_leaf
from stoker.parquet.pages.decoder import Offsets, array_of, lists_of
from stoker.parquet.pages.leaf import Leaf, known_leaves
from stoker.parquet.schema import Layout
from stoker.storage.fetch import ByteRange, Ranges
from stoker.storage.storage import BytesLike

# A row group of fewer bytes is decoded all at once: one column at a time, threads wait for the interpreter's lock
# behind each. Two threads, files of 5,000 rows and 26 columns: 0.87 million rows/s one by one, 1.08 at once, 1.07 by
# pyarrow.
TOGETHER_BYTES = 4 << 20
# Of a larger one so are column chunks of fewer bytes, about so many bytes of them at a time: what comes of them then
# lies in memory that was used a moment ago.
SMALL_BYTES, _BATCH_BYTES = 64 << 10, 2 << 20


def decoded_leaves(
    ranges: Ranges,
    layout: Layout,
    numbers: Numbers,
    *,
    row_groups: Sequence[int],
    leaves: Sequence[int],
    spans: Sequence[ByteRange],
    coded: Collection[str] = (),
) -> tuple[list[Leaf], list[list[pa.Array]]]:
    """Return which columns of some row groups are decoded here, and for each row group an array of each of them.

    Args:
        ranges: The file.
        layout: How it lays out its columns.
        numbers: What its footer says.
        row_groups: Numbers of the row groups.
        leaves: Numbers of the leaf columns that are wanted.
        spans: Where their column chunks lie, row group by row group.
        coded: Columns of strings that are wanted as Arrow's dictionary: one of its own for each row group.

    Raises:
        ValueError: The pages of a column have other values than the footer promises.
    """
    known = known_leaves(layout)
    places = [i for i, leaf in enumerate(leaves) if leaf in known]
    wanted = [known[leaves[i]] for i in places]
    if not wanted:
        return [], [[] for _ in row_groups]
    about = numbers.chunks[row_groups][:, [leaf.number for leaf in wanted]]
    most = about["uncompressed_bytes"]
    num_bytes = int(most.sum())
    is_small = num_bytes < TOGETHER_BYTES * len(row_groups)
    if is_small and not can_decompress(int(about["codec"][0, 0])):
        return [], [[] for _ in row_groups]
    groups: list[list[pa.Array | None]] = []
    is_known = [True] * len(wanted)
    for g, group in enumerate(row_groups):
        here = [spans[g * len(leaves) + i] for i in places]
        chunks = _Chunks(ranges, here, about["codec"][g].tolist())
        num_rows, num_values = int(numbers.groups["num_rows"][group]), about["num_values"][g]
        arrays: list[pa.Array | None] = [None] * len(wanted)
        left = set(range(len(wanted)))
        for some in [list(range(len(wanted)))] if is_small else _small(most[g]):
            found = _read_together(chunks, wanted, some, num_rows, num_values, most[g])
            left.difference_update(found)
            for k, array in found.items():
                arrays[k] = array
        for k in sorted(left):
            if is_known[k]:
                arrays[k] = read_leaf(
                    chunks.read(k),
                    wanted[k],
                    num_rows=num_rows,
                    num_values=int(num_values[k]),
                    codec=chunks.codecs[k],
                    most_bytes=int(most[g, k]),
                    as_dictionary=wanted[k].name in coded,
                )
        is_known = [is_so and array is not None for is_so, array in zip(is_known, arrays, strict=True)]
        groups.append(arrays)
    _of_one_type(wanted, groups)
    return list(compress(wanted, is_known)), [list(compress(arrays, is_known)) for arrays in groups]


def _of_one_type(leaves: Sequence[Leaf], groups: Sequence[list[pa.Array | None]]) -> None:
    """Make strings of a dictionary's values, where another row group has no dictionary."""
    for k, leaf in enumerate(leaves):
        arrays = [group[k] for group in groups]
        if leaf.column.is_binary and len({array.type for array in arrays if array is not None}) > 1:
            for group, array in zip(groups, arrays, strict=True):
                if array is not None and pa.types.is_dictionary(array.type):
                    group[k] = array.dictionary_decode()


def _small(num_bytes: npt.NDArray[np.int64]) -> list[list[int]]:
    """Return which columns of a large row group are decoded all at once: those that are small, some at a time."""
    batches: list[list[int]] = []
    room = 0
    for k in np.flatnonzero(num_bytes <= SMALL_BYTES).tolist():
        if room <= 0:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(k)
        room -= int(num_bytes[k])
    return [batch for batch in batches if len(batch) > 1]


@dataclass(frozen=True)
class _Chunks:
    """The column chunks of a row group that are wanted."""

    ranges: Ranges
    spans: Sequence[ByteRange]
    codecs: Sequence[int]

    def read(self, k: int) -> BytesLike:
        span = self.spans[k]
        return self.ranges.get(span.start, span.stop) if span.stop > span.start else b""

    def read_all(self, some: Sequence[int]) -> tuple[Bytes, npt.NDArray[np.int64]]:
        """Return column chunks one behind the other, and their borders: as they lie in the file, where they lie so."""
        spans = [self.spans[k] for k in some]
        borders = np.cumsum([0, *(stop - start for start, stop in spans)], dtype=np.int64)
        if all(a.stop == b.start for a, b in pairwise(spans)) and borders[-1]:
            return np.frombuffer(self.ranges.get(spans[0].start, spans[-1].stop), np.uint8), borders
        return np.concatenate([np.frombuffer(self.read(k), np.uint8) for k in some]), borders


def _read_together(
    chunks: _Chunks,
    leaves: Sequence[Leaf],
    some: Sequence[int],
    num_rows: int,
    num_values: npt.NDArray[np.int64],
    most_bytes: npt.NDArray[np.int64],
) -> dict[int, pa.Array | None]:
    """Return some columns that were decoded all at once, by their place in `leaves`; None for what is pyarrow's.

    They are those of numbers, or lists of them, whose codec the native decoder knows. The
    others are to be tried by themselves.
    """
    codec = chunks.codecs[some[0]]
    some = [k for k in some if not leaves[k].column.is_binary and chunks.codecs[k] == codec]
    if not some or not can_decompress(codec):
        return {}
    content, borders = chunks.read_all(some)
    if len(content) != borders[-1]:
        return {}
    found = read_together(
        content,
        borders,
        [leaves[k] for k in some],
        num_rows=num_rows,
        num_values=num_values[some],
        codec=codec,
        most_bytes=most_bytes[some],
    )
    return {} if found is None else dict(zip(some, found, strict=True))


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
    num_dictionary_bytes, num_bytes, num_valid, num_offsets = size
    memory = pa.allocate_buffer(num_bytes)
    values, valid = np.frombuffer(memory, np.uint8), np.empty(num_valid, np.uint8)
    dictionary, offsets = np.empty(num_dictionary_bytes, np.uint8), np.empty(num_offsets, np.int64)
    found: list[pa.Array | None] = []
    outcomes = chunks.decode(codec, Room(dictionary, values, valid, offsets))
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


def leaf_streams(
    ranges: Ranges,
    layout: Layout,
    numbers: Numbers,
    *,
    row_group: int,
    leaves: Sequence[int],
    spans: Sequence[ByteRange],
    coded: Collection[str] = (),
) -> list[LeafStream]:
    """Return those columns of a row group that are decoded here, each to be read some rows at a time.

    Args:
        ranges: The file.
        layout: How it lays out its columns.
        numbers: What its footer says.
        row_group: Number of the row group.
        leaves: Numbers of the leaf columns that are wanted.
        spans: Where their column chunks lie.
        coded: Columns of strings that are wanted as Arrow's dictionary.
    """
    known = known_leaves(layout)
    return [
        LeafStream(
            known[leaf],
            ranges,
            span,
            num_rows=int(numbers.groups["num_rows"][row_group]),
            num_values=int(numbers.chunks["num_values"][row_group, leaf]),
            codec=int(numbers.chunks["codec"][row_group, leaf]),
            most_bytes=int(numbers.chunks["uncompressed_bytes"][row_group, leaf]),
            as_dictionary=known[leaf].name in coded,
        )
        for leaf, span in zip(leaves, spans, strict=True)
        if leaf in known
    ]
