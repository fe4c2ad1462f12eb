"""Sets of instants as sorted, disjoint intervals of integer nanoseconds, and their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Disjoint half-open intervals [start, stop), none empty, sorted, with gaps between them.

    Attributes:
        start: int64 [N].
        stop: int64 [N].
    """

    start: Int64
    stop: Int64

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _before(self) -> Int64:
        return np.concatenate([[0], np.cumsum(self.stop - self.start)])

    def until(self, times: Int64) -> Int64:
        """Return how much of them lies before each of some times. [T] -> [T].

        The difference of two such numbers is what lies between the times, so that parts add up exactly.
        """
        if not len(self):
            return np.zeros(len(times), np.int64)
        before = self._before
        place = np.searchsorted(self.start, times, side="right")
        last_stop = self.stop[np.maximum(place - 1, 0)]
        beyond = np.where(place > 0, np.maximum(last_stop - times, 0), 0)
        found: Int64 = before[place] - beyond
        return found

    def within(self, window: Intervals) -> int:
        """Return how many nanoseconds of them lie in a window."""
        return int((self.until(window.stop) - self.until(window.start)).sum())

    def hold(self, times: Int64) -> npt.NDArray[np.bool_]:
        """Return which times lie in one of them, its end included and its beginning not. [T] -> [T]."""
        if not len(self):
            return np.zeros(len(times), bool)
        place = np.maximum(np.searchsorted(self.start, times, side="left") - 1, 0)
        held: npt.NDArray[np.bool_] = (self.start[place] < times) & (times <= self.stop[place])
        return held

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.stop, other.stop]))

    def __and__(self, other: Intervals) -> Intervals:
        return _where_both(self, other, want_other=True)

    def __sub__(self, other: Intervals) -> Intervals:
        return _where_both(self, other, want_other=False)


EMPTY = Intervals(start=np.empty(0, np.int64), stop=np.empty(0, np.int64))


def union(start: Int64, stop: Int64) -> Intervals:
    """Return the instants that at least one of some intervals covers; empty and inverted intervals cover none.

    Args:
        start: In any order. int64 [N].
        stop: int64 [N].
    """
    real = stop > start
    start, stop = start[real], stop[real]
    if not start.size:
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    reach = np.maximum.accumulate(stop)
    begins = np.concatenate([[True], start[1:] > reach[:-1]])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], start.size) - 1
    return Intervals(start=start[first], stop=reach[last])


def between(start: int, stop: int) -> Intervals:
    """Return one interval, or none where it is empty."""
    return union(np.array([start], np.int64), np.array([stop], np.int64))


def _where_both(one: Intervals, other: Intervals, *, want_other: bool) -> Intervals:
    """Return where `one` is and `other` is (or is not)."""
    if not len(one):
        return EMPTY
    if not len(other):
        return EMPTY if want_other else one
    times = np.concatenate([one.start, one.stop, other.start, other.stop])
    ones, others = np.ones(len(one), np.int8), np.ones(len(other), np.int8)
    zero_ones, zero_others = np.zeros(len(one), np.int8), np.zeros(len(other), np.int8)
    order = np.argsort(times, kind="stable")
    times = times[order]
    in_one = np.cumsum(np.concatenate([ones, -ones, zero_others, zero_others])[order], dtype=np.int8)
    in_other = np.cumsum(np.concatenate([zero_ones, zero_ones, others, -others])[order], dtype=np.int8)
    wanted = (in_one > 0) & ((in_other > 0) if want_other else (in_other == 0))
    # Pieces that touch are joined again by `union`.
    return union(times[:-1][wanted[:-1]], times[1:][wanted[:-1]])
