"""The ready queue: results are made by threads ahead of whoever takes them, and come out in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """Gives results 0, 1, 2, ... in this order, made by threads up to `depth` ahead of the caller.

        make    ... 8 7   6 5    two threads, each at two results at a time; as many as `depth` wait or are being made
        ready       4 3          5 is still being made: it is what the caller would wait for next but two
        caller  2                has been handed 0, 1, 2

    The first results are made one at a time, so that the first of all comes soon; then as many as are ahead already.

    An exception of making result i is raised where i was due, after all results before it, and ends the sequence.

    Args:
        make: Called with the number of a result and how many are wanted from there on; yields that many of them or
            fewer, in order, but at least one. From several threads at once.
        num_results: How many there are.
        depth: How many may be made or wait ahead of the caller. With 0 there are no threads: results are made when one
            is asked for that is not there, by the caller.
        num_threads: Threads that make them.
        max_together: Results that a thread, or the caller, makes at a time, at most.
        waiting: Gives the block in which a thread waits for room.
        room: How much of the depth may be used to begin with; see `allow`. All of it unless told.
    """

    def __init__(
        self,
        make: Callable[[int, int], Iterable[T]],
        *,
        num_results: int,
        depth: int,
        num_threads: int,
        max_together: int = 1,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        room: int | None = None,
    ) -> None:
        self._make = make
        self._num_results = num_results
        self._depth = depth
        self._room = 0
        self._waiting = waiting
        num_threads = min(max(1, num_threads), depth, num_results)
        # Not more than lets every thread make some while as many wait: else one that is done waits for the caller.
        self._max_together = max(1, min(max_together, depth // (num_threads + 1)) if depth else max_together)
        # One lock, but two conditions: nobody is woken to find nothing to do. Entered again by a caller who makes a
        # result and closes the queue meanwhile.
        self._lock = threading.RLock()
        self._made = threading.Condition(self._lock)
        self._taken = threading.Condition(self._lock)
        self._ready: dict[int, T] = {}
        self._failed: dict[int, BaseException] = {}
        self._num_idle = 0  # threads that wait for room
        self._next_to_make = 0
        self._next_to_hand = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"stoker-batch-{i}", daemon=True) for i in range(num_threads)
        ]
        self._is_started = False
        self.allow(depth if room is None else room)

    @property
    def is_ready(self) -> bool:
        """Whether the next result waits to be handed over."""
        return self._next_to_hand in self._ready

    @property
    def num_ready(self) -> int:
        """Results that wait to be handed over."""
        return len(self._ready)

    def get(self) -> T:
        """Return the next result.

        Blocks: until it is made.

        Raises:
            StopIteration: All have been handed over.
            InterruptedError: The queue was closed before.
        """
        with self._lock:  # whoever closes waits until a result is made that the caller makes itself
            number = self._next_to_hand
            if not self._depth and number not in self._ready and number < self._num_results and not self._is_closed:
                # At most as many as were handed over already: the first of all comes soon.
                self._make_some(number, min(max(1, number), self._max_together, self._num_results - number))
            while number not in self._ready:
                if number in self._failed:
                    self._is_closed = True
                    self._taken.notify_all()
                    raise self._failed[number]
                if number >= self._num_results:
                    raise StopIteration
                if self._is_closed:
                    raise InterruptedError("closed before all results were handed over")
                self._made.wait()
            self._next_to_hand = number + 1
            if self._num_idle and self._has_room():
                self._taken.notify()
            return self._ready.pop(number)

    def allow(self, room: int) -> None:
        """Use so much of the depth from now on: what others have ready, or are making, may count with ours."""
        with self._lock:
            self._room = room
            if room and not self._is_started and not self._is_closed:
                self._is_started = True
                for thread in self._threads:
                    thread.start()
            self._taken.notify_all()

    def close(self) -> None:
        """Stop the threads and drop what nobody will take. Harmless when called again.

        Blocks: until results in the making are done.
        """
        with self._lock:
            self._is_closed = True
            self._made.notify_all()
            self._taken.notify_all()
        for thread in self._threads:
            # One may not have been started: nothing was to be made yet, or whoever started them was interrupted.
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        self._ready.clear()

    def _work(self) -> None:
        while (claimed := self._claim()) is not None:
            number, stop = claimed
            while number < stop:
                num_made = self._make_some(number, stop - number)
                if not num_made:
                    return
                number += num_made

    def _make_some(self, number: int, num_wanted: int) -> int:
        """Make the results from a number on, and return how many; 0 where nothing more is to be made."""
        first = number
        try:
            for result in self._make(number, num_wanted):
                with self._lock:
                    if self._is_closed and self._depth:  # a caller who makes them still gets the one it asked for
                        return 0
                    self._ready[number] = result
                    if number == self._next_to_hand:
                        self._made.notify()
                number += 1
                del result  # the caller owns it now: a reference would keep its buffer from being reused
        except BaseException as error:  # whatever it is, it belongs to the step that was due
            if not self._depth and not isinstance(error, Exception):
                raise  # but what interrupts the caller does so now
            with self._lock:
                self._failed[number] = error
                self._made.notify_all()
                self._taken.notify_all()
            return 0
        return number - first

    def _claim(self) -> tuple[int, int] | None:
        """Return first and past-the-last of the numbers to make next, or None when there is nothing left to do."""
        with self._lock:
            if self._has_room() or self._is_done():
                return self._claim_now()
        with self._waiting(), self._lock:  # the lock inside: whoever is told of the wait may take its time
            self._num_idle += 1
            while not (self._has_room() or self._is_done()):
                self._taken.wait()
            self._num_idle -= 1
            return self._claim_now()

    def _claim_now(self) -> tuple[int, int] | None:
        if self._is_done():
            return None
        first = self._next_to_make
        self._next_to_make += self._num_wanted()
        return first, self._next_to_make

    def _num_wanted(self) -> int:
        """Return how many to make at a time: as many as are ahead already, within what is allowed and what is left."""
        ahead = self._next_to_make - self._next_to_hand
        return min(max(1, ahead), self._max_together, self._num_results - self._next_to_make)

    def _has_room(self) -> bool:
        return self._next_to_make + self._num_wanted() <= self._next_to_hand + self._room

    def _is_done(self) -> bool:
        return self._is_closed or bool(self._failed) or self._next_to_make >= self._num_results
