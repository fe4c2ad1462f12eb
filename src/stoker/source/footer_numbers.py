"""The numbers of a footer as arrays, checked against each other before anything relies on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stoker._native import read_footer
from stoker.errors import SourceError
from stoker.source import thrift
from stoker.source.schema import Layout


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a footer says of its row groups (G) and their column chunks (L leaf columns each), in columns of `thrift`.

    Attributes:
        groups: int64, shape [G, thrift.NUM_GROUP_NUMBERS].
        chunks: int64, shape [G, L, thrift.NUM_CHUNK_NUMBERS]; -1 stands for what a footer leaves out.
    """

    groups: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]


def read_numbers(buffer: pa.Buffer, metadata: pq.FileMetaData, layout: Layout, *, url: str) -> Numbers:
    """Return the numbers of a footer.

    Args:
        buffer: The footer as a Parquet file without data.
        metadata: What pyarrow parsed from it.
        layout: The layout of its columns.
        url: The file, for errors.

    Raises:
        SourceError: The footer contradicts itself, or the file is encrypted.
    """
    num_groups, num_leaves = metadata.num_row_groups, len(layout.paths)
    groups = np.full((num_groups, thrift.NUM_GROUP_NUMBERS), -1, np.int64)
    chunks = np.full((num_groups, num_leaves, thrift.NUM_CHUNK_NUMBERS), -1, np.int64)
    if not read_footer(np.frombuffer(buffer[4:-8], np.uint8), groups, chunks):
        raise SourceError(f"the footer of {url} is corrupt: its row groups do not fit its schema", url=url)
    if chunks[..., thrift.IS_ENCRYPTED].any():
        raise SourceError(f"{url} is encrypted, in its columns: Stoker has no keys; decrypt it first", url=url)
    wrong = (
        (chunks[..., thrift.HAS_METADATA] != 1)
        | (chunks[..., thrift.TYPE] != layout.physical_types)
        | _is_wrong_length(chunks[..., thrift.NUM_REPETITION_LEVELS], layout.max_repetition_levels)
        | _is_wrong_length(chunks[..., thrift.NUM_DEFINITION_LEVELS], layout.max_definition_levels)
        | _is_wrong_width(chunks[..., thrift.MIN_BYTES], layout.widths)
        | _is_wrong_width(chunks[..., thrift.MAX_BYTES], layout.widths)
    )
    if wrong.any():
        group, leaf = np.argwhere(wrong)[0]
        raise SourceError(
            f"the footer of {url} is corrupt: row group {group} describes column {layout.paths[leaf]} otherwise than "
            "the schema does",
            url=url,
        )
    num_rows, num_values = groups[:, thrift.NUM_ROWS, None], chunks[..., thrift.NUM_VALUES]
    if (num_rows < 0).any():
        raise SourceError(f"the footer of {url} is corrupt: a row group claims fewer than no rows", url=url)
    # A list has an entry a value, and one where it is empty or null.
    is_repeated = (layout.max_repetition_levels > 0) & (num_rows > 0)
    wrong = np.where(is_repeated, num_values < num_rows, num_values != num_rows)
    if wrong.any():
        group, leaf = np.argwhere(wrong)[0]
        raise SourceError(
            f"the footer of {url} is corrupt: row group {group} has {num_rows[group, 0]:,} rows, and of column "
            f"{layout.paths[leaf]} {num_values[group, leaf]:,} values",
            url=url,
        )
    # Some writers leave the number of all rows out. Not as a sum of 64 bits, which may be more than they hold.
    if metadata.num_rows not in (0, sum(num_rows[:, 0].tolist())):
        raise SourceError(
            f"the footer of {url} is corrupt: it has {metadata.num_rows:,} rows, and its row groups have "
            f"{sum(num_rows[:, 0].tolist()):,}",
            url=url,
        )
    return Numbers(groups=groups, chunks=chunks)


def _is_wrong_length(found: npt.NDArray[np.int64], max_level: npt.NDArray[np.int64]) -> Any:
    """Return where a histogram of levels is there but has not one number a level."""
    return (found > 0) & (found != max_level + 1)


def _is_wrong_width(found: npt.NDArray[np.int64], width: npt.NDArray[np.int64]) -> Any:
    """Return where a minimum or maximum has not the size of its type; 0 is any size."""
    return (found >= 0) & (width > 0) & (found != width)
