"""A table to the arrays of all its fields, left where they are, in the narrower form that they are kept in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.columns.arrays import ValuePlace, buffer_of, null_error
from stoker.columns.pieces import BatchColumns, Packable, Piece, Pieces
from stoker.columns.plan import ColumnPlan, FieldPlan
from stoker.columns.unfold import Unfolded, unfold
from stoker.errors import FieldError
from stoker.fields.compact import MisfitError, narrow
from stoker.fields.spec import Array, Ragged

# Columns for which a batch is exported: 0.2 us each, and some more for the batch, where 3 us each are saved.
_MANY_COLUMNS = 16
# Pieces of fewer bytes are joined: one more costs some microseconds, as long as these take to copy.
_PIECE_BYTES = 64 << 10


def convert_table(table: pa.Table, plans: Sequence[FieldPlan], *, where: str) -> dict[str, Array | Ragged | Pieces]:
    """Return all planned fields; stacked ones as the columns they are made of.

    Raises:
        FieldError: A value cannot become what its field asks for, or is null without a fill or a mask.
    """
    # Batches share their borders among all columns, so that stacked columns need not be joined first.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    is_wide = sum(len(plan.alike) for plan in plans if plan.alike is not None) >= _MANY_COLUMNS
    exported = [ExportedBatch(batch.__arrow_c_array__()[1]) if is_wide else None for batch in batches]
    _refuse_nulls(table, plans, exported, where)
    fields: dict[str, Array | Ragged | Pieces] = {}
    field: Array | Ragged | Pieces
    for plan in plans:
        if plan.match.is_stacked:
            field, mask = _stacked(plan, batches, exported, table.num_rows, where)
        else:
            field, mask = _single(plan.columns[0], batches, where)
        fields[plan.entry.name] = field
        if plan.mask is not None:
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
            if column.fill is None and not column.has_mask and (num := table.column(column.name).null_count):
                found[column.name] = num
    if found:
        raise null_error(found, where=where)


def _single(column: ColumnPlan, batches: Sequence[pa.RecordBatch], where: str) -> tuple[Array | Ragged | Pieces, Array]:
    """Return a field of one column, and which of its rows had a value."""
    found: list[Unfolded] = []
    masks: list[Array] = [np.zeros(0, np.bool_)]
    start = 0
    for batch in batches:
        part = unfold(batch.column(column.name), column, _place(column, where, start))
        found.append(part)
        if column.has_mask:
            masks.append(np.ones(batch.num_rows, np.bool_) if part.valid is None else part.valid)
        start += batch.num_rows
    if not found:
        values = np.zeros((0, *column.shape), column.dtype)
        found = [Unfolded(values=values, offsets=(np.zeros(1, np.int64),) * column.num_levels)]
    parts = [
        part.values if column.num_levels else part.values.reshape(len(part.values), *column.shape) for part in found
    ]
    joined: Array | Ragged | Pieces = _together(parts)
    for level in reversed(range(column.num_levels)):
        joined = Ragged(joined, _join_offsets([part.offsets[level] for part in found]))
    return joined, np.concatenate(masks)


def _together(values: Sequence[Array]) -> Array | Pieces:
    """Return the rows of all arrays as those of one."""
    if len(values) == 1:
        return values[0]
    if sum(one.nbytes for one in values) < len(values) * _PIECE_BYTES:
        return np.concatenate(values)
    return Pieces.of(values)


def _join_offsets(parts: Sequence[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    totals = np.cumsum([part[-1] for part in parts])
    return np.concatenate([parts[0], *(part[1:] + total for part, total in zip(parts[1:], totals, strict=False))])


def _stacked(
    plan: FieldPlan,
    batches: Sequence[pa.RecordBatch],
    exported: Sequence[ExportedBatch | None],
    num_rows: int,
    where: str,
) -> tuple[Pieces, Array]:
    """Return a stacked field, and which values of its rows were there."""
    mask = np.ones((num_rows, len(plan.columns)), np.bool_) if plan.mask is not None else np.zeros(0, np.bool_)
    pieces: list[Piece] = []
    start = 0
    for batch, by_address in zip(batches, exported, strict=True):
        if by_address is not None and plan.alike is not None and not by_address.with_nulls(plan.alike):
            columns: Sequence[Array] | BatchColumns = BatchColumns(
                batch, by_address, plan.alike, plan.columns[0].leaf.storage
            )
        else:
            columns = _columns_of(batch, plan, where, start, mask)
        pieces.append(Piece(start, columns))
        start += batch.num_rows
    return Pieces(plan.entry.dtype, (num_rows, *plan.entry.shape), pieces), mask


def _columns_of(batch: pa.RecordBatch, plan: FieldPlan, where: str, start: int, mask: Array) -> list[Array]:
    """Return the columns of a stacked field, and note their nulls in `mask`, from its row `start` on."""
    arrays: list[Array] = []
    for j, column in enumerate(plan.columns):
        array = batch.column(column.name)
        # Nearly all are: what there is to be done for the others costs as much as the rest of a small column.
        if column.stored_type is not None and not array.null_count and array.type.equals(column.stored_type):
            arrays.append(buffer_of(array, column.leaf.storage))
            continue
        found = unfold(array, column, _place(column, where, start))
        arrays.append(found.values)
        if plan.mask is not None and found.valid is not None:
            mask[start : start + batch.num_rows, j] = found.valid
    return arrays


def _place(column: ColumnPlan, where: str, start: int) -> ValuePlace:
    return ValuePlace(column=column.name, where=where, row_of=lambda i: start + i)


def narrowed(fields: Packable, plans: Sequence[FieldPlan], *, where: str) -> Packable:
    """Return the fields, those that are kept narrower in that form.

    Raises:
        FieldError: A value does not fit it.
    """
    some = [plan for plan in plans if plan.kept.compact is not None]
    return {**fields, **{plan.entry.name: _narrowed(fields[plan.entry.name], plan, where) for plan in some}}


def _narrowed(field: Array | Ragged | Pieces, plan: FieldPlan, where: str) -> Array | Ragged | Pieces:
    if isinstance(field, Ragged):
        return Ragged(_narrowed(field.values, plan, where), field.offsets)
    compact, dtype = plan.kept.compact, plan.kept.dtype
    assert compact is not None

    def change(values: Array, j: int, start: int) -> Array:
        try:
            return narrow(values, compact, dtype)
        except MisfitError as error:
            form = "bfloat16" if compact.form == "bfloat16" else dtype.name
            if compact.form == "scaled":
                last = compact.low + compact.step * int(np.iinfo(dtype).max)
                form = f"{dtype.name} steps from {compact.low:g} to {last:g}"
            row = "" if plan.entry.is_ragged else f"row {start + error.index}, counted from 0, of "
            column = plan.columns[j].name
            raise FieldError(
                f"column {column!r}: {error} does not fit {form} ({row or 'in '}{where}). Give a wider storage_dtype, "
                "or leave it out",
                columns=[column],
            ) from None

    if isinstance(field, Pieces) and plan.match.is_stacked and compact.form == "bits":
        field = field.whole()  # of several columns a byte
    return field.changed(change, dtype, plan.kept.shape) if isinstance(field, Pieces) else change(field, 0, 0)
