"""The runs of a data set, found in one pass, and fragments cut between them wherever row groups allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.fragments import FragmentRange, RowGroup, plan_fragments
from stoker.dataset.runs import RunRule, Runs
from stoker.dataset.survey import Cut, Survey, survey
from stoker.errors import SourceError
from stoker.fields.offsets import Bools, Int64, offsets_of, ranges
from stoker.parquet.footers import Footers


def find_runs(catalogue: Catalogue, rule: RunRule, *, num_threads: int, on_progress: OnCount | None = None) -> Runs:
    """Read the rule's columns once, and return where runs begin.

    Raises:
        FieldError: A column is not there or cannot serve.
        SourceError: It cannot be read, or rows of one key go back in time.
    """
    columns = catalogue.types_of(rule.columns)
    rule.check(columns)
    nothing = rule.plain(columns.empty_table())
    num = len(catalogue)
    begins, keys, ends = [np.empty(0, np.int64)] * num, [nothing] * num, [nothing] * num
    kept: list[Int64 | None] = [None] * num
    num_samples = np.zeros(num, np.int64)

    def check(j: int, is_wrong: Bools) -> None:
        """Raise where a row of fragment j is wrong."""
        if is_wrong.any():
            row, rows = int(np.flatnonzero(is_wrong)[0]), kept[j]
            what = f"the rows of one {', '.join(rule.keys)}" if rule.keys else "all rows"
            raise SourceError(
                f"{catalogue.place(j, row if rows is None else int(rows[row]))}: {rule.timestamp!r} is earlier than in "
                f"the row before, or missing; an NGram needs {what} side by side, sorted by it",
                url=catalogue.fragments[j].url,
            )

    def take(j: int, table: pa.Table, rows: Int64 | None) -> None:
        table, kept[j], num_samples[j] = rule.plain(table), rows, table.num_rows
        found, is_wrong = rule.begins(table)
        check(j, is_wrong)
        begins[j] = np.flatnonzero(found)
        keys[j] = table.select(rule.keys).take(pa.array(begins[j]))
        ends[j] = table.take(pa.array([0, table.num_rows - 1])) if table.num_rows else nothing

    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    starts = np.cumsum(num_samples) - num_samples
    filled = np.flatnonzero(num_samples)
    # First and last row of each, side by side: at every even place a fragment meets the one before it.
    meeting, is_wrong = (found[::2] for found in rule.begins(pa.concat_tables([nothing, *ends])))
    file = catalogue.file_of_chunk[filled]
    for n in np.flatnonzero(is_wrong[1:] & (file[1:] == file[:-1])) + 1:
        check(int(filled[n]), is_wrong[n : n + 1])
    parts = np.concatenate(
        [np.empty(0, np.int64), *(one + at for one, at in zip(begins, starts.tolist(), strict=True))]
    )
    return Runs(
        rule=rule,
        num_samples=int(num_samples.sum()),
        begins=np.setdiff1d(parts, starts[filled[~(meeting | is_wrong)]], assume_unique=True),
        parts=parts,
        keys=pa.concat_tables([nothing.select(rule.keys), *keys]).combine_chunks(),
        passing=None if catalogue.passes_all else _passing(catalogue, kept),
    )


def _passing(catalogue: Catalogue, kept: Sequence[Int64 | None]) -> Int64:
    """Return the number of each row that passes among all rows of all files. Shape [N].

    Args:
        catalogue: The data set.
        kept: Which rows of each fragment pass; None for all.
    """
    starts, found = _group_starts(catalogue), [np.empty(0, np.int64)]
    for i, rows in enumerate(kept):
        groups, first, sizes = catalogue.group_rows(i)
        file = int(catalogue.file_of_chunk[i])
        here = ranges(starts[file][groups] + first, offsets_of(sizes))
        found.append(here if rows is None else here[rows])
    return np.concatenate(found)


def _group_starts(catalogue: Catalogue) -> list[Int64]:
    """Return where each file's row groups begin among all rows of all files, and where the last one ends."""
    found, at = [], 0
    for file in range(len(catalogue.files)):
        found.append(at + offsets_of(catalogue.footer(file).numbers.groups["num_rows"]))
        at = int(found[-1][-1])
    return found


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
    starts = _group_starts(catalogue)

    def is_cutting(file: int, group: int) -> bool:
        """Return whether a run goes on across the beginning of a row group."""
        row = int(runs.num_before(starts[file][group]))
        n = int(np.searchsorted(runs.begins, row))
        return 0 < row < runs.num_samples and (n == len(runs.begins) or int(runs.begins[n]) != row)

    def begins_in(file: int, group: int) -> Int64:
        """Return the rows of a row group, filtered or not, at which runs begin."""
        borders = starts[file][group : group + 2]
        low, high = np.searchsorted(runs.begins, runs.num_before(borders))
        begins = runs.begins[low:high] if runs.passing is None else runs.passing[runs.begins[low:high]]
        return np.asarray(begins - borders[0])

    def plan(file: int, groups: Sequence[RowGroup]) -> list[FragmentRange]:
        is_here, begins = partial(is_cutting, file), partial(begins_in, file)
        return plan_fragments(groups, chunk_bytes=cut.chunk_bytes, is_cutting=is_here, begins_in=begins)

    known = catalogue.survey
    found = survey(known.files, known.schema, cut, footers, num_threads=num_threads, plan=plan)
    first_of_file = np.cumsum([0, *map(len, starts)])[found.file]
    group_starts = np.concatenate([np.empty(0, np.int64), *starts])
    begin, end = group_starts[first_of_file + found.start], group_starts[first_of_file + found.stop]
    is_part = found.row_start >= 0
    begin, end = np.where(is_part, [begin + found.row_start, begin + found.row_stop], [begin, end])
    return replace(found, table=known.table, num_samples=runs.num_before(end) - runs.num_before(begin))
