"""What no batch shows: that nothing is copied which may stay where it lies, and that nothing outside of it is read."""

import numpy as np
import pyarrow as pa
import pytest

from stoker._native import ExportedBatch, hash_strings
from stoker.columns import to_arrays


def test_numbers_without_nulls_are_views_of_the_memory_they_came_in():
    numbers = pa.array(np.arange(6.0))
    columns = {
        "numbers": numbers,
        "lists": pa.FixedSizeListArray.from_arrays(numbers, 3),
        "ragged": pa.LargeListArray.from_arrays(pa.array([0, 2, 6]), numbers),
        "slice": numbers[2:],
    }
    found = {name: to_arrays(pa.table({name: array}), {}, where="")[name] for name, array in columns.items()}
    address = numbers.buffers()[1].address
    assert found["numbers"].ctypes.data == found["lists"].ctypes.data == found["ragged"].values.ctypes.data == address
    assert found["slice"].ctypes.data == address + 16
    array = np.arange(12.0).reshape(4, 3)
    assert to_arrays({"x": array}, {}, where="")["x"].ctypes.data == array.ctypes.data


def test_columns_and_words_that_lie_outside_are_an_error():
    exported = ExportedBatch(pa.record_batch({"a": [1, None], "b": [1, 2]}).__arrow_c_array__()[1])
    assert exported.with_nulls(np.array([1, 0])) == [1]
    with pytest.raises(IndexError, match="no such column"):
        exported.with_nulls(np.array([2]))
    data, out = np.zeros(8, np.uint8), np.empty(2, np.int64)
    for offsets in ([0, 4, 9], [0, 5, 4], [-1, 0, 4]):
        with pytest.raises(IndexError, match="outside of its data"):
            hash_strings(data, np.array(offsets), 7, out)
