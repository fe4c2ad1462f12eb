"""Which columns each field is made of: names and patterns against the columns that there are."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.fields.spec import Field


@dataclass(frozen=True, kw_only=True)
class Match:
    """A field and its columns.

    Attributes:
        name: Key of the field in a batch.
        field: What the user asked for; a plain `Field()` for a column that no field names.
        columns: Names, in the order in which they are stacked.
        is_stacked: Whether the columns are stacked to `[N, k]`; true for a pattern or a sequence, even of one column.
        is_asked: Whether the user named the field.
    """

    name: str
    field: Field
    columns: tuple[str, ...]
    is_stacked: bool
    is_asked: bool


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A column or field that cannot be had: where it stands in the schema, what it is called, and why."""

    place: int
    columns: tuple[str, ...]
    text: str


def match_fields(names: Sequence[str], fields: Mapping[str, Field]) -> tuple[list[Match], list[Problem]]:
    """Return every field with its columns in the order of the spec, and what went wrong.

    A field stands where its first column stands in `names`. Columns that no field uses come as they are.
    """
    place: dict[str, int] = {}
    for i, name in enumerate(names):
        place.setdefault(name, i)
    problems = [
        Problem(place=i, columns=(name,), text=f"column {name!r}: the schema has two columns of this name; rename one")
        for i, name in enumerate(names)
        if place[name] != i
    ]
    matches: list[Match] = []
    owner: dict[str, str] = {}
    for order, (name, field) in enumerate(fields.items()):
        behind = len(names) + order
        wanted, is_stacked = _wanted(name, field, place)
        columns: dict[str, None] = {}
        for pattern in wanted:
            found = [pattern] if pattern in place else [n for n in place if fnmatch.fnmatchcase(n, pattern)]
            if not found:
                problems.append(
                    Problem(place=behind, columns=(pattern,), text=_nothing_named(name, pattern, field, names))
                )
            columns.update(dict.fromkeys(found))
        for column in list(columns):
            other = owner.setdefault(column, name)
            if other != name:
                text = f"column {column!r}: both field {other!r} and field {name!r} use it; give it to one of them"
                problems.append(Problem(place=place[column], columns=(column,), text=text))
                del columns[column]
        if columns:
            matches.append(Match(name=name, field=field, columns=tuple(columns), is_stacked=is_stacked, is_asked=True))
    matches.extend(
        Match(name=name, field=Field(), columns=(name,), is_stacked=False, is_asked=False)
        for name in place
        if name not in owner
    )
    matches.sort(key=lambda match: min(place[column] for column in match.columns))
    return matches, problems + _same_names(matches, place)


def mask_name(name: str) -> str:
    """Return what the mask of a field is called."""
    return f"{name}_mask"


def _wanted(name: str, field: Field, place: Mapping[str, int]) -> tuple[tuple[str, ...], bool]:
    """Return the names and patterns a field asks for, and whether what they find is stacked."""
    if field.columns is None:
        return (name,), False
    if isinstance(field.columns, str):
        # A column may be called "a[0]": a name that is there is a name, whatever signs are in it.
        is_pattern = field.columns not in place and any(sign in field.columns for sign in "*?[")
        return (field.columns,), is_pattern
    return tuple(field.columns), True


def _nothing_named(name: str, pattern: str, field: Field, names: Sequence[str]) -> str:
    subject = f"field {name!r}" if field.columns is None else f"field {name!r}: columns={pattern!r}"
    inside = [column for column in names if column.startswith(f"{pattern}.")]
    near = inside[:3] or difflib.get_close_matches(pattern, names, n=3, cutoff=0.6)
    if near:
        return f"{subject} names no column; did you mean {' or '.join(map(repr, near))}?"
    known = ", ".join(map(repr, names[:8])) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
    return f"{subject} names no column; there are {known or 'none'}"


def _same_names(matches: Sequence[Match], place: Mapping[str, int]) -> list[Problem]:
    """Return a problem for each name that two entries of the spec would share."""
    problems: list[Problem] = []
    taken: dict[str, Match] = {}
    for match in matches:
        other = taken.setdefault(match.name, match)
        if other is not match:
            asked, plain = (match, other) if match.is_asked else (other, match)
            text = (
                f"column {plain.name!r}: field {asked.name!r} is made of {', '.join(map(repr, asked.columns[:3]))}, "
                f"but this column comes under the same name; name the field otherwise or leave the column out"
            )
            problems.append(Problem(place=place[plain.columns[0]], columns=(plain.name,), text=text))
    for match in matches:
        mask = mask_name(match.name)
        if match.field.mask and mask in taken:
            text = (
                f"field {match.name!r}: its mask would be called {mask!r}, but there is a field of this name; "
                f"name one of them otherwise"
            )
            problems.append(Problem(place=place[match.columns[0]], columns=match.columns, text=text))
    return problems
