"""Runs of samples that share values: where they begin, and the tables that keep the values once a run.

query_id  ┆ 7 7 7 │ 9 9 │ 4 ┆        run  ┆ 0 0 0 1 1 2 ┆        query_id  ┆ 7 9 4 ┆
q_price   ┆ a a a │ b b │ b ┆   ─►   label┆ 1 0 0 0 1 0 ┆        q_price   ┆ a b b ┆
label     ┆ 1 0 0 │ 0 1 │ 0 ┆        one row a sample            one row a run

A run ends where any bit of any field that is shared changes, so every sample gets back exactly what it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker._native import mark_changes
from stoker.cache.layout import RECORDS, Table, make_table, table_names
from stoker.offsets import offsets_of, ranges
from stoker.source.columns import Packable, Pieces, Stack, joined
from stoker.spec import Array, Ragged, Spec, run_name

Bools = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


def split(arrays: Packable, spec: Spec, *, num_samples: int) -> list[Table]:
    """Return the tables that keep the fields of a chunk, in the order of `spec.tables`.

    Args:
        arrays: All fields, each with N rows.
        spec: What a sample is; the arrays fit it.
        num_samples: N.
    """
    own, *shared = spec.tables
    if not shared:
        return [make_table(RECORDS, spec, num_rows=num_samples, arrays=arrays)]
    names = table_names(spec)
    kept: dict[str, Array | Ragged | Stack | Pieces] = {
        entry.name: arrays[entry.name] for entry in spec if not entry.shared_by
    }
    tables = []
    for key, name, table in zip(spec.keys, names[1:], shared, strict=True):
        whole = {entry.name: joined(arrays[entry.name]) for entry in table}  # looked at, and then taken from
        begins = find_begins(list(whole.values()), num_rows=num_samples)
        kept[run_name(key)] = (np.cumsum(begins) - 1).astype(np.uint32)
        rows = np.flatnonzero(begins)
        taken = {name: take_rows(field, rows) for name, field in whole.items()}
        tables.append(make_table(name, table, num_rows=len(rows), arrays=taken))
    return [make_table(RECORDS, own, num_rows=num_samples, arrays=kept), *tables]


def find_begins(fields: Sequence[Array | Ragged | Stack | Pieces], *, num_rows: int) -> Bools:
    """Return which rows begin a run: the first one, and each of which a bit differs from the row before. Shape [N].

    Args:
        fields: Each with N rows.
        num_rows: N.
    """
    begins = np.zeros(num_rows, dtype=np.bool_)
    begins[:1] = True
    for field in map(joined, fields):
        if isinstance(field, Ragged):
            _mark_lists(field, begins)
        elif isinstance(field, Stack):
            _mark_stack(field, begins)
        else:
            _mark_array(field, begins)
    return begins


def _mark_array(array: Array, begins: Bools) -> None:
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if not width or not len(array):
        return
    rows = np.ascontiguousarray(array).reshape(-1)
    if width <= 8 and width & (width - 1) == 0:  # a number or as wide: NumPy compares them at the speed of memory
        numbers = rows.view(f"u{width}")
        begins[1:] |= numbers[1:] != numbers[:-1]
        return
    starts = np.arange(len(array) + 1, dtype=np.int64) * width
    mark_changes(rows.view(np.uint8), starts, begins)


def _mark_stack(stack: Stack, begins: Bools) -> None:
    before: list[Array] = []
    for piece in stack.pieces:
        for column in piece.columns:
            _mark_array(column, begins[piece.start : piece.stop])
        if len(piece.columns[0]) == 0:
            continue
        # Pieces may differ in how wide their integers still are: what is compared is what they become.
        first = [column[:1].astype(stack.dtype) for column in piece.columns]
        if any(a.tobytes() != b.tobytes() for a, b in zip(before, first, strict=False)):
            begins[piece.start] = True
        before = [column[-1:].astype(stack.dtype) for column in piece.columns]


def _mark_lists(ragged: Ragged, begins: Bools) -> None:
    starts: Index = np.ascontiguousarray(ragged.offsets)
    values: Any = ragged.values
    while isinstance(values, Ragged):
        # Lists of lists are the same where the inner lists are as long, and all their values the same.
        mark_changes(np.diff(values.offsets).view(np.uint8), starts * 8, begins)
        starts, values = values.offsets[starts], values.values
    width = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8) if width and len(values) else np.empty(0, np.uint8)
    if width:
        mark_changes(data, starts * width, begins)
    else:
        begins[1:] |= np.diff(starts)[1:] != np.diff(starts)[:-1]


def take_rows(field: Array | Ragged | Stack, rows: Index) -> Array | Ragged:
    """Return some rows of a field as new arrays.

    Args:
        field: With N rows.
        rows: Rising. Shape [G].
    """
    if isinstance(field, Ragged):
        starts = field.offsets[rows]
        offsets = offsets_of(field.offsets[rows + 1] - starts)
        return Ragged(take_rows(field.values, ranges(starts, offsets)), offsets)
    if isinstance(field, Stack):
        taken = np.empty((len(rows), int(np.prod(field.shape[1:], dtype=np.int64))), field.dtype)
        for piece in field.pieces:
            low, high = np.searchsorted(rows, [piece.start, piece.stop])
            for j, column in enumerate(piece.columns):
                taken[low:high, j] = column[rows[low:high] - piece.start]
        return taken.reshape(len(rows), *field.shape[1:])
    return np.take(field, rows, axis=0)
