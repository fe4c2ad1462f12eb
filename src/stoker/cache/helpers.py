"""Threads that help one which builds: they take from its work while there are places for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from stoker.cache.crew import Places
from stoker.source.each import Each

_T = TypeVar("_T")

# Pieces of work that follow and are under way: with one, who is ahead waits for it now and then, and a core stands
# idle. Half a million rows in one row group, two threads: 0.34 to 0.41 s -> 0.31 to 0.35; with three no less.
_AT_ONCE = 2


class Helpers:
    """Threads for what one thread has to do where others have nothing to do.

        this thread   | 0 | 2 | 3 | 5 |        numbers are taken by whoever is free; a helper needs a place among
        a helper      |   1   |   4   |        those that compute, and has it until no number is left

    Safe to use from several threads. No thread is started before there is a place for one.

    Args:
        places: Of the threads that compute. Whoever asks for help has one of them.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def share_out(self, num: int, work: Callable[[int], None]) -> None:
        """Call `work` with every number below `num`, here and in helpers; the error of one call is raised.

        Blocks: until all that was begun is done. After an error nothing more is begun.
        """
        each = Each(num, work)

        def help_out(since_s: float) -> None:
            try:
                each.run()
            finally:
                self._places.release(since_s)

        helping: list[tuple[Future[None], float]] = []
        while len(helping) < num - 1 and (since_s := self._places.try_acquire()) is not None:
            helping.append((self.begin(partial(help_out, since_s)), since_s))
        each.run()
        for helper, since_s in helping:
            if helper.cancel():  # all was done before it came to it
                self._places.release(since_s)
            else:
                helper.result()
        each.check()

    @property
    def are_idle(self) -> bool:
        """Whether somebody who has no place just now finds one, and leaves another one free, or has them all."""
        return self._places.num_free >= min(2, self._places.num)

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Begin some work beside this thread, and return what will come of it."""
        with self._mutex:
            if self._pool is None:
                # Each that builds may have some that publish, and there may be a helper for each place.
                num = (1 + _AT_ONCE) * self._places.num + _AT_ONCE
                self._pool = ThreadPoolExecutor(num, thread_name_prefix="stoker-build-help")
            return self._pool.submit(work)

    def close(self) -> None:
        """End the threads. Harmless when called again.

        Blocks: until what was begun is done.
        """
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)


class Behind:
    """Work that follows each of some steps, done beside the next ones where helpers stand idle.

        this thread   | part 0 | part 1 | part 2 | part 3 |
        helpers                | publish 0  | publish 2  |
                                        | publish 1 | publish 3 |

    No more than two pieces of it are under way. The block ends when all of it is done.

    Args:
        helpers: Who does it; None leaves it to the calling thread.
    """

    def __init__(self, helpers: Helpers | None) -> None:
        self._helpers = helpers
        self._begun: deque[Future[bool]] = deque()

    def do(self, work: Callable[[], bool]) -> bool:
        """Do it, or begin it when there is room; return whether all is well that was waited for, or done here.

        Blocks: until no more than one piece is under way.

        Raises:
            BaseException: What that, or this, raised.
        """
        before = self._finish(left=_AT_ONCE - 1)
        if self._helpers is not None and self._helpers.are_idle:
            self._begun.append(self._helpers.begin(work))
            return before
        return work() and before

    def _finish(self, *, left: int) -> bool:
        """Wait for the oldest until so many are left, and take what is done; return whether all of it went well."""
        is_well = True
        while len(self._begun) > left or (self._begun and self._begun[0].done()):
            is_well &= self._begun.popleft().result()
        return is_well

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish(left=0)
        else:
            for begun in self._begun:
                begun.exception()  # waits for it: the error that came first is raised
