"""What each field becomes: pure decisions from an Arrow schema and the fields asked for, before any row is read."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.arguments import near
from stoker.columns.column import ColumnPlan, plan_column
from stoker.columns.kinds import DType, Form
from stoker.columns.match import Match, Problem, mask_name, match_fields
from stoker.columns.numeric import exact_bits
from stoker.errors import FieldError
from stoker.fields.compact import plan_compact
from stoker.fields.spec import Entry, Field, Spec, run_name
from stoker.words import some_of


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldPlan:
    """How one field is made of its columns.

    Attributes:
        match: The field, and the names of its columns.
        columns: How each becomes numbers.
        entry: What it gives.
        mask: What its mask gives, where it has one.
        kept: How its own entry is kept.
        alike: Numbers of its columns in the schema, where it stacks several that are taken as they are stored, all in
            one type. Shape [C].
    """

    match: Match
    columns: tuple[ColumnPlan, ...]
    entry: Entry
    mask: Entry | None
    kept: Entry
    alike: npt.NDArray[np.int64] | None = None


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
    # The first of each: where two columns share a name, that has its own problem.
    numbers = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
    matches, problems = match_fields(names, fields)
    plans: list[FieldPlan] = []
    for match in matches:
        plan = _plan_field(match, schema, numbers)
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


def _plan_field(match: Match, schema: pa.Schema, numbers: Mapping[str, int]) -> FieldPlan | list[Problem]:
    plans: list[ColumnPlan] = []
    problems: list[Problem] = []
    known: dict[pa.DataType, ColumnPlan] = {}  # of thousands of columns, most are of one type
    for name in match.columns:
        kind = schema.field(numbers[name]).type
        plan = replace(known[kind], name=name) if kind in known else plan_column(name, kind, match)
        if isinstance(plan, str):
            text = f"column {name!r} ({kind}): {plan}"
            problems.append(Problem(place=numbers[name], columns=(name,), text=text))
        else:
            known[kind] = plan
            plans.append(plan)
    if problems:
        return problems
    place = numbers[match.columns[0]]
    alike = None
    if match.is_stacked:
        stacked = _stack(match, plans)
        if isinstance(stacked, str):
            text = f"field {match.name!r}: {stacked}"
            return [Problem(place=place, columns=match.columns, text=text)]
        plans, shape, unit = stacked
        stored = {(plan.leaf.storage, schema.field(numbers[plan.name]).type == plan.stored_type) for plan in plans}
        if len(stored) == 1 and all(is_alike for _, is_alike in stored):
            alike = np.array([numbers[plan.name] for plan in plans], np.int64)
    else:
        shape, unit = plans[0].shape, plans[0].unit
    entry = Entry(name=match.name, dtype=plans[0].dtype, shape=shape, num_levels=plans[0].num_levels, unit=unit)
    kept = entry
    if match.field.storage_dtype is not None:
        found = plan_compact(match.field.storage_dtype, entry.dtype, entry.shape)
        if isinstance(found, str):
            return [Problem(place=place, columns=match.columns, text=f"field {match.name!r}: storage_dtype: {found}")]
        dtype, kept_shape, compact = found
        kept = replace(entry, dtype=dtype, shape=kept_shape, compact=compact)
    mask = None
    if match.field.mask:
        mask_shape = shape if match.is_stacked else ()
        mask = Entry(name=mask_name(match.name), dtype=np.dtype(np.bool_), shape=mask_shape)
    return FieldPlan(match=match, columns=tuple(plans), entry=entry, mask=mask, kept=kept, alike=alike)


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
    late = [replace(plan, casts_late=True) if _may_cast_late(plan) else plan for plan in plans]
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


Share = Mapping[str, Sequence[str]]
"""Field that is the key -> names and patterns of the fields that its equal neighbours share."""


def share_fields(spec: Spec, share: Share) -> Spec:
    """Return the spec with the fields that are shared marked; a key itself is shared by its equal neighbours, too.

    Args:
        spec: All fields, none marked.
        share: What is asked for.

    Raises:
        FieldError: A key is no field, a pattern finds none, or two keys would share one.
    """
    names = [entry.name for entry in spec]
    owners: dict[str, str] = {}
    for key, patterns in share.items():
        if key not in names:
            raise FieldError(
                f"deduplicate: there is no field {key!r} to share by{_near(key, names)}; a key is a field of the "
                "batch, so that what is shared can be told from it",
                columns=[key],
            )
        if run_name(key) in names:
            raise FieldError(
                f"deduplicate: the field {run_name(key)!r} has the name under which chunks keep the run of a sample; "
                "call it otherwise",
                columns=[run_name(key)],
            )
        for pattern in (key, *patterns):
            found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not found:
                raise FieldError(f"deduplicate: {pattern!r} names no field{_near(pattern, names)}", columns=[pattern])
            for name in found:
                other = owners.setdefault(name, key)
                if other != key:
                    raise FieldError(
                        f"deduplicate: the field {name!r} is shared by {other!r} and by {key!r}; "
                        "name it under one of them",
                        columns=[name],
                    )
    return Spec(tuple(replace(entry, deduplicated_by=owners.get(entry.name)) for entry in spec))


def _near(name: str, names: Sequence[str]) -> str:
    return f" ({near(name, names) or 'there are ' + some_of(names, 8)})"
