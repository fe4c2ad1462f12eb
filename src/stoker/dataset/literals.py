"""What a filter compares a column with: a value in the column's own type, or an error that names both.

decimal(5, 2)   1.25, Decimal("1.25")     Decimal("1.255") does not fit
timestamp[ms]   datetime, date            a microsecond does not fit
float32         0.1                       the nearest float32
int8            1, 1.0                    1.5 and 300 are no int8: `Beyond` says where they lie
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

# Any literal of Python's in the finest unit that it has.
_MICROSECONDS = "us"


@dataclass(frozen=True)
class Beyond:
    """A number that no value of a column is.

    Attributes:
        floor: The greatest integer below it; None where all values of the column are less, or greater.
        is_above: Whether all of them are less, where there is no such integer.
        is_nan: Whether it is no number at all.
    """

    floor: int | None = None
    is_above: bool = False
    is_nan: bool = False


def literal(name: str, kind: pa.DataType, value: Any) -> pa.Scalar | Beyond:
    """Return a value in the type of a column.

    Args:
        name: Of the column, for errors.
        kind: Its type, without dictionaries.
        value: What the user wrote.

    Raises:
        ValueError: It is none that the column can be compared with, or does not fit its type.
    """
    types = pa.types
    if types.is_integer(kind) and isinstance(value, int | float) and not isinstance(value, bool):
        return _integer(kind, value)
    if types.is_floating(kind) and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _float(name, kind, value)
    if types.is_nested(kind):
        raise ValueError(f"filters: column {name!r} is {kind}, which is no single value: name one of its members")
    try:
        converted = _converted(kind, value)
        if converted is not None:
            return converted if converted.type.equals(kind) else converted.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
        raise _does_not_fit(name, kind, value, str(error).splitlines()[0]) from error
    raise ValueError(f"filters: column {name!r} is {kind}, and cannot be compared with {value!r}{_hint(kind, value)}")


def _does_not_fit(name: str, kind: pa.DataType, value: object, reason: str) -> ValueError:
    return ValueError(f"filters: column {name!r} is {kind}, and {value!r} does not fit it: {reason}")


def _integer(kind: pa.DataType, value: float) -> pa.Scalar | Beyond:
    if isinstance(value, float):
        if math.isnan(value):
            return Beyond(is_nan=True)
        if math.isinf(value):
            return Beyond(is_above=value > 0)
        if not value.is_integer():
            inner = _integer(kind, math.floor(value))
            return inner if isinstance(inner, Beyond) else Beyond(floor=math.floor(value))
        value = int(value)
    is_signed = pa.types.is_signed_integer(kind)
    most = 2 ** (kind.bit_width - is_signed) - 1
    if not -(most + 1) * is_signed <= value <= most:
        return Beyond(is_above=value > most)
    return pa.scalar(value, kind)


def _float(name: str, kind: pa.DataType, value: float | Decimal) -> pa.Scalar:
    dtype = np.dtype(f"f{kind.bit_width // 8}")
    with np.errstate(over="ignore"):
        try:
            found = dtype.type(float(value))
        except OverflowError:
            found = dtype.type(math.inf)
    if np.isinf(found) and not (isinstance(value, float) and math.isinf(value)):
        raise _does_not_fit(name, kind, value, "it is larger than any number of this type")
    return pa.scalar(found, kind)


def _converted(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """Return a value as Arrow has it, still to be cast; None where it is of another sort than the column."""
    types = pa.types
    if isinstance(value, pa.Scalar):  # a time with nanoseconds
        is_alike = (types.is_timestamp(kind) and value.type.tz == kind.tz) if types.is_timestamp(value.type) else False
        return value if is_alike or (types.is_duration(kind) and types.is_duration(value.type)) else None
    if types.is_boolean(kind):
        return pa.scalar(value) if isinstance(value, bool) else None
    if types.is_decimal(kind) and not isinstance(value, bool) and isinstance(value, int | float | Decimal):
        return _decimal(value)
    if types.is_string(kind) or types.is_large_string(kind):
        if isinstance(value, bytes):
            return pa.scalar(value, pa.binary())
        return pa.scalar(value, pa.string()) if isinstance(value, str) else None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        encoded = value.encode() if isinstance(value, str) else value
        return pa.scalar(encoded, pa.binary()) if isinstance(encoded, bytes) else None
    if types.is_timestamp(kind):
        if isinstance(value, datetime):
            is_alike = (value.tzinfo is None) == (kind.tz is None)
            return pa.scalar(value, pa.timestamp(_MICROSECONDS, kind.tz)) if is_alike else None
        is_day = isinstance(value, date) and kind.tz is None
        return pa.scalar(datetime(value.year, value.month, value.day), pa.timestamp(_MICROSECONDS)) if is_day else None
    if types.is_date(kind):
        if isinstance(value, datetime):
            is_whole = value.tzinfo is None and value.time() == time()
            return pa.scalar(value.date(), pa.date32()) if is_whole else None
        return pa.scalar(value, pa.date32()) if isinstance(value, date) else None
    if types.is_time(kind):
        return pa.scalar(value, pa.time64(_MICROSECONDS)) if isinstance(value, time) else None
    if types.is_duration(kind):
        return pa.scalar(value, pa.duration(_MICROSECONDS)) if isinstance(value, timedelta) else None
    return None


def _decimal(value: float | Decimal) -> pa.Scalar | None:
    # What is written is meant: of the float 0.1 this, and not 0.1000000000000000055.
    exact = value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
    return pa.scalar(exact) if exact.is_finite() else None


def _hint(kind: pa.DataType, value: object) -> str:
    if not pa.types.is_temporal(kind):
        return ""
    if pa.types.is_timestamp(kind):
        if isinstance(value, date | pa.Scalar):
            return ": give a datetime with a tzinfo" if kind.tz is not None else ": give a datetime without a tzinfo"
        return ": give a datetime.datetime"
    if pa.types.is_date(kind):
        return ": give a datetime.date, which has no time of the day"
    return ": give a datetime.time" if pa.types.is_time(kind) else ": give a datetime.timedelta"
