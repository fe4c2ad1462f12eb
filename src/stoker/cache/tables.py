"""The tables of a chunk: what neighbouring samples share is kept once a run, and rows are packed as they are read.

    samples   query_id  ┆ 7 7 7 │ 9 9 │ 4 ┆        run   ┆ 0 0 0 1 1 2 ┆        query_id  ┆ 7 9 4 ┆
              q_price   ┆ a a a │ b b │ b ┆   ─►   label ┆ 1 0 0 0 1 0 ┆        q_price   ┆ a b b ┆
              label     ┆ 1 0 0 │ 0 1 │ 0 ┆        one row a sample             one row a run

    columns   dense     ┆ a a a … │ b b b … ┆      records  ┆ 7 a b ┆ 8 a b ┆ 9 a b ┆
              id        ┆ 7 8 9 … ┆           ─►   the fixed-width fields of a row side by side

    lists     a         ┆ 1 1 1 │ 2 │ 3 3 ┆        strips   ┆ 1 1 1 x │ 2 y y │ 3 3 ┆
              b         ┆ x │ y y │ ┆         ─►   places   ┆ 0 3 1 │ 4 1 2 │ 7 2 0 ┆
                                                   where those of a row lie, and how many values of each field

A run ends where any bit of any field that is shared changes, so every sample gets back exactly what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import ListPacker, RecordPacker, mark_changes
from stoker.cache.format import STRIP_UNIT_BYTES
from stoker.columns import BatchColumns, Packable, Pieces, in_pieces, joined
from stoker.errors import FieldError
from stoker.fields.offsets import Bools, Int64, offsets_of, ranges
from stoker.fields.spec import Array, Ragged, Spec, run_name

_MOST_NUMBER = 2**32 - 1

TableRows: TypeAlias = tuple[int, Packable]
"""Samples of a chunk, or runs of them that share values: how many, and the fields that each of them has."""


def split(arrays: Packable, spec: Spec, *, num_samples: int) -> list[TableRows]:
    """Return what each of `spec.tables` keeps of a chunk."""
    _, *shared = spec.tables
    if not shared:
        return [(num_samples, arrays)]
    kept: dict[str, Array | Ragged | Pieces] = {one.name: arrays[one.name] for one in spec if not one.deduplicated_by}
    tables: list[TableRows] = [(num_samples, kept)]
    for key, table in zip(spec.keys, shared, strict=True):
        whole = {entry.name: joined(arrays[entry.name]) for entry in table}  # looked at, and then taken from
        begins = find_begins(list(whole.values()), num_rows=num_samples)
        kept[run_name(key)] = (np.cumsum(begins) - 1).astype(np.uint32)
        rows = np.flatnonzero(begins)
        tables.append((len(rows), {name: take_rows(field, rows) for name, field in whole.items()}))
    return tables


def find_begins(fields: Sequence[Array | Ragged | Pieces], *, num_rows: int) -> Bools:
    """Return which of N rows begin a run: the first one, and each of which a bit differs from the row before."""
    begins = np.zeros(num_rows, dtype=np.bool_)
    begins[:1] = True
    for field in map(joined, fields):
        if isinstance(field, Ragged):
            _mark_lists(field, begins)
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


def _mark_lists(ragged: Ragged, begins: Bools) -> None:
    starts: Int64 = np.ascontiguousarray(ragged.offsets)
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


def take_rows(field: Array | Ragged, rows: Int64) -> Array | Ragged:
    """Return some rows of a field, which rise, as new arrays."""
    if isinstance(field, Ragged):
        starts = field.offsets[rows]
        offsets = offsets_of(field.offsets[rows + 1] - starts)
        return Ragged(take_rows(field.values, ranges(starts, offsets)), offsets)
    return np.take(field, rows, axis=0)


def record_packer(fields: Packable, spec: Spec) -> RecordPacker:
    """Return what packs the records of a chunk, some rows at a time. The fields must fit the spec, and outlive it."""
    packer = RecordPacker(spec.record_bytes)
    for entry in spec.fixed:
        if not entry.value_bytes:
            continue
        packer.add_field(spec.record_offsets[entry.name], entry.dtype.itemsize)
        field = fields[entry.name]
        assert not isinstance(field, Ragged)
        for columns in in_pieces(field).parts:
            if isinstance(columns, BatchColumns):
                kind = columns.dtype
                packer.add_batch(columns.exported, columns.numbers, kind.itemsize, kind.kind == "i")
            else:
                packer.add_arrays(columns)
    return packer


Strips: TypeAlias = tuple[npt.NDArray[np.uint32], Int64, Callable[[Array, int, int], None]]
"""The lists of N rows, of F fields, about to be laid side by side: three things.

Of each row, where its strip begins, in units of 8 bytes, and how many values of each field it has, shape [N, 1 + F].
Where each strip begins, and the last one ends, in bytes, shape [N + 1]. What lays those of rows [start, stop) where a
block begins, uint8.
"""


def make_strips(spec: Spec, arrays: Packable) -> Strips | None:
    """Return the strips of a table; None where its lists do not lie side by side. Too many for a chunk raise."""
    if not spec.strip:
        return None
    packer = ListPacker()
    counts = []
    for entry in spec.strip:
        field = arrays[entry.name]
        assert isinstance(field, Ragged)
        packer.add_field(np.ascontiguousarray(field.offsets), entry.value_bytes, in_pieces(field.values).arrays)
        counts.append(np.diff(field.offsets))
    num_bytes = sum(count * entry.value_bytes for entry, count in zip(spec.strip, counts, strict=True))
    ends = offsets_of(-(-num_bytes // STRIP_UNIT_BYTES))
    if max(int(ends[-1]), *(int(count.max(initial=0)) for count in counts)) > _MOST_NUMBER:
        names = ", ".join(entry.name for entry in spec.strip)
        raise FieldError(
            f"the lists of one chunk take {int(ends[-1]) * STRIP_UNIT_BYTES:,} bytes in the fields {names}; 32 GiB are "
            "the most: make chunks smaller by chunk_size=",
            columns=[entry.name for entry in spec.strip],
        )
    places = np.stack([ends[:-1], *counts], axis=1).astype(np.uint32)
    return places, ends * STRIP_UNIT_BYTES, lambda block, start, stop: packer.pack(block, places, start, stop)
