"""Which row each weighted draw takes, one draw at a time in Python's integers."""

from __future__ import annotations

from bisect import bisect_right

from tests.oracles.permutation import draws as random_bits

from stoker.hashing import order_key

BLOCK_ROWS = 32


def rows_of_chunk(cumulated: list[int], chunk_starts: list[int], chunk: int, *, seed: int, epoch: int) -> list[int]:
    """Return the row that each draw of a chunk takes."""
    num, total = len(cumulated) - 1, cumulated[-1]
    shift = order_key(seed=seed, epoch=epoch, purpose="weights") * total >> 64
    key = order_key(seed=seed, epoch=epoch, purpose="weights:rows")
    places = [(draw * total + shift) // num for draw in range(num)]
    start, stop = chunk_starts[chunk : chunk + 2]
    found = []
    for place in places:
        if cumulated[start] <= place < cumulated[stop]:
            block = start + (bisect_right(cumulated, place) - 1 - start) // BLOCK_ROWS * BLOCK_ROWS
            place -= cumulated[block]
            for row in _mixed(min(BLOCK_ROWS, stop - block), random_bits(key, block + 1)[-1]):
                weight = cumulated[block + row + 1] - cumulated[block + row]
                if place < weight:
                    found.append(block + row - start)
                    break
                place -= weight
    return found


def _mixed(num: int, key: int) -> list[int]:
    """Return the rows of a block in the order in which draws meet them: from the last one of Fisher and Yates down."""
    rows, taken, bits = list(range(num)), [], random_bits(key, num)
    for i in reversed(range(num)):
        j = (bits[i] >> 32) * (i + 1) >> 32
        taken.append(rows[j])
        rows[j] = rows[i]
    return taken
