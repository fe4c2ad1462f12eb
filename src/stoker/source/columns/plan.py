"""What each field becomes: pure decisions from an Arrow schema and the fields asked for, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stoker.compact import plan_compact
from stoker.errors import FieldError
from stoker.source.columns.column import ColumnPlan, plan_column
from stoker.source.columns.kinds import DType, Form
from stoker.source.columns.match import Match, Problem, mask_name, match_fields
from stoker.source.columns.numeric import exact_bits
from stoker.spec import Entry, Field, Spec


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """How one field is made of its columns, the entries it gives, its own and its mask's, and how its own is kept."""

    match: Match
    columns: tuple[ColumnPlan, ...]
    entry: Entry
    mask: Entry | None
    kept: Entry


def plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> list[FieldPlan]:
    """Return how each field is made, in the order of the spec.

    Raises:
        FieldError: A column or field cannot be had; one error lists them all in the order of the schema.
    """
    plans, problems = try_plan_fields(schema, fields)
    if problems:
        raise _all_problems(problems)
    return plans


def try_plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> tuple[list[FieldPlan], list[Problem]]:
    """Return how each field is made, and what stands in the way of the others."""
    names = list(schema.names)
    matches, problems = match_fields(names, fields)
    plans: list[FieldPlan] = []
    for match in matches:
        plan = _plan_field(match, schema, names)
        if isinstance(plan, FieldPlan):
            plans.append(plan)
        else:
            problems.extend(plan)
    return plans, sorted(problems, key=lambda problem: problem.place)


def spec_of_plans(plans: Sequence[FieldPlan]) -> Spec:
    """Return the spec that the plans give."""
    entries: list[Entry] = []
    for plan in plans:
        entries.append(plan.kept)
        if plan.mask is not None:
            entries.append(plan.mask)
    return Spec(tuple(entries))


def _all_problems(problems: Sequence[Problem]) -> FieldError:
    columns = list(dict.fromkeys(column for problem in problems for column in problem.columns))
    if len(problems) == 1:
        return FieldError(problems[0].text, columns=columns)
    lines = "".join(f"\n  {problem.text}" for problem in problems)
    return FieldError(f"{len(problems)} columns or fields cannot become tensors:{lines}", columns=columns)


def _plan_field(match: Match, schema: pa.Schema, names: Sequence[str]) -> FieldPlan | list[Problem]:
    plans: list[ColumnPlan] = []
    problems: list[Problem] = []
    for name in match.columns:
        # Names, not `schema.field(name)`: that fails where two columns share one, which has its own problem.
        kind = schema.field(names.index(name)).type
        plan = plan_column(name, kind, match)
        if isinstance(plan, str):
            text = f"column {name!r} ({kind}): {plan}"
            problems.append(Problem(place=names.index(name), columns=(name,), text=text))
        else:
            plans.append(plan)
    if problems:
        return problems
    place = names.index(match.columns[0])
    if match.is_stacked:
        stacked = _stack(match, plans)
        if isinstance(stacked, str):
            text = f"field {match.name!r}: {stacked}"
            return [Problem(place=place, columns=match.columns, text=text)]
        plans, shape, unit = stacked
    else:
        shape, unit = plans[0].shape, plans[0].unit
    entry = Entry(name=match.name, dtype=plans[0].dtype, shape=shape, num_levels=plans[0].num_levels, unit=unit)
    kept = entry
    if match.field.kept_as is not None:
        found = plan_compact(match.field.kept_as, entry.dtype, entry.shape)
        if isinstance(found, str):
            return [Problem(place=place, columns=match.columns, text=f"field {match.name!r}: kept_as: {found}")]
        dtype, kept_shape, compact = found
        kept = replace(entry, dtype=dtype, shape=kept_shape, compact=compact)
    mask = None
    if match.field.mask:
        mask_shape = shape if match.is_stacked else ()
        mask = Entry(name=mask_name(match.name), dtype=np.dtype(np.bool_), shape=mask_shape)
    return FieldPlan(match=match, columns=tuple(plans), entry=entry, mask=mask, kept=kept)


def _stack(match: Match, plans: Sequence[ColumnPlan]) -> tuple[list[ColumnPlan], tuple[int, ...], str | None] | str:
    """Return the columns of a stacked field in one dtype, its shape and unit, or why they cannot be stacked."""
    field = match.field
    for plan in plans:
        if plan.num_levels or plan.shape:
            what = "lists" if plan.num_levels else f"arrays of shape {list(plan.shape)}"
            return (
                f"column {plan.name!r} holds {what}, and only columns of one number a row can be stacked; give it a "
                f"field of its own, named without a pattern, or join the arrays in a transform"
            )
    num_columns = len(plans)
    shape: tuple[int, ...] = (num_columns,)
    if field.shape is not None:
        if int(np.prod(field.shape, dtype=np.int64)) != num_columns:
            return f"shape={field.shape} does not hold the {num_columns} columns that are stacked"
        shape = field.shape
    units = list(dict.fromkeys(plan.unit for plan in plans))
    # As floats decimals have no unit; as integers cents would stand beside whole numbers unseen.
    has_unscaled = plans[0].dtype.kind in "iu" and any(plan.leaf.form is Form.DECIMAL for plan in plans)
    if len(units) > 1 and (field.dtype is None or has_unscaled):
        return f"its columns have different units ({', '.join(unit or 'none' for unit in units)}); {_UNITS}"
    dtypes = {plan.dtype for plan in plans}
    if len(dtypes) == 1:
        dtype = plans[0].dtype
    else:
        dtype = np.result_type(*dtypes)
        inexact = [plan for plan in plans if not _holds_exactly(dtype, plan.dtype)]
        if inexact:
            names = ", ".join(sorted(d.name for d in dtypes))
            return f"its columns have the dtypes {names}, which no dtype holds exactly; say which one you want"
        plans = [replace(plan, dtype=dtype) for plan in plans]
    late = [replace(plan, casts_late=_may_cast_late(plan)) for plan in plans]
    return late, shape, units[0] if len(units) == 1 else None


_UNITS = "say a float dtype if that is meant, or bring them to one unit in a transform"


def _holds_exactly(dtype: DType, source: DType) -> bool:
    if source.kind in "iu" and dtype.kind == "f":
        return exact_bits(dtype) >= exact_bits(source)
    return bool(np.can_cast(source, dtype, "safe"))


def _may_cast_late(plan: ColumnPlan) -> bool:
    """Whether packing may widen the column: an integer that eight bytes hold exactly, which needs no check."""
    source, target = plan.leaf.storage, plan.dtype
    return (
        plan.way is None
        and plan.leaf.form is not Form.DECIMAL
        and source.kind in "iu"
        and target.kind in "iu"
        and target.itemsize == 8
        and bool(np.can_cast(source, target, "safe"))
    )
