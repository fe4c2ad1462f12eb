"""From row groups to fragments: small ones are joined, a huge one is split (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Up to twice the chunk size a row group stays whole: half of it could be left over as a second, tiny decode.
_WHOLE_UP_TO = 2
# More parts than this mean a footer that lies about its rows: nobody has a row group of 32 TB.
_MAX_PARTS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """Whole row groups of one file, or part of one huge row group: what is read and transformed in one call.

    Attributes:
        url: The file.
        row_groups: Numbers of its row groups, without a gap.
        rows: First and last + 1 row within the row group, where this is a part of it; else None.
    """

    url: str
    row_groups: range
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        first, last = self.row_groups[0], self.row_groups[-1]
        text = f"{self.url} row group {first}" if first == last else f"{self.url} row groups {first}-{last}"
        return text if self.rows is None else f"{text} rows {self.rows[0]}-{self.rows[1] - 1}"


class RowGroup(NamedTuple):
    """What planning needs of one row group: rows, bytes once decoded, and whether any row may pass the filter."""

    num_rows: int
    size_bytes: int
    is_needed: bool = True


class FragmentRange(NamedTuple):
    """A fragment of a file: row groups [start, stop), and rows [row_start, row_stop) or (-1, -1) for all."""

    start: int
    stop: int
    row_start: int
    row_stop: int
    num_rows: int


def plan_fragments(row_groups: Sequence[RowGroup], *, chunk_bytes: int) -> list[FragmentRange]:
    """Cut one file into fragments of about `chunk_bytes`, in the order of its rows.

        row groups   2 3 2 2 | 9 | 40                     bytes, chunk size 10
        fragments    [2 3 2 2] [9] [10] [10] [10] [10]    joined, whole, split

    A row group that is not needed, or empty, costs nothing: it may lie inside a fragment but never begins or ends one.

    Raises:
        ValueError: A row group claims an absurd number of rows.
    """
    pieces: list[FragmentRange] = []
    start = stop = num_rows = size_bytes = 0  # the fragment that is growing; start == stop: none

    def finish() -> None:
        nonlocal start, stop
        if stop > start:
            pieces.append(FragmentRange(start, stop, -1, -1, num_rows))
        start = stop

    for i, group in enumerate(row_groups):
        if group.num_rows < 0:
            raise ValueError(f"row group {i} claims {group.num_rows} rows")
        if not group.is_needed or group.num_rows == 0:
            continue
        if group.size_bytes > _WHOLE_UP_TO * chunk_bytes and group.num_rows > 1:
            finish()
            pieces += _parts(i, group, chunk_bytes)
            start = stop = i + 1
            continue
        if stop > start and size_bytes + group.size_bytes > chunk_bytes:
            finish()
        if stop == start:
            start, num_rows, size_bytes = i, 0, 0
        stop = i + 1
        num_rows += group.num_rows
        size_bytes += group.size_bytes
    finish()
    return pieces


def _parts(i: int, group: RowGroup, chunk_bytes: int) -> list[FragmentRange]:
    """Split a row group into parts of one length, the last one at most that long."""
    num_parts = min(-(-group.size_bytes // chunk_bytes), group.num_rows)
    if num_parts > _MAX_PARTS:
        raise ValueError(f"row group {i} claims {group.num_rows:,} rows and {group.size_bytes:,} bytes")
    part = -(-group.num_rows // num_parts)
    return [
        FragmentRange(i, i + 1, first, min(first + part, group.num_rows), min(part, group.num_rows - first))
        for first in range(0, group.num_rows, part)
    ]
