"""Bounded, ordered look-ahead: results are made by several threads and come out in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Give `make(0)`, `make(1)`, ... in this order, made by threads up to `depth` ahead of the caller.

        make    ... 7   6        threads; as many results as `depth` wait or are being made
        ready       5 . 3        4 is still being made: it is what the caller would wait for
        caller  2                has been handed 0, 1, 2

    An exception of `make(i)` is raised where `i` was due, after all results before it, and ends the sequence.

    Args:
        make: Called with the number of the result, from several threads at once.
        num_results: How many there are.
        depth: How many may be made or wait ahead of the caller. With 0 there are no threads: each result is made when
            it is asked for, by the caller.
        num_threads: Threads that make them.
        waiting: Gives the block in which a thread waits for room.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        *,
        num_results: int,
        depth: int,
        num_threads: int,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._make = make
        self._num_results = num_results
        self._depth = depth
        self._waiting = waiting
        # One lock, but two places to wait at, and each is told only of what it waits for: nobody is woken to find
        # nothing to do.
        self._lock = threading.RLock()
        self._made = threading.Condition(self._lock)
        self._taken = threading.Condition(self._lock)
        self._awaited = -1  # the result that the caller waits for
        self._making_now = threading.RLock()
        self._ready: dict[int, T] = {}
        self._failed: dict[int, BaseException] = {}
        self._next_to_make = 0
        self._next_to_hand = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"stoker-batch-{i}", daemon=True)
            for i in range(min(max(1, num_threads), depth, num_results))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_ready(self) -> int:
        """Results that wait to be handed over."""
        return len(self._ready)

    def get(self) -> T:
        """Return the next result.

        Blocks: until it is made.

        Raises:
            StopIteration: All have been handed over.
            InterruptedError: The sequence was closed before.
        """
        if self._depth == 0:
            return self._make_now()
        with self._lock:
            number = self._next_to_hand
            while number not in self._ready and number not in self._failed:
                if number >= self._num_results:
                    raise StopIteration
                if self._is_closed:
                    raise InterruptedError("closed before all results were handed over")
                self._awaited = number
                self._made.wait()
            if number in self._failed:
                error = self._failed[number]
                self._is_closed = True
                self._taken.notify_all()
                raise error
            self._next_to_hand += 1
            self._taken.notify()
            return self._ready.pop(number)

    def close(self) -> None:
        """Stop the threads and drop what nobody will take. Harmless when called again.

        Blocks: until results in the making are done.
        """
        with self._lock:
            self._is_closed = True
            self._made.notify_all()
            self._taken.notify_all()
        with self._making_now:
            pass
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()

    def _make_now(self) -> T:
        with self._making_now:  # whoever closes waits until it is done
            number = self._next_to_hand
            if number >= self._num_results:
                raise StopIteration
            if self._is_closed:
                raise InterruptedError("closed before all results were handed over")
            result = self._make(number)
            self._next_to_hand += 1
            return result

    def _work(self) -> None:
        while (number := self._claim()) is not None:
            try:
                result = self._make(number)
            except BaseException as error:  # whatever it is, it belongs to the step that was due
                with self._lock:
                    self._failed[number] = error
                    self._made.notify_all()
                    self._taken.notify_all()
                return
            with self._lock:
                self._ready[number] = result
                if number == self._awaited:
                    self._made.notify()
            del result  # the caller owns it now: a reference here would keep its buffer from being reused

    def _claim(self) -> int | None:
        """Return the next number to make, or None when there is nothing left to do."""
        with self._lock:
            if self._has_room() or self._is_done():
                return self._claim_now()
        with self._waiting(), self._lock:  # the lock inside: whoever is told of the wait may take its time
            while not (self._has_room() or self._is_done()):
                self._taken.wait()
            return self._claim_now()

    def _has_room(self) -> bool:
        return self._next_to_make < self._next_to_hand + self._depth

    def _is_done(self) -> bool:
        return self._is_closed or bool(self._failed) or self._next_to_make >= self._num_results

    def _claim_now(self) -> int | None:
        if self._is_done():
            return None
        self._next_to_make += 1
        return self._next_to_make - 1
