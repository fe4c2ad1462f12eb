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

    def hold(self, times: Int64, *, start: bool, stop: bool) -> npt.NDArray[np.bool_]:
        """Return which times lie in one of them; beginnings do where `start` says so, ends where `stop` does. [T]."""
        if not len(self):
            return np.zeros(len(times), bool)
        place = np.searchsorted(self.start, times, side="right" if start else "left") - 1
        ends = self.stop[np.maximum(place, 0)]
        return (place >= 0) & ((times <= ends) if stop else (times < ends))

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.stop, other.stop]))

    def __and__(self, other: Intervals) -> Intervals:
        starts = (
            self.start[other.hold(self.start, start=True, stop=False)],
            other.start[self.hold(other.start, start=False, stop=False)],
        )
        stops = (
            self.stop[other.hold(self.stop, start=False, stop=True)],
            other.stop[self.hold(other.stop, start=False, stop=False)],
        )
        return Intervals(start=np.sort(np.concatenate(starts)), stop=np.sort(np.concatenate(stops)))

    def __sub__(self, other: Intervals) -> Intervals:
        ends = np.iinfo(np.int64)
        return self & Intervals(start=np.append(ends.min, other.stop), stop=np.append(other.start, ends.max))


def union(start: Int64, stop: Int64) -> Intervals:
    """Return the instants that at least one of some intervals covers; empty and inverted intervals cover none.

    Args:
        start: In any order. int64 [N].
        stop: int64 [N].
    """
    real = stop > start
    if not real.all():
        start, stop = start[real], stop[real]
    if not start.size:
        return Intervals(start=start, stop=stop)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, stop = start[order], stop[order]
        del order  # as long as all events of a large trace, like each of the others
    stop = np.maximum.accumulate(stop)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > stop[:-1]]))
    return Intervals(start=start[first], stop=stop[np.append(first[1:], start.size) - 1])


def between(start: int, stop: int) -> Intervals:
    """Return one interval, or none where it is empty."""
    return union(np.array([start], np.int64), np.array([stop], np.int64))
