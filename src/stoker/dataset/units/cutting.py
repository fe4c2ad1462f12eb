"""Fragments cut between runs, where row groups allow it (the plan is pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.dataset.fragments import FragmentRange, RowGroup
from stoker.dataset.runs import FragmentRuns, Runs
from stoker.dataset.survey import Cut, Survey, survey
from stoker.fields.offsets import Int64
from stoker.parquet.footers import Footers

if TYPE_CHECKING:
    from stoker.dataset.catalogue import Catalogue

# Up to twice the chunk size: as far as row groups are joined to reach a border that cuts no run.
_JOINED_UP_TO = 2


def plan_between_runs(
    row_groups: Sequence[RowGroup],
    *,
    chunk_bytes: int,
    is_cutting: Callable[[int], bool],
    begins_in: Callable[[int], Int64],
) -> list[FragmentRange]:
    """Cut one file into fragments of about `chunk_bytes`, at the beginning of a run wherever there is one near.

        row groups   │ 4 │ 4 ┆ 4 │ 4 ┆ 4 ┆ 30                bytes, chunk size 10; ┆ cuts a run
        fragments    │ 4 │ 4   4 │ 4   4 ┆ 11 │ 9 │ 10       joined up to whole runs; a huge one is split at a run

    Args:
        row_groups: Row groups of the file.
        chunk_bytes: Size of a chunk aimed at.
        is_cutting: Whether a run goes on across the beginning of this row group.
        begins_in: Rows of a row group at which runs begin, ascending.

    Raises:
        ValueError: A row group claims an absurd number of rows.
    """
    pieces: list[FragmentRange] = []
    growing: list[int] = []  # row groups of the fragment that is growing
    size_bytes = 0  # of these
    border = 0  # how many of them come before the last place that cuts no run

    def finish(num: int) -> None:
        nonlocal size_bytes, border
        taken = growing[:num]
        if taken:
            rows = sum(row_groups[g].num_rows for g in taken)
            pieces.append(FragmentRange(taken[0], taken[-1] + 1, -1, -1, rows))
            size_bytes -= sum(row_groups[g].size_bytes for g in taken)
            border = 0
        del growing[:num]

    for g, group in enumerate(row_groups):
        if group.num_rows < 0:
            raise ValueError(f"row group {g} claims {group.num_rows} rows")
        if not group.is_needed or group.num_rows == 0:
            continue
        if group.size_bytes > _JOINED_UP_TO * chunk_bytes and group.num_rows > 1:
            finish(len(growing))
            pieces += _parts(g, group, chunk_bytes, begins_in(g))
            continue
        if growing and not is_cutting(g):
            border = len(growing)
        while growing and size_bytes + group.size_bytes > chunk_bytes:
            if border:
                finish(border)
            elif size_bytes + group.size_bytes > _JOINED_UP_TO * chunk_bytes:
                finish(len(growing))
            else:
                break
        growing.append(g)
        size_bytes += group.size_bytes
    finish(len(growing))
    return pieces


def _parts(g: int, group: RowGroup, chunk_bytes: int, begins: Int64) -> list[FragmentRange]:
    """Split a row group at the runs that begin nearest to equal parts; at equal parts where none is near.

    Near is what leaves a fragment of half a part to two parts: a run is cut only where it is longer than that.
    """
    num_parts = min(-(-group.size_bytes // chunk_bytes), group.num_rows)
    if num_parts > 1_000_000:
        raise ValueError(f"row group {g} claims {group.num_rows:,} rows and {group.size_bytes:,} bytes")
    part = -(-group.num_rows // num_parts)
    borders = [0]
    for ideal in range(part, group.num_rows, part):
        least, most = borders[-1] + max(part // 2, 1), borders[-1] + _JOINED_UP_TO * part
        if ideal < least:  # the last one was cut late
            continue
        n = int(np.searchsorted(begins, ideal))
        near = [int(row) for row in begins[max(n - 1, 0) : n + 1] if least <= row <= min(most, group.num_rows - 1)]
        if not near and group.num_rows <= most and borders[-1] in begins:  # its last run, whole
            break
        borders.append(min(near, key=lambda row: abs(row - ideal)) if near else ideal)
    return [
        FragmentRange(g, g + 1, start, stop, stop - start)
        for start, stop in zip(borders, [*borders[1:], group.num_rows], strict=True)
    ]


class _Places:
    """Where the rows of a file's row groups stand among all rows that pass."""

    def __init__(self, catalogue: Catalogue, runs: Runs, known: Survey) -> None:
        self._runs = runs
        self._starts: dict[tuple[int, int], int] = {}
        self._samples: dict[tuple[int, int], int] = {}
        self._parts: dict[tuple[int, int], list[tuple[int, int, FragmentRuns]]] = {}
        for i, held in enumerate(runs.held):
            file, at = int(known.file[i]), int(runs.fragments[i])
            groups, sizes = catalogue.group_rows(i)
            if known.row_start[i] >= 0:
                group = (file, int(groups[0]))
                self._starts.setdefault(group, at)
                self._samples[group] = self._samples.get(group, 0) + held.num_samples
                self._parts.setdefault(group, []).append((int(known.row_start[i]), at, held))
                continue
            borders = np.concatenate([[0], np.cumsum(sizes)])
            borders = borders if held.kept is None else np.searchsorted(held.kept, borders)
            for g, low, high in zip(groups.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
                self._starts[file, g], self._samples[file, g] = at + low, high - low

    def is_cutting(self, file: int, group: int) -> bool:
        """Return whether a run goes on across the beginning of a row group."""
        start = self._starts[file, group]
        if start in (0, self._runs.num_samples):
            return False
        n = int(np.searchsorted(self._runs.begins, start))
        return n == len(self._runs.begins) or self._runs.begins[n] != start

    def begins_in(self, file: int, group: int) -> Int64:
        """Return the rows of a huge row group, filtered or not, at which runs begin."""
        found = [np.empty(0, np.int64)]
        for first, at, held in self._parts[file, group]:
            low, high = np.searchsorted(self._runs.begins, [at, at + held.num_samples])
            begins = self._runs.begins[low:high] - at
            found.append(first + (begins if held.kept is None else held.kept[begins]))
        return np.concatenate(found)

    def num_samples(self, file: int, piece: FragmentRange) -> int:
        """Return how many rows of a fragment pass."""
        if piece.row_start < 0:
            return sum(self._samples.get((file, g), 0) for g in range(piece.start, piece.stop))
        total = 0
        for first, _, held in self._parts[file, piece.start]:
            rows = [piece.row_start - first, piece.row_stop - first]
            low, high = np.clip(rows, 0, held.num_samples) if held.kept is None else np.searchsorted(held.kept, rows)
            total += int(high - low)
        return total


def cut_between_runs(
    catalogue: Catalogue, runs: Runs, known: Survey, cut: Cut, footers: Footers, *, num_threads: int
) -> Survey:
    """Return the survey of the same files with fragments cut between runs.

    Args:
        catalogue: Opened as `known` says.
        runs: Its runs.
        known: Fragments as they would be without.
        cut: How files are cut.
        footers: Of the files.
        num_threads: Threads that look at footers.

    Raises:
        SourceError: A footer contradicts itself.
    """
    places = _Places(catalogue, runs, known)

    def plan(file: int, groups: Sequence[RowGroup]) -> list[FragmentRange]:
        return plan_between_runs(
            groups,
            chunk_bytes=cut.chunk_bytes,
            is_cutting=lambda g: places.is_cutting(file, g),
            begins_in=lambda g: places.begins_in(file, g),
        )

    found = survey(known.files, known.schema, cut, footers, num_threads=num_threads, plan=plan)
    pieces = zip(
        *(getattr(found, name).tolist() for name in ("file", "start", "stop", "row_start", "row_stop", "num_rows")),
        strict=True,
    )
    num_samples = [places.num_samples(file, FragmentRange(*rest)) for file, *rest in pieces]
    return dataclasses.replace(found, num_samples=np.array(num_samples, dtype=np.int64))
