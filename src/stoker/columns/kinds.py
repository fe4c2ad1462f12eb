"""What an Arrow type is made of: lists around one leaf, or the reason why it has no tensor form.

timestamp[us, UTC]                leaf int64 "us since 1970 UTC"
list<fixed_size_list<float, 3>>   levels (varying, 3), leaf float32
dictionary<int8, string>          the same as string: the encoding is no part of the answer
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

DType = np.dtype[Any]


class Form(Enum):
    """What the innermost values are: it decides which options of a field make sense."""

    BOOL = "booleans"
    BOOL8 = "booleans of one byte"
    INTEGER = "integers"
    TIME = "dates or times"
    FLOAT = "floats"
    DECIMAL = "decimals"
    BYTES = "strings or binary"
    FIXED_BYTES = "binary of one length"


WORDS = (Form.BYTES, Form.FIXED_BYTES)


@dataclass(frozen=True, kw_only=True)
class ValueKind:
    """The innermost values of a column.

    Attributes:
        form: What they are.
        dtype: What they become where the field asks for nothing else.
        storage: dtype of the Arrow buffer.
        unit: What one step of the number means, None where the type does not say.
        width: Bytes of one value where the form is FIXED_BYTES or DECIMAL.
        scale: Digits behind the point where the form is DECIMAL.
    """

    form: Form
    dtype: DType
    storage: DType
    unit: str | None = None
    width: int = 0
    scale: int = 0


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of lists.

    Attributes:
        size: Length of every list, None where it varies.
        physical: Shape of the values as stored where the level is a tensor, else None.
        permutation: Stored dimension of each dimension of the tensor, where they differ.
    """

    size: int | None
    physical: tuple[int, ...] | None = None
    permutation: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions that a level of one length adds to a sample."""
        if self.physical is not None:
            return tuple(self.physical[axis] for axis in self.permutation or range(len(self.physical)))
        return () if self.size is None else (self.size,)


@dataclass(frozen=True, kw_only=True)
class ColumnKind:
    """A column's type as Stoker sees it: `levels` of lists, outermost first, around a `leaf`."""

    levels: tuple[Level, ...]
    leaf: ValueKind


@dataclass(frozen=True)
class Refusal:
    """Why a type has no tensor form, and what to do about it."""

    reason: str


_WAY_OUT = "leave it out (columns= without it), or turn it into numbers in a transform"


def kind_of(kind: pa.DataType) -> ColumnKind | Refusal:
    """Return what an Arrow type is made of, or why it cannot become a tensor."""
    kind = unencoded_type(kind)
    types = pa.types
    if is_any_list(kind) or types.is_fixed_size_list(kind):
        if pa.types.is_struct(unencoded_type(kind.value_type)):
            return Refusal(f"a list of structs is no array of numbers; {_WAY_OUT}, for example one list a field")
        inner = kind_of(kind.value_type)
        if isinstance(inner, Refusal):
            return inner
        size = kind.list_size if types.is_fixed_size_list(kind) else None
        return ColumnKind(levels=(Level(size=size), *inner.levels), leaf=inner.leaf)
    if isinstance(kind, pa.FixedShapeTensorType):
        inner = kind_of(kind.value_type)
        if isinstance(inner, Refusal):
            return inner
        shape = tuple(int(k) for k in kind.shape)
        order = tuple(kind.permutation) if kind.permutation is not None else None
        if order == tuple(range(len(shape))):
            order = None
        if inner.levels or inner.leaf.form in (Form.BYTES, Form.FIXED_BYTES):
            return Refusal(f"tensors of {kind.value_type} are not numbers; {_WAY_OUT}")
        level = Level(size=int(np.prod(shape, dtype=np.int64)), physical=shape, permutation=order)
        return ColumnKind(levels=(level,), leaf=inner.leaf)
    leaf = _leaf_of(kind)
    return leaf if isinstance(leaf, Refusal) else ColumnKind(levels=(), leaf=leaf)


def unencoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without what is only encoding: dictionaries, run ends and extensions we need not know."""
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif is_storage_enough(kind):
            kind = kind.storage_type
        else:
            return kind


def is_storage_enough(kind: pa.DataType) -> bool:
    """Whether an extension type says nothing that changes the answer."""
    return isinstance(kind, pa.BaseExtensionType) and not (isinstance(kind, pa.FixedShapeTensorType) or is_bool8(kind))


def is_bool8(kind: pa.DataType) -> bool:
    """Whether the type is the extension of booleans that take a byte."""
    return isinstance(kind, pa.BaseExtensionType) and getattr(kind, "extension_name", "") == "arrow.bool8"


def is_list_view(kind: pa.DataType) -> bool:
    """Whether the type is a list whose offsets may lie in any order."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def is_any_list(kind: pa.DataType) -> bool:
    """Whether the type is a list of varying length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or is_list_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is a string or binary of varying length."""
    types = pa.types
    plain = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    return bool(plain or is_bytes_view(kind))


def is_bytes_view(kind: pa.DataType) -> bool:
    """Whether the type is a string or binary in the layout of views."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def dtype_of(kind: pa.DataType) -> DType:
    """Return the dtype of Arrow's integers or floats, which Arrow itself only tells beside an installed pandas."""
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _leaf_of(kind: pa.DataType) -> ValueKind | Refusal:
    types = pa.types
    if types.is_boolean(kind):
        return _number(Form.BOOL, np.bool_)
    if is_bool8(kind):
        return ValueKind(form=Form.BOOL8, dtype=np.dtype(np.bool_), storage=np.dtype(np.int8))
    if types.is_integer(kind):
        return _number(Form.INTEGER, dtype_of(kind))
    if types.is_floating(kind):
        return _number(Form.FLOAT, dtype_of(kind))
    if types.is_timestamp(kind):
        return _number(Form.TIME, np.int64, f"{kind.unit} since 1970{'' if kind.tz is None else ' UTC'}")
    if types.is_date32(kind):
        return _number(Form.TIME, np.int32, "days since 1970")
    if types.is_date64(kind):
        return _number(Form.TIME, np.int64, "ms since 1970")
    if types.is_time32(kind):
        return _number(Form.TIME, np.int32, f"{kind.unit} since midnight")
    if types.is_time64(kind):
        return _number(Form.TIME, np.int64, f"{kind.unit} since midnight")
    if types.is_duration(kind):
        return _number(Form.TIME, np.int64, kind.unit)
    if types.is_decimal(kind):
        width = kind.bit_width // 8
        storage = np.dtype(np.int32) if width == 4 else np.dtype(np.int64)
        return ValueKind(form=Form.DECIMAL, dtype=np.dtype(np.float64), storage=storage, width=width, scale=kind.scale)
    if types.is_fixed_size_binary(kind):
        octet = np.dtype(np.uint8)
        return ValueKind(form=Form.FIXED_BYTES, dtype=octet, storage=octet, width=kind.byte_width)
    if is_bytes(kind):
        return _number(Form.BYTES, np.uint8)
    return Refusal(_why_not(kind))


def _number(form: Form, dtype: Any, unit: str | None = None) -> ValueKind:
    return ValueKind(form=form, dtype=np.dtype(dtype), storage=np.dtype(dtype), unit=unit)


def _why_not(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(kind):
        leaves = ", ".join(json.dumps(kind.field(i).name) for i in range(min(kind.num_fields, 3))) or "none"
        return (
            f"a struct is several columns in one (its fields: {leaves}{', ...' if kind.num_fields > 3 else ''}); name "
            f"single leaves by their dotted name in columns=, or {_WAY_OUT}"
        )
    if types.is_map(kind):
        return f"a map has no order and no fixed keys; {_WAY_OUT}, for example one column a key"
    if types.is_union(kind):
        return f"a union holds values of several types; {_WAY_OUT}"
    if types.is_null(kind):
        return f"its type is null: nothing says what its values would be; {_WAY_OUT}"
    if types.is_interval(kind):
        return f"a calendar interval is no one number (months differ in length); {_WAY_OUT}"
    return f"Stoker does not know the type {kind}; {_WAY_OUT}"
