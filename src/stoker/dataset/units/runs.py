"""The runs of a data set, found in one pass: where they begin, whatever the fragments are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stoker.dataset.runs import FragmentRuns, RunRule, Runs, num_distinct
from stoker.errors import SourceError
from stoker.fields.offsets import Int64

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
