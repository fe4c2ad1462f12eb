"""Which row each draw takes, compiled; `draws.py` has the same in NumPy, and the two are held equal by a test.

Imported on first use only. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator,unused-ignore]
def rows(cumulated, chunk_starts, chunk_draws, chunk, draw, num, whole, rest, shift_whole, shift_rest, half_bits, out):
    """Write the row that each draw takes. See `Draws.rows`."""
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
        out[i] = first - chunk_starts[c]
