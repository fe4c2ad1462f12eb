"""How large rows are once decoded: what a footer says of it, and what the first page of a column chunk adds.

    numbers, and lists of them    values × bytes of one                          the footer says it
    strings as they are           their bytes                                    the footer says it
    strings by a dictionary,      what newer writers note beside them, else      the footer says it
    or by what they share         values × a mean word: of the dictionary        a page header, 1 read

A file of 500 bytes may hold 100 million rows of one word. What it takes in memory decides how it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import read_dictionary_header
from stoker.fields.offsets import Int64
from stoker.parquet.footer_numbers import Numbers
from stoker.parquet.schema import Layout

ReadStart: TypeAlias = Callable[[int, int], bytes]
"""Returns some bytes of a file, from an offset on; fewer where it ends."""

# Arrow keeps where each word, and each list, begins.
_BORDER_BYTES = 4
# What a footer says is believed so far, so that sums stay numbers. A row group of such a size is refused.
_MOST_BYTES = 1 << 46
_BYTE_ARRAY = 6
# Encodings, by their numbers in the format, that may make few bytes of many: two dictionaries, shared beginnings.
_MAY_GROW = (1 << 2) | (1 << 8) | (1 << 7)
# A page header without statistics, as those of dictionaries are, has 15 to 40 bytes.
_HEADER_BYTES = 128


def decoded_bytes(layout: Layout, numbers: Numbers) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return what each column chunk takes in Arrow, as far as its footer tells, and where that may be far too little.

    Args:
        layout: Of the file.
        numbers: Of its footer: G row groups, L leaf columns.

    Returns:
        Bytes, and where they are only what is stored. Shape [G, L] each.
    """
    rows, chunks = numbers.groups["num_rows"][:, None], numbers.chunks
    values = np.maximum(rows, np.where(layout.max_repetition_levels > 0, chunks["num_values"], 0))
    values = np.minimum(values, _MOST_BYTES)
    stored = np.clip(chunks["uncompressed_bytes"], 0, _MOST_BYTES)
    noted = np.minimum(chunks["unencoded_bytes"], _MOST_BYTES)
    is_binary = (layout.physical_types == _BYTE_ARRAY) & (layout.decoded_widths == 0)
    words = np.where(noted >= 0, noted + np.minimum(_BORDER_BYTES * values, _MOST_BYTES), stored)
    numbers_of = np.minimum(values.astype(np.float64) * layout.decoded_widths, _MOST_BYTES).astype(np.int64)
    sizes = np.where(is_binary, words, np.where(layout.decoded_widths > 0, numbers_of, stored))
    sizes = sizes + np.where(layout.max_repetition_levels > 0, _BORDER_BYTES * np.minimum(rows, _MOST_BYTES), 0)
    encodings = chunks["encodings"]
    may_grow = (encodings < 0) | ((encodings & _MAY_GROW) != 0) | (chunks["dictionary_offset"] >= 0)
    return sizes, is_binary & (noted < 0) & may_grow & (stored > 0)


def row_group_bytes(
    layout: Layout,
    numbers: Numbers,
    leaves: Sequence[int],
    needed: Sequence[int],
    *,
    most_bytes: int,
    read: ReadStart,
) -> Int64:
    """Return what some columns of each row group take once decoded.

    Args:
        layout: Of the file.
        numbers: Of its footer.
        leaves: Numbers of the leaf columns that are read.
        needed: Numbers of the row groups that are read.
        most_bytes: What a row group may take before it makes a difference.
        read: Reads the file, where its footer does not tell: at most once a column, and once more for each dictionary
            that is much larger than those seen before.

    Returns:
        int64, shape [G].

    Blocks: while it reads.
    """
    sizes, is_vague = decoded_bytes(layout, numbers)
    sizes, is_vague = sizes[:, leaves], is_vague[:, leaves]
    vague = [g for g in needed if is_vague[g].any()]
    if vague:
        chunks = numbers.chunks[:, leaves]
        values = np.maximum(numbers.groups["num_rows"][:, None], chunks["num_values"])
        values = np.minimum(values - np.maximum(chunks["null_count"], 0), _MOST_BYTES)
        # No word is longer than all that is stored.
        most = np.where(is_vague, np.maximum(values, 0).astype(np.float64) * sizes, sizes).sum(axis=1)
        seen: list[tuple[int, float]] = [(-1, 0.0)] * len(leaves)
        # The largest first: what its dictionary says holds for smaller ones.
        for g in sorted(vague, key=lambda g: -int(numbers.groups["num_rows"][g])):
            if most[g] <= most_bytes:
                continue
            for i in np.flatnonzero(is_vague[g]).tolist():
                stored = _dictionary_bytes(chunks[g, i])
                if stored > 2 * seen[i][0]:
                    seen[i] = stored, _mean_word(chunks[g, i], read)
                about = min(float(values[g, i]) * seen[i][1] + _BORDER_BYTES * float(values[g, i]), _MOST_BYTES)
                sizes[g, i] = max(int(about), int(sizes[g, i]))
    totals: Int64 = np.minimum(sizes.sum(axis=1), _MOST_BYTES)
    return totals


def _dictionary_bytes(chunk: np.void) -> int:
    """Return what a dictionary takes in the file: the footer says where it begins and where the first page does."""
    first, second = int(chunk["dictionary_offset"]), int(chunk["data_offset"])
    return max(second - first, 1) if first >= 0 else int(chunk["compressed_bytes"])


def _mean_word(chunk: np.void, read: ReadStart) -> float:
    """Return the bytes of a word of a column chunk, about: the mean of its dictionary, or of the least and greatest."""
    first = int(chunk["dictionary_offset"])
    content = read(first if first > 0 else int(chunk["data_offset"]), _HEADER_BYTES)
    found = read_dictionary_header(np.frombuffer(content, np.uint8))
    if found is not None and 0 < found[1] <= found[0] <= chunk["uncompressed_bytes"]:
        return found[0] / found[1] - _BORDER_BYTES
    return float(max(chunk["min_bytes"], chunk["max_bytes"], 0))
