"""Sample weights: which sample each draw of an epoch takes, by systematic resampling in exact integers (pure).

    sample        0     1 2             3        4
    C             │─────│││─────────────│────────│            integer weights added up: C[i] to C[i + 1] is sample i's
    draws           ↑     ↑     ↑     ↑     ↑                 one comb of N equal steps W / N, thrown once an epoch

Rows do not stand on the comb as they lie: those of a block of 32 are mixed, anew in every epoch. Data that repeat every
few rows, as candidates of a query do, would otherwise fall in step with it, and an epoch would have every third
candidate and no fourth.

Draw t stands at (t * W + u) / N with one u in [0, W) an epoch, so sample i gets the floor or the ceiling of
N * w[i] / W draws in every epoch, N * w[i] / W of them on average, and an epoch always has N.
"""

from __future__ import annotations

import numpy as np

from stoker import loops
from stoker.identity import order_key
from stoker.order.plain import GOLDEN, MIX_1, MIX_2, Int64, UInt64

# Rows that are mixed on the comb: more than lists usually are long, and few enough to walk through at every draw.
BLOCK_ROWS = 32

# Products of a draw's number and a remainder are taken in two halves, which stay below 2**63 up to so many samples.
_HALF_BITS = 17
MAX_SAMPLES = 1 << 39

_MASK_64 = (1 << 64) - 1


class Draws:
    """The draws of one epoch, chunk by chunk: draw d of a chunk is one of its rows.

    Args:
        cumulated: Integer weights added up in the fixed order, from 0 to their sum. int64, shape [N + 1].
        chunk_starts: First sample of each chunk in the fixed order, and N. int64, shape [K + 1].
        seed: Of the order.
        epoch: Which epoch.

    Raises:
        ValueError: The weights add up to nothing, or there are more than 2**39 samples.

    Source:
        Carpenter, Clifford and Fearnhead, "Improved particle filter for nonlinear problems", 1999: systematic
        resampling.
    """

    def __init__(self, cumulated: Int64, chunk_starts: Int64, *, seed: int, epoch: int) -> None:
        num, total = len(cumulated) - 1, int(cumulated[-1])
        if num > MAX_SAMPLES:
            raise ValueError(f"weights can be had for {MAX_SAMPLES:,} samples, not for {num:,}")
        if num and total < 1:
            raise ValueError("the weights add up to nothing")
        self._cumulated = cumulated
        self._chunk_starts = chunk_starts
        self._num = num
        self._key = order_key(seed=seed, epoch=epoch, purpose="weights:rows")
        # 64 random bits scaled to [0, W): W is below 2**63, so no value is twice as likely as another.
        shift = order_key(seed=seed, epoch=epoch, purpose="weights") * total >> 64
        self._whole, self._rest = divmod(total, max(num, 1))
        self._shift_whole, self._shift_rest = divmod(shift, max(num, 1))
        # Draws before each chunk: those t with t * W + u < N * C. In Python's integers, for the product is too long.
        borders = cumulated[chunk_starts].tolist()
        before = [(num * border - shift + total - 1) // total for border in borders] if num else [0] * len(borders)
        self.chunk_draws: Int64 = np.array(before, dtype=np.int64)

    @property
    def num_draws(self) -> Int64:
        """Draws of each chunk; N over all of them. Shape [K]."""
        return np.diff(self.chunk_draws)

    def rows(self, chunk: Int64, draw: Int64, *, compiled: bool = True) -> Int64:
        """Return the row of its chunk that each draw takes. Shape [B].

        Args:
            chunk: Chunks in fixed order. Shape [B].
            draw: Draws of those chunks, each below `num_draws` of its chunk. Shape [B].
            compiled: False keeps to NumPy.
        """
        kernels = loops.find("stoker.order.draw_kernels") if compiled else None
        if kernels is not None:
            found = np.empty(len(chunk), dtype=np.int64)
            numbers = max(self._num, 1), self._whole, self._rest, self._shift_whole, self._shift_rest, _HALF_BITS
            tables = self._cumulated, self._chunk_starts, self.chunk_draws
            kernels.rows(*tables, chunk, draw, *numbers, np.uint64(self._key), BLOCK_ROWS, found)
            return found
        place = self._places(self.chunk_draws[chunk] + draw)
        sample = np.searchsorted(self._cumulated, place, side="right") - 1
        begin, end = self._chunk_starts[chunk], self._chunk_starts[chunk + 1]
        first = begin + (sample - begin) // BLOCK_ROWS * BLOCK_ROWS
        return first + self._mixed(first, np.minimum(BLOCK_ROWS, end - first), place - self._cumulated[first]) - begin

    def _mixed(self, first: Int64, num: Int64, place: Int64) -> Int64:
        """Return which row of its block stands at each place, the block's rows being mixed.

        Fisher and Yates from the last row down, so that the walk may end before all are mixed.

        Args:
            first: First row of each block. Shape [B].
            num: Its rows. Shape [B].
            place: Place in the block, counted in weight from the last of the mixed rows. Shape [B].
        """
        keys = _mix(np.uint64(self._key) + (first + 1).astype(np.uint64) * np.uint64(GOLDEN))
        rows = np.tile(np.arange(BLOCK_ROWS, dtype=np.int64), (len(first), 1))
        found, left, all_of = np.full(len(first), -1, dtype=np.int64), place.copy(), np.arange(len(first))
        for i in reversed(range(BLOCK_ROWS)):
            drawn = _mix(keys + np.uint64((i + 1) * GOLDEN & _MASK_64))
            j = (((drawn >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32)).astype(np.int64)
            j = np.where(i < num, j, i)
            row = rows[all_of, j]
            rows[all_of, j] = rows[:, i]
            at = np.minimum(first + row, len(self._cumulated) - 2)  # rows beyond the block are not looked at
            weight = self._cumulated[at + 1] - self._cumulated[at]
            is_open = (found < 0) & (i < num)
            found = np.where(is_open & (left < weight), row, found)
            left = np.where(is_open, left - weight, left)
        return found

    def _places(self, draw: Int64) -> Int64:
        """Return floor((draw * W + u) / N), exactly. Shape [B]."""
        num = max(self._num, 1)
        high, low = draw >> _HALF_BITS, draw & ((1 << _HALF_BITS) - 1)
        whole, rest = np.divmod(high * self._rest, num)
        rest = ((rest << _HALF_BITS) + low * self._rest + self._shift_rest) // num
        place: Int64 = draw * self._whole + self._shift_whole + (whole << _HALF_BITS) + rest
        return place


def _mix(values: UInt64) -> UInt64:
    """Return what `plain.mix` does of each. Shape [B]."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))
