"""What each column becomes, as rows to print: for `stoker inspect`, where a refusal is an answer too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from stoker.columns.plan import FieldPlan, try_plan_fields
from stoker.fields.spec import Field

_OFFSET_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ColumnAnswer:
    """What becomes of one column.

    Attributes:
        column: Its name.
        arrow_type: Its Arrow type, as Arrow writes it.
        field: Key in a batch, None where the column is refused.
        becomes: The array as a text ("float32 [40]"), None where the column is refused.
        sample_bytes: Bytes this column adds to a sample, None where lists differ in length and nobody said how long
            they are on average.
        is_exact: Whether every sample takes exactly so many bytes.
        problem: Why it is refused and what to do, else None.
    """

    column: str
    arrow_type: str
    field: str | None = None
    becomes: str | None = None
    sample_bytes: float | None = None
    is_exact: bool = False
    problem: str | None = None


def plan_table(
    schema: pa.Schema, fields: Mapping[str, Field], *, values_per_sample: Mapping[str, float] | None = None
) -> list[ColumnAnswer]:
    """Return what becomes of each column, in the order of the schema; refused columns say why.

    Args:
        schema: The columns.
        fields: What the user asked for.
        values_per_sample: Mean number of innermost values in a sample by column, where the footers know: for ragged
            columns `sample_bytes` is an estimate from it. Bytes count as values where strings stay strings.
    """
    plans, problems = try_plan_fields(schema, fields)
    by_column = {name: plan for plan in plans for name in plan.match.columns}
    answers: list[ColumnAnswer] = []
    for field in schema:
        name, kind = field.name, str(field.type)
        found = [problem.text for problem in problems if name in problem.columns]
        if name not in by_column or found:
            answers.append(ColumnAnswer(column=name, arrow_type=kind, problem="; ".join(found)))
            continue
        plan = by_column[name]
        answers.append(
            ColumnAnswer(
                column=name,
                arrow_type=kind,
                field=plan.entry.name,
                becomes=str(plan.kept).removeprefix(f"{plan.kept.name}: "),
                sample_bytes=_sample_bytes(plan, (values_per_sample or {}).get(name)),
                is_exact=not plan.entry.is_ragged,
            )
        )
    others = [problem for problem in problems if not set(problem.columns) & set(schema.names)]
    return answers + [ColumnAnswer(column=p.columns[0], arrow_type="", problem=p.text) for p in others]


def _sample_bytes(plan: FieldPlan, mean: float | None) -> float | None:
    """Return the bytes one of the field's columns adds to a sample, its share of the mask included."""
    entry, mask = plan.kept, 0 if plan.mask is None else 1
    if not entry.is_ragged:
        return entry.value_bytes // (len(plan.columns) if plan.match.is_stacked else 1) + mask
    return None if mean is None else _OFFSET_BYTES + mean * entry.value_bytes + mask
