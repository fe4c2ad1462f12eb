"""The windows of a lane, opened ahead of the steps that need them and let go of behind the last.

    passed   0 1 2        no step that is still to come needs them; whoever gathers from one has it
    in use       3 4      by the threads that assemble batches
    opened           5    the one ahead
    asked for          6  its chunks are being built, if they have to be; and of more where many threads build

A mixture has windows of each data set, whose own epochs follow each other as the mixture's epoch comes to them:

    lane        positions 0 ──────────────────────────────► of the mixture's epoch
    web         own epoch 4 ─────────────│ own epoch 5 ───
    code        own epoch 1 ──────────────────────────────

A data set that stands alone is the same with one stream, whose own epoch is the epoch.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np

from stoker.loader.fill import Filler
from stoker.loader.gather import Part, Range
from stoker.loader.opened import OpenDatasets
from stoker.loader.window import ChunkKey, Window
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.units import Units

# Chunks that are asked for ahead, for each thread that builds: behind the first window that is needed, and at most.
# While one chunk takes as long as fifty others, each of the other threads builds 25: docs/decisions/0017.
_FIRST_AHEAD, _MOST_AHEAD = 3, 25

_Key: TypeAlias = tuple[int, int, int]  # of a window: number of the data set, its own epoch, number of the window


class Lane:
    """The windows of one lane in one epoch, in which the samples of its positions are found.

    A window that a step needs again (padding takes samples from the epoch's beginning) is opened again. Safe to use
    from several threads.

    Args:
        units_in: Returns what is counted of a data set in one of its own epochs, None for rows.
        subject_at: Says what work for a position is for, where that is shown.
        on_open: Called with each window that was opened, before anybody has it.
        begins_at: Share of a window's chunks that is passed over at first and built last. All of them are waited for,
            so hosts that share a mirror may each begin elsewhere, and fetch what others have built by then.
    """

    def __init__(
        self,
        order: MixtureEpoch,
        opened: OpenDatasets,
        filler: Filler[ChunkKey],
        *,
        units_in: Callable[[int, int], Units | None],
        stages: Stages,
        subject_at: Callable[[int], Subject | None],
        on_open: Callable[[Window], object],
        begins_at: float,
    ) -> None:
        self.order, self._opened, self._filler, self._begins_at = order.few_long_epochs(), opened, filler, begins_at
        self._units_in, self._stages, self._subject_at, self._on_open = units_in, stages, subject_at, on_open
        # May be entered again by the thread that holds it: garbage may be found, and closed, at any place.
        self._lock, self._asking = threading.RLock(), threading.RLock()
        self._orders: dict[tuple[int, int], tuple[EpochOrder, list[int]]] = {}  # of own epochs, and windows' borders
        # A window of a lone data set, positions [begin, end) that it has, and how far these are ahead of its places.
        self._last_found: tuple[_Key, int, int, int] = (0, 0, 0), 0, 0, 0
        self._windows: dict[_Key, Future[Window]] = {}  # asked for, and not passed
        self._used: set[_Key] = set()  # those that somebody needed, so the window behind each was asked for, too
        self._num_used = [0] * len(opened.datasets)  # windows of each data set that somebody needed so far
        self._asked: set[_Key] = set()  # windows whose chunks were asked for
        self._openers: dict[int, threading.Thread] = {}  # of each data set's last window; each waits for the one before
        self._is_closed = False

    # ------------------------------------------------------------------ what a batch needs

    def parts(self, ranges: Iterable[Range], *, waits: bool) -> list[Part] | None:
        """Return where the samples of positions lie, range by range: data set by data set, each in its own order.

        Their windows stay open for as long as the parts refer to them. Unless it `waits` until they are open, it
        returns None where one is not.

        Raises:
            InterruptedError: The lane was closed.
        """
        found: list[tuple[_Key, list[Range]]] = []
        for start, stop in ranges:
            key, begin, end, ahead = self._last_found
            if begin <= start < stop <= end:  # as nearly always where there is one data set
                pieces = [(key, (start - ahead, stop - ahead))]
            else:
                pieces = self._pieces(start, stop)
            for key, piece in pieces:
                if found and found[-1][0] == key:
                    found[-1][1].append(piece)
                else:
                    found.append((key, [piece]))
        if not waits:
            windows = [self._windows.get(key) for key, _ in found]  # which may be passed meanwhile
            if any(one is None or not one.done() or one.exception() for one in windows):
                return None
        return [Part(self._window(key), pieces) for key, pieces in found]

    def pass_by(self, position: int) -> int:
        """Let go of the windows that no step from here on needs, and return from where on there may be more of them."""
        nexts: list[tuple[int, int]] = []  # of each data set, its own epoch and the window there that comes next
        looks_again = []
        with self._lock:
            for which, (epoch, place) in enumerate(self.order.streams_at(position)):
                number, border = 0, place + 1  # where the own epoch is not open yet
                if (known := self._orders.get((which, epoch))) is not None:
                    borders = known[1]
                    number = bisect_right(borders, place) - 1
                    border = borders[min(number + 1, len(borders) - 1)]
                nexts.append((epoch, number))
                looks_again.append(self.order.first_use(which, epoch, border - 1) + 1)
            for over in [one for one in self._orders if one[1] < nexts[one[0]][0]]:
                del self._orders[over]
            passed = [self._windows.pop(key) for key in list(self._windows) if key[1:] < nexts[key[0]]]
            self._used &= self._windows.keys()
        del passed  # without the lock: to give a window back takes a while
        return max(position + 1, min(looks_again))

    def stop(self) -> None:
        """Open no more windows, and free whoever waits for one with an `InterruptedError`."""
        with self._lock:
            self._is_closed = True
            for window in self._windows.values():
                if not window.done():
                    window.set_exception(InterruptedError("the loader was closed"))

    def close(self) -> None:
        """Stop, and close the windows that are not passed, once those in the opening are open: nobody may use one."""
        self.stop()
        for opener in list(self._openers.values()):
            opener.join()
        for window in self._windows.values():
            if window.exception() is None:
                window.result().close()
        self._windows.clear()

    def _pieces(self, start: int, stop: int) -> list[tuple[_Key, Range]]:
        """Return in which windows the samples of positions [start, stop) lie, and at which places of own epochs."""
        found: list[tuple[_Key, Range]] = []
        for which, epoch, first, last in self.order.component_ranges(start, stop):
            borders = self._order_of(which, epoch)[1]
            number = bisect_right(borders, first) - 1
            while first < last:
                key, end = (which, epoch, number), min(last, borders[number + 1])
                found.append((key, (first, end)))
                first, number = end, number + 1
        if found and len(self._opened.datasets) == 1:
            key, (_, end) = found[-1]
            begins, behind = self._order_of(*key[:2])[1][key[2] : key[2] + 2]
            self._last_found = key, begins + stop - end, behind + stop - end, stop - end
        return found

    def _window(self, key: _Key) -> Window:
        window = self._windows.get(key)
        if window is None or key not in self._used:
            with self._lock:
                window = self._ask(key)
                if (behind := self._next_of(key)) is not None:
                    self._ask(behind)
                self._num_used[key[0]] += key not in self._used
                self._used.add(key)
        if not (window.done() or self._is_closed):
            self._ask_ahead(key)
            with self._stages.span("wait_window"):
                window.exception()
        if self._is_closed:
            raise InterruptedError("the loader was closed")
        return window.result()

    def _order_of(self, which: int, epoch: int) -> tuple[EpochOrder, list[int]]:
        """Return the order of a data set's own epoch, and where its windows begin; padding may need a passed one."""
        known = self._orders.get((which, epoch))
        if known is None:
            with self._lock:
                order = self.order.component_epoch(which, epoch)
                known = self._orders[which, epoch] = order, order.window_starts.tolist()
        return known

    def _next_of(self, key: _Key) -> _Key | None:
        """Return the window behind another one, of the next own epoch where this epoch gets there."""
        which, epoch, number = key
        if number + 1 < self._order_of(which, epoch)[0].num_windows:
            return which, epoch, number + 1
        return None if self.order.position_of(which, epoch + 1, 0) is None else (which, epoch + 1, 0)

    # ------------------------------------------------------------------ asking for them

    def _ask(self, key: _Key) -> Future[Window]:
        """Have a window opened, unless it is asked for already. Called with the lock."""
        window = self._windows.get(key)
        if window is None:
            window = Future()
            if not self._is_closed:
                about = key, window, self._openers.get(key[0])
                opener = threading.Thread(target=self._work, args=about, name="stoker-window", daemon=True)
                opener.start()
                self._openers[key[0]] = opener
            self._windows[key] = window
        return window

    def _ask_ahead(self, key: _Key) -> None:
        """Ask for the chunks of a window and of those ahead of it, unless the cache is tight: then opening one does."""
        if self._opened.is_tight:
            return
        num_chunks = len(self._order_of(*key[:2])[0].window_chunks(0))
        left = num_windows_ahead(self._filler.pool.size, num_chunks, self._num_used[key[0]] - 1)
        ahead: _Key | None = key
        while ahead is not None and left >= 0:
            if ahead not in self._asked:  # mostly they were, and then nobody has to take the lock
                self._ask_for_chunks(ahead)
            ahead, left = self._next_of(ahead), left - 1

    def _ask_for_chunks(self, key: _Key) -> None:
        # One asks at a time: whoever asks for the next window's chunks does it behind those of this one.
        with self._asking:
            if key not in self._asked:
                self._asked.add(key)
                which, epoch, number = key
                chunks = self._order_of(which, epoch)[0].window_chunks(number)
                one, subject = self._opened.datasets[which], self._subject(key)
                missing = one.windows.not_standing(chunks)
                numbers = np.roll(missing, -int(self._begins_at * len(missing))).tolist()
                subjects = [None if subject is None else (*subject[:3], number) for number in numbers]
                self._filler.request([(one.builder, number) for number in numbers], subjects)

    # ------------------------------------------------------------------ opening them

    def _work(self, key: _Key, asked: Future[Window], before: threading.Thread | None) -> None:
        """Open a window, behind the one that was asked for before it; run by a thread of its own."""
        if before is not None:
            before.join()
        if asked.done():  # the lane was closed
            return
        try:
            self._ask_for_chunks(key)
            window = self._open(key)
        except BaseException as error:  # it belongs to the step that needs this window
            with self._lock:
                if not asked.done():
                    asked.set_exception(error)
            return
        with self._lock:  # also behind whoever asked: it looks ahead unless the window is open before it waits
            if is_wanted := not asked.done():
                asked.set_result(window)
        if is_wanted:
            # Steps use it from now on: the first batch does not wait for the pages of a whole window.
            window.settle(lambda: not self._is_closed and self._windows.get(key) is asked)
        else:
            window.close()

    def _open(self, key: _Key) -> Window:
        which, epoch, number = key
        order, one = self._order_of(which, epoch)[0], self._opened.datasets[which]
        with self._stages.span("open", subject=self._subject(key)):
            window = one.windows.open(order.window_chunks(number), self._filler)
            window.order, window.chunks, window.which = order.tables(number), order.window_chunks(number), which
            window.units, window.fragments = self._units_in(which, epoch), one.catalogue.fragments
            if not window.is_in_memory():
                # All of it is read in order before random rows are asked for: a disk is many times as fast that way.
                window.settle(lambda: not self._is_closed)
            self._on_open(window)
        return window

    def _subject(self, key: _Key) -> Subject | None:
        """Return what work for a window is for: the step that comes to its first position in the lane."""
        which, epoch, number = key
        if not self._stages.shows_each:
            return None
        start = self._order_of(which, epoch)[1][number]
        subject = self._subject_at(self.order.first_use(which, epoch, start))
        return None if subject is None else (*subject[:2], number, -1)


def num_windows_ahead(num_builders: int, window_chunks: float, number: int) -> int:
    """Return of how many windows ahead of the one in use, before which `number` were needed, chunks are asked for.

    A window is opened once all its chunks are there. A thread that finds none of them left to build goes on with those
    of the next windows. Behind the first windows that are needed fewer are asked for: their chunks are built before
    those of the first windows of other lanes and data sets, which the first batch needs, too.
    """
    chunks_a_thread = min(_FIRST_AHEAD << min(number, _MOST_AHEAD), _MOST_AHEAD)
    return max(2, math.ceil(chunks_a_thread * num_builders / window_chunks))
