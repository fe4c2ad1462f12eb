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

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from stoker._native import Draws as NativeDraws
from stoker.dataset.units.index import Index
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.fields.offsets import Int64, offsets_of, ranges
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


class UnitRows(NamedTuple):
    """The rows of units, one unit behind the other.

    Attributes:
        row: Each row in its chunk. Shape [T].
        offsets: Where each unit's rows begin, and the end. Shape [B + 1].
    """

    row: Int64
    offsets: Int64


class Spans(NamedTuple):
    """The rows of units whose rows lie side by side.

    Attributes:
        first: The first row of each, in its chunk. Shape [B].
        offsets: Where each unit's rows begin if one stands behind the other, and the end. Shape [B + 1].
    """

    first: Int64
    offsets: Int64


class Segments(NamedTuple):
    """The parts of documents that packed rows are made of, one packed row behind the other.

    Attributes:
        row: Document, as a row of its chunk. Shape [S].
        first: Its first token here, within the document. Shape [S].
        num: How many tokens of it stand here, its end included. Shape [S].
        lengths: How many tokens the whole document has, its end included. Shape [S].
        offsets: Where each packed row's segments begin, and the end. Shape [B + 1].
    """

    row: Int64
    first: Int64
    num: Int64
    lengths: Int64
    offsets: Int64


class Units(Protocol):
    """The units of one epoch."""

    @property
    def num_units(self) -> Int64:
        """Units of each chunk. Shape [K]."""

    def rows(self, chunk: Int64, unit: Int64) -> UnitRows:
        """Return the rows of units.

        Args:
            chunk: Chunks in fixed order. Shape [B].
            unit: Units of those chunks. Shape [B].
        """

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the units of a chunk that a row of it stands in: none, one, or several. Shape [n], ascending."""


class SideBySide(Units):
    """Units whose rows lie side by side."""

    @abstractmethod
    def spans(self, chunk: Int64, unit: Int64) -> Spans:
        """Return where the rows of units lie; see `Units.rows`."""

    def rows(self, chunk: Int64, unit: Int64) -> UnitRows:
        """Return the rows of units."""
        first, offsets = self.spans(chunk, unit)
        return UnitRows(ranges(first, offsets), offsets)


@dataclass(frozen=True)
class GroupUnits(SideBySide):
    """Runs of rows with equal keys."""

    index: Index

    @property
    def num_units(self) -> Int64:
        """Groups of each chunk. Shape [K]."""
        return np.diff(self.index.arrays["unit_starts"])

    def spans(self, chunk: Int64, unit: Int64) -> Spans:
        """Return where the rows of groups lie."""
        starts = self.index.arrays["starts"]
        at = self.index.arrays["unit_starts"][chunk] + unit
        first = starts[at]
        return Spans(first - self.index.row_starts[chunk], offsets_of(starts[at + 1] - first))

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the group that a chunk's row is in. Shape [1]."""
        at = np.searchsorted(self.index.arrays["starts"], self.index.row_starts[chunk] + row, side="right") - 1
        return np.array([at - self.index.arrays["unit_starts"][chunk]], dtype=np.int64)


@dataclass(frozen=True)
class WindowUnits(SideBySide):
    """Rows of one key side by side, so many each."""

    index: Index
    length: int

    @property
    def num_units(self) -> Int64:
        """Windows of each chunk. Shape [K]."""
        return np.diff(self.index.arrays["unit_starts"])

    def spans(self, chunk: Int64, unit: Int64) -> Spans:
        """Return where the rows of windows lie."""
        first = self.index.arrays["starts"][self.index.arrays["unit_starts"][chunk] + unit]
        offsets = np.arange(len(first) + 1, dtype=np.int64) * self.length
        return Spans(first - self.index.row_starts[chunk], offsets)

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the windows that a chunk's row is in."""
        begin, end = self.index.arrays["unit_starts"][chunk : chunk + 2].tolist()
        at = int(self.index.row_starts[chunk]) + row
        low, high = np.searchsorted(self.index.arrays["starts"][begin:end], [at - self.length, at], side="right")
        return np.arange(low, high, dtype=np.int64)


@dataclass(frozen=True)
class Weights(SideBySide):
    """Rows drawn by their weights."""

    draws: Draws

    @property
    def num_units(self) -> Int64:
        """Draws of each chunk in this epoch. Shape [K]."""
        return self.draws.num_draws

    def spans(self, chunk: Int64, unit: Int64) -> Spans:
        """Return where the row of each draw lies."""
        return Spans(self.draws.rows(chunk, unit), np.arange(len(unit) + 1, dtype=np.int64))

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the draws that take a chunk's row."""
        draw = np.arange(self.num_units[chunk], dtype=np.int64)
        return np.flatnonzero(self.draws.rows(np.full_like(draw, chunk), draw) == row)


@dataclass(frozen=True)
class Packed:
    """Documents in rows of one length."""

    index: Index
    length: int
    split: bool

    @property
    def num_units(self) -> Int64:
        """Packed rows of each chunk. Shape [K]."""
        return np.diff(self.index.arrays["unit_starts"])

    def rows(self, chunk: Int64, unit: Int64) -> UnitRows:
        """Return the documents of packed rows."""
        segments = self.segments(chunk, unit)
        return UnitRows(segments.row, segments.offsets)

    def units_of(self, chunk: int, row: int) -> Int64:
        """Return the packed rows that a chunk's document stands in."""
        arrays, begin = self.index.arrays, int(self.index.row_starts[chunk])
        if self.split:
            tokens = arrays["token_starts"]
            start, stop = (tokens[begin + row : begin + row + 2] - tokens[begin]).tolist()
            return np.arange(start // self.length, -(-stop // self.length) if stop > start else start // self.length)
        first, last = arrays["unit_starts"][chunk : chunk + 2].tolist()
        borders = arrays["piece_starts"][first : last + 1]
        piece = np.flatnonzero(arrays["piece_rows"][borders[0] : borders[-1]] == row)
        return np.unique(np.searchsorted(borders - borders[0], piece, side="right") - 1)

    def segments(self, chunk: Int64, unit: Int64) -> Segments:
        """Return what packed rows are made of.

        Args:
            chunk: Chunks in fixed order. Shape [B].
            unit: Packed rows of those chunks. Shape [B].
        """
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
    if isinstance(unit, Grouped):
        return GroupUnits(index)
    if isinstance(unit, NGram):
        return WindowUnits(index, unit.length)
    if isinstance(unit, Pack):
        return Packed(index, unit.length, unit.split)
    assert isinstance(unit, Weighted)
    return Weights(Draws(index.arrays["cumulated"], index.row_starts, seed=seed, epoch=epoch))
