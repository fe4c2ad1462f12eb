"""What each column becomes, as rows to print: for `stoker inspect`, where a refusal is an answer too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from stoker.columns.plan import FieldPlan, try_plan_fields
from stoker.fields.spec import Entry, Field

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
    field: str | None
    becomes: str | None
    sample_bytes: float | None
    is_exact: bool
    problem: str | None


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
    answers: list[ColumnAnswer] = []
    for i, name in enumerate(schema.names):
        kind = str(schema.field(i).type)
        plan = next((plan for plan in plans if name in plan.match.columns), None)
        found = [problem.text for problem in problems if name in problem.columns]
        if plan is None or found:
            answers.append(_refused(name, kind, found))
            continue
        mean = (values_per_sample or {}).get(name)
        answers.append(
            ColumnAnswer(
                column=name,
                arrow_type=kind,
                field=plan.entry.name,
                becomes=_text(plan.kept),
                sample_bytes=_sample_bytes(plan, mean),
                is_exact=not plan.entry.is_ragged,
                problem=None,
            )
        )
    return answers + [
        _refused(problem.columns[0] if problem.columns else "", "", [problem.text])
        for problem in problems
        if not set(problem.columns) & set(schema.names)
    ]


def _refused(name: str, kind: str, found: list[str]) -> ColumnAnswer:
    return ColumnAnswer(
        column=name,
        arrow_type=kind,
        field=None,
        becomes=None,
        sample_bytes=None,
        is_exact=False,
        problem="; ".join(found),
    )


def _text(entry: Entry) -> str:
    return str(entry).removeprefix(f"{entry.name}: ")


def _sample_bytes(plan: FieldPlan, mean: float | None) -> float | None:
    """Return the bytes one of the field's columns adds to a sample, its share of the mask included."""
    entry = plan.kept
    mask = 0 if plan.mask is None else 1
    if not entry.is_ragged:
        return entry.value_bytes // (len(plan.columns) if plan.match.is_stacked else 1) + mask
    if mean is None:
        return None
    return _OFFSET_BYTES + mean * entry.value_bytes + mask
