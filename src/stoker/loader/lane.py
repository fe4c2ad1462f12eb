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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from stoker._native import WindowOrder
from stoker.fields.offsets import Int64
from stoker.fields.spec import Array
from stoker.loader.fill import Filler
from stoker.loader.opened import OpenDatasets
from stoker.loader.window import Window
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.epoch import EpochOrder, WindowPositions
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.steps import Steps
from stoker.sampling.units import Units

# So many windows more are asked for at most, where those that build had nothing to do while a window was waited for.
_MOST_FURTHER = 8

Range: TypeAlias = tuple[int, int]
"""First and past-the-last position."""

_Key: TypeAlias = tuple[int, int, int]  # of a window: number of the data set, its own epoch, number of the window


class OpenWindow(NamedTuple):
    """A window that is open, and how what the order counts is found in it.

    Attributes:
        window: Where the samples lie.
        order: Which of them stand at which positions.
        chunks: Chunk of each slot, in fixed order. Shape [K].
        units: What is counted; None for rows.
        fragments: Names the chunks of the data set, for errors.
        which: Number of the data set.
    """

    window: Window
    order: WindowOrder
    chunks: Int64
    units: Units | None
    fragments: Sequence[object]
    which: int


class UnitPart(NamedTuple):
    """Units of a batch that lie in one window.

    Attributes:
        opened: The window.
        where: Their places in it.
    """

    opened: OpenWindow
    where: WindowPositions


class Resident(Protocol):
    """Records of chunks that stay on a device. Safe to use from several threads.

    Attributes:
        first_row: Where each chunk's records begin there; -1 where it does not lie there. Shape [N].
    """

    first_row: Int64

    def open(self, num_samples: Int64, record_bytes: int) -> None:
        """Say what there is, before anything else is asked.

        Args:
            num_samples: Of each chunk. Shape [N].
            record_bytes: Of a sample.

        Raises:
            ValueError: Not one record fits.
        """

    def offer(self, chunk: int, records: Array) -> bool:
        """Take a chunk, if there is room for it, and return whether it lies there now.

        Args:
            chunk: Its number.
            records: uint8, shape [rows of the chunk, record_bytes]; may be gone once this returns.
        """


class Subjects:
    """What the work of a run is told to be for, where that is shown: its epoch, step, window and chunk.

    Args:
        stages: Told of the work.
        epoch: Of the run.
        steps: Its steps.
    """

    def __init__(self, stages: Stages, epoch: int, steps: Steps) -> None:
        self.is_shown = stages.shows_each
        self._epoch, self._steps = epoch, steps
        self._first_step = steps.start // steps.global_batch_size  # of the epoch, as `Loader.explain` counts
        self._of_chunk: dict[int, Subject] = {}

    def of_step(self, step: int) -> Subject | None:
        """Return what work for a step is for; steps count from the run's beginning."""
        return (self._epoch, self._first_step + step, -1, -1) if self.is_shown else None

    def of_window(self, window: int, first_use: int) -> Subject:
        """Return what work for a window is for: the step that comes to its first position in the lane."""
        step = max(first_use - self._steps.lane_start, 0) // self._steps.part_size
        return self._epoch, self._first_step + step, window, -1

    def note(self, subject: Subject | None, chunks: Iterable[int]) -> None:
        """Note the window that chunks are built for."""
        if subject is not None:
            self._of_chunk |= {chunk: (*subject[:3], chunk) for chunk in chunks}

    def of_chunk(self, chunk: int) -> Subject | None:
        """Return what building a chunk is for."""
        return self._of_chunk.get(chunk)


@dataclass
class _Slot:
    """One window on its way through: asked for, opened, used."""

    opened: OpenWindow | None = None
    error: BaseException | None = None
    is_opening: bool = True
    is_followed: bool = False


class Lane:
    """The windows of one lane in one epoch, in which the samples of its positions are found.

    A window that a step needs again (padding takes samples from the epoch's beginning) is opened again. Safe to use
    from several threads.

    Args:
        order: Of the lane in this epoch.
        opened: The data sets.
        filler: Builds the chunks.
        units_in: Returns what is counted of a data set in one of its own epochs, None for rows.
        stages: Told of opening and waiting.
        subjects: What that is for.
        uses: Gets data set and chunks of each window that was opened.
        resident: Gets each window's chunks; None where none lie on a device.
    """

    def __init__(
        self,
        order: EpochOrder | MixtureEpoch,
        opened: OpenDatasets,
        filler: Filler,
        *,
        units_in: Callable[[int, int], Units | None],
        stages: Stages,
        subjects: Subjects,
        uses: deque[tuple[int, Int64]],
        resident: Resident | None = None,
    ) -> None:
        self._order, self._opened, self._filler = order, opened, filler
        self._units_in, self._stages, self._subjects, self._uses = units_in, stages, subjects, uses
        self._resident = resident
        # May be entered again by the thread that holds it: garbage may be found, and closed, at any place.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._asking = threading.RLock()
        self._orders: dict[tuple[int, int], tuple[EpochOrder, list[int]]] = {}  # of own epochs, and windows' borders
        self._slots: dict[_Key, _Slot] = {}
        self._asked: set[_Key] = set()  # windows whose chunks were asked for
        self._queues: dict[int, deque[tuple[_Key, _Slot]]] = {}  # of each data set
        self._threads: dict[int, threading.Thread] = {}  # that open them, as long as there is a window to open
        self._is_closed = False

    # ------------------------------------------------------------------ what a batch needs

    def parts(self, ranges: Iterable[Range], *, waits: bool = True) -> list[UnitPart] | None:
        """Return where the samples of positions lie, range by range: data set by data set, each in its own order.

        Their windows stay open for as long as the parts refer to them.

        Blocks: until they are open.

        Args:
            ranges: Of positions.
            waits: Whether to wait for windows; otherwise None is returned where one is not open.
        """
        found: list[tuple[_Key, list[Range]]] = []
        for start, stop in ranges:
            for key, piece in self._by_window(start, stop):
                if found and found[-1][0] == key:
                    found[-1][1].append(piece)
                else:
                    found.append((key, [piece]))
        if not waits:
            slots = [self._slots.get(key) for key, _ in found]  # which may be passed meanwhile
            if any(slot is None or slot.opened is None for slot in slots):
                return None
        parts = []
        for key, pieces in found:
            opened = self.window(key)
            parts.append(UnitPart(opened, WindowPositions(pieces, opened.order)))
        return parts

    def datasets_of(self, start: int, stop: int) -> Int64:
        """Return the number of the data set of each position. Shape [B]."""
        return self._order.components(start, stop)

    def window(self, key: _Key) -> OpenWindow:
        """Return a window, which stays open for as long as it is referred to.

        Blocks: until it is open.

        Raises:
            InterruptedError: The lane was closed.
        """
        slot = self._slots.get(key)
        if slot is None or not slot.is_followed:
            slot = self._enter(key)
        opened = slot.opened
        if opened is not None and not self._is_closed:
            return opened
        self._ask_ahead(key)
        with self._stages.span("wait_window"), self._changed:
            while slot.is_opening and not self._is_closed:
                self._changed.wait()
            if slot.error is not None:
                raise slot.error
            if slot.opened is None or self._is_closed:
                raise InterruptedError("the loader was closed")
            return slot.opened

    def pass_by(self, position: int) -> int:
        """Let go of the windows that no step from this position on needs, but by asking again.

        Returns:
            The position from which on there may be more to let go of.
        """
        nexts: list[tuple[int, int]] = []  # of each data set, its own epoch and the window there that comes next
        looks_again = []
        with self._lock:
            for which, (epoch, place) in enumerate(self._order.streams_at(position)):
                number, border = 0, place + 1  # where the own epoch is not open yet
                if (known := self._orders.get((which, epoch))) is not None:
                    borders = known[1]
                    number = bisect_right(borders, place) - 1
                    border = borders[min(number + 1, len(borders) - 1)]
                nexts.append((epoch, number))
                looks_again.append(self._order.first_use(which, epoch, border - 1) + 1)
            for over in [one for one in self._orders if one[1] < nexts[one[0]][0]]:
                del self._orders[over]
            passed = [self._slots.pop(key) for key in list(self._slots) if key[1:] < nexts[key[0]]]
        del passed  # without the lock: to give a window back takes a while
        return max(position + 1, min(looks_again))

    def stop(self) -> None:
        """Open no more windows, and free whoever waits for one with an `InterruptedError`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and close the windows that are not passed: nobody may use one any more. Harmless when called again.

        Blocks: until windows in the opening are open.
        """
        self.stop()
        for thread in list(self._threads.values()):
            thread.join()
        for slot in self._slots.values():
            if slot.opened is not None:
                slot.opened.window.close()
        self._slots.clear()

    # ------------------------------------------------------------------ which windows

    def _by_window(self, start: int, stop: int) -> list[tuple[_Key, Range]]:
        """Return the windows of positions, and which positions of the own epoch lie in each."""
        found = []
        for which, epoch, first, last in self._order.stretches(start, stop):
            borders = self._order_of(which, epoch)[1]
            number = bisect_right(borders, first) - 1
            while first < last:
                end = min(last, borders[number + 1])
                found.append(((which, epoch, number), (first, end)))
                first, number = end, number + 1
        return found

    def _order_of(self, which: int, epoch: int) -> tuple[EpochOrder, list[int]]:
        """Return the order of a data set's own epoch, and where its windows begin; padding may need a passed one."""
        known = self._orders.get((which, epoch))
        if known is None:
            with self._lock:
                order = self._order.component_epoch(which, epoch)
                known = self._orders[which, epoch] = order, order.window_starts.tolist()
        return known

    def _next_of(self, key: _Key) -> _Key | None:
        """Return the window behind another one, of the next own epoch where this epoch gets there."""
        which, epoch, number = key
        if number + 1 < self._order_of(which, epoch)[0].num_windows:
            return which, epoch, number + 1
        return None if self._order.position_of(which, epoch + 1, 0) is None else (which, epoch + 1, 0)

    # ------------------------------------------------------------------ asking for them

    def _enter(self, key: _Key) -> _Slot:
        """Have a window opened, and the one behind it."""
        with self._lock:
            slot = self._ask(key)
            if not slot.is_followed and (behind := self._next_of(key)) is not None:
                self._ask(behind)
            slot.is_followed = True
            return slot

    def _ask(self, key: _Key) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot()
            which = key[0]
            self._queues.setdefault(which, deque()).append((key, slot))
            if which not in self._threads and not self._is_closed:
                thread = threading.Thread(target=self._work, args=(which,), name="stoker-window", daemon=True)
                self._threads[which] = thread
                thread.start()
        return slot

    def _ask_ahead(self, key: _Key) -> None:
        """Have the chunks built of a window and of those ahead of it; where the cache is tight, opening one does."""
        if self._opened.is_tight:
            return
        num_chunks = len(self._order_of(*key[:2])[0].window_chunks(0))
        left = num_windows_ahead(self._filler.pool.size, num_chunks, num_short=self._filler.num_short)
        ahead: _Key | None = key
        while ahead is not None and left >= 0:
            if ahead not in self._asked:  # else there is nothing to lock anybody out for
                self._ask_for_chunks(ahead)
            ahead, left = self._next_of(ahead), left - 1

    def _ask_for_chunks(self, key: _Key) -> None:
        # One asks at a time: whoever asks for the next window's chunks does it behind those of this one.
        with self._asking:
            if key not in self._asked:
                self._asked.add(key)
                which, epoch, number = key
                chunks = self._order_of(which, epoch)[0].window_chunks(number)
                one = self._opened.datasets[which]
                self._subjects.note(self._subject(key), (one.first + chunks).tolist())
                self._filler.request((one.first + one.windows.not_standing(chunks)).tolist())

    # ------------------------------------------------------------------ opening them

    def _work(self, which: int) -> None:
        while (asked := self._next(which)) is not None:
            key, slot = asked
            try:
                self._ask_for_chunks(key)
                slot.opened = self._open(key)
            except BaseException as error:  # it belongs to the step that needs this window
                slot.error = error
            with self._changed:
                slot.is_opening = False
                self._changed.notify_all()
            # Steps use it from now on: the first batch does not wait for the pages of a whole window.
            if slot.opened is not None:
                slot.opened.window.settle(partial(self._is_wanted, key, slot))
            del asked, slot  # a window goes when nobody refers to it

    def _next(self, which: int) -> tuple[_Key, _Slot] | None:
        """Return the next window of a data set that is asked for; None ends the thread."""
        with self._lock:
            if self._is_closed or not self._queues[which]:
                del self._threads[which]
                return None
            return self._queues[which].popleft()

    def _open(self, key: _Key) -> OpenWindow:
        which, epoch, number = key
        order = self._order_of(which, epoch)[0]
        chunks = order.window_chunks(number)
        with self._stages.span("open", subject=self._subject(key)):
            window = self._opened.datasets[which].windows.open(chunks, self._filler)
            self._uses.append((which, chunks))
            if not window.is_in_memory():
                # One read through all of it, before random rows are asked for: a disk is many times as fast so.
                window.settle(lambda: not self._is_closed)
            if self._resident is not None:
                self._offer(self._resident, window, chunks)
        units, fragments = self._units_in(which, epoch), self._opened.datasets[which].catalogue.fragments
        return OpenWindow(window, order.tables(number), chunks, units, fragments, which)

    @staticmethod
    def _offer(resident: Resident, window: Window, chunks: Int64) -> None:
        """Offer a device every chunk of a window that does not lie there yet."""
        for slot in np.flatnonzero(resident.first_row[chunks] < 0).tolist():
            records = np.frombuffer(window.records(slot), dtype=np.uint8)
            resident.offer(int(chunks[slot]), records.reshape(-1, window.layout.spec.record_bytes))

    def _is_wanted(self, key: _Key, slot: _Slot) -> bool:
        return not self._is_closed and self._slots.get(key) is slot

    def _subject(self, key: _Key) -> Subject | None:
        if not self._subjects.is_shown:
            return None
        which, epoch, number = key
        start = self._order_of(which, epoch)[1][number]
        return self._subjects.of_window(number, self._order.first_use(which, epoch, start))


def num_windows_ahead(num_builders: int, window_chunks: float, *, num_short: int = 0) -> int:
    """Return of how many windows ahead of the one in use the chunks are asked for.

    A window is opened once all its chunks are there. While those of one are on their way, each thread that has built
    its own needs another one to go on with, or few are at work in the end; and more than one window's where they are
    many. That is enough where chunks take about as long as each other: of a few that take fifty times as long, those
    of several windows have to be on their way at once.

    Args:
        num_builders: Threads that build.
        window_chunks: Chunks of a window.
        num_short: How often a chunk was waited for while threads that build had nothing to do: one window more for the
            first time, two more for the next, and so on.
    """
    further = min((1 << min(num_short, 8)) - 1, _MOST_FURTHER)
    return max(2, math.ceil(3 * num_builders / window_chunks)) + further
