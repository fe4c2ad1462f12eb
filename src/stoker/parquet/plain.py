"""Views and run ends as what they stand for: other ways to lay the same values out in memory, which few functions know.

    string_view, binary_view       string, binary
    list_view, large_list_view     list, large_list
    run_end_encoded<x>             x

A writer's note beside Parquet's schema (ARROW:schema) may ask for them. pyarrow's own cast of list views reads beyond
their ends (26.0).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.fields.offsets import offsets_of


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for the same values: the same one where it has no views and run ends."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_list_view(kind) or types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_large_list_view(kind) or types.is_large_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if types.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(member.name, plain_type(member.type)) for member in members])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a plain type is a list, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def has_views(kind: pa.DataType) -> bool:
    """Whether a type has views or run ends in it."""
    types = pa.types
    if types.is_struct(kind):
        return any(has_views(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_map(kind):
        return has_views(kind.key_type) or has_views(kind.item_type)
    if is_list(kind) or types.is_dictionary(kind):
        return has_views(kind.value_type)
    is_bytes = types.is_string_view(kind) or types.is_binary_view(kind)
    is_list_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(is_bytes or is_list_view or types.is_run_end_encoded(kind))


def plain_array(array: pa.Array) -> pa.Array:
    """Return the same values in the type that `plain_type` gives; nothing is copied where there are no views."""
    kind, types = array.type, pa.types
    if not has_views(kind):
        return array
    if types.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return array.cast(plain_type(kind))
    if types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, plain_array(array.dictionary), ordered=kind.ordered)
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        members = [plain_array(array.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(plain_type(kind)), mask=mask)
    if types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(plain_array(values), kind.list_size, mask=mask)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        sizes: Any = np.asarray(array.sizes).astype(np.int64)
        offsets: Any = offsets_of(sizes if mask is None else np.where(mask.to_numpy(zero_copy_only=False), 0, sizes))
        values = array.flatten()  # in order, and without what nulls stand for
    else:
        offsets = np.asarray(array.offsets).astype(np.int64)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets = offsets - offsets[0]
    if types.is_map(kind):
        keys, items = plain_array(values.field(0)), plain_array(values.field(1))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, mask=mask)
    is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
    made, width = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
    return made.from_arrays(pa.array(offsets, width), plain_array(values), mask=mask)
