"""The windows in use: opened ahead of the steps that need them, let go of behind the last."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from stoker._native import WindowOrder
from stoker.fields.offsets import Int64
from stoker.loader.windows.window import Window


class OpenWindow(NamedTuple):
    """A window that is open, and how its samples are found.

    Attributes:
        window: Where they lie.
        order: Which of them stand at which positions.
        chunks: Chunk of each slot, in fixed order. Shape [K].
    """

    window: Window
    order: WindowOrder
    chunks: Int64


@dataclass
class _Slot:
    """One window on its way through: asked for, opened, used."""

    opened: OpenWindow | None = None
    error: BaseException | None = None
    is_opening: bool = True
    is_followed: bool = False


# So many windows more are asked for at most, where those that build had nothing to do while a window was waited for.
_MOST_FURTHER = 8


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


class Windows:
    """Open windows of one lane in order, one ahead of the steps.

        passed   0 1 2        no step that is still to come needs them; whoever gathers from one has it
        in use       3 4      by the threads that assemble batches
        opened           5    the one ahead
        asked for          6  its chunks are being built, if they have to be; and of more where many threads build

    A window that a step needs again (padding takes samples from the epoch's beginning) is opened again.

    Args:
        open_window: Maps a window; waits for its chunks.
        request: Asks for a window's chunks to be built; must not wait.
        num_windows: Of the epoch.
        num_ahead: Says of how many windows ahead the chunks are asked for; 0 where opening one ahead does that.
        waiting: Gives the block in which one waits for a window.
    """

    def __init__(
        self,
        *,
        open_window: Callable[[int], OpenWindow],
        request: Callable[[int], None],
        num_windows: int,
        num_ahead: Callable[[], int] = lambda: 2,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._open_window = open_window
        self._request = request
        self._num_windows = num_windows
        self._num_ahead = num_ahead
        self._waiting = waiting
        # May be entered again by the thread that holds it: garbage may be found, and closed, at any place.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[tuple[int, _Slot]] = deque()
        self._asked: set[int] = set()  # windows whose chunks were asked for
        self._last_asked = -1
        self._asking = threading.RLock()
        self._is_closed = False
        self._thread: threading.Thread | None = None  # as long as there is a window to open

    def get(self, number: int) -> OpenWindow:
        """Return window `number`, which stays open for as long as it is referred to.

        Blocks: until it is open.

        Raises:
            InterruptedError: The loader was closed meanwhile.
        """
        with self._lock:
            slot = self._slots.get(number)
            is_entered = slot is None or not slot.is_followed
            if slot is None or is_entered:
                slot = self._enter(number)
            opened = slot.opened
        if opened is not None and not self._is_closed:
            return opened
        self._ask_ahead(number)
        with self._waiting():
            return self._opened(slot)

    def is_open(self, number: int) -> bool:
        """Return whether window `number` could be had without waiting."""
        slot = self._slots.get(number)
        return slot is not None and slot.opened is not None

    def ask(self, number: int) -> None:
        """Have window `number` opened by and by: steps to come will need it."""
        with self._lock:
            if not self._is_closed:
                self._ask(number)

    def _enter(self, number: int) -> _Slot:
        slot = self._ask(number)
        if number + 1 < self._num_windows:
            self._ask(number + 1)
        slot.is_followed = True
        return slot

    def _opened(self, slot: _Slot) -> OpenWindow:
        with self._changed:
            while slot.is_opening and not self._is_closed:
                self._changed.wait()
            if slot.error is not None:
                raise slot.error
            if slot.opened is None or self._is_closed:
                raise InterruptedError("the loader was closed")
            return slot.opened

    def pass_by(self, number: int) -> None:
        """Say that no step to come needs a window before `number`, except by asking again."""
        with self._lock:
            passed = [self._slots.pop(n) for n in list(self._slots) if n < number]
        del passed  # without the lock: to give a window back takes a while

    def stop(self) -> None:
        """Open no more windows, and free whoever waits for one with an `InterruptedError`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and close the windows that are not passed: nobody may use one any more. Harmless when called again.

        Blocks: until a window in the opening is open.
        """
        self.stop()
        if (thread := self._thread) is not None:
            thread.join()
        for slot in self._slots.values():
            if slot.opened is not None:
                slot.opened.window.close()
        self._slots.clear()

    def _ask(self, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _Slot()
            self._queue.append((number, slot))
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="stoker-window", daemon=True)
                self._thread.start()
        return slot

    def _ask_ahead(self, number: int) -> None:
        num_ahead = self._num_ahead()
        last = min(number + num_ahead, self._num_windows - 1)
        if num_ahead and last > self._last_asked:  # else there is nothing to lock anybody out for
            for ahead in range(number, last + 1):
                self._ask_for_chunks(ahead)
            self._last_asked = max(self._last_asked, last)

    def _ask_for_chunks(self, number: int) -> None:
        # One asks at a time: whoever asks for the next window's chunks does it behind those of this one.
        with self._asking:
            if number not in self._asked:
                self._asked.add(number)
                self._request(number)

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            number, slot = asked
            try:
                self._ask_for_chunks(number)
                slot.opened = self._open_window(number)
            except BaseException as error:  # it belongs to the step that needs this window
                slot.error = error
            with self._changed:
                slot.is_opening = False
                self._changed.notify_all()
            # Steps use it from now on: the first batch does not wait for the pages of a whole window.
            if slot.opened is not None:
                slot.opened.window.settle(goes_on=partial(self._is_wanted, number, slot))
            del asked, slot  # a window goes when nobody refers to it

    def _next(self) -> tuple[int, _Slot] | None:
        """Return the next window that is asked for; None ends the thread."""
        with self._lock:
            if self._is_closed or not self._queue:
                self._thread = None
                return None
            return self._queue.popleft()

    def _is_wanted(self, number: int, slot: _Slot) -> bool:
        return not self._is_closed and self._slots.get(number) is slot
