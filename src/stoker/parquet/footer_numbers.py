"""The numbers of a footer as arrays, checked against each other before anything relies on them.

And how large rows are once decoded: what a footer says of it, and what the first page of a column chunk adds.

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
import pyarrow as pa
import pyarrow.parquet as pq

from stoker._native import read_footer, read_page_header
from stoker.errors import SourceCorruptError, SourceError
from stoker.fields.offsets import Bools, Int64
from stoker.parquet.schema import Layout

# Arrow keeps where each word, and each list, begins.
_BORDER_BYTES = 4
# What a footer says is believed so far, so that sums stay numbers. A row group of such a size is refused.
_MOST_BYTES = 1 << 46
DICTIONARY_PAGE = 2  # a kind of page
# Encodings, by their numbers in the format, that may make few bytes of many: two dictionaries, shared beginnings.
_MAY_GROW = (1 << 2) | (1 << 8) | (1 << 7)
# A page header without statistics, as those of dictionaries are, has 15 to 40 bytes.
_DICTIONARY_HEADER_BYTES = 128

ReadStart: TypeAlias = Callable[[int, int], bytes]
"""Returns some bytes of a file, from an offset on; fewer where it ends."""

GROUP = np.dtype([(name, np.int64) for name in ("total_bytes", "num_rows")])
_CHUNK = """
    type data_offset dictionary_offset compressed_bytes uncompressed_bytes null_count is_encrypted num_repetition_levels
    num_definition_levels has_metadata min_bytes max_bytes codec num_values encodings unencoded_bytes
"""  # a bit for each encoding; bytes of all strings or binary, decoded
CHUNK = np.dtype([(name, np.int64) for name in _CHUNK.split()])
"""As `read_footer` of the native module fills them in."""


def read_numbers(
    buffer: pa.Buffer, metadata: pq.FileMetaData, layout: Layout, *, url: str
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return the numbers of a footer, which is a Parquet file without data; pyarrow has parsed it, too.

    They are those of its row groups (G), of dtype `GROUP`, shape [G], and of their column chunks (L leaf columns each),
    of dtype `CHUNK`, shape [G, L]; -1 where it is silent. A footer that contradicts itself is a `SourceCorruptError`,
    and one of encrypted columns a `SourceError`.
    """
    groups = np.full((metadata.num_row_groups, GROUP.itemsize // 8), -1, np.int64)
    chunks = np.full((metadata.num_row_groups, len(layout.paths), CHUNK.itemsize // 8), -1, np.int64)
    if not read_footer(np.frombuffer(buffer[4:-8], np.uint8), groups, chunks):
        raise SourceCorruptError(f"the footer of {url} is corrupt: its row groups do not fit its schema", url=url)
    groups, chunks = groups.view(GROUP)[:, 0], chunks.view(CHUNK)[..., 0]
    num_rows, num_values = groups["num_rows"][:, None], chunks["num_values"]

    def check(wrong: Bools, say: Callable[[int, int], str]) -> None:
        if wrong.any():
            group, leaf = np.argwhere(wrong)[0].tolist()
            raise SourceCorruptError(f"the footer of {url} is corrupt: {say(group, leaf)}", url=url)

    if chunks["is_encrypted"].any():
        raise SourceError(f"{url} is encrypted, in its columns: Stoker has no keys; decrypt it first", url=url)
    wrong = (chunks["has_metadata"] != 1) | (chunks["type"] != layout.physical_types)
    for name, max_level in (("repetition", layout.max_repetition_levels), ("definition", layout.max_definition_levels)):
        found_levels = chunks[f"num_{name}_levels"]  # a histogram of levels is not there, or has one number a level
        wrong |= (found_levels > 0) & (found_levels != max_level + 1)
    for name in ("min_bytes", "max_bytes"):  # of the size of the type, where all values have one
        wrong |= (chunks[name] >= 0) & (layout.widths > 0) & (chunks[name] != layout.widths)
    check(
        wrong,
        lambda group, leaf: f"row group {group} describes column {layout.paths[leaf]} otherwise than the schema does",
    )
    check(num_rows < 0, lambda group, _: f"row group {group} claims fewer than no rows")
    # A list has an entry a value, and one where it is empty or null.
    is_repeated = (layout.max_repetition_levels > 0) & (num_rows > 0)
    check(
        np.where(is_repeated, num_values < num_rows, num_values != num_rows),
        lambda group, leaf: (
            f"row group {group} has {num_rows[group, 0]:,} rows, and of column {layout.paths[leaf]} "
            f"{num_values[group, leaf]:,} values"
        ),
    )
    # Some writers leave the number of all rows out. Not as a sum of 64 bits, which may be more than they hold.
    total = sum(num_rows[:, 0].tolist())
    if metadata.num_rows not in (0, total):
        raise SourceCorruptError(
            f"the footer of {url} is corrupt: it has {metadata.num_rows:,} rows, and its row groups have {total:,}",
            url=url,
        )
    return groups, chunks


def _decoded_bytes(layout: Layout, num_rows: Int64, chunks: npt.NDArray[np.void]) -> tuple[Int64, Bools]:
    """Return the bytes of column chunks in Arrow, as the footer tells, and where that may be too few. [G, L] each."""
    rows = num_rows[:, None]
    values = np.maximum(rows, np.where(layout.max_repetition_levels > 0, chunks["num_values"], 0))
    values = np.minimum(values, _MOST_BYTES)
    stored = np.clip(chunks["uncompressed_bytes"], 0, _MOST_BYTES)
    noted = np.minimum(chunks["unencoded_bytes"], _MOST_BYTES)
    words = np.where(noted >= 0, noted + np.minimum(_BORDER_BYTES * values, _MOST_BYTES), stored)
    numbers_of = np.minimum(values.astype(np.float64) * layout.decoded_widths, _MOST_BYTES).astype(np.int64)
    sizes = np.where(layout.is_text, words, np.where(layout.decoded_widths > 0, numbers_of, stored))
    sizes = sizes + np.where(layout.max_repetition_levels > 0, _BORDER_BYTES * np.minimum(rows, _MOST_BYTES), 0)
    encodings = chunks["encodings"]
    may_grow = (encodings < 0) | ((encodings & _MAY_GROW) != 0) | (chunks["dictionary_offset"] >= 0)
    return sizes, layout.is_text & (noted < 0) & may_grow & (stored > 0)


def row_group_bytes(
    layout: Layout,
    num_rows: Int64,
    chunks: npt.NDArray[np.void],
    leaves: Sequence[int],
    needed: Sequence[int],
    *,
    most_bytes: int,
    read: ReadStart,
) -> Int64:
    """Return the bytes that some leaf columns of each row group, which has so many rows, take once decoded. Shape [G].

    Of the row groups that are needed and may take more than `most_bytes`, the file is read where its footer does not
    tell: at most once a column, and once more for each dictionary that is much larger than those seen before.
    """
    sizes, is_vague = _decoded_bytes(layout, num_rows, chunks)
    sizes, is_vague, chunks = sizes[:, leaves], is_vague[:, leaves], chunks[:, leaves]
    vague = [g for g in needed if is_vague[g].any()]
    if vague:
        values = np.maximum(num_rows[:, None], chunks["num_values"])
        values = np.minimum(values - np.maximum(chunks["null_count"], 0), _MOST_BYTES)
        # No word is longer than all that is stored.
        most = np.where(is_vague, np.maximum(values, 0).astype(np.float64) * sizes, sizes).sum(axis=1)
        seen: list[tuple[int, float]] = [(-1, 0.0)] * len(leaves)
        # The largest first: what its dictionary says holds for smaller ones.
        for g in sorted((g for g in vague if most[g] > most_bytes), key=lambda g: -int(num_rows[g])):
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
    content = read(first if first > 0 else int(chunk["data_offset"]), _DICTIONARY_HEADER_BYTES)
    page = read_page_header(np.frombuffer(content, np.uint8))
    if (
        page is not None
        and page.kind == DICTIONARY_PAGE
        and 0 < page.num_entries <= page.plain_bytes <= chunk["uncompressed_bytes"]
    ):
        return page.plain_bytes / page.num_entries - _BORDER_BYTES
    return float(max(chunk["min_bytes"], chunk["max_bytes"], 0))
