"""A table to the arrays of all its fields, left where they are, in the narrower form that they are kept in.

Views where Arrow's layout allows, never a Python object a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.arrow import is_list
from stoker.columns.arrays import (
    buffer_of,
    cast_numbers,
    decoded,
    is_held,
    null_error,
    numbers_of,
    split_lists,
    stored,
    unscaled_of,
    validity,
)
from stoker.columns.pieces import BatchColumns, Packable, Pieces, joined
from stoker.columns.plan import ColumnPlan, FieldPlan, plan_fields
from stoker.columns.results import Columns, as_table
from stoker.columns.words import as_binary, codes_of
from stoker.errors import FieldError
from stoker.fields.compact import MisfitError, narrow
from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array, Arrays, Field, Ragged

# Schemas whose plans are kept.
_MAX_KNOWN = 8
# Columns for which a batch is exported: 0.2 us each, and some more for the batch, where 3 us each are saved.
_MANY_COLUMNS = 16
# Pieces of fewer bytes are joined: one more costs some microseconds, as long as these take to copy.
_PIECE_BYTES = 64 << 10

Unfolded: TypeAlias = tuple[Array, tuple[Array, ...], Array | None]
"""Values, offsets of each ragged level, and which rows had a value; see `unfold`."""


def to_arrays(columns: Columns, fields: Mapping[str, Field], *, where: str) -> Arrays:
    """Return the fields as they are delivered, with the names, dtypes and shapes of `plan_spec(...).delivered`.

    Arrays are C-contiguous. They are views of Arrow's memory, and then read-only, where the layout is the same: numbers
    without nulls, fixed-size lists, values of lists, where they are in one piece. Stacked fields are new.

    Raises:
        FieldError: As `plan_spec`; or a value cannot become what its field asks for, or is null without an answer.
        FieldMismatchError: Something in a mapping is no array of rows.
    """
    table = as_table(columns, where=where)
    packable = _converted(table, plan_fields(table.schema, fields), where)
    return {name: joined(field) for name, field in packable.items()}


class Converter:
    """Makes the fields of chunks, with the names, dtypes and shapes of `plan_spec` of the same schema.

    As `to_arrays`, but in the form they are kept in, stacked fields still as their columns and others in pieces:
    packing brings these together. Every value has been checked: what is left to do cannot fail. Safe to use from
    several threads.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        # Chunks have one schema, but for what a transform may return, and for columns that come as dictionaries now
        # and then: planning a hundred columns takes milliseconds.
        self._known: tuple[tuple[pa.Schema, Sequence[FieldPlan]], ...] = ()

    def convert(self, columns: Columns, *, where: str) -> Packable:
        """Return the fields of a chunk; arguments and errors as `to_arrays`."""
        table = as_table(columns, where=where)
        plans = self._plans(table.schema)
        fields = _converted(table, plans, where)
        for plan in plans:
            if plan.kept.compact is not None:
                fields[plan.kept.name] = _narrowed(fields[plan.kept.name], plan, where)
        return fields

    def coded(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns of strings that become numbers: their dictionary is as good. Errors as `plan_spec`."""
        columns = (column for plan in self._plans(schema) for column in plan.columns)
        coded = (column for column in columns if column.codes is not None and not column.levels)
        return frozenset(column.name for column in coded if column.leaf.is_words and column.leaf.width is None)

    def _plans(self, schema: pa.Schema) -> Sequence[FieldPlan]:
        for known, plans in self._known:
            if known.equals(schema, check_metadata=True):
                return plans
        plans = plan_fields(schema, self._fields)
        self._known = ((schema, plans), *self._known)[:_MAX_KNOWN]
        return plans


def _converted(table: pa.Table, plans: Sequence[FieldPlan], where: str) -> dict[str, Array | Ragged | Pieces]:
    """Return all planned fields; stacked ones as the columns they are made of."""
    # Batches share their borders among all columns, so that stacked columns need not be joined first.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    is_wide = sum(len(plan.alike) for plan in plans if plan.alike is not None) >= _MANY_COLUMNS
    exported = [ExportedBatch(batch.__arrow_c_array__()[1]) if is_wide else None for batch in batches]
    _refuse_nulls(table, plans, exported, where)
    fields: dict[str, Array | Ragged | Pieces] = {}
    for plan in plans:
        mask = None if plan.mask is None else np.ones((table.num_rows, len(plan.columns)), np.bool_)
        if plan.is_stacked:
            shape = (table.num_rows, *plan.entry.shape)
            fields[plan.entry.name] = Pieces(plan.entry.dtype, shape, _stacked(plan, batches, exported, where, mask))
        else:
            fields[plan.entry.name] = _single(plan.columns[0], batches, where, None if mask is None else mask[:, 0])
        if plan.mask is not None and mask is not None:
            fields[plan.mask.name] = mask.reshape(table.num_rows, *plan.mask.shape)
    return fields


def _refuse_nulls(
    table: pa.Table, plans: Sequence[FieldPlan], exported: Sequence[ExportedBatch | None], where: str
) -> None:
    """Raise one error for all columns whose nulls are seen without looking into them."""
    found: dict[str, int] = {}
    for plan in plans:
        columns: Sequence[ColumnPlan] = plan.columns
        if plan.alike is not None and None not in exported:
            numbers = {i for batch in exported if batch is not None for i in batch.with_nulls(plan.alike)}
            columns = [plan.columns[i] for i in sorted(numbers)]
        for column in columns:
            if column.fill is None and not column.has_mask and (num := table.column(column.number).null_count):
                found[column.name] = num
    if found:
        raise null_error(found, where=where)


def _single(
    column: ColumnPlan, batches: Sequence[pa.RecordBatch], where: str, mask: Array | None
) -> Array | Ragged | Pieces:
    """Return a field of one column, and note in `mask` which of its rows had a value."""
    parts: list[Array] = []
    offsets: list[tuple[Array, ...]] = []
    start = 0
    for batch in batches:
        values, borders = _unfolded(batch, column, where, start, mask)
        parts.append(values if column.num_levels else values.reshape(len(values), *column.shape))
        offsets.append(borders)
        start += batch.num_rows
    if not parts:
        parts, offsets = [np.zeros((0, *column.shape), column.dtype)], [(np.zeros(1, np.int64),) * column.num_levels]
    is_small = sum(one.nbytes for one in parts) < len(parts) * _PIECE_BYTES
    found: Array | Ragged | Pieces = parts[0]
    if len(parts) > 1:
        found = np.concatenate(parts) if is_small else Pieces.of(parts)
    for of_level in reversed([*zip(*offsets, strict=True)]):
        found = Ragged(found, of_level[0] if len(parts) == 1 else offsets_of(np.concatenate([*map(np.diff, of_level)])))
    return found


def _stacked(
    plan: FieldPlan,
    batches: Sequence[pa.RecordBatch],
    exported: Sequence[ExportedBatch | None],
    where: str,
    mask: Array | None,
) -> list[Sequence[Array]]:
    """Return the parts of a stacked field, and note in `mask` which values of its rows were there."""
    parts: list[Sequence[Array]] = []
    start = 0
    for batch, by_address in zip(batches, exported, strict=True):
        if by_address is not None and plan.alike is not None and not by_address.with_nulls(plan.alike):
            parts.append(BatchColumns(batch, by_address, plan.alike, plan.columns[0].leaf.dtype))
        else:
            masks: Iterable[Array | None] = [None] * len(plan.columns) if mask is None else mask.T
            columns = zip(plan.columns, masks, strict=True)
            parts.append([_unfolded(batch, column, where, start, of_column)[0] for column, of_column in columns])
        start += batch.num_rows
    return parts


def _narrowed(field: Array | Ragged | Pieces, plan: FieldPlan, where: str) -> Array | Ragged | Pieces:
    if isinstance(field, Ragged):
        return Ragged(_narrowed(field.values, plan, where), field.offsets)
    compact, dtype = plan.kept.compact, plan.kept.dtype
    assert compact is not None

    def change(values: Array, j: int, start: int) -> Array:
        try:
            return narrow(values, compact, dtype)
        except MisfitError as error:
            row = "" if plan.entry.is_ragged else f"row {start + error.index}, counted from 0, of "
            column = plan.columns[j].name
            raise FieldError(
                f"column {column!r}: {error} does not fit {compact.told(dtype)} ({row or 'in '}{where}). Give a wider "
                "storage_dtype, or leave it out",
                columns=[column],
            ) from None

    if isinstance(field, Pieces) and plan.is_stacked and compact.form == "bits":
        field = field.whole()  # of several columns a byte
    return field.changed(change, dtype, plan.kept.shape) if isinstance(field, Pieces) else change(field, 0, 0)


def _unfolded(
    batch: pa.RecordBatch, column: ColumnPlan, where: str, start: int, mask: Array | None
) -> tuple[Array, tuple[Array, ...]]:
    """Return values and offsets of a column, as `unfold`, in a batch that begins with row `start` of its table.

    Notes in `mask`, bool, one a row of the table, which of the batch had a value.
    """
    array = batch.column(column.number)
    # Nearly all are: what there is to be done for the others costs as much as the rest of a small column.
    if column.stored_type is not None and not array.null_count and array.type.equals(column.stored_type):
        return buffer_of(array, column.leaf.dtype), ()
    try:
        values, offsets, valid = unfold(array, column, where)
    except MisfitError as error:
        row = f"row {start + error.index}, counted from 0, of {where}"
        text = f"column {column.name!r}: {error} ({row}). {error.advice}"
        raise FieldError(text, columns=[column.name]) from None
    if mask is not None and valid is not None:
        mask[start : start + batch.num_rows] = valid
    return values, offsets


def unfold(array: pa.Array, column: ColumnPlan, where: str, depth: int = 0) -> Unfolded:
    """Return an array of the column's level `depth`: values, offsets, and which rows had a value, None where all had.

    Values have shape [rows, ...], or are all innermost ones together where there are offsets: int64 [n + 1] from 0 for
    each ragged level, outermost first.

    Raises:
        MisfitError: A value cannot become what its field asks for.
        FieldError: Values are null without an answer.
    """
    array = stored(array)
    if depth == len(column.levels):
        values, valid = _unfold_leaf(array, column, where, depth)
        return values, (), valid
    array = decoded(array)
    size, is_ragged = column.levels[depth], depth < column.num_levels
    valid = there = validity(array)  # what the mask shows, and which lists really hold values
    _check_fill(valid, column, where, depth)
    if not is_list(array.type):  # strings or binary
        array = as_binary(array)
        if there is not None and isinstance(column.fill, bytes):
            array, there = array.fill_null(column.fill), None
    offsets, child = split_lists(array, there)
    if size is not None and not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(offsets)
        wrong = lengths != size if there is None else (lengths != size) & there
        if wrong.any():
            i = int(np.argmax(wrong))
            raise MisfitError(
                f"a list of length {lengths[i]}, but shape= asks for {size} values",
                index=i,
                advice="Leave shape= out to have ragged lists, or pad or cut them in a transform.",
            )
    try:
        values, inner, _ = unfold(child, column, where, depth + 1)
    except MisfitError as error:
        error.index = int(np.searchsorted(offsets, error.index, side="right")) - 1
        raise
    if is_ragged:
        return values, (offsets, *inner), valid
    num_there = len(array) if there is None else int(np.count_nonzero(there))
    tensor = column.leaf.tensor if depth == len(column.levels) - 1 else None
    if tensor is None:
        assert size is not None
        values = values.reshape(num_there, size, *values.shape[1:])
    else:
        as_stored = values.reshape(num_there, *tensor)
        values = np.ascontiguousarray(as_stored.transpose(0, *(axis + 1 for axis in column.leaf.order)))
    return values if there is None else _spread(values, there, column), (), valid


def _spread(values: Array, there: Array, column: ColumnPlan) -> Array:
    """Return `values` at the rows that have one, and the fill throughout, or zeros, everywhere else."""
    spread = np.zeros((len(there), *values.shape[1:]), values.dtype)
    if isinstance(column.fill, bytes):
        spread[...] = np.frombuffer(column.fill.ljust(values.shape[-1], b"\0"), values.dtype)
    elif column.fill:
        spread[...] = column.fill
    spread[there] = values
    return spread


def _check_fill(valid: Array | None, column: ColumnPlan, where: str, depth: int) -> None:
    """Raise where nulls have no answer: a fill anywhere, a mask only for whole samples."""
    if valid is not None and column.fill is None and (depth > 0 or not column.has_mask):
        raise null_error({column.name: int(np.count_nonzero(~valid))}, where=where, inside=depth > 0)


def _unfold_leaf(array: pa.Array, column: ColumnPlan, where: str, depth: int) -> tuple[Array, Array | None]:
    """Return innermost values in the dtype planned, nulls filled, [n, *value_shape], and which are there."""
    leaf = column.leaf
    if column.codes is not None:
        values, valid = codes_of(array, leaf, column.codes, dtype=column.dtype, fill=column.fill)
        _check_fill(valid, column, where, depth)
        return values, valid
    array = decoded(array)
    valid = validity(array)
    _check_fill(valid, column, where, depth)
    if leaf.is_words:
        if column.value_shape:
            return _fixed_bytes(array, column, valid), valid
        return buffer_of(array, leaf.dtype), valid  # the bytes of strings, which were split into lists above
    at_null = 0 if column.fill is None or isinstance(column.fill, bytes) else column.fill
    # In one pass with what is left out, where the column itself has room for it.
    is_filled = not at_null or (leaf.scale is None and is_held(at_null, leaf.dtype))
    if leaf.scale is not None and column.dtype.kind in "iu":
        values = unscaled_of(array, valid)
    else:
        values = numbers_of(array, leaf, valid, at_null=at_null if is_filled else 0)
    # Where the columns of a stacked field are packed, they are widened as well.
    if not column.casts_late or not is_filled:
        values = cast_numbers(values, column.dtype)
    if valid is not None and not is_filled:
        values = np.where(valid, values, values.dtype.type(at_null))
    return values, valid


def _fixed_bytes(array: pa.Array, column: ColumnPlan, valid: Array | None) -> Array:
    """Return each value's bytes with zeros behind, uint8 [n, num_bytes]."""
    (num_bytes,) = column.value_shape
    octet = np.dtype(np.uint8)
    fill = column.fill if isinstance(column.fill, bytes) else b""
    if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == num_bytes and valid is None:
        return buffer_of(array, octet, width=num_bytes).reshape(len(array), num_bytes)
    array = as_binary(array)
    offsets, child = split_lists(array if valid is None else array.fill_null(fill), None)
    lengths = np.diff(offsets)
    if lengths.size and int(lengths.max()) > num_bytes:
        i = int(np.argmax(lengths > num_bytes))
        raise MisfitError(
            f"a value of {lengths[i]} bytes, more than num_bytes={num_bytes}",
            index=i,
            advice="Give more bytes, cut such values in a transform, or use hash_buckets=.",
        )
    data = buffer_of(child, octet)
    if len(data) == len(array) * num_bytes:
        return data.reshape(len(array), num_bytes)
    out = np.zeros((len(array), num_bytes), octet)
    # The bytes lie in the order in which the places below are visited: row after row, first byte first.
    out[np.arange(num_bytes) < lengths[:, None]] = data
    return out
