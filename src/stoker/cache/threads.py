"""Threads that build: permits to compute, how many threads are worth it, and help where some stand idle."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from stoker.storage.each import share

# Chunks by which a pool of one size is judged: so many for each of its threads, and so many at least. Before these, as
# many chunks as it has threads are not counted: they were begun at the size before.
_JUDGED = 2
_LEAST_JUDGED = 12
AT_WORK = 0.75
"""If those that compute are at work for this share of the time, they limit: fetching more at once changes nothing."""
WORTH = 1.15
"""A larger pool is worth its memory when so many times as much comes of it."""
# Looks after which a pool that did not gain from growing may try again: the link may have changed by then.
_REST = 30
# Pieces of follow-up work under way at once, at most: with one, the thread ahead waits for it now and then, and a core
# stands idle. Half a million rows in one row group, two threads: 0.34 to 0.41 s -> 0.31 to 0.35; with three no less.
_AT_ONCE = 2


class Permits:
    """Permits to compute, one for each thread that does.

        with permits:           # gives back what was taken, if anything
            ...
            permits.take()      # unless this thread has one

    Those that were given back were held for `busy_s` seconds in all.
    """

    def __init__(self, num: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.num, self.busy_s, self._clock = num, 0.0, clock
        # As a semaphore, at a fraction of its cost: that one is made of Python, and many threads wait for the GIL here.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(num):
            self._free.put(None)
        self._mutex = threading.Lock()
        self._own = threading.local()

    def take(self, *, waits: bool = True) -> bool:
        """Take one for this thread, unless it has one, and return whether it has one now. Blocks until one is free."""
        if getattr(self._own, "since_s", None) is None:
            try:
                self._free.get(block=waits)
            except Empty:
                return False
            self._own.since_s = self._clock()
        return True

    def __enter__(self) -> None:
        """Do nothing: a permit is taken when it is needed."""

    def __exit__(self, *_: object) -> None:
        since_s, self._own.since_s = getattr(self._own, "since_s", None), None
        if since_s is not None:
            with self._mutex:
                self.busy_s += self._clock() - since_s
            self._free.put(None)

    @property
    def num_free(self) -> int:
        """How many are free just now."""
        return self._free.qsize()


class AdaptivePool:
    """How many threads build: more, while that brings more work to those that compute.

    Fetching waits for a network and takes no core, so how many fetches at once are worth it depends on what they wait
    for: a store that answers late wants many of them, and a link that is full gives no more to more of them.

        8 fetch, permits held ▓▓░░░░░░  ─►  16: ▓▓▓▓░░░░  ─►  32: ▓▓▓▓░░░░  nothing came of it: back to 16

    Which chunks are built, and in which order they are asked for, does not depend on it. It has `least` threads to
    begin with, and no more than `most`: each holds what it has fetched in memory. How much the permits to compute are
    in use decides; without any, it stays as it is.
    """

    def __init__(
        self,
        least: int,
        *,
        most: int | None = None,
        permits: Sequence[Permits] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.size = least
        self.most = max(least, most or 0) if permits else least
        self._permits, self._clock = tuple(permits), clock
        self._before: tuple[int, float] | None = None  # the smaller size that was left, and the rate that it gave
        self._refused_rate = 0.0  # of the larger size that was tried last, and brought too little
        self._num_rests = 0
        self._begin()

    def built(self, num_samples: int, *, is_hungry: bool) -> bool:
        """Note that a chunk is built, and return whether the pool has grown. For one thread at a time.

        It is hungry where threads always found something to build since the chunk before this one was built.
        """
        if not self._permits:
            return False
        if not is_hungry:
            self._begin()
            return False
        self._num_chunks += 1
        if self._num_chunks <= self.size:  # so many were begun before the pool had this size
            self._since_s, self._busy_s = self._clock(), self._busy()
            return False
        self._num_samples += num_samples
        if self._num_chunks < self.size + max(_LEAST_JUDGED, _JUDGED * self.size):
            return False
        passed_s = max(self._clock() - self._since_s, 1e-9)
        share = (self._busy() - self._busy_s) / (passed_s * sum(one.num for one in self._permits))
        return self._judge(self._num_samples / passed_s, share)

    def _judge(self, rate: float, share: float) -> bool:
        """Grow, go back, or stay, by the samples/s that came and how much those that compute were at work."""
        before, self._before = self._before, None
        self._begin()
        if before is not None and rate < WORTH * before[1]:
            self.size, self._num_rests, self._refused_rate = before[0], _REST, rate
            return False
        if self._num_rests:
            self._num_rests -= 1
            if self._refused_rate < WORTH * rate:
                return False
            # What this size gives has fallen behind what was refused.
        if share >= AT_WORK or self.size >= self.most:
            return False
        self._before = self.size, rate
        self.size = min(2 * self.size, self.most)
        return True

    def _begin(self) -> None:
        self._num_chunks = self._num_samples = 0
        self._since_s, self._busy_s = self._clock(), self._busy()

    def _busy(self) -> float:
        return sum(one.busy_s for one in self._permits)


class Helpers:
    """Threads for what one thread has to do where others have nothing to do.

        this thread   | 0 | 2 | 3 | 5 |        numbers are taken by whoever is free; a helper needs a permit to
        a helper      |   1   |   4   |        compute, and holds it until no number is left

    Safe to use from several threads. No thread is started before there is a permit for one; whoever asks for help holds
    one of `permits`.
    """

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        # Each that builds may have some that publish, and there may be a helper for each permit.
        num = (1 + _AT_ONCE) * permits.num + _AT_ONCE
        self._executor = ThreadPoolExecutor(num, thread_name_prefix="stoker-build-help")
        self.begin = self._executor.submit

    def share_out(self, num: int, work: Callable[[int], None]) -> None:
        """Call `work` with every number below `num`, here and in helpers, as `storage.each.share` does."""
        share(num, work, begin=self._help, num_others=min(num - 1, self._permits.num_free))

    def _help(self, run: Callable[[], None]) -> Future[None]:
        def help_out() -> None:
            with self._permits:
                if self._permits.take(waits=False):  # else another one was faster
                    run()

        return self.begin(help_out)

    @property
    def are_idle(self) -> bool:
        """Whether two permits are free, or the only one."""
        return self._permits.num_free >= min(2, self._permits.num)

    def close(self) -> None:
        """Wait for what was begun, and end the threads. Harmless when called again."""
        self._executor.shutdown(wait=True)


@contextmanager
def overlapped(helpers: Helpers | None) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Give a function for work that follows each of some steps: it is done beside the next ones where helpers are idle.

        this thread   | part 0 | part 1 | part 2 | part 3 |
        helpers                | publish 0  | publish 2  |
                                        | publish 1 | publish 3 |

    It blocks until no more than one piece is under way. Errors of what it has begun are raised by a later call, or at
    the end of the block, which waits for all of it. Without helpers, the calling thread does it.
    """
    begun: deque[Future[object]] = deque()

    def do(work: Callable[[], object]) -> None:
        while len(begun) >= _AT_ONCE or (begun and begun[0].done()):
            begun.popleft().result()
        if helpers is not None and helpers.are_idle:
            begun.append(helpers.begin(work))
        else:
            work()

    try:
        yield do
        while begun:
            begun.popleft().result()
    finally:
        wait(begun)  # where there was an error, it is the one that is raised
