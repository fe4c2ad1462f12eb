"""From sampling units to the rows or token ranges they stand for: pure arithmetic on a kept index.

Groups, windows and packed rows are the same in every epoch. Weights are drawn anew, by systematic resampling in exact
integers:

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

from typing import NamedTuple

import numpy as np

from stoker._native import Draws as NativeDraws
from stoker.dataset.units.count import Index
from stoker.dataset.units.kinds import NGram, Pack, SamplingUnit, Weighted
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.hashing import order_key


class Segments(NamedTuple):
    """The parts of documents that packed rows are made of, one packed row behind the other. Shape [S] each."""

    row: Int64  # document, as a row of its chunk
    first: Int64  # its first token here, within the document
    num: Int64  # how many tokens of it stand here, its end included
    lengths: Int64  # how many tokens the whole document has, its end included
    offsets: Int64  # where each packed row's segments begin, and the end: [B + 1]


class Units:
    """The units of one epoch: windows of `length` rows each, or groups, each of which ends where the next one begins.

    Chunks are given in fixed order, and units as numbers in their chunk. Shape [B] both.
    """

    def __init__(self, index: Index, length: int | None = None) -> None:
        self.index, self._length = index, length

    @property
    def num_units(self) -> Int64:
        """Units of each chunk. Shape [K]."""
        return np.diff(self.index.arrays["unit_starts"])

    def spans(self, chunk: Int64, unit: Int64) -> tuple[Int64, Int64]:
        """Return the first row of each unit in its chunk, [B], and where each begins if one stands behind the other.

        The latter with the end, [B + 1]. Not for packed rows, which do not lie side by side.
        """
        starts = self.index.arrays["starts"]
        at = self.index.arrays["unit_starts"][chunk] + unit
        first = starts[at]
        if self._length is None:
            offsets = offsets_of(starts[at + 1] - first)
        else:
            offsets = np.arange(len(first) + 1, dtype=np.int64) * self._length
        return first - self.index.row_starts[chunk], offsets

    def rows(self, chunk: Int64, unit: Int64) -> tuple[Int64, Int64]:
        """Return each row of units in its chunk, one unit behind the other, shape [T]; and offsets as `spans` does."""
        first, offsets = self.spans(chunk, unit)
        return ranges(first, offsets), offsets

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the units of a chunk that a row of it stands in: none, one, or several. Shape [n], ascending."""
        unit = np.arange(self.num_units[chunk], dtype=np.int64)
        first, offsets = self.spans(np.full_like(unit, chunk), unit)  # not `rows`: windows overlap
        return unit[(first <= row) & (row < first + np.diff(offsets))]


class Draws(Units):
    """Rows drawn by their weights: draw d of a chunk is one of its rows.

    The array "cumulated" of the index is the integer weights added up in fixed order, from 0 to their sum: [N + 1].

    Source:
        Carpenter, Clifford and Fearnhead, "Improved particle filter for nonlinear problems", 1999: systematic
        resampling.
    """

    def __init__(self, index: Index, *, seed: int, epoch: int) -> None:
        super().__init__(index)
        cumulated = index.arrays["cumulated"]
        num, total = len(cumulated) - 1, int(cumulated[-1])
        if num and total < 1:
            raise ValueError("the weights add up to nothing")
        # 64 random bits scaled to [0, W): W is below 2**63, so no value is twice as likely as another.
        shift = order_key(seed=seed, epoch=epoch, purpose="weights") * total >> 64
        # Draws before each chunk: those t with t * W + u < N * C. In Python's integers, for the product is too long.
        borders = cumulated[index.row_starts].tolist()
        before = [(num * border - shift + total - 1) // total for border in borders] if num else [0] * len(borders)
        self._chunk_draws: Int64 = np.array(before, dtype=np.int64)
        key = order_key(seed=seed, epoch=epoch, purpose="weights:rows")
        self._native = NativeDraws(cumulated, index.row_starts, self._chunk_draws, shift, key)

    @property
    def num_units(self) -> Int64:
        """Draws of each chunk in this epoch; N over all of them. Shape [K]."""
        return np.diff(self._chunk_draws)

    def spans(self, chunk: Int64, unit: Int64) -> tuple[Int64, Int64]:
        """Return the row of its chunk that each draw takes, as a span of one row."""
        found = np.empty(len(chunk), dtype=np.int64)
        self._native.rows(chunk, unit, found)
        return found, np.arange(len(unit) + 1, dtype=np.int64)


class Packed(Units):
    """Documents in rows of `length` tokens; where they `split`, they are cut to fill a row."""

    def __init__(self, index: Index, length: int, split: bool) -> None:
        super().__init__(index)
        self.length, self.split = length, split

    def rows(self, chunk: Int64, unit: Int64) -> tuple[Int64, Int64]:
        """Return the documents of packed rows, which lie anywhere in their chunk."""
        segments = self.segments(chunk, unit)
        return segments.row, segments.offsets

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the packed rows that a chunk's document stands in."""
        unit = np.arange(self.num_units[chunk], dtype=np.int64)
        rows, offsets = self.rows(np.full_like(unit, chunk), unit)
        return np.unique(np.searchsorted(offsets, np.flatnonzero(rows == row), side="right") - 1)

    def segments(self, chunk: Int64, unit: Int64) -> Segments:
        """Return what packed rows are made of."""
        return (self._cut if self.split else self._fitted)(chunk, unit)

    def _cut(self, chunk: Int64, unit: Int64) -> Segments:
        tokens, row_starts = self.index.arrays["token_starts"], self.index.row_starts
        begin = tokens[row_starts[chunk]] + unit * self.length
        end = np.minimum(begin + self.length, tokens[row_starts[chunk + 1]])
        low = np.searchsorted(tokens, begin, side="right") - 1
        offsets = offsets_of(np.searchsorted(tokens, end, side="left") - low)
        document, counts = ranges(low, offsets), np.diff(offsets)
        start, stop = tokens[document], tokens[document + 1]
        first, last = np.maximum(start, np.repeat(begin, counts)), np.minimum(stop, np.repeat(end, counts))
        filled = np.flatnonzero(last > first)
        if filled.size < document.size:  # documents without tokens are no segments
            offsets = np.searchsorted(filled, offsets).astype(np.int64)
            document, start, stop, first, last = (of[filled] for of in (document, start, stop, first, last))
        return Segments(
            row=document - np.repeat(row_starts[chunk], np.diff(offsets)),
            first=first - start,
            num=last - first,
            lengths=stop - start,
            offsets=offsets,
        )

    def _fitted(self, chunk: Int64, unit: Int64) -> Segments:
        arrays, row_starts = self.index.arrays, self.index.row_starts
        at = arrays["unit_starts"][chunk] + unit
        low = arrays["piece_starts"][at]
        offsets = offsets_of(arrays["piece_starts"][at + 1] - low)
        piece, counts = ranges(low, offsets), np.diff(offsets)
        row, first = arrays["piece_rows"][piece], arrays["piece_firsts"][piece]
        document = row + np.repeat(row_starts[chunk], counts)
        lengths = arrays["token_starts"][document + 1] - arrays["token_starts"][document]
        return Segments(
            row=row,
            first=first,
            num=np.minimum(lengths - first, self.length),
            lengths=lengths,
            offsets=offsets,
        )


def units_of(unit: SamplingUnit, index: Index, *, seed: int, epoch: int) -> Units:
    """Return the units of an epoch; they are the same in every one, but for draws by weight."""
    if isinstance(unit, Weighted):
        return Draws(index, seed=seed, epoch=epoch)
    if isinstance(unit, Pack):
        return Packed(index, unit.length, unit.split)
    return Units(index, unit.length if isinstance(unit, NGram) else None)
