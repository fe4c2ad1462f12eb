"""What an Arrow type is made of: lists around one leaf, or the reason why it has no tensor form.

timestamp[us, UTC]                leaf int64 "us since 1970 UTC"
list<fixed_size_list<float, 3>>   levels (varying, 3), leaf float32
dictionary<int8, string>          the same as string: the encoding is no part of the answer
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stoker.arrow import dtype_of, is_list, parts_of, plain_type
from stoker.fields.compact import MisfitError
from stoker.words import some_of

DType = np.dtype[Any]
Levels: TypeAlias = tuple[int | None, ...]
"""The length of every list, outermost ones first; None where it varies."""


@dataclass(frozen=True, kw_only=True)
class ValueKind:
    """The innermost values of a column."""

    called: str  # what messages call them
    dtype: DType  # of Arrow's buffer, float64 for decimals: what they become where the field asks for nothing else
    unit: str | None = None  # what one step of the number means, where the type says it
    is_words: bool = False  # strings or binary
    width: int | None = None  # bytes of a word, where all have as many
    scale: int | None = None  # digits behind the point, of decimals alone
    tensor: tuple[int, ...] | None = None  # where the innermost lists are tensors: the shape in which they are stored
    order: tuple[int, ...] = ()  # the stored dimension of each dimension of such a tensor

    def dimensions(self, levels: Levels) -> Levels:
        """Return the lengths of lists around such values, those of a tensor dimension by dimension."""
        return levels if self.tensor is None else (*levels[:-1], *(self.tensor[axis] for axis in self.order))


_WAY_OUT = "leave it out (columns= without it), or turn it into numbers in a transform"


def kind_of(kind: pa.DataType) -> tuple[Levels, ValueKind]:
    """Return what an Arrow type is made of, levels of lists around a leaf; no tensor form is a `MisfitError`."""
    kind = _unencoded(kind)
    if is_list(kind):
        if pa.types.is_struct(_unencoded(kind.value_type)):
            raise MisfitError(f"a list of structs is no array of numbers; {_WAY_OUT}, for example one list a field")
        levels, leaf = kind_of(kind.value_type)
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return (size, *levels), leaf
    if isinstance(kind, pa.FixedShapeTensorType):
        levels, leaf = kind_of(kind.value_type)
        shape = tuple(int(k) for k in kind.shape)
        order = tuple(kind.permutation or range(len(shape)))
        if levels or leaf.is_words:
            raise MisfitError(f"tensors of {kind.value_type} are not numbers; {_WAY_OUT}")
        return (int(np.prod(shape, dtype=np.int64)),), replace(leaf, tensor=shape, order=order)
    return (), _value_kind(kind)


def _unencoded(kind: pa.DataType) -> pa.DataType:
    """Return the type without what is only encoding: dictionaries, views, and extensions we need not know."""
    while not isinstance(kind, pa.FixedShapeTensorType):
        if is_bool8(kind):
            return pa.bool_()
        if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
            (kind,) = parts_of(kind)
        elif (plain := plain_type(kind)).equals(kind):
            break
        else:
            kind = plain
    return kind


def is_bool8(kind: pa.DataType) -> bool:
    """Whether a type is Arrow's extension for booleans of one byte."""
    return getattr(kind, "extension_name", "") == "arrow.bool8"


def _value_kind(kind: pa.DataType) -> ValueKind:
    types = pa.types
    if types.is_boolean(kind):
        return ValueKind(called="booleans", dtype=np.dtype(np.bool_))
    if types.is_integer(kind):
        return ValueKind(called="integers", dtype=dtype_of(kind))
    if types.is_floating(kind):
        return ValueKind(called="floats", dtype=dtype_of(kind))
    if types.is_temporal(kind) and not types.is_interval(kind):
        return ValueKind(called="dates or times", dtype=np.dtype(f"i{kind.bit_width // 8}"), unit=_unit_of(kind))
    if types.is_decimal(kind):
        return ValueKind(called="decimals", dtype=np.dtype(np.float64), scale=kind.scale)
    octet = np.dtype(np.uint8)
    if types.is_fixed_size_binary(kind):
        return ValueKind(called="binary of one length", dtype=octet, is_words=True, width=kind.byte_width)
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return ValueKind(called="strings or binary", dtype=octet, is_words=True)
    raise MisfitError(f"{_why_not(kind)}; {_WAY_OUT}")


def _unit_of(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"{kind.unit} since 1970{'' if kind.tz is None else ' UTC'}"
    if pa.types.is_date(kind):
        return "days since 1970" if pa.types.is_date32(kind) else "ms since 1970"
    return str(kind.unit) if pa.types.is_duration(kind) else f"{kind.unit} since midnight"


def _why_not(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(kind):
        leaves = some_of([json.dumps(member.name) for member in kind], 3) or "none"
        return f"a struct is several columns in one (its fields: {leaves}); name each by its dotted name in columns="
    if types.is_map(kind):
        return "a map has no order and no fixed keys: one column a key would have"
    if types.is_union(kind):
        return "a union holds values of several types"
    if types.is_null(kind):
        return "its type is null: nothing says what its values would be"
    if types.is_interval(kind):
        return "a calendar interval is no one number (months differ in length)"
    return f"Stoker does not know the type {kind}"
