"""The compiled loop that reads where the columns of an exported batch lie; see `batch.py`.

Imported where loops are compiled; see `machine_code`.

Source:
    The Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html, struct ArrowArray.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from numba import types

from stoker.addresses import load_8
from stoker.compiling import compile_loop, writes

# Places in struct ArrowArray, in bytes.
_NULL_COUNT, _OFFSET, _NUM_BUFFERS, _NUM_CHILDREN, _BUFFERS, _CHILDREN = 8, 16, 24, 32, 40, 48


@compile_loop(types.int64(types.int64, *[writes(types.int64)] * 3))
def read_columns(array, nulls, offsets, addresses):
    """Read nulls, offset and address of the second buffer (0: there is none) of every column of a batch.

    Args:
        array: Address of its struct ArrowArray.
        nulls: Of each column.
        offsets: Of each column.
        addresses: Of each column.

    Returns:
        How many columns were read: none where they are not as many as there is room for.
    """
    num_columns = load_8(array + _NUM_CHILDREN)
    if num_columns != len(nulls):
        return 0
    children = load_8(array + _CHILDREN)
    for i in range(num_columns):
        child = load_8(children + 8 * i)
        nulls[i] = load_8(child + _NULL_COUNT)
        offsets[i] = load_8(child + _OFFSET)
        addresses[i] = load_8(load_8(child + _BUFFERS) + 8) if load_8(child + _NUM_BUFFERS) > 1 else 0
    return num_columns
