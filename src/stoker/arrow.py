"""Arrow arrays made of NumPy's, and views and run ends as what they stand for, which few functions know.

    string_view, binary_view       string, binary
    list_view, large_list_view     list, large_list
    run_end_encoded<x>             x

A writer's note beside Parquet's schema (ARROW:schema) may ask for views and run ends. pyarrow's own cast of list views
reads beyond their ends (26.0). Its `array` and `scalar` import pandas, wherever that is installed: a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TIME_UNITS = ("s", "ms", "us", "ns")
"""Of timestamps and durations: each is a thousandth of the one before."""

_VIEWS = {
    *(pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW, pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW),
    pa.lib.Type_RUN_END_ENCODED,
}


def array_of(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers or bools of this machine's byte order as an Arrow array, which views them if it can. Shape [n].

    `mask` says which are null. Shape [n].
    """
    bits = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    num_nulls = 0 if mask is None else int(np.count_nonzero(mask))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(bits)], num_nulls)


def strings_of(words: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """Return words as an array of strings or binary."""
    there = np.array([word is not None for word in words], np.bool_)
    encoded = [word.encode() if isinstance(word, str) else word or b"" for word in words]
    width = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    offsets = pa.py_buffer(np.cumsum([0, *map(len, encoded)], dtype=width))
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(words), [valid, offsets, pa.py_buffer(b"".join(encoded))])


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of Arrow's integers or floats."""
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def numbers_in(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return integers or floats, none of them null, as a NumPy array; a view where they lie in one piece."""
    chunks = [array] if isinstance(array, pa.Array) else array.chunks
    dtype = dtype_of(array.type)
    some = [np.frombuffer(one.buffers()[1], dtype, len(one), one.offset * dtype.itemsize) for one in chunks if len(one)]
    return some[0] if len(some) == 1 else np.concatenate([np.zeros(0, dtype), *some])


def parts_of(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types that a type is made of; none of one that is not."""
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return [kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def parts_in(array: pa.Array) -> list[pa.Array]:
    """Return the arrays of the types that `parts_of` gives: values of lists as a whole, of a slice, too."""
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return [array.storage]
    if types.is_dictionary(kind):
        return [array.dictionary]
    if types.is_struct(kind):  # without the struct's own nulls
        return [array.field(i) for i in range(kind.num_fields)]
    return [array.values] if is_list(kind) or types.is_map(kind) else []


def around(array: pa.Array, parts: Sequence[pa.Array]) -> pa.Array:
    """Return an array, which has no views, made of other parts than `parts_in` gives, of any types.

    Nulls, offsets and places in a dictionary stay where they are.
    """
    kind = array.type
    if not parts:
        return array
    made = type_around(kind, [part.type for part in parts])
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, parts[0])
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, parts[0], ordered=kind.ordered)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(parts, fields=list(made), mask=array.is_null() if array.null_count else None)
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(made, len(array), buffers, array.null_count, array.offset, children=list(parts))


def type_around(kind: pa.DataType, parts: Sequence[pa.DataType]) -> pa.DataType:
    """Return a type that is made of other parts than `parts_of` gives; all that is in it may be null."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(kind.field(i).name, part) for i, part in enumerate(parts)])
    if types.is_map(kind):
        return pa.map_(*(parts[0].field(i).type for i in range(2)))
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, parts[0], kind.ordered)
    if types.is_fixed_size_list(kind):
        return pa.list_(parts[0], kind.list_size)
    is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
    return (pa.large_list if is_large else pa.list_)(parts[0])


def unencoded(kind: pa.DataType) -> pa.DataType:
    """Return a type without the dictionaries and extensions around it: that of its plain values."""
    while pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        (kind,) = parts_of(kind)
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a plain type is a list, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a plain type is a string, whatever its offsets."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for the same values: the same one where it has no views and run ends."""
    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    parts = [] if isinstance(kind, pa.BaseExtensionType) or types.is_union(kind) else parts_of(kind)
    return type_around(kind, [plain_type(part) for part in parts]) if parts else kind


def has_views(kind: pa.DataType) -> bool:
    """Whether a type has views or run ends in it, where extensions are left as they are."""
    return kind.id in _VIEWS or (not isinstance(kind, pa.BaseExtensionType) and any(map(has_views, parts_of(kind))))


def plain_array(array: pa.Array) -> pa.Array:
    """Return the same values in the type that `plain_type` gives; nothing is copied where there are no views."""
    kind, types = array.type, pa.types
    if not has_views(kind):
        return array
    if types.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return array.cast(plain_type(kind))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        # `flatten` brings values in order, and leaves out what nulls stand for.
        offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(array), 0))])
        large = types.is_large_list_view(kind)
        made = pa.LargeListArray if large else pa.ListArray
        mask = array.is_null() if array.null_count else None
        values = plain_array(array.flatten())
        return made.from_arrays(array_of(offsets.astype("i8" if large else "i4")), values, mask=mask)
    return around(array, [plain_array(part) for part in parts_in(array)])
