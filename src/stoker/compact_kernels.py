"""The compiled loop that widens floats of 16 bits, which NumPy does one by one; held equal to NumPy's by a test.

Imported where loops are compiled; see `machine_code`.

Source:
    IEEE 754-2019, 3.4: sign, 5 or 8 bits of exponent, 10 or 23 of fraction, of binary16 and binary32.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.compiling import compile_loop, reads, writes

_SIGN, _EXPONENT, _FRACTION = np.uint32(0x8000), np.uint32(0x7C00), np.uint32(0x03FF)
# Bits of the fraction that a float32 has more, and how far its sign is further up.
_MORE, _UP = np.uint32(13), np.uint32(16)
# What to add to an exponent, whose zero is 15 here and 127 there: and to one of all ones, which stays so.
_BIAS, _ALL_ONES = np.uint32((127 - 15) << 23), np.uint32((255 - 31) << 23)
# Of a fraction whose exponent is zero, in which no one is left out.
_SMALL = np.float32(2.0**-24)
# Values that stay in the first-level cache.
_BLOCK = 2048


@compile_loop(types.void(reads(types.uint16), writes(types.float32), writes(types.uint32)))
def widen_halves(halves, singles, bits):
    """Write each float16 as a float32.

    Args:
        halves: Their bits. Shape [N].
        singles: The target. Shape [N].
        bits: The same memory.
    """
    for begin in range(0, len(halves), _BLOCK):
        some = halves[begin : begin + _BLOCK]
        out, target = singles[begin : begin + _BLOCK], bits[begin : begin + _BLOCK]
        for i in range(len(some)):
            out[i] = np.float32(np.int32(some[i] & _FRACTION)) * _SMALL
        for i in range(len(some)):
            half = np.uint32(some[i])
            exponent = half & _EXPONENT
            bias = _ALL_ONES if exponent == _EXPONENT else _BIAS
            found = ((half & (_EXPONENT | _FRACTION)) << _MORE) + bias
            found = target[i] if exponent == np.uint32(0) else found
            target[i] = found | ((half & _SIGN) << _UP)
