"""The values of a column as plain Python objects, from pyarrow and from a batch: slow, and without Stoker.

Both sides are brought to one form, so that `==` compares them exactly:

    integers, dates, times      int
    bool                        bool
    floats                      the bytes of the float, so that -0.0 is not 0.0; every NaN is "nan"
    decimals                    as float64, the nearest
    strings, binary             bytes
    lists                       list
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stoker import Ragged

_FLOATS = {"halffloat": ("<e", "float16"), "float": ("<f", "float32"), "double": ("<d", "float64")}
NO_FILL = object()


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Type without dictionaries and extensions."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def flat_columns(table: pa.Table) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Dotted name -> type and values of every column, structs taken apart; nulls are None."""
    found: dict[str, tuple[pa.DataType, list[Any]]] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        _flatten(field.name, field.type, [_value(scalar) for scalar in column], found)
    return found


def _flatten(name: str, kind: pa.DataType, values: list[Any], found: dict[str, tuple[pa.DataType, list[Any]]]) -> None:
    if pa.types.is_struct(kind) and kind.num_fields:
        for i in range(kind.num_fields):
            member = kind.field(i)
            inner = [None if value is None else value[i] for value in values]
            _flatten(f"{name}.{member.name}", member.type, inner, found)
    else:
        assert name not in found, f"two columns {name}"
        found[name] = (kind, values)


def _value(scalar: pa.Scalar) -> Any:
    """Like `as_py`, but with dates and times as integers: Python's own have neither nanoseconds nor the year 10000."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_struct(kind):
        return [_value(scalar[i]) for i in range(kind.num_fields)]
    if _is_list(kind):
        return [_value(inner) for inner in scalar.values]
    if pa.types.is_temporal(kind):
        return scalar.value
    return scalar.as_py()


def expected(kind: pa.DataType, values: Sequence[Any], *, fill: Any = NO_FILL) -> list[Any]:
    """Bring values of pyarrow to the common form; a null without a fill stays None, which nothing delivered equals."""
    return [_expected(stored_type(kind), value, fill) for value in values]


def _expected(kind: pa.DataType, value: Any, fill: Any) -> Any:
    kind = stored_type(kind)
    if value is None:
        return None if fill is NO_FILL else _blank(kind, fill)
    if _is_list(kind):
        return [_expected(kind.value_type, inner, fill) for inner in value]
    return _leaf(kind, value)


def _blank(kind: pa.DataType, fill: Any) -> Any:
    """What stands for null: `fill`, or where that is None (a mask alone) zero, no bytes, an empty list."""
    kind = stored_type(kind)
    if pa.types.is_fixed_size_list(kind):
        return [_blank(kind.value_type, fill) for _ in range(kind.list_size)]
    if _is_list(kind):
        return []
    if pa.types.is_fixed_size_binary(kind):
        return (fill or "").encode().ljust(kind.byte_width, b"\0")
    if _is_bytes(kind):
        return (fill or "").encode()
    return _leaf(kind, fill or 0)


def _leaf(kind: pa.DataType, value: Any) -> Any:
    if str(kind) in _FLOATS:
        return _bits(_FLOATS[str(kind)][0], value)
    if pa.types.is_decimal(kind):
        return _bits("<d", float(value))  # of a Decimal: rounded to the nearest
    if pa.types.is_boolean(kind):
        return bool(value)
    if isinstance(value, str):
        return value.encode()
    return value


def _bits(form: str, value: float) -> bytes | str:
    return "nan" if np.isnan(value) else struct.pack(form, value)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(is_view or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    is_large = types.is_large_string(kind) or types.is_large_binary(kind)
    is_view = types.is_string_view(kind) or types.is_binary_view(kind)
    return bool(is_large or is_view or types.is_string(kind) or types.is_binary(kind))


def fill_for(kind: pa.DataType) -> float | str:
    """A fill that suits a column of this type."""
    kind = stored_type(kind)
    while _is_list(kind):
        kind = stored_type(kind.value_type)
    if pa.types.is_fixed_size_binary(kind) or _is_bytes(kind):
        return "?"
    return 1 if pa.types.is_boolean(kind) else 7


def delivered(kind: pa.DataType, array: Any) -> list[Any]:
    """Bring an array of a batch to the common form; it must have the dtype that docs/reference/types.md promises."""
    kind = stored_type(kind)
    if _is_list(kind) or _is_bytes(kind):
        if isinstance(array, Ragged):
            values, offsets = array.values, array.offsets
            assert offsets.dtype == np.int64, offsets.dtype
            assert offsets[0] == 0
            assert offsets[-1] == len(values)
            borders = list(itertools.pairwise(offsets.tolist()))
            if _is_bytes(kind):
                assert values.dtype == np.uint8, values.dtype
                return [values[start:stop].tobytes() for start, stop in borders]
            inner = delivered(kind.value_type, values)
            return [inner[start:stop] for start, stop in borders]
        assert pa.types.is_fixed_size_list(kind), f"{kind} came as an array of shape {array.shape}"
        inner = delivered(kind.value_type, array.reshape(-1, *array.shape[2:]))
        return [inner[i * kind.list_size : (i + 1) * kind.list_size] for i in range(len(array))]
    if pa.types.is_fixed_size_binary(kind):
        assert array.dtype == np.uint8, array.dtype
        assert array.shape[1:] == (kind.byte_width,), array.shape
        return [row.tobytes() for row in array]
    assert array.ndim == 1, array.shape
    assert array.dtype == dtype_of(kind), f"{kind} came as {array.dtype}"
    if array.dtype.kind != "f":
        return list(array.tolist())
    form = {2: "<e", 4: "<f", 8: "<d"}[array.dtype.itemsize]
    return [_bits(form, value) for value in array.tolist()]


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype that docs/reference/types.md promises for a number."""
    name = str(kind)
    if name in _FLOATS:
        return np.dtype(_FLOATS[name][1])
    if pa.types.is_decimal(kind):
        return np.dtype(np.float64)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return np.dtype(np.int32)
    if pa.types.is_temporal(kind):
        return np.dtype(np.int64)
    return np.dtype(name)
