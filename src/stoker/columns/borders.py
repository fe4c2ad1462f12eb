"""Arrow's ways to write lists and binary, as borders and the values between them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.columns.kinds import DType, is_any_list, is_list_view
from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array

_MOST_BYTES = (1 << 31) - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def without_encoding(array: pa.Array) -> pa.Array:
    """Return the array without run ends and without extensions that say nothing; dictionaries stay."""
    while True:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array.type, pa.BaseExtensionType) and not isinstance(array.type, pa.FixedShapeTensorType):
            array = array.storage
        else:
            return array


def decoded(array: pa.Array) -> pa.Array:
    """Return the array without dictionaries; strings of more than 2 GiB as large ones."""
    while pa.types.is_dictionary(array.type):
        words = array.dictionary
        large = _LARGE.get(words.type)
        if large is not None and len(array) * words.nbytes > _MOST_BYTES:
            array = pa.DictionaryArray.from_arrays(array.indices, words.cast(large))
        array = without_encoding(array.dictionary_decode())
    return array


def split_lists(array: pa.Array, valid: Array | None) -> tuple[Array, pa.Array]:
    """Return the borders of lists or binary, int64 [n + 1] from 0, and the values between them.

    Values that stand under null lists, before the first list or behind the last are left out.
    """
    if is_list_view(array.type):
        # Views may overlap and lie in any order: Arrow brings the values in order.
        sizes = np.asarray(array.sizes).astype(np.int64)
        return offsets_of(sizes if valid is None else np.where(valid, sizes, 0)), array.flatten()
    if is_any_list(array.type):
        stored = np.asarray(array.offsets) if len(array) else np.zeros(1, np.int64)
        values = array.values
    else:
        width = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
        stored, values = _binary_parts(array, width)
    first, last = int(stored[0]), int(stored[-1])
    if valid is not None:
        lengths = np.diff(stored)
        if lengths[~valid].any():
            if not is_any_list(array.type):
                return split_lists(array.fill_null(b""), None)
            return offsets_of(np.where(valid, lengths, 0).astype(np.int64)), array.flatten()
    offsets = stored.astype(np.int64, copy=False)
    return (offsets - first if first else offsets), values.slice(first, last - first)


def _binary_parts(array: pa.Array, width: DType) -> tuple[Array, pa.Array]:
    """Return the stored offsets of binary, [n + 1], and all its bytes as an Arrow array of uint8."""
    _, borders, data = array.buffers()
    if len(array) == 0 or borders is None:
        return np.zeros(1, np.int64), pa.array([], pa.uint8())
    offsets = np.frombuffer(borders, width, count=len(array) + 1, offset=array.offset * width.itemsize)
    size = 0 if data is None else data.size
    return offsets, pa.Array.from_buffers(pa.uint8(), size, [None, data])
