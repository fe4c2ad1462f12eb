"""Loops whose every moment is planned: a clock that only they move, loaders that take the time they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import stoker
from stoker import WatchReport


class Clock:
    """Nanoseconds that pass only when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def wait_until_s(self, seconds: float) -> None:
        self.now_ns = max(self.now_ns, round(seconds * 1e9))

    @property
    def now_s(self) -> float:
        return self.now_ns / 1e9


class PlannedLoader:
    """Batch i takes `stall(i)` seconds to come."""

    def __init__(self, clock: Clock, num: int, stall: Callable[[int], float]) -> None:
        self.clock, self.num, self.stall = clock, num, stall

    def __iter__(self) -> Iterator[int]:
        for i in range(self.num):
            self.clock.pass_s(self.stall(i))
            yield i

    def __len__(self) -> int:
        return self.num


class WorkersLoader:
    """What a torch DataLoader does: workers take turns, two batches each ahead, handed over in order.

    Batch i is made by worker i % num_workers and takes `cost(i)` seconds.
    """

    def __init__(
        self, clock: Clock, num: int, *, num_workers: int, cost: Callable[[int], float], is_seen: bool = True
    ) -> None:
        self.clock, self.num, self.num_workers, self.cost, self.is_seen = clock, num, num_workers, cost, is_seen

    def __iter__(self) -> Iterator[int]:
        return _Workers(self) if self.is_seen else _unseen(_Workers(self))


def _unseen(workers: _Workers) -> Iterator[int]:
    """The same batches through a generator, which shows nothing of the workers."""
    yield from workers


class _Workers:
    def __init__(self, loader: WorkersLoader) -> None:
        self._loader, self._num_workers = loader, loader.num_workers
        self._free_s = [loader.clock.now_s] * self._num_workers
        self._ready_s: dict[int, float] = {}
        self._next = 0
        for i in range(min(loader.num, 2 * self._num_workers)):
            self._ask_for(i)
        self._look()

    def __iter__(self) -> _Workers:
        return self

    def __next__(self) -> int:
        i, loader = self._next, self._loader
        if i == loader.num:
            raise StopIteration
        self._next += 1
        loader.clock.wait_until_s(self._ready_s.pop(i))
        if i + 2 * self._num_workers < loader.num:
            self._ask_for(i + 2 * self._num_workers)
        self._look()
        return i

    def _ask_for(self, i: int) -> None:
        worker = i % self._num_workers
        self._free_s[worker] = max(self._free_s[worker], self._loader.clock.now_s) + self._loader.cost(i)
        self._ready_s[i] = self._free_s[worker]

    def _look(self) -> None:
        """Keep what torch's iterator keeps: what has come is there beside its worker."""
        now, n = self._loader.clock.now_s, self._num_workers
        self._task_info = {i: (i % n, i) if ready <= now else (i % n,) for i, ready in self._ready_s.items()}


def watched_run(
    loader: PlannedLoader | WorkersLoader, step: Callable[[int], float], *, num_epochs: int = 1, **options: object
) -> WatchReport:
    """Run a loop over `loader` in which batch i's step takes `step(i)` seconds, and return its report."""
    watched = stoker.watch(loader, clock=loader.clock, **options)
    for _ in range(num_epochs):
        for i in watched:
            loader.clock.pass_s(step(i))
    return watched.report()


def names_of(report: WatchReport) -> list[str]:
    return [finding.name for finding in report.findings]
