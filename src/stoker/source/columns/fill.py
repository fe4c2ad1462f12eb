"""What stands for null among the values delivered: the fill, brought to the form that its column takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stoker.source.columns.kinds import WORDS, DType, Form, Level, ValueKind
from stoker.source.columns.numeric import integer_fits
from stoker.source.columns.words import (
    MISSING,
    Buckets,
    Codes,
    FixedBytes,
    Way,
    bytes_as_binary,
    number_integers,
    number_words,
)
from stoker.spec import Field

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
