"""Where Python objects have what a loop wants of them: the pointer, the lengths and the kind of an array.

Read by address, as C extensions do: they are compiled against these places, so that they stay where they are from
release to release. What is known here is held against an array of this process all the same.

Source:
    CPython, Include/object.h: PyObject; NumPy, ndarraytypes.h: PyArrayObject_fields, PyArray_Descr, NPY_ARRAY_*.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

# Bytes from the beginning of an object.
TYPE = 8
DATA, NUM_DIMENSIONS, DIMENSIONS, DTYPE, FLAGS = 16, 24, 32, 56, 64
# Bytes from the beginning of a dtype.
BYTE_ORDER, TYPE_NUMBER = 26, 28
IS_CONTIGUOUS, IS_ALIGNED, IS_WRITEABLE = 0x1, 0x100, 0x400
NATIVE, INDIFFERENT = ord("="), ord("|")


def are_known() -> bool:
    """Whether the objects of this process are as this module says, which another Python's may not be."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16 or np.ndarray.__basicsize__ < FLAGS + 4:
        return False
    array = np.zeros((2, 3), np.int64)
    array.flags.writeable = False
    dtype = _word(id(array) + DTYPE)
    dimensions = _word(id(array) + DIMENSIONS)
    flags = _half(id(array) + FLAGS)
    return (
        _word(id(array) + TYPE) == id(np.ndarray)
        and _word(id(array) + DATA) == array.ctypes.data
        and _half(id(array) + NUM_DIMENSIONS) == 2
        and (_word(dimensions), _word(dimensions + 8)) == (2, 3)
        and flags & (IS_CONTIGUOUS | IS_ALIGNED | IS_WRITEABLE) == IS_CONTIGUOUS | IS_ALIGNED
        and dtype == id(array.dtype)
        and _half(dtype + TYPE_NUMBER) == array.dtype.num
        and ctypes.c_uint8.from_address(dtype + BYTE_ORDER).value == NATIVE
    )


def type_numbers(dtype: np.dtype[np.generic]) -> int:
    """Return the numbers that NumPy gives to types like this one, a bit each: `long` and `long long` are alike."""
    alike = {np.dtype(char).num for char in "?bhilqBHILQfd" if np.dtype(char) == dtype}
    return sum(1 << number for number in alike)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _half(address: int) -> int:
    return ctypes.c_int32.from_address(address).value
