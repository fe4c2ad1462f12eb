"""The units of a data set: counted once, in one pass over the columns that decide them, and kept for the next start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import best_fit as fit_into
from stoker.columns.kinds import Form
from stoker.columns.plan import plan_fields
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.kept import FORMAT_VERSION, Index, keep_index, kept_index
from stoker.dataset.runs import Runs, comparable
from stoker.dataset.units.cutting import find_runs
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.errors import FieldError, SourceError
from stoker.fields.offsets import Int64
from stoker.hashing import fingerprint

# Integer weights add up to between 2**60 and 2**62: as exact as 64 bits allow, and their sum cannot overflow.
_SUM_BITS = 62


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

    Args:
        unit: What is counted.
        catalogue: The opened data set; opened with `unit.rule`, so that fragments are cut between runs.
        folder: Where they are kept for the next start; None keeps nothing.
        num_threads: Threads that read.
        on_progress: Told how far the pass is.
        token_counts: Returns how many tokens each row has, where a transform makes them; else columns tell.

    Raises:
        FieldError: A column is not there or cannot serve.
        SourceError: It cannot be read, or holds values that make no sense; file and row group are named.
    """
    path = None
    if folder is not None:
        content = {"version": FORMAT_VERSION, "dataset": catalogue.fingerprint, "units": unit.to_json()}
        path = Path(folder) / "source" / f"units-{fingerprint('units', content)}.stoker"
        kept = kept_index(path)
        if kept is not None:
            catalogue.runs = None
            return kept
    if isinstance(unit, Pack) and token_counts is not None:
        index = pack_lengths(unit, token_counts(), catalogue.num_samples)
    else:
        index = _count(unit, catalogue, num_threads, on_progress)
    catalogue.runs = None
    if path is not None:
        keep_index(path, index)
    return index


def _count(unit: SamplingUnit, catalogue: Catalogue, num_threads: int, on_progress: OnCount | None) -> Index:
    if isinstance(unit, Grouped | NGram):
        runs = None
        if unit.rule is not None:
            runs = catalogue.runs
            if runs is None or runs.rule != unit.rule:
                runs = find_runs(catalogue, unit.rule, num_threads=num_threads, on_progress=on_progress)
        row_starts = _starts(catalogue.num_samples)
        if isinstance(unit, NGram):
            index = count_windows(unit, row_starts, None if runs is None else runs.begins)
            if runs is None or not unit.keys or unit.max_gap is not None:  # a gap begins a run of the same key
                return index
            return replace(index, numbers={**index.numbers, "num_reappearing": runs.num_reappearing(row_starts)})
        assert runs is not None
        return _count_groups(runs, row_starts)
    if isinstance(unit, Weighted):
        return _count_weights(unit, catalogue, num_threads, on_progress)
    assert isinstance(unit, Pack)
    return pack_lengths(unit, _token_counts(unit, catalogue, num_threads, on_progress), catalogue.num_samples)


def _starts(num_samples: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(num_samples, dtype=np.int64)]).astype(np.int64)


def cut_runs(begins: Int64, row_starts: Int64) -> tuple[Int64, int]:
    """Return where runs begin when no run goes on from one chunk to the next, and how many borders cut one.

    Args:
        begins: Rows that begin a run of the whole data set. Shape [R].
        row_starts: Where each chunk's rows begin, and the end. Shape [K + 1].
    """
    borders = np.unique(row_starts[:-1][np.diff(row_starts) > 0])
    cut = np.setdiff1d(borders, begins, assume_unique=True)
    return np.union1d(begins, cut), len(cut)


def _count_groups(runs: Runs, row_starts: Int64) -> Index:
    starts, num_cut = cut_runs(runs.begins, row_starts)
    unit_starts = np.searchsorted(starts, row_starts).astype(np.int64)
    return Index(
        row_starts=row_starts,
        arrays={"unit_starts": unit_starts, "starts": np.append(starts, row_starts[-1])},
        numbers={"num_cut": num_cut, "num_reappearing": runs.num_reappearing(row_starts)},
    )


def count_windows(unit: NGram, row_starts: Int64, begins: Int64 | None) -> Index:
    """Return the windows over runs of rows.

    Args:
        unit: Length and stride.
        row_starts: Where each chunk's rows begin, and the end. Shape [K + 1].
        begins: Rows that begin a run; None where all rows are one. Shape [R].
    """
    num_rows = int(row_starts[-1])
    begins = np.arange(min(1, num_rows), dtype=np.int64) if begins is None else begins
    starts, num_cut = cut_runs(begins, row_starts)

    def windows(starts: Int64) -> Int64:
        lengths = np.diff(np.append(starts, num_rows))
        return np.where(lengths < unit.length, 0, (lengths - unit.length) // unit.stride + 1)

    counts = windows(starts)
    total = int(counts.sum())
    inside = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(starts, counts) + inside * unit.stride
    used = np.minimum(counts * min(unit.stride, unit.length) + max(unit.length - unit.stride, 0), unit.length * counts)
    return Index(
        row_starts=row_starts,
        arrays={"unit_starts": np.searchsorted(first, row_starts).astype(np.int64), "starts": first},
        numbers={
            "num_cut": num_cut,
            "num_lost": max(0, int(windows(begins).sum()) - total),
            "num_unused_rows": num_rows - int(used.sum()),
        },
    )


def _count_weights(unit: Weighted, catalogue: Catalogue, num_threads: int, on_progress: OnCount | None) -> Index:
    columns = catalogue.types_of([unit.column])
    kind = columns.field(0).type if len(columns) == 1 else None
    is_number = kind is not None and any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    )
    if not is_number:
        raise FieldError(
            f"column {unit.column!r} ({kind or 'a struct'}) cannot be the weights: only numbers can",
            columns=[unit.column],
        )
    row_starts = _starts(catalogue.num_samples)
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
    cumulated = cumulate(weights)
    return Index(
        row_starts=row_starts,
        arrays={"cumulated": cumulated},
        numbers={"num_unused_rows": int(np.count_nonzero(np.diff(cumulated) == 0))},
    )


def cumulate(weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Int64:
    """Return weights as integers, added up: exactly in proportion, as far as 62 bits hold their sum.

    Args:
        weights: Finite, not negative, not all 0. Shape [N].

    Returns:
        From 0 to their sum. Shape [N + 1].
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


def _token_counts(unit: Pack, catalogue: Catalogue, num_threads: int, on_progress: OnCount | None) -> Int64:
    """Return how many values the packed field has in every row that passes. Shape [N]."""
    columns = catalogue.types_of([packed_column(unit, catalogue)])
    row_starts = _starts(catalogue.num_samples)
    counts = np.zeros(int(row_starts[-1]), dtype=np.int64)

    def take(j: int, table: pa.Table, _: Int64 | None) -> None:
        counts[row_starts[j] : row_starts[j + 1]] = _lengths(table.column(0))

    catalogue.read_every(columns, take, num_threads=num_threads, on_progress=on_progress)
    return counts


def packed_column(unit: Pack, catalogue: Catalogue) -> str:
    """Return the column that the packed field is made of.

    Raises:
        FieldError: There is no such field, it is not ragged, or is ragged twice over.
    """
    for plan in plan_fields(catalogue.schema, catalogue.dataset.fields):
        if plan.entry.name != unit.field:
            continue
        is_words = plan.columns[0].leaf.form in (Form.BYTES, Form.FIXED_BYTES)
        if plan.entry.num_levels != 1 or (is_words and plan.entry.dtype != np.uint8):
            raise FieldError(
                f"field {plan.entry} cannot be packed: that needs one list a row of values of one shape",
                columns=[column.name for column in plan.columns],
            )
        return plan.columns[0].name
    raise FieldError(f"there is no field {unit.field!r} to pack", columns=[unit.field])


def _lengths(column: pa.ChunkedArray) -> Int64:
    column = comparable(column)
    lengths = pc.list_value_length(column) if pa.types.is_nested(column.type) else pc.binary_length(column)
    found: Int64 = pc.fill_null(lengths, 0).cast(pa.int64()).to_numpy()
    return found


def pack_lengths(unit: Pack, counts: Int64, num_samples: Int64) -> Index:
    """Return the packed rows for documents of these lengths.

    Args:
        unit: How to pack.
        counts: Tokens of every row that passes, without ends. Shape [N].
        num_samples: Rows of each fragment. Shape [K].
    """
    row_starts = _starts(num_samples)
    lengths = counts + unit.num_ends
    token_starts = _starts(lengths)
    arrays = {"token_starts": token_starts}
    borders = token_starts[row_starts]
    if unit.split:
        unit_starts = _starts(-(-np.diff(borders) // unit.length))
        # A document is torn where a row ends inside it.
        chunk_of_row = np.repeat(np.arange(len(num_samples)), num_samples)
        before = token_starts[:-1] - borders[:-1][chunk_of_row]
        num_torn = int(np.count_nonzero(before // unit.length != (before + np.maximum(lengths, 1) - 1) // unit.length))
    else:
        documents, firsts, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.zeros(1, np.int64)]
        rows_of = []
        num_pieces = 0
        for start, stop in zip(row_starts[:-1].tolist(), row_starts[1:].tolist(), strict=True):
            document, first, piece_starts = best_fit(lengths[start:stop], length=unit.length)
            documents.append(document)
            firsts.append(first)
            starts.append(piece_starts[1:] + num_pieces)
            rows_of.append(len(piece_starts) - 1)
            num_pieces += len(document)
        unit_starts = _starts(np.array(rows_of, dtype=np.int64))
        arrays |= {
            "piece_rows": np.concatenate(documents),
            "piece_firsts": np.concatenate(firsts),
            "piece_starts": np.concatenate(starts),
        }
        num_torn = int(np.count_nonzero(lengths > unit.length))
    return Index(
        row_starts=row_starts,
        arrays={**arrays, "unit_starts": unit_starts},
        numbers={
            "num_torn": num_torn,
            "num_tokens": int(token_starts[-1]),
            "num_unused_rows": int(np.count_nonzero(lengths == 0)),
        },
    )


def best_fit(lengths: Int64, *, length: int) -> tuple[Int64, Int64, Int64]:
    """Cut documents longer than a row at its length, and put the pieces into rows, longest first, best fit.

    Every piece goes into the row that it leaves the least room in; of several, the one filled last. Rows come in the
    order of their first document, and pieces within a row in that of theirs.

    Args:
        lengths: Tokens of each document; those without tokens are in no row. Shape [N].
        length: Tokens of a row.

    Returns:
        Document of each piece, row by row. Shape [P].
        Its first token in the document. Shape [P].
        First piece of each row, and the end. Shape [R + 1].

    Source:
        Ding et al., "Fewer truncations improve language modeling", ICML 2024: best-fit packing, with a tree over the
        room that is left.
    """
    num_pieces = int((-(-lengths // length)).sum())
    document, first = np.empty(num_pieces, np.int64), np.empty(num_pieces, np.int64)
    starts = np.empty(num_pieces + 1, np.int64)
    num_rows = fit_into(lengths, length, document, first, starts)
    return document, first, starts[: num_rows + 1].copy()
