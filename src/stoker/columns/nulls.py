"""Nulls: what stands for them among the values delivered, and the one wording of a null that nothing stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from stoker.columns.kinds import WORDS, DType, Form, Level, ValueKind
from stoker.columns.match import match_fields
from stoker.columns.numeric import integer_fits
from stoker.columns.words import (
    MISSING,
    Buckets,
    Codes,
    FixedBytes,
    Way,
    bytes_as_binary,
    number_integers,
    number_words,
)
from stoker.errors import FieldError
from stoker.fields.spec import Field

# Columns whose nulls a message counts one by one; all are named.
_MAX_COUNTED = 8

Fill = bool | int | float | bytes


def fill_of(field: Field, leaf: ValueKind, way: Way | None, dtype: DType, levels: Sequence[Level]) -> Fill | str | None:
    """Return what stands for null among the values delivered, or (as str) why that cannot be."""
    fill = field.fill
    if fill is None:
        return None
    if isinstance(way, Codes | Buckets):
        return _fill_code(fill, leaf, way, dtype)
    if leaf.form in WORDS:
        if not isinstance(fill, str):
            return f"fill={fill!r} must be a string here; fill='' stands for no bytes"
        word = fill.encode()
        room = way.num_bytes if isinstance(way, FixedBytes) else leaf.width
        if leaf.form is Form.FIXED_BYTES or isinstance(way, FixedBytes):
            return word if len(word) <= room else f"fill={fill!r} has {len(word)} bytes, more than {room}"
        size = levels[-1].size
        if size is not None and size != len(word):
            return f"fill={fill!r} has {len(word)} bytes, but shape= asks for {size}"
        return word
    return _fill_number(fill, dtype)


def _fill_number(fill: float | str, dtype: DType) -> Fill | str:
    if isinstance(fill, str):
        return f"fill={fill!r} must be a number here"
    value = float(fill)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            too_large = np.isfinite(value) and not np.isfinite(np.array(value).astype(dtype))
        return f"fill={fill!r} is too large for {dtype.name}" if too_large else fill
    if not np.isfinite(value) or value != int(value) or not integer_fits(int(fill), dtype):
        return f"fill={fill!r} is no {dtype.name}; use another fill, or a dtype that holds it"
    return int(fill)


def _fill_code(fill: float | str, leaf: ValueKind, way: Codes | Buckets, dtype: DType) -> Fill | str:
    """Return the code of a fill: that of the word it is, or the number itself where the column holds words."""
    if leaf.form in WORDS:
        if not isinstance(fill, str):
            limit = len(way.words) if isinstance(way, Codes) else way.num_buckets
            if isinstance(way, Buckets) and not 0 <= fill < limit:
                return f"fill={fill!r} is no bucket of {limit}"
            return _fill_number(fill, dtype)
        code = int(number_words(bytes_as_binary(pa.array([fill])), way)[0])
    else:
        if isinstance(fill, str) or not np.isfinite(fill) or fill != int(fill):
            return f"fill={fill!r} must be an integer here: the value that stands for null"
        if not integer_fits(int(fill), leaf.storage):
            return f"fill={fill!r} does not fit {leaf.storage.name}"
        code = int(number_integers(np.array([int(fill)], leaf.storage), way)[0])
    if code != MISSING:
        return code
    unknown = way.unknown if isinstance(way, Codes) else None
    return f"fill={fill!r} is not in the vocabulary; add it, or give unknown=" if unknown is None else unknown


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
    first = next(iter(counts))
    place = " inside its lists" if inside else ""
    mask = "" if inside else " or mask=True"
    return FieldError(
        f"{nulls}{place} in {where}. Give the field a value for them, such as "
        f"fields={{{first!r}: Field(fill=...)}}{mask}, or leave such rows out with filters= or a transform",
        columns=list(counts),
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
    counts = {
        column: null_counts[column] or 0
        for match in matches
        if match.field.fill is None and not match.field.mask
        for column in match.columns
    }
    found = {column: n for column, n in counts.items() if n > 0}
    if found:
        raise null_error(found, where=where)
