"""Columns to arrays: every Arrow type has a written answer, an array or a refusal that says what to do.

    kinds     what a type is made of: lists around a leaf, or why not
    plan      which columns each field is made of, what becomes of them, which ones neighbours share (pure)
    convert   a table to fields as planned, in the narrower form that they are kept in; words and arrays do the leaves
    pieces    fields before they are packed: their rows in pieces, a stacked one as its columns
    results   what a transform may return

The answers are in docs/reference/types.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from stoker.columns.convert import convert_table, narrowed
from stoker.columns.pieces import BatchColumns, Packable, Piece, Pieces, in_pieces, joined
from stoker.columns.plan import ColumnAnswer, FieldPlan, Share, check_nulls, plan_fields, plan_table, share_fields
from stoker.columns.results import Columns, as_table
from stoker.fields.spec import Arrays, Field, Spec

# Schemas whose plans are kept.
_MAX_KNOWN = 8

__all__ = [
    "BatchColumns",
    "ColumnAnswer",
    "Columns",
    "Converter",
    "Packable",
    "Piece",
    "Pieces",
    "Share",
    "as_table",
    "check_nulls",
    "in_pieces",
    "joined",
    "plan_spec",
    "plan_table",
    "to_arrays",
]


def plan_spec(
    columns: pa.Schema | Columns,
    fields: Mapping[str, Field],
    share: Share | None = None,
    *,
    where: str = "the transform's result",
) -> Spec:
    """Return what a sample of these columns is: it depends on types and shapes alone, and no value is looked at.

    Fields stand in the order of the schema, a stacked field at the place of its first column, a mask behind its field.

    Args:
        columns: Their schema, or what a transform returned.
        fields: What the user asked for.
        share: Which fields neighbours share, and by which key; see `share_fields`.
        where: File, row groups and rows, as a text for messages.

    Raises:
        FieldError: One or more columns or fields cannot be had. One error lists all of them, in the order of the
            schema, each with the reason and the way out.
        FieldMismatchError: Something in a mapping is no array of rows.
    """
    schema = columns if isinstance(columns, pa.Schema) else as_table(columns, where=where).schema
    spec = Spec(tuple(e for plan in plan_fields(schema, fields) for e in (plan.kept, plan.mask) if e is not None))
    return share_fields(spec, share) if share else spec


def to_arrays(columns: Columns, fields: Mapping[str, Field], *, where: str) -> Arrays:
    """Return the fields as they are delivered, with the names, dtypes and shapes of `plan_spec(...).delivered`.

    Arrays are C-contiguous. They are views of Arrow's memory, and then read-only, where the layout is the same: numbers
    without nulls, fixed-size lists, values of lists, where they are in one piece. Stacked fields are new.

    Args:
        columns: A table of any chunking, or what a transform returned.
        fields: What the user asked for.
        where: File, row groups and rows, as a text for messages.

    Raises:
        FieldError: As `plan_spec`; or a value cannot become what its field asks for, or is null without an answer.
        FieldMismatchError: Something in a mapping is no array of rows.
    """
    table = as_table(columns, where=where)
    packable = convert_table(table, plan_fields(table.schema, fields), where=where)
    return {name: joined(field) for name, field in packable.items()}


class Converter:
    """Makes the fields of chunks, with the names, dtypes and shapes of `plan_spec` of the same schema.

    As `to_arrays`, but in the form they are kept in, stacked fields still as their columns and others in pieces:
    packing brings these together. Every value has been checked: what is left to do cannot fail. Safe to use from
    several threads.

    Args:
        fields: What the user asked for.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        # Chunks have one schema, but for what a transform may return, and for columns that come as dictionaries now
        # and then: planning a hundred columns takes milliseconds.
        self._known: tuple[tuple[pa.Schema, Sequence[FieldPlan]], ...] = ()

    def convert(self, columns: Columns, *, where: str) -> Packable:
        """Return the fields of a chunk.

        Args:
            columns: A table of any chunking, or what a transform returned.
            where: File, row groups and rows, as a text for messages.

        Raises:
            FieldError: As `to_arrays`.
            FieldMismatchError: As `to_arrays`.
        """
        table = as_table(columns, where=where)
        plans = self._plans(table.schema)
        return narrowed(convert_table(table, plans, where=where), plans, where=where)

    def coded(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns of strings that become numbers, for which their dictionary is as good as themselves.

        Raises:
            FieldError: As `plan_spec`.
        """
        columns = (column for plan in self._plans(schema) for column in plan.columns)
        return frozenset(column.name for column in columns if column.is_coded)

    def _plans(self, schema: pa.Schema) -> Sequence[FieldPlan]:
        for known, plans in self._known:
            if known.equals(schema, check_metadata=True):
                return plans
        plans = plan_fields(schema, self._fields)
        self._known = ((schema, plans), *self._known)[:_MAX_KNOWN]
        return plans
