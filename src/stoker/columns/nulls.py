"""The one wording of a null that nothing stands for."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.columns.plan import match_fields
from stoker.errors import FieldError
from stoker.fields.spec import Field

# Columns whose nulls a message counts one by one; all are named.
_MAX_COUNTED = 8


def null_error(counts: Mapping[str, int], *, where: str, inside: bool = False) -> FieldError:
    """Return the error for columns with nulls that nothing stands for.

    Args:
        counts: Number of nulls by column.
        where: File and row groups, as a text.
        inside: The nulls stand inside lists, where a mask does not reach.
    """
    names = list(counts)
    nulls = "; ".join(f"column {n!r} has {counts[n]:,} null{'s' * (counts[n] != 1)}" for n in names[:_MAX_COUNTED])
    if rest := names[_MAX_COUNTED:]:
        nulls += f"; {len(rest):,} more have {sum(counts[name] for name in rest):,}: {', '.join(map(repr, rest))}"
    place, mask = (" inside its lists", "") if inside else ("", " or mask=True")
    return FieldError(
        f"{nulls}{place} in {where}. Give the field a value for them, such as "
        f"fields={{{names[0]!r}: Field(fill=...)}}{mask}, or leave such rows out with filters= or a transform",
        columns=names,
    )


def check_nulls(null_counts: Mapping[str, int | None], fields: Mapping[str, Field], *, where: str) -> None:
    """Raise where columns hold nulls that their fields have no answer for; known before any row is read.

    Args:
        null_counts: Nulls by column name, None where the footer does not say. Only columns without lists: for a list
            Parquet counts empty lists among its nulls.
        fields: What the user asked for.
        where: File and row groups that were counted, as a text.

    Raises:
        FieldError: One or more columns have nulls, and their field neither a fill nor a mask.
    """
    matches, _ = match_fields(list(null_counts), fields)
    unanswered = [match for match in matches if match.field.fill is None and not match.field.mask]
    found = {column: num for match in unanswered for column in match.columns if (num := null_counts[column] or 0) > 0}
    if found:
        raise null_error(found, where=where)
