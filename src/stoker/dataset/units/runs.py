"""The runs of a data set, found in one pass, and fragments cut between them, where row groups allow it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stoker.dataset.fragments import FragmentRange, RowGroup, plan_fragments
from stoker.dataset.runs import FragmentRuns, RunRule, Runs, num_distinct
from stoker.dataset.survey import Cut, Survey, survey
from stoker.errors import SourceError
from stoker.fields.offsets import Int64
from stoker.parquet.footers import Footers

if TYPE_CHECKING:
    from stoker.dataset.catalogue import Catalogue, OnCount


def find_runs(catalogue: Catalogue, rule: RunRule, *, num_threads: int, on_progress: OnCount | None = None) -> Runs:
    """Read the rule's columns once, and return where runs begin.

    Raises:
        FieldError: A column is not there or cannot serve.
        SourceError: It cannot be read, or rows of one key go back in time.
    """
    columns = catalogue.types_of(rule.columns)
    rule.check(columns)
    held: list[FragmentRuns | None] = [None] * len(catalogue)

    def take(j: int, table: pa.Table, kept: Int64 | None) -> None:
        table = rule.plain(table)
        begins, is_wrong = rule.begins(table)
        if is_wrong.any():
            row = int(np.flatnonzero(is_wrong)[0])
            raise _unsorted(catalogue, rule, j, row if kept is None else int(kept[row]))
        rows = np.flatnonzero(begins)
        ends = table.take(pa.array([0, table.num_rows - 1])) if table.num_rows else table.slice(0, 0)
        keys = table.select(rule.keys).take(pa.array(rows))
        held[j] = FragmentRuns(num_samples=table.num_rows, begins=rows, keys=keys, ends=ends, kept=kept)

    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    return _joined(catalogue, rule, [one for one in held if one is not None])


def _joined(catalogue: Catalogue, rule: RunRule, held: list[FragmentRuns]) -> Runs:
    starts = np.concatenate([[0], np.cumsum([one.num_samples for one in held], dtype=np.int64)]).astype(np.int64)
    filled = [i for i, one in enumerate(held) if one.num_samples]
    begins = [one.begins + start for one, start in zip(held, starts[:-1].tolist(), strict=True)]
    if filled:
        # First and last row of each, side by side: at every even place a fragment meets the one before it.
        meeting, is_wrong = rule.begins(pa.concat_tables([held[i].ends for i in filled]))
        for n, (before, i) in enumerate(pairwise(filled), start=1):
            is_same_file = catalogue.fragments[before].url == catalogue.fragments[i].url
            if is_wrong[2 * n] and is_same_file:
                kept = held[i].kept
                raise _unsorted(catalogue, rule, i, 0 if kept is None else int(kept[0]))
            if not meeting[2 * n] and not is_wrong[2 * n]:
                begins[i] = begins[i][1:]
    return Runs(
        rule=rule,
        num_samples=int(starts[-1]),
        begins=np.concatenate([np.empty(0, np.int64), *begins]),
        fragments=starts,
        held=tuple(held),
    )


def num_reappearing(runs: Runs, chunk_starts: Int64) -> int:
    """Return how many runs have a key that an earlier run of their chunk had, too.

    Args:
        runs: The runs.
        chunk_starts: Where each chunk's rows begin, and the end. Shape [K + 1].
    """
    total = 0
    for start, stop in zip(chunk_starts[:-1].tolist(), chunk_starts[1:].tolist(), strict=True):
        if start == stop:
            continue
        low, high = np.searchsorted(runs.begins, [start, stop]).tolist()
        num_runs = high - low + (low == len(runs.begins) or int(runs.begins[low]) != start)
        if num_runs > 1:
            total += num_runs - num_distinct(runs.keys(start, stop), runs.rule.keys)
    return total


def _unsorted(catalogue: Catalogue, rule: RunRule, j: int, row: int) -> SourceError:
    keys = f"the rows of one {', '.join(rule.keys)}" if rule.keys else "all rows"
    return SourceError(
        f"{catalogue.place(j, row)}: {rule.timestamp!r} is earlier than in the row before, or missing; an NGram needs "
        f"{keys} side by side, sorted by it",
        url=catalogue.fragments[j].url,
    )


class _Places:
    """Where the rows of a file's row groups stand among all rows that pass."""

    def __init__(self, catalogue: Catalogue, runs: Runs) -> None:
        known = catalogue.survey
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


def cut_between_runs(catalogue: Catalogue, runs: Runs, cut: Cut, footers: Footers, *, num_threads: int) -> Survey:
    """Return the survey of the same files with fragments cut between runs.

    Args:
        catalogue: With fragments as they would be without.
        runs: Its runs.
        cut: How files are cut.
        footers: Of the files.
        num_threads: Threads that look at footers.

    Raises:
        SourceError: A footer contradicts itself.
    """
    places = _Places(catalogue, runs)

    def plan(file: int, groups: Sequence[RowGroup]) -> list[FragmentRange]:
        return plan_fragments(
            groups,
            chunk_bytes=cut.chunk_bytes,
            is_cutting=lambda g: places.is_cutting(file, g),
            begins_in=lambda g: places.begins_in(file, g),
        )

    known = catalogue.survey
    found = survey(known.files, known.schema, cut, footers, num_threads=num_threads, plan=plan)
    pieces = zip(
        *(getattr(found, name).tolist() for name in ("file", "start", "stop", "row_start", "row_stop", "num_rows")),
        strict=True,
    )
    num_samples = [places.num_samples(file, FragmentRange(*rest)) for file, *rest in pieces]
    return dataclasses.replace(found, table=known.table, num_samples=np.array(num_samples, dtype=np.int64))
