"""Bounded, ordered look-ahead: results are made by several threads and come out in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
    """

    def __init__(self, make: Callable[[int], T], *, num_results: int, depth: int, num_threads: int) -> None:
        self._make = make
        self._num_results = num_results
        self._depth = depth
        self._changed = threading.Condition()
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
        with self._changed:
            number = self._next_to_hand
            while number not in self._ready and number not in self._failed:
                if number >= self._num_results:
                    raise StopIteration
                if self._is_closed:
                    raise InterruptedError("closed before all results were handed over")
                self._changed.wait()
            if number in self._failed:
                error = self._failed[number]
                self._is_closed = True
                self._changed.notify_all()
                raise error
            self._next_to_hand += 1
            self._changed.notify_all()
            return self._ready.pop(number)

    def close(self) -> None:
        """Stop the threads and drop what nobody will take. Harmless when called again.

        Blocks: until results in the making are done.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()

    def _make_now(self) -> T:
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
                with self._changed:
                    self._failed[number] = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready[number] = result
                self._changed.notify_all()
            del result  # the caller owns it now: a reference here would keep its buffer from being reused

    def _claim(self) -> int | None:
        """Return the next number to make, or None when there is nothing left to do."""
        with self._changed:
            while not (self._is_closed or self._failed):
                if self._next_to_make >= self._num_results:
                    return None
                if self._next_to_make < self._next_to_hand + self._depth:
                    self._next_to_make += 1
                    return self._next_to_make - 1
                self._changed.wait()
            return None
