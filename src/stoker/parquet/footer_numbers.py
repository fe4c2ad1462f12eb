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
from stoker.parquet.schema import Layout

GROUP = np.dtype([(name, np.int64) for name in ("total_bytes", "num_rows")])
_CHUNK = """
    type data_offset dictionary_offset compressed_bytes uncompressed_bytes null_count is_encrypted num_repetition_levels
    num_definition_levels has_metadata min_bytes max_bytes codec num_values encodings unencoded_bytes
"""  # a bit for each encoding; bytes of all strings or binary, decoded
CHUNK = np.dtype([(name, np.int64) for name in _CHUNK.split()])
"""As `read_footer` of the native module fills them in."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a footer says of its row groups (G) and their column chunks (L leaf columns each).

    Attributes:
        groups: Of dtype `GROUP`, shape [G].
        chunks: Of dtype `CHUNK`, shape [G, L]; -1 stands for what a footer leaves out.
    """

    groups: npt.NDArray[np.void]
    chunks: npt.NDArray[np.void]


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
    found = numbers_of(np.frombuffer(buffer[4:-8], np.uint8), num_groups, num_leaves)
    if found is None:
        raise SourceError(f"the footer of {url} is corrupt: its row groups do not fit its schema", url=url)
    groups, chunks = found.groups, found.chunks
    if chunks["is_encrypted"].any():
        raise SourceError(f"{url} is encrypted, in its columns: Stoker has no keys; decrypt it first", url=url)
    wrong = (
        (chunks["has_metadata"] != 1)
        | (chunks["type"] != layout.physical_types)
        | _is_wrong_length(chunks["num_repetition_levels"], layout.max_repetition_levels)
        | _is_wrong_length(chunks["num_definition_levels"], layout.max_definition_levels)
        | _is_wrong_width(chunks["min_bytes"], layout.widths)
        | _is_wrong_width(chunks["max_bytes"], layout.widths)
    )
    if wrong.any():
        group, leaf = np.argwhere(wrong)[0]
        raise SourceError(
            f"the footer of {url} is corrupt: row group {group} describes column {layout.paths[leaf]} otherwise than "
            "the schema does",
            url=url,
        )
    num_rows, num_values = groups["num_rows"][:, None], chunks["num_values"]
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
    return found


def numbers_of(content: npt.NDArray[np.uint8], num_groups: int, num_leaves: int) -> Numbers | None:
    """Return the numbers of a footer, unchecked; None where it has not so many row groups, or leaf columns in each."""
    groups = np.full((num_groups, GROUP.itemsize // 8), -1, np.int64)
    chunks = np.full((num_groups, num_leaves, CHUNK.itemsize // 8), -1, np.int64)
    if not read_footer(content, groups, chunks):
        return None
    return Numbers(groups=groups.view(GROUP)[:, 0], chunks=chunks.view(CHUNK)[..., 0])


def _is_wrong_length(found: npt.NDArray[np.int64], max_level: npt.NDArray[np.int64]) -> Any:
    """Return where a histogram of levels is there but has not one number a level."""
    return (found > 0) & (found != max_level + 1)


def _is_wrong_width(found: npt.NDArray[np.int64], width: npt.NDArray[np.int64]) -> Any:
    """Return where a minimum or maximum has not the size of its type; 0 is any size."""
    return (found >= 0) & (width > 0) & (found != width)
