"""From row groups to fragments: small ones are joined, a huge one is split (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stoker.errors import printable
from stoker.fields.offsets import Int64

# Up to twice the chunk size a row group stays whole: half of it could be left over as a second, tiny decode. As far
# row groups are joined to reach a border that cuts no run.
_AT_MOST = 2
# More parts than this mean a footer that lies about its rows: nobody has a row group of 32 TB.
_MAX_PARTS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """Whole row groups of one file, or part of one huge row group: what is read and transformed in one call.

    `rows` are the first and last + 1 row within the row group, where this is a part of it; else None.
    """

    url: str
    row_groups: range
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        first, last = self.row_groups[0], self.row_groups[-1]
        text = f"{self.url} row group {first}" if first == last else f"{self.url} row groups {first}-{last}"
        return printable(text if self.rows is None else f"{text} rows {self.rows[0]}-{self.rows[1] - 1}", is_line=True)


class FragmentRange(NamedTuple):
    """A fragment of a file: row groups [start, stop), and rows [row_start, row_stop) or (-1, -1) for all."""

    start: int
    stop: int
    row_start: int
    row_stop: int
    num_rows: int


def plan_fragments(
    row_groups: Sequence[tuple[int, int]],
    *,
    chunk_bytes: int,
    is_cutting: Callable[[int], bool] = lambda _: False,
    begins_in: Callable[[int], Int64] = lambda _: np.empty(0, np.int64),
) -> list[FragmentRange]:
    """Cut one file into fragments of about `chunk_bytes`, in the order of its rows.

        row groups   2 3 2 2 | 9 | 40                     bytes, chunk size 10
        fragments    [2 3 2 2] [9] [10] [10] [10] [10]    joined, whole, split

    Where runs of rows are to stay together, at the beginning of a run wherever there is one near:

        row groups   4 | 4 ┆ 4 | 4 ┆ 4 ┆ 30               ┆ cuts a run
        fragments    [4] [4 4] [4 4] [11] [9] [10]        joined up to whole runs; a huge one is split at a run

    A row group without rows, or none that are needed, costs nothing: it may lie inside a fragment but never begins or
    ends one. A ValueError says which row group claims an absurd number of rows.

    Args:
        row_groups: Rows that are needed of each row group of the file, and its bytes once decoded.
        chunk_bytes: Size of a chunk aimed at.
        is_cutting: Whether a run goes on across the beginning of this row group.
        begins_in: Rows of a row group at which runs begin, ascending.
    """
    pieces: list[FragmentRange] = []
    growing: list[int] = []  # row groups of the fragment that is growing
    size_bytes = 0  # of these
    border = 0  # how many of them come before the last place that cuts no run

    def finish(num: int) -> None:
        nonlocal size_bytes, border
        if taken := growing[:num]:
            num_rows, num_bytes = map(sum, zip(*(row_groups[g] for g in taken), strict=True))
            pieces.append(FragmentRange(taken[0], taken[-1] + 1, -1, -1, num_rows))
            size_bytes, border = size_bytes - num_bytes, 0
            del growing[:num]

    for g, (num_rows, num_bytes) in enumerate(row_groups):
        if num_rows < 0:
            raise ValueError(f"row group {g} claims {num_rows} rows")
        if num_rows == 0:
            continue
        if num_bytes > _AT_MOST * chunk_bytes and num_rows > 1:
            finish(len(growing))
            pieces += _parts(g, num_rows, num_bytes, chunk_bytes, begins_in(g))
            continue
        border = len(growing) if growing and not is_cutting(g) else border
        while growing and size_bytes + num_bytes > chunk_bytes:
            if not border and size_bytes + num_bytes <= _AT_MOST * chunk_bytes:
                break
            finish(border or len(growing))
        growing.append(g)
        size_bytes += num_bytes
    finish(len(growing))
    return pieces


def _parts(g: int, num_rows: int, num_bytes: int, chunk_bytes: int, begins: Int64) -> list[FragmentRange]:
    """Split a row group at the runs that begin nearest to equal parts; at equal parts where none is near.

    Near is what leaves a fragment of half a part to two parts: a run is cut only where it is longer than that.
    """
    num_parts = min(-(-num_bytes // chunk_bytes), num_rows)
    if num_parts > _MAX_PARTS:
        raise ValueError(f"row group {g} claims {num_rows:,} rows and {num_bytes:,} bytes")
    part = -(-num_rows // num_parts)
    borders = [0]
    for ideal in range(part, num_rows, part):
        least, most = borders[-1] + max(part // 2, 1), borders[-1] + _AT_MOST * part
        if ideal < least:  # the last one was cut late
            continue
        n = int(np.searchsorted(begins, ideal))
        near = [int(row) for row in begins[max(n - 1, 0) : n + 1] if least <= row <= min(most, num_rows - 1)]
        if not near and num_rows <= most and borders[-1] in begins:  # its last run, whole
            break
        borders.append(min(near, key=lambda row: abs(row - ideal)) if near else ideal)
    return [
        FragmentRange(g, g + 1, start, stop, stop - start)
        for start, stop in zip(borders, [*borders[1:], num_rows], strict=True)
    ]
