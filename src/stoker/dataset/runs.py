"""Runs of consecutive rows: they begin at another key, or after a gap in time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.arrow import unencoded
from stoker.errors import FieldError
from stoker.fields.offsets import Bools, Int64

_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, kw_only=True)
class RunRule:
    """What keeps neighbouring rows in one run: equal keys, and times that go forward by `max_gap` at most.

    Null equals null, and NaN equals NaN.
    """

    keys: tuple[str, ...]
    timestamp: str | None = None
    max_gap: int | float | timedelta | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that must be read to know."""
        return tuple(dict.fromkeys(self.keys if self.timestamp is None else (*self.keys, self.timestamp)))

    def to_json(self) -> dict[str, object]:
        """Return everything that decides where runs begin."""
        gap = self.max_gap
        return {"keys": self.keys, "timestamp": self.timestamp, "max_gap": None if gap is None else repr(gap)}

    def check(self, schema: pa.Schema) -> None:
        """Raise where a key is a list or struct, the timestamp no number or time, or `max_gap` does not fit it."""
        for name in self.keys:
            kind = comparable_type(schema.field(name).type)
            if pa.types.is_nested(kind):
                raise FieldError(
                    f"column {name!r} ({kind}) cannot be a key: only numbers, dates and words can", columns=[name]
                )
        if self.timestamp is None:
            return
        kind = schema.field(self.timestamp).type
        is_time = pa.types.is_temporal(kind)
        if not (is_time or pa.types.is_integer(kind) or pa.types.is_floating(kind)) or pa.types.is_interval(kind):
            raise FieldError(
                f"column {self.timestamp!r} ({kind}) cannot be the timestamp: only numbers, dates and times can",
                columns=[self.timestamp],
            )
        if isinstance(self.max_gap, timedelta) and not is_time:
            raise FieldError(
                f"max_gap is a timedelta, but the timestamp {self.timestamp!r} is {kind}: give a number",
                columns=[self.timestamp],
            )

    def plain(self, rows: pa.Table) -> pa.Table:
        """Return rows with keys in types that can be compared and taken from: words that are views cannot."""
        for i, name in enumerate(rows.column_names):
            rows = rows.set_column(i, name, comparable(rows.column(i))) if name in self.keys else rows
        return rows

    def begins(self, rows: pa.Table) -> tuple[Bools, Bools]:
        """Return which of consecutive rows begin a run, and which go back in time within their key. Shape [N] each.

        Rows are as `plain` returns them. The first row begins a run; a row without a time goes back.
        """
        num = rows.num_rows
        begins, is_wrong = np.zeros(num, dtype=np.bool_), np.zeros(num, dtype=np.bool_)
        if not num:
            return begins, is_wrong
        for name in self.keys:
            begins[1:] |= ~_equals_before(rows.column(name))
        begins[0] = True
        if self.timestamp is not None:
            column = rows.column(self.timestamp)
            if column.null_count:
                return begins, column.is_null().to_numpy()
            times = _as_numbers(column)
            before, after = times[:-1], times[1:]
            is_wrong[1:] = ~begins[1:] & ~(after >= before)  # not `after < before`: that is false for NaN
            if self.max_gap is not None:
                # Unsigned, a step forward is right even where it is longer than int64 can say.
                steps = np.diff(times if times.dtype.kind == "f" else times.view(np.uint64))
                begins[1:] |= ~((steps <= self._gap_in(column.type)) | (after < before))
        return begins, is_wrong

    def _gap_in(self, kind: pa.DataType) -> int | float:
        """Return `max_gap` in the steps of a column."""
        gap = self.max_gap
        assert gap is not None
        if not isinstance(gap, timedelta):
            return gap
        gap_ns: float = (gap // timedelta(microseconds=1)) * 1000
        if pa.types.is_date32(kind):
            return gap_ns / (86_400 * _UNIT_NS["s"])
        return gap_ns / float(_UNIT_NS["ms" if pa.types.is_date64(kind) else kind.unit])


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of the rows that pass the filter, counted through all of the data set in its fixed order.

    Attributes:
        num_samples: Rows that pass.
        begins: Rows that begin a run. Shape [R].
        parts: The same, and the first row of each fragment. Shape [P].
        keys: The keys of each part; P rows.
        passing: Of each row that passes, its number among all rows of all files; None where all pass. Shape [N].
    """

    rule: RunRule
    num_samples: int
    begins: Int64
    parts: Int64
    keys: pa.Table
    passing: Int64 | None

    def num_reappearing(self, chunk_starts: Int64) -> int:
        """Return how many runs have a key that an earlier run of their chunk had, too.

        `chunk_starts` says where each chunk's rows begin, and the end. Shape [K + 1].
        """
        total = 0
        for start, stop in pairwise(chunk_starts.tolist()):
            low, high = np.searchsorted(self.begins, [start, stop]).tolist()
            num_runs = high - low + (low == len(self.begins) or int(self.begins[low]) != start)
            if start < stop and num_runs > 1:
                first = int(np.searchsorted(self.parts, start, side="right")) - 1
                keys = self.keys.slice(first, int(np.searchsorted(self.parts, stop)) - first)
                total += num_runs - _num_distinct(keys)
        return total

    def num_before(self, rows: npt.ArrayLike) -> Int64:
        """Return how many rows pass before each of some rows, which count all rows of all files."""
        return np.asarray(rows, np.int64) if self.passing is None else np.searchsorted(self.passing, rows)


def _equals_before(column: pa.ChunkedArray) -> Bools:
    """Return whether each of N values but the first equals the one before it. Shape [N - 1]."""
    kind, num = column.type, len(column)
    if pa.types.is_null(kind):
        return np.ones(num - 1, dtype=np.bool_)
    before, after = column.slice(0, num - 1), column.slice(1)
    same = pc.fill_null(pc.equal(before, after), False)
    if column.null_count:
        same = pc.or_(same, pc.and_(before.is_null(), after.is_null()))
    if pa.types.is_floating(kind):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False))
    result: Bools = same.to_numpy()
    return result


def _num_distinct(keys: pa.Table) -> int:
    if keys.num_columns == 1:
        return int(pc.count_distinct(keys.column(0), mode="all").as_py())
    return int(keys.group_by(keys.column_names).aggregate([]).num_rows)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as its `comparable_type`."""
    kind = comparable_type(column.type)
    return column if column.type == kind else column.cast(kind)


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose values can be compared: the same values, without an encoding of their own."""
    kind = unencoded(kind)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind


def _as_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64] | npt.NDArray[np.uint64] | npt.NDArray[np.float64]:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    wide = pa.float64() if pa.types.is_floating(kind) else pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
    numbers: Int64 = column.cast(wide).to_numpy()
    return numbers
