"""Which row each draw takes, compiled; `draws.py` has the same in NumPy, and the two are held equal by a test.

Imported where loops are compiled; see `machine_code`.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numba
import numpy as np
from numba import types

from stoker.compiling import compile_loop, reads, writes
from stoker.order.plain import GOLDEN, MIX_1, MIX_2

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _mix(value):
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


_INT64 = reads(types.int64)


@compile_loop(
    types.void(*[_INT64] * 5, *[types.int64] * 6, types.uint64, types.int64, writes(types.int64)),
)
def rows(
    cumulated,
    chunk_starts,
    chunk_draws,
    chunk,
    draw,
    num,
    whole,
    rest,
    shift_whole,
    shift_rest,
    half_bits,
    key,
    block_rows,
    out,
):
    """Write the row that each draw takes. See `Draws.rows`."""
    mixed = np.empty(block_rows, dtype=np.int64)
    mask = (1 << half_bits) - 1
    for i in range(len(chunk)):
        c = chunk[i]
        at = chunk_draws[c] + draw[i]
        product = (at >> half_bits) * rest
        high = product // num
        low = (((product - high * num) << half_bits) + (at & mask) * rest + shift_rest) // num
        place = at * whole + shift_whole + (high << half_bits) + low
        # The last row of the chunk that begins at or before the place, looked for from where it would be if all
        # weights were equal: a few steps of doubling length around it, then halves. A fifth less for a whole batch.
        first, stop = chunk_starts[c], chunk_starts[c + 1]
        begin, end = cumulated[first], cumulated[stop]
        guess = first + int((place - begin) * ((stop - first) / (end - begin)))
        guess = min(max(guess, first), stop - 1)
        step = 8
        if cumulated[guess] <= place:
            first = guess
            while first + step < stop and cumulated[first + step] <= place:
                first += step
                step *= 2
            stop = min(stop, first + step)
        else:
            stop = guess
            while stop - step > first and cumulated[stop - step] > place:
                stop -= step
                step *= 2
            first = max(first, stop - step)
        while stop - first > 1:
            middle = (first + stop) >> 1
            if cumulated[middle] <= place:
                first = middle
            else:
                stop = middle
        # The rows of its block, mixed from the last down until the place is reached.
        start = chunk_starts[c]
        block = start + (first - start) // block_rows * block_rows
        num_mixed = min(block_rows, chunk_starts[c + 1] - block)
        left = place - cumulated[block]
        block_key = _mix(key + np.uint64(block + 1) * _GOLDEN)
        for n in range(num_mixed):
            mixed[n] = n
        for n in range(num_mixed - 1, -1, -1):
            bits = _mix(block_key + np.uint64(n + 1) * _GOLDEN)
            j = np.int64(((bits >> _32) * np.uint64(n + 1)) >> _32)
            row = mixed[j]
            mixed[j] = mixed[n]
            weight = cumulated[block + row + 1] - cumulated[block + row]
            if left < weight:
                out[i] = block + row - start
                break
            left -= weight
