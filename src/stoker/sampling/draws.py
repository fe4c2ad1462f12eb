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

from stoker._native import Draws as NativeDraws
from stoker.fields.offsets import Int64
from stoker.hashing import order_key


class Draws:
    """The draws of one epoch, chunk by chunk: draw d of a chunk is one of its rows.

    Args:
        cumulated: Integer weights added up in the fixed order, from 0 to their sum. int64, shape [N + 1].
        chunk_starts: First sample of each chunk in the fixed order, and N. int64, shape [K + 1].
        seed: Of the order.
        epoch: Which epoch.

    Raises:
        ValueError: The weights add up to nothing.

    Source:
        Carpenter, Clifford and Fearnhead, "Improved particle filter for nonlinear problems", 1999: systematic
        resampling.
    """

    def __init__(self, cumulated: Int64, chunk_starts: Int64, *, seed: int, epoch: int) -> None:
        num, total = len(cumulated) - 1, int(cumulated[-1])
        if num and total < 1:
            raise ValueError("the weights add up to nothing")
        # 64 random bits scaled to [0, W): W is below 2**63, so no value is twice as likely as another.
        shift = order_key(seed=seed, epoch=epoch, purpose="weights") * total >> 64
        # Draws before each chunk: those t with t * W + u < N * C. In Python's integers, for the product is too long.
        borders = cumulated[chunk_starts].tolist()
        before = [(num * border - shift + total - 1) // total for border in borders] if num else [0] * len(borders)
        self.chunk_draws: Int64 = np.array(before, dtype=np.int64)
        key = order_key(seed=seed, epoch=epoch, purpose="weights:rows")
        self._native = NativeDraws(cumulated, chunk_starts, self.chunk_draws, shift, key)

    @property
    def num_draws(self) -> Int64:
        """Draws of each chunk; N over all of them. Shape [K]."""
        return np.diff(self.chunk_draws)

    def rows(self, chunk: Int64, draw: Int64) -> Int64:
        """Return the row of its chunk that each draw takes. Shape [B].

        Args:
            chunk: Chunks in fixed order. Shape [B].
            draw: Draws of those chunks, each below `num_draws` of its chunk. Shape [B].
        """
        found = np.empty(len(chunk), dtype=np.int64)
        self._native.rows(chunk, draw, found)
        return found
