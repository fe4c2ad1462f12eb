"""Columns to arrays: every Arrow type has a written answer, an array or a refusal that says what to do.

    kinds     what a type is made of: lists around a leaf, or why not
    plan      which columns each field is made of, what becomes of them, which ones neighbours share (pure)
    convert   a table to fields as planned, in the narrower form that they are kept in; words and arrays do the leaves
    pieces    fields before they are packed: their rows in pieces, a stacked one as its columns
    results   what a transform may return

The answers are in docs/reference/types.md.
"""

from stoker.columns.convert import Converter, to_arrays
from stoker.columns.pieces import BatchColumns, Packable, Pieces, in_pieces, joined
from stoker.columns.plan import ColumnAnswer, check_nulls, plan_spec, plan_table
from stoker.columns.results import Columns, as_table

__all__ = [
    "BatchColumns",
    "ColumnAnswer",
    "Columns",
    "Converter",
    "Packable",
    "Pieces",
    "as_table",
    "check_nulls",
    "in_pieces",
    "joined",
    "plan_spec",
    "plan_table",
    "to_arrays",
]
