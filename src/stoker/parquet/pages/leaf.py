"""Which columns are decoded here, and what they are: pure decisions from types and levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from stoker._native import Column
from stoker.parquet.schema import Layout

BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTES, FIXED_BYTES = 0, 1, 2, 4, 5, 6, 7
_WORDS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
# Arrow types whose values are stored as the format stores them, or are the lower bytes of these.
_STORED_ALIKE: Mapping[int, Sequence[pa.DataType]] = {
    BOOLEAN: (pa.bool_(),),  # bits in either; a byte each in between
    INT32: (pa.int32(), pa.uint32(), pa.int16(), pa.uint16(), pa.int8(), pa.uint8(), pa.date32()),
    INT64: (pa.int64(), pa.uint64()),
    FLOAT: (pa.float32(),),
    DOUBLE: (pa.float64(),),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaf:
    """One leaf column, which is a column or the values of one of lists.

    Attributes:
        number: Of the leaf in its file.
        name: Of the column.
        type: Of the column in Arrow.
        value_type: Of one value.
        value_bytes: Bytes of one value in Arrow: as many as in a page, or the lower ones of them.
        column: What the decoder is to know of it. Values of strings or binary are lengths, or places in a dictionary.
    """

    number: int
    name: str
    type: pa.DataType
    value_type: pa.DataType
    value_bytes: int
    column: Column

    @property
    def is_stored_alike(self) -> bool:
        """Whether a flat column without nulls is in Arrow what it is in pages."""
        column = self.column
        return not (column.is_list or column.is_bit) and self.value_bytes == column.width


@lru_cache(maxsize=64)
def known_leaves(layout: Layout) -> Mapping[int, Leaf]:
    """Return the leaves of a file that are decoded here, by their numbers."""
    by_path = {path: i for i, path in enumerate(layout.paths)}
    found = {}
    for field in layout.schema:
        leaf = _leaf_of(field, layout, by_path)
        if leaf is not None:
            found[leaf.number] = leaf
    return found


def _leaf_of(field: pa.Field, layout: Layout, by_path: Mapping[str, int]) -> Leaf | None:
    is_list = isinstance(field.type, _LISTS)
    numbers = layout.leaves_of(field.name)
    if len(numbers) != 1 or isinstance(field.type, pa.BaseExtensionType):
        return None
    (number,) = numbers
    full = int(layout.max_definition_levels[number])
    repeated = int(layout.max_repetition_levels[number])
    if is_list:
        if repeated != 1 or full > 3:
            return None
        # Lists and values that may be null: 3; lists of which none may be, 1. Of 2 either may be.
        empty = {3: 1, 1: 0}.get(full, -1)
    else:
        if repeated or full > 1 or by_path.get(field.name) != number:
            return None
        empty = -1
    value_type = field.type.value_type if is_list else field.type
    physical, width = int(layout.physical_types[number]), int(layout.widths[number])
    is_binary = physical == BYTES
    if is_binary:
        is_known = not is_list and value_type in _WORDS
        value_type, width = pa.int32(), 4  # places in a dictionary, or lengths
    elif physical == FIXED_BYTES:
        is_known = width > 0 and (value_type == pa.binary(width) or (value_type == pa.float16() and width == 2))
    elif physical == INT64 and pa.types.is_timestamp(value_type):
        is_known = value_type.unit == layout.time_units[number]
    else:
        is_known = value_type in _STORED_ALIKE.get(physical, ())
    if not is_known:
        return None
    return Leaf(
        number=number,
        name=field.name,
        type=field.type,
        value_type=value_type,
        value_bytes=-(-value_type.bit_width // 8),
        column=Column(
            width=width, full=full, empty=empty, is_list=is_list, is_bit=physical == BOOLEAN, is_binary=is_binary
        ),
    )
