"""The units of a data set: counted once, in one pass over the columns that decide them, and kept for the next start."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import best_fit
from stoker.arrow import numbers_in
from stoker.columns.plan import plan_fields
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.fragments import FragmentRange, plan_fragments
from stoker.dataset.runs import RunRule, Runs, comparable
from stoker.dataset.survey import Selection, Survey, survey
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.errors import FieldError, SourceError
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.hashing import fingerprint
from stoker.parquet.footers import Footers
from stoker.storage.each import map_each
from stoker.storage.files import keep_tables, kept_tables

# Integer weights add up to between 2**60 and 2**62: as exact as 64 bits allow, and their sum cannot overflow.
_SUM_BITS = 62
# Raise it when the same rows and the same question give other arrays, or these are kept in another form.
_INDEX_VERSION = 2
_INDEX_MAGIC = b"STKUNT02"

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Index:
    """The units of a data set. K is the number of its fragments.

    Attributes:
        row_starts: Where each fragment's rows begin among all that pass, and the end. Shape [K + 1].
        arrays: What else finds the rows of a unit; which arrays, the kind of unit says.
        numbers: What was counted on the way, for reports.
    """

    row_starts: Int64
    arrays: Mapping[str, Int64] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def keep_index(path: Path, index: Index) -> None:
    """Write `index` to one file; a disk that does not take it is a warning."""
    arrays = {"row_starts": index.row_starts, **index.arrays}
    numbers = pa.schema([], {"numbers": json.dumps(dict(index.numbers))}).empty_table()
    keep_tables(path, _INDEX_MAGIC, [numbers, *(pa.table({name: pa.array(array)}) for name, array in arrays.items())])


def kept_index(path: Path) -> Index | None:
    """Return what `keep_index` wrote, mapped; None where nothing is kept, or what is kept is damaged."""
    tables = kept_tables(path, _INDEX_MAGIC, "units are counted again")
    if tables is None:
        return None
    numbers, *columns = tables
    arrays = {one.column_names[0]: numbers_in(one.column(0)) for one in columns}
    return Index(
        row_starts=arrays.pop("row_starts"), arrays=arrays, numbers=json.loads(numbers.schema.metadata[b"numbers"])
    )


def open_index(
    unit: SamplingUnit,
    catalogue: Catalogue,
    *,
    folder: Path | None,
    num_threads: int,
    on_progress: OnCount | None = None,
    token_counts: Callable[[], Int64] | None = None,
) -> Index:
    """Return the units of a data set: as they were kept, or counted now and kept.

    It was opened with `unit.rule`, so that fragments are cut between runs. Where a transform makes the tokens of a row,
    `token_counts` returns how many; else columns tell.

    Raises:
        FieldError: A column is not there or cannot serve.
        SourceError: It holds values that make no sense; file and row group are named.
    """
    path = index = None
    if folder is not None:
        content = {"version": _INDEX_VERSION, "dataset": catalogue.fingerprint, "units": unit.to_json()}
        path = Path(folder) / "source" / f"units-{fingerprint('units', content)}.stoker"
        index = kept_index(path)
    if index is None:
        row_starts = offsets_of(catalogue.num_samples)
        if isinstance(unit, Weighted):
            index = _count_weights(unit, catalogue, row_starts, num_threads, on_progress)
        elif isinstance(unit, Pack):
            counts = token_counts or partial(_count_tokens, unit, catalogue, row_starts, num_threads, on_progress)
            index = _pack_lengths(unit, counts(), row_starts)
        else:
            assert isinstance(unit, Grouped | NGram)
            runs = catalogue.runs
            if unit.rule is not None and (runs is None or runs.rule != unit.rule):
                runs = find_runs(catalogue, unit.rule, num_threads=num_threads, on_progress=on_progress)
            index = _count_in_runs(unit, row_starts, None if unit.rule is None else runs)
        if path is not None:
            keep_index(path, index)
    catalogue.runs = None
    return index


def _count_tokens(
    unit: Pack, catalogue: Catalogue, row_starts: Int64, num_threads: int, on_progress: OnCount | None
) -> Int64:
    """Return how many tokens each row has, as its columns say. Shape [N]."""
    counts = np.zeros(int(row_starts[-1]), np.int64)

    def take(j: int, table: pa.Table, _: Int64 | None) -> None:
        column = comparable(table.column(0))
        lengths = pc.list_value_length(column) if pa.types.is_nested(column.type) else pc.binary_length(column)
        counts[row_starts[j] : row_starts[j + 1]] = pc.fill_null(lengths, 0).cast(pa.int64()).to_numpy()

    columns = catalogue.types_of([_packed_column(unit, catalogue)], num_threads=num_threads)
    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    return counts


def _count_in_runs(unit: Grouped | NGram, row_starts: Int64, runs: Runs | None) -> Index:
    """Return groups, or windows, in runs; in all rows where there are none."""
    num_reappearing = 0
    # A gap in time begins a run of the same key.
    if runs is not None and runs.rule.keys and runs.rule.max_gap is None:
        num_reappearing = runs.num_reappearing(row_starts)
    num_rows = int(row_starts[-1])
    begins = np.arange(min(1, num_rows), dtype=np.int64) if runs is None else runs.begins
    # No run goes on from one chunk to the next.
    borders = np.unique(row_starts[:-1][np.diff(row_starts) > 0])
    cut = np.setdiff1d(borders, begins, assume_unique=True)
    starts, numbers = np.union1d(begins, cut), {"num_cut": len(cut), "num_reappearing": num_reappearing}
    if isinstance(unit, Grouped):
        first, starts = starts, np.append(starts, num_rows)
    else:
        length, stride = unit.length, unit.stride

        def windows(starts: Int64) -> Int64:
            lengths = np.diff(np.append(starts, num_rows))
            return np.where(lengths < length, 0, (lengths - length) // stride + 1)

        counts = windows(starts)
        total = int(counts.sum())
        inside = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        first = starts = np.repeat(starts, counts) + inside * stride
        used = np.minimum(counts * min(stride, length) + max(length - stride, 0), length * counts)
        numbers["num_lost"] = max(0, int(windows(begins).sum()) - total)
        numbers["num_unused_rows"] = num_rows - int(used.sum())
    unit_starts = np.searchsorted(first, row_starts).astype(np.int64)
    return Index(row_starts=row_starts, arrays={"unit_starts": unit_starts, "starts": starts}, numbers=numbers)


def _count_weights(
    unit: Weighted, catalogue: Catalogue, row_starts: Int64, num_threads: int, on_progress: OnCount | None
) -> Index:
    columns = catalogue.types_of([unit.column], num_threads=num_threads)
    kind, types = columns.field(0).type, pa.types
    if not any(is_so(kind) for is_so in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
        what = f"column {unit.column!r} ({kind}) cannot be the weights: only numbers can"
        raise FieldError(what, columns=[unit.column])
    weights = np.empty(int(row_starts[-1]), dtype=np.float64)

    def take(j: int, table: pa.Table, kept: Int64 | None) -> None:
        column = table.column(0)
        column = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
        values = column.cast(pa.float64(), safe=False).to_numpy()  # nulls become NaN
        wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        if wrong.size:
            row = int(wrong[0])
            value = column[row].as_py()
            raise SourceError(
                f"{catalogue.place(j, row if kept is None else int(kept[row]))}: the weight {unit.column!r} is "
                f"{value!r}; weights must be finite numbers from 0 on: filter such rows out, or write a number",
                url=catalogue.fragments[j].url,
            )
        weights[row_starts[j] : row_starts[j + 1]] = values

    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    if len(weights) and not weights.any():
        first, last = catalogue.fragments[0], catalogue.fragments[len(catalogue) - 1]
        where = f"from {first} to {last}" if len(catalogue) > 1 else f"of {first}"
        raise SourceError(
            f"the weight {unit.column!r} is 0 in every one of {len(weights):,} rows, {where}: no sample could be drawn",
            url=first.url,
        )
    cumulated = _cumulate(weights)
    numbers = {"num_unused_rows": int(np.count_nonzero(np.diff(cumulated) == 0))}
    return Index(row_starts=row_starts, arrays={"cumulated": cumulated}, numbers=numbers)


def _cumulate(weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Int64:
    """Return weights as integers, added up: exactly in proportion, as far as 62 bits hold their sum.

    Weights are finite, not negative, and not all 0. Shape [N]. The result goes from 0 to their sum. Shape [N + 1].
    """
    cumulated = np.zeros(len(weights) + 1, dtype=np.int64)
    if len(weights):
        # An upper bound of the sum from the exponents alone: counts add up alike in any order and on any machine,
        # which a sum of floats does not.
        exponents = np.frexp(weights[weights > 0])[1]
        lowest = int(exponents.min())
        bound = sum(int(n) << e for e, n in enumerate(np.bincount(exponents - lowest).tolist()))
        scale = _SUM_BITS - (bound.bit_length() + lowest)
        np.cumsum(np.rint(np.ldexp(weights, scale)).astype(np.int64), out=cumulated[1:])
    return cumulated


def _packed_column(unit: Pack, catalogue: Catalogue) -> str:
    for plan in plan_fields(catalogue.schema, catalogue.dataset.fields):
        if plan.entry.name != unit.field:
            continue
        is_words = plan.columns[0].leaf.is_words
        if plan.entry.num_levels != 1 or (is_words and plan.entry.dtype != np.uint8):
            raise FieldError(
                f"field {plan.entry} cannot be packed: that needs one list a row of values of one shape",
                columns=[column.name for column in plan.columns],
            )
        return plan.columns[0].name
    raise FieldError(f"there is no field {unit.field!r} to pack", columns=[unit.field])


def _pack_lengths(unit: Pack, counts: Int64, row_starts: Int64) -> Index:
    """Return the packed rows for documents, by their numbers of tokens without ends. Shape [N]."""
    lengths = counts + unit.num_ends
    token_starts = offsets_of(lengths)
    arrays = {"token_starts": token_starts}
    borders = token_starts[row_starts]
    if unit.split:
        unit_starts = offsets_of(-(-np.diff(borders) // unit.length))
        # A document is torn where a row ends inside it.
        before = token_starts[:-1] - np.repeat(borders[:-1], np.diff(row_starts))
        num_torn = int(np.count_nonzero(before // unit.length != (before + np.maximum(lengths, 1) - 1) // unit.length))
    else:
        fitted = [_best_fit(lengths[start:stop], length=unit.length) for start, stop in pairwise(row_starts.tolist())]
        unit_starts = offsets_of(np.array([len(starts) - 1 for _, _, starts in fitted], np.int64))
        chunk_starts = offsets_of(np.array([len(rows) for rows, _, _ in fitted], np.int64))
        shifted = (starts[:-1] + at for (_, _, starts), at in zip(fitted, chunk_starts[:-1], strict=True))
        arrays |= {
            "piece_rows": np.concatenate([_NOTHING, *(rows for rows, _, _ in fitted)]),
            "piece_firsts": np.concatenate([_NOTHING, *(firsts for _, firsts, _ in fitted)]),
            "piece_starts": np.concatenate([*shifted, chunk_starts[-1:]]),
        }
        num_torn = int(np.count_nonzero(lengths > unit.length))
    num_unused = int(np.count_nonzero(lengths == 0))
    numbers = {"num_torn": num_torn, "num_tokens": int(token_starts[-1]), "num_unused_rows": num_unused}
    return Index(row_starts=row_starts, arrays={**arrays, "unit_starts": unit_starts}, numbers=numbers)


def _best_fit(lengths: Int64, *, length: int) -> tuple[Int64, Int64, Int64]:
    """Cut documents longer than a row at its length, and put the pieces into rows, longest first, best fit.

    Every piece goes into the row that it leaves the least room in; of several, the one filled last. Rows come in the
    order of their first document, and pieces within a row in that of theirs. Returns the document of each piece, row by
    row, and its first token there, both [P]; and the first piece of each row, and the end, [R + 1].

    Source:
        Ding et al., "Fewer truncations improve language modeling", ICML 2024: best-fit packing, with a tree over the
        room that is left.
    """
    num_pieces = int((-(-lengths // length)).sum())
    document, first = np.empty(num_pieces, np.int64), np.empty(num_pieces, np.int64)
    starts = np.empty(num_pieces + 1, np.int64)
    num_rows = best_fit(lengths, length, document, first, starts)
    return document, first, starts[: num_rows + 1].copy()


# ---------------------------------------------------------------------- runs, and fragments cut between them


def find_runs(catalogue: Catalogue, rule: RunRule, *, num_threads: int, on_progress: OnCount | None = None) -> Runs:
    """Read the rule's columns once, and return where runs begin; rows of one key may not go back in time."""
    columns = catalogue.types_of(rule.columns, num_threads=num_threads)
    rule.check(columns)
    nothing, starts = rule.plain(columns.empty_table()), _group_starts(catalogue, num_threads)
    num, file_of = len(catalogue), catalogue.file_of_chunk
    begins, keys, ends = [_NOTHING] * num, [nothing] * num, [nothing] * num
    passing, num_samples, first_passing = [_NOTHING] * num, *np.zeros((2, num), np.int64)

    def take(j: int, table: pa.Table, rows: Int64 | None) -> None:
        table, num_samples[j] = rule.plain(table), table.num_rows
        if not catalogue.passes_all:
            groups, first, sizes = catalogue.group_rows(j)
            here = ranges(starts[file_of[j]][groups] + first, offsets_of(sizes))
            passing[j] = here if rows is None else here[rows]
            first_passing[j] = 0 if rows is None or not len(rows) else rows[0]
        found, is_wrong = rule.begins(table)
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise _not_sorted(catalogue, rule, j, row if rows is None else int(rows[row]))
        begins[j] = np.flatnonzero(found)
        keys[j] = table.select(rule.keys).take(pa.array(begins[j]))
        ends[j] = table.take(pa.array([0, table.num_rows - 1])) if table.num_rows else nothing

    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    first_rows, filled = np.cumsum(num_samples) - num_samples, np.flatnonzero(num_samples)
    # First and last row of each, side by side: at every even place a fragment meets the one before it.
    meeting, is_wrong = (found[::2] for found in rule.begins(pa.concat_tables([nothing, *ends])))
    for n in np.flatnonzero(is_wrong[1:] & (np.diff(file_of[filled]) == 0)).tolist():
        j = int(filled[n + 1])
        raise _not_sorted(catalogue, rule, j, int(first_passing[j]))
    parts = np.concatenate([_NOTHING, *(one + at for one, at in zip(begins, first_rows.tolist(), strict=True))])
    return Runs(
        rule=rule,
        num_samples=int(num_samples.sum()),
        begins=np.setdiff1d(parts, first_rows[filled[~(meeting | is_wrong)]], assume_unique=True),
        parts=parts,
        keys=pa.concat_tables([nothing.select(rule.keys), *keys]).combine_chunks(),
        passing=None if catalogue.passes_all else np.concatenate([_NOTHING, *passing]),
    )


def _not_sorted(catalogue: Catalogue, rule: RunRule, i: int, row: int) -> SourceError:
    """Return the error for a row of fragment i that goes back in time."""
    what = f"the rows of one {', '.join(rule.keys)}" if rule.keys else "all rows"
    return SourceError(
        f"{catalogue.place(i, row)}: {rule.timestamp!r} is earlier than in the row before, or missing; an NGram needs "
        f"{what} side by side, sorted by it",
        url=catalogue.fragments[i].url,
    )


def _group_starts(catalogue: Catalogue, num_threads: int) -> list[Int64]:
    """Return where each file's row groups begin among all rows of all files, and where the last one ends."""

    def starts_in(file: int) -> Int64:
        return offsets_of(catalogue.footer(file).groups["num_rows"])

    found = map_each(range(len(catalogue.files)), starts_in, num_threads=num_threads)
    firsts = offsets_of(np.array([starts[-1] for starts in found], np.int64))
    return [first + starts for first, starts in zip(firsts.tolist(), found, strict=False)]


def cut_between_runs(
    catalogue: Catalogue, runs: Runs, chosen: Selection, footers: Footers, *, num_threads: int
) -> Survey:
    """Return the survey of the same files with fragments cut between runs."""
    starts = _group_starts(catalogue, num_threads)

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

    def plan(file: int, groups: Sequence[tuple[int, int]]) -> list[FragmentRange]:
        is_here, begins = partial(is_cutting, file), partial(begins_in, file)
        return plan_fragments(groups, chunk_bytes=chosen.chunk_bytes, is_cutting=is_here, begins_in=begins)

    known = catalogue.survey
    found = survey(known.files, chosen, footers, num_threads=num_threads, plan=plan)
    some = found.fragments
    first_of_file = np.cumsum([0, *map(len, starts)])[some["file"]]
    group_starts = np.concatenate([_NOTHING, *starts])
    begin, end = group_starts[first_of_file + some["start"]], group_starts[first_of_file + some["stop"]]
    parts = [begin + some["row_start"], begin + some["row_stop"]]
    begin, end = np.where(some["row_start"] >= 0, parts, [begin, end])
    return replace(found, table=known.table, num_samples=runs.num_before(end) - runs.num_before(begin))
