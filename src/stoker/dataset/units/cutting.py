"""Fragments cut between runs, where row groups allow it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.dataset.fragments import FragmentRange, RowGroup, plan_fragments
from stoker.dataset.runs import FragmentRuns, Runs
from stoker.dataset.survey import Cut, Survey, survey
from stoker.fields.offsets import Int64
from stoker.parquet.footers import Footers

if TYPE_CHECKING:
    from stoker.dataset.catalogue import Catalogue


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
