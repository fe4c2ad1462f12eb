"""Fields in the narrower form that they are kept in, checked value by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stoker.columns.kinds import DType
from stoker.columns.pieces import Pieces
from stoker.columns.plan import FieldPlan
from stoker.columns.stack import Packable, Stack
from stoker.errors import FieldError
from stoker.fields.compact import Compact, MisfitError, narrow
from stoker.fields.spec import Array, Ragged


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
