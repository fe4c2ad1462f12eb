"""A table to the arrays of all its fields, left where they are: in pieces, and stacked ones as their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from stoker.columns.column import ColumnPlan
from stoker.columns.kinds import DType
from stoker.columns.nulls import null_error
from stoker.columns.numeric import ValuePlace, buffer_of
from stoker.columns.pieces import BatchColumns, Outline, Packable, Pieces, Stack, StackPiece
from stoker.columns.plan import FieldPlan
from stoker.columns.unfold import Piece, unfold
from stoker.errors import FieldError
from stoker.fields.compact import Compact, MisfitError, narrow
from stoker.fields.spec import Array, Ragged

# Columns for which a batch is exported: 0.2 us each, and some more for the batch, where 3 us each are saved.
_MANY_COLUMNS = 16
# Pieces of fewer bytes are joined: one more costs some microseconds, as long as these take to copy.
_PIECE_BYTES = 64 << 10


def convert_table(table: pa.Table, plans: Sequence[FieldPlan], *, where: str) -> Packable:
    """Return all planned fields; stacked ones as the columns they are made of.

    Raises:
        FieldError: A value cannot become what its field asks for, or is null without a fill or a mask.
    """
    # Batches share their borders among all columns, so that stacked columns need not be joined first.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    outlines = _outlines(batches, plans)
    _refuse_nulls(table, plans, outlines, where)
    arrays: dict[str, Array | Ragged | Stack | Pieces] = {}
    for plan in plans:
        if plan.match.is_stacked:
            _stack_columns(plan, batches, outlines, table.num_rows, where, arrays)
        else:
            _join_column(plan, batches, where, arrays)
    return arrays


def _outlines(batches: Sequence[pa.RecordBatch], plans: Sequence[FieldPlan]) -> list[Outline | None]:
    """Return the outline of each batch, where many columns are to be had by it."""
    is_worth_it = sum(len(plan.alike) for plan in plans if plan.alike is not None) >= _MANY_COLUMNS
    return [Outline.of(batch) if is_worth_it else None for batch in batches]


def _refuse_nulls(table: pa.Table, plans: Sequence[FieldPlan], outlines: Sequence[Outline | None], where: str) -> None:
    """Raise one error for all columns whose nulls are seen without looking into them."""
    found: dict[str, int] = {}
    for plan in plans:
        columns: Sequence[ColumnPlan] = plan.columns
        if plan.alike is not None:
            may_have = np.zeros(len(columns), np.bool_)
            for outline in outlines:
                may_have |= True if outline is None else outline.nulls[plan.alike] != 0
            columns = [columns[i] for i in np.flatnonzero(may_have).tolist()]
        for column in columns:
            if column.fill is None and not column.has_mask and (num := table.column(column.name).null_count):
                found[column.name] = num
    if found:
        raise null_error(found, where=where)


def _join_column(
    plan: FieldPlan, batches: Sequence[pa.RecordBatch], where: str, arrays: dict[str, Array | Ragged | Stack | Pieces]
) -> None:
    column = plan.columns[0]
    pieces: list[Piece] = []
    start = 0
    for batch in batches:
        pieces.append(unfold(batch.column(column.name), column, 0, _place(column, where, start)))
        start += batch.num_rows
    if not pieces:
        pieces = [_no_rows(column)]
    values = [piece.values for piece in pieces]
    if not column.num_levels:
        values = [one.reshape(len(one), *column.shape) for one in values]
    joined: Array | Ragged | Pieces = _together(values)
    for level in reversed(range(column.num_levels)):
        joined = Ragged(joined, _join_offsets([piece.offsets[level] for piece in pieces]))
    arrays[plan.entry.name] = joined
    if plan.mask is not None:
        masks = [
            np.ones(batch.num_rows, np.bool_) if piece.valid is None else piece.valid
            for batch, piece in zip(batches, pieces, strict=False)
        ]
        arrays[plan.mask.name] = np.concatenate([np.zeros(0, np.bool_), *masks])


def _together(values: Sequence[Array]) -> Array | Pieces:
    """Return the rows of all arrays as those of one."""
    if len(values) == 1:
        return values[0]
    if sum(one.nbytes for one in values) < len(values) * _PIECE_BYTES:
        return np.concatenate(values)
    return Pieces([np.ascontiguousarray(one) for one in values])


def _stack_columns(
    plan: FieldPlan,
    batches: Sequence[pa.RecordBatch],
    outlines: Sequence[Outline | None],
    num_rows: int,
    where: str,
    arrays: dict[str, Array | Ragged | Stack | Pieces],
) -> None:
    mask = None if plan.mask is None else np.ones((num_rows, len(plan.columns)), np.bool_)
    pieces: list[StackPiece] = []
    start = 0
    for batch, outline in zip(batches, outlines, strict=True):
        if outline is not None and plan.alike is not None and not outline.nulls[plan.alike].any():
            columns: tuple[Array, ...] | BatchColumns = BatchColumns(outline, plan.alike, plan.columns[0].leaf.storage)
        else:
            columns = _columns_of(batch, plan, where, start, mask)
        pieces.append(StackPiece(start=start, columns=columns))
        start += batch.num_rows
    arrays[plan.entry.name] = Stack(dtype=plan.entry.dtype, shape=(num_rows, *plan.entry.shape), pieces=pieces)
    if plan.mask is not None and mask is not None:
        arrays[plan.mask.name] = mask.reshape(num_rows, *plan.entry.shape)


def _columns_of(
    batch: pa.RecordBatch, plan: FieldPlan, where: str, start: int, mask: Array | None
) -> tuple[Array, ...]:
    """Return the columns of a stacked field, and note their nulls in `mask`, from its row `start` on."""
    sources: list[Array] = []
    for j, column in enumerate(plan.columns):
        array = batch.column(column.name)
        # Nearly all are: what there is to be done for the others costs as much as the rest of a small column.
        if column.stored_type is not None and not array.null_count and array.type.equals(column.stored_type):
            sources.append(buffer_of(array, column.leaf.storage))
            continue
        piece = unfold(array, column, 0, _place(column, where, start))
        sources.append(piece.values)
        if mask is not None and piece.valid is not None:
            mask[start : start + batch.num_rows, j] = piece.valid
    return tuple(sources)


def _place(column: ColumnPlan, where: str, start: int) -> ValuePlace:
    return ValuePlace(column=column.name, where=where, row_of=lambda i: start + i)


def _no_rows(column: ColumnPlan) -> Piece:
    values = np.zeros((0, *column.shape), column.dtype)
    return Piece(values=values, offsets=(np.zeros(1, np.int64),) * column.num_levels)


def _join_offsets(parts: Sequence[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    joined, total = [parts[0]], int(parts[0][-1])
    for part in parts[1:]:
        joined.append(part[1:] + total)
        total += int(part[-1])
    return np.concatenate(joined)


def narrowed(fields: Packable, plans: Sequence[FieldPlan], *, where: str) -> Packable:
    """Return the fields, those that are kept narrower in that form.

    Raises:
        FieldError: A value does not fit it.
    """
    if all(plan.kept.compact is None for plan in plans):
        return fields
    found = dict(fields)
    for plan in plans:
        compact = plan.kept.compact
        if compact is None:
            continue
        field = fields[plan.entry.name]
        if isinstance(field, Stack):
            found[plan.entry.name] = _stack(field, plan, compact, where)
        else:
            found[plan.entry.name] = _field(field, plan, compact, where)
    return found


def _field(field: Array | Ragged | Pieces, plan: FieldPlan, compact: Compact, where: str) -> Array | Ragged | Pieces:
    if isinstance(field, Ragged):
        return Ragged(_field(field.values, plan, compact, where), field.offsets)

    def change(values: Array, start: int) -> Array:
        is_row = not plan.entry.is_ragged
        return _values(values, plan.columns[0].name, plan.kept.dtype, compact, where, start=start, is_row=is_row)

    return field.changed(change) if isinstance(field, Pieces) else change(field, 0)


def _stack(stack: Stack, plan: FieldPlan, compact: Compact, where: str) -> Stack | Array:
    dtype = plan.kept.dtype
    if compact.form == "bits":  # of several columns a byte
        return narrow(stack.whole(), compact, dtype)
    pieces = [
        replace(
            piece,
            columns=tuple(
                np.ascontiguousarray(_values(values, column.name, dtype, compact, where, start=piece.start))
                for column, values in zip(plan.columns, piece.columns, strict=True)
            ),
        )
        for piece in stack.pieces
    ]
    return Stack(dtype=dtype, shape=stack.shape, pieces=pieces)


def _values(
    values: Array, column: str, dtype: DType, compact: Compact, where: str, *, start: int, is_row: bool = True
) -> Array:
    try:
        return narrow(values, compact, dtype)
    except MisfitError as error:
        form = "bfloat16" if compact.form == "bfloat16" else dtype.name
        if compact.form == "scaled":
            last = compact.low + compact.step * int(np.iinfo(dtype).max)
            form = f"{dtype.name} steps from {compact.low:g} to {last:g}"
        at = f" (row {start + error.index}, counted from 0, of {where})" if is_row else f" (in {where})"
        raise FieldError(
            f"column {column!r}: {error} does not fit {form}{at}. Give a wider storage_dtype, or leave it out",
            columns=[column],
        ) from None
