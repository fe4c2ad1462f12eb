"""Where the samples of a lane's positions lie, through open windows: of one data set, or of several mixed.

One epoch of one data set is an `EpochStream`. A lane is one of these, or a `MixedStream`, which opens one after the
other as its data sets' own epochs come:

    lane        positions 0 ──────────────────────────────► of the mixture's epoch
    web         own epoch 4 ─────────────│ own epoch 5 ───
    code        own epoch 1 ──────────────────────────────
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stoker.fields.offsets import Int64
from stoker.loader.units.make import UnitPart
from stoker.loader.windows.in_use import Windows
from stoker.sampling.epoch import EpochOrder, WindowPositions
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.units import Units

Range: TypeAlias = tuple[int, int]
"""First and past-the-last position."""


class EpochStream:
    """The samples of one lane in one epoch of one data set.

    Args:
        order: Its order.
        windows: Its windows.
        units: What the order counts, None for rows.
        fragments: Names the chunks, for errors.
        which: Number of the data set.
    """

    def __init__(
        self,
        order: EpochOrder,
        windows: Windows,
        *,
        units: Units | None,
        fragments: Sequence[object],
        which: int = 0,
    ) -> None:
        self.windows = windows
        self._borders: list[int] = order.window_starts.tolist()
        self._units = units
        self._fragments = fragments
        self._which = which
        self._passed = 0

    def parts(self, ranges: Sequence[Range]) -> list[UnitPart]:
        """Return where the samples of positions lie: range by range, those in one window together.

        Their windows stay open for as long as the parts refer to them.

        Blocks: until they are open.

        Args:
            ranges: First and past-the-last position of each.
        """
        parts = []
        for number, pieces in self._by_window(ranges):
            window, order, chunks = self.windows.get(number)
            where = WindowPositions(pieces, order)
            parts.append(UnitPart(window, chunks, where, self._units, self._fragments, self._which))
        return parts

    def is_open(self, start: int, stop: int) -> bool:
        """Return whether `parts` of these positions would not have to wait."""
        first, last = bisect_right(self._borders, start) - 1, bisect_left(self._borders, stop)
        return all(self.windows.is_open(number) for number in range(first, last))

    def _by_window(self, ranges: Sequence[Range]) -> Sequence[tuple[int, Sequence[Range]]]:
        """Return the ranges in their order, cut at borders; those that follow each other in one window together."""
        borders = self._borders
        if len(ranges) == 1:  # mostly so
            ((begin, stop),) = ranges
            number = bisect_right(borders, begin) - 1
            if begin < stop <= borders[number + 1]:
                return ((number, ranges),)
        found: list[tuple[int, list[Range]]] = []
        for begin, stop in ranges:
            start = begin
            while start < stop:
                number = bisect_right(borders, start) - 1
                end = min(stop, borders[number + 1])
                if found and found[-1][0] == number:
                    found[-1][1].append((start, end))
                else:
                    found.append((number, [(start, end)]))
                start = end
        return found

    def is_last_window(self, position: int) -> bool:
        """Return whether a position lies in the epoch's last window."""
        return position >= self._borders[-2]

    def pass_by(self, position: int) -> int:
        """Close the windows before the one of this position, and return where that one ends.

        No step to come needs a position before this one, except by asking again.
        """
        number = bisect_right(self._borders, position) - 1
        if number > self._passed:
            self._passed = number
            self.windows.pass_by(number)
        return self._borders[min(number + 1, len(self._borders) - 1)]

    def pass_all(self) -> None:
        """Let go of every window."""
        self.windows.pass_by(len(self._borders))

    def stop(self) -> None:
        """Open no more windows."""
        self.windows.stop()

    def close(self) -> None:
        """Close all windows."""
        self.windows.close()


class MixedStream:
    """One epoch of a mixture in one lane: its data sets' own epochs are opened as they come, and closed behind.

    Args:
        order: The mixture's order.
        open_epoch: Makes the stream of an own epoch: called with the data set's number and that epoch's order.
    """

    def __init__(self, order: MixtureEpoch, open_epoch: Callable[[int, EpochOrder], EpochStream]) -> None:
        self._order = order
        self._open_epoch = open_epoch
        self._lock = threading.RLock()
        self._streams: dict[tuple[int, int], EpochStream] = {}
        self._windows: weakref.WeakSet[Windows] = weakref.WeakSet()  # of passed ones, too, while somebody uses them
        self._is_stopped = False

    def parts(self, ranges: Sequence[Range]) -> list[UnitPart]:
        """Return where the samples of positions lie: data set by data set, each in the order of its positions."""
        return [part for start, stop in ranges for part in self._parts_of_range(start, stop)]

    def is_open(self, start: int, stop: int) -> bool:
        """Return whether the windows of positions are open, as far as their data sets' own epochs are."""
        for which, epoch, first, last in self._order.stretches(start, stop):
            stream = self._streams.get((which, epoch))
            if stream is None or not stream.is_open(first, last):
                return False
        return True

    def _parts_of_range(self, start: int, stop: int) -> list[UnitPart]:
        parts: list[UnitPart] = []
        for which, epoch, first, last in self._order.stretches(start, stop):
            stream = self._stream(which, epoch)
            parts += stream.parts([(first, last)])
            if stream.is_last_window(last - 1):
                self._look_ahead(which, epoch + 1)
        return parts

    def whose(self, start: int, stop: int) -> Int64:
        """Return the data set of each position. Shape [B]."""
        return self._order.components(start, stop)

    def pass_by(self, position: int) -> int:
        """Let go of what lies before where each data set's stream stands at this position."""
        with self._lock:
            stands = self._order.streams_at(position)
            for which, epoch in [key for key in self._streams if key[1] < stands[key[0]][0]]:
                self._streams.pop((which, epoch)).pass_all()
            ends = [self._pass_one(which, *stand) for which, stand in enumerate(stands)]
        return max(position + 1, min(ends))

    def _pass_one(self, which: int, epoch: int, place: int) -> int:
        """Pass the windows before a place in a data set's own epoch, and return where the next one has been used up.

        If the epoch is not open yet, that is where one sample of it has.
        """
        stream = self._streams.get((which, epoch))
        border = place + 1 if stream is None else stream.pass_by(place)
        return self._order.first_use(which, epoch, border - 1) + 1

    def stop(self) -> None:
        """Open no more windows, and no more streams."""
        with self._lock:
            self._is_stopped = True
            for windows in self._windows:
                windows.stop()

    def close(self) -> None:
        """Close all windows of all streams."""
        self.stop()
        for windows in self._windows:
            windows.close()

    def _stream(self, which: int, epoch: int) -> EpochStream:
        """Return the stream of a data set's own epoch; padding may ask for one that was passed."""
        with self._lock:
            stream = self._streams.get((which, epoch))
            if stream is None:
                if self._is_stopped:
                    raise InterruptedError("the loader was closed")
                stream = self._open_epoch(which, self._order.component_epoch(which, epoch))
                self._streams[which, epoch] = stream
                self._windows.add(stream.windows)
            return stream

    def _look_ahead(self, which: int, epoch: int) -> None:
        """Have the first window of the next own epoch opened where this epoch of the mixture gets there."""
        with self._lock:
            if self._is_stopped or (which, epoch) in self._streams:
                return
            if self._order.position_of(which, epoch, 0) is not None:
                self._stream(which, epoch).windows.ask(0)


Stream: TypeAlias = EpochStream | MixedStream
