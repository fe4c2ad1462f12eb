"""From units to the rows or token ranges they stand for: pure arithmetic on a kept index."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from stoker.dataset.units.index import Index
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.sampling.draws import Draws


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
