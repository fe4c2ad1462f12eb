"""One run of one path with its step behind it, for a while: what a training loop would see."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stoker.dataset.catalogue import Catalogue
from stoker.doctor.machine import Neighbours
from stoker.doctor.step import Step, num_samples_of
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace
from stoker.metrics.stages import Span, StageTotal

# What fills the pipe, and what the first steps do once, is no part of the rate.
_FIRST = 6
_NUM_PIECES = 5
# Units that a rate of building is made of, at least; of fewer it is off by so much.
_MIN_BUILT, _ROUGH = 6, 0.3
# A loop that waited less than this, in so many windows, was not limited by its batches.
_HARDLY, _MANY_WINDOWS = 0.05, 8
# Batches that tell a rate, however long they take.
_LEAST_BATCHES = 3
# A run goes on for so many times its seconds where it has not come to as many samples as it should.
_LONGER = 3


@dataclass(frozen=True, kw_only=True)
class PathRun:
    """What a run gave.

    Attributes:
        rate_s: Samples/s once it was under way; 0 where too little came to tell.
        low: The same of the slowest part.
        high: Of the fastest.
        stall: Share of the loop's time in which it waited for a batch.
        cores_used: Processors that this process kept busy.
        others: Share of all processors that others took.
        stages: Seconds that threads spent in each stage, a sample.
        build_share: Share of the time in which threads that build did.
        num_builders: Threads that built.
    """

    rate_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    stall: float = 0.0
    cores_used: float = 0.0
    others: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    build_share: float = 0.0
    num_builders: int = 0


@dataclass
class Taken:
    """When a loop asked for each batch, had it, and had given it to the step, by `time.perf_counter`."""

    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    cores_used: float = 0.0
    others: float = 0.0

    def run(self, stages: Mapping[str, StageTotal], num_samples: int) -> PathRun:
        """Return what it tells of a path, whose threads spent so much on so many samples."""
        rate_s, low, high = steady_rate(self.begun, self.sizes) or (0.0, 0.0, 0.0)
        waited_s = sum(got - asked for asked, got in zip(self.asked[1:], self.got[1:], strict=True))
        return PathRun(
            rate_s=rate_s,
            low=low,
            high=high,
            stall=min(1.0, waited_s / max(1e-9, self.begun[-1] - self.got[0])) if len(self.got) > 1 else 1.0,
            cores_used=self.cores_used,
            others=self.others,
            stages={key: one.busy_s / max(1, num_samples) for key, one in stages.items() if one.busy_s > 0},
        )


def take(
    batches: Iterator[Any],
    *,
    step: Step | None,
    seconds: float,
    num_samples: float = 0.0,
    beside: Callable[[], object] | None = None,
) -> Taken:
    """Train on batches for a while.

    Args:
        batches: Left where it is when the time is over.
        step: What trains; None only takes the batches.
        seconds: How long, from the first batch on.
        num_samples: How many at least, in some more time.
        beside: Called at each step, for whoever works beside it.

    Blocks: until the batch that is asked for when the time is over has come.
    """
    taken, neighbours, num = Taken(), Neighbours(), 0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        taken.asked.append(asked)
        taken.got.append(time.perf_counter())
        if len(taken.got) == 1:
            neighbours.begin()  # by now all threads are there
        taken.sizes.append(num_samples_of(batch))
        num += taken.sizes[-1]
        if step is not None:
            step.begin(batch)
        if beside is not None:
            beside()
        del batch
        taken.begun.append(time.perf_counter())
        took_s = taken.begun[-1] - taken.got[0]
        is_over = took_s > _LONGER * seconds or (took_s > seconds and num >= num_samples)
        if is_over and len(taken.got) >= _LEAST_BATCHES:
            break
    taken.cores_used, taken.others = neighbours.cores_used, neighbours.share()
    if step is not None:
        step.finish()
    return taken


def run_batches(
    batches: Iterator[Any], *, step: Step | None, seconds: float, beside: Callable[[], object] | None = None
) -> PathRun:
    """Return what batches give that need no loader."""
    return take(batches, step=step, seconds=seconds, beside=beside).run({}, 0)


def run_warm(loader: Loader, *, step: Step | None, seconds: float) -> PathRun:
    """Return what a loader gives whose chunks are all there; its first batches do not count."""
    with closing(for_ever(loader)) as batches:
        take(batches, step=step, seconds=0.3 * seconds)  # maps, checks, touches: once
        before = loader.stats()
        taken = take(batches, step=step, seconds=seconds)
        return taken.run(loader.stats().since(before).stages, sum(taken.sizes))


def run_cold(
    loader: Loader, sampled: Catalogue, trace: Trace, *, step: Step | None, seconds: float, window_samples: float
) -> PathRun:
    """Return what a loader gives that builds every chunk.

    Args:
        loader: Of one epoch that is long enough.
        sampled: Its chunks.
        trace: That the loader writes to.
        step: What trains.
        seconds: How long, from the first batch on.
        window_samples: Samples of a window: the run is some windows long.
    """
    with closing(_once(loader)) as batches:
        taken = take(batches, step=step, seconds=seconds, num_samples=3 * window_samples)
    stats = loader.stats()
    run = taken.run(stats.stages, stats.num_samples)
    tracks = [spans for name, spans in trace.spans().items() if name.startswith("stoker-build-") and spans]
    if not taken.begun:
        return run
    late = (taken.got[0] + taken.begun[-1]) / 2
    busy_s = sum((span.stop_ns - span.start_ns) / 1e9 for track in tracks for span in track if span.stage == "build")
    num_builders = max(1, sum(any(span.stop_ns / 1e9 > late for span in track) for track in tracks))
    wall_s = max(1e-9, (taken.begun[-1] - taken.asked[0]) * max(1, len(tracks)))
    run = replace(run, build_share=busy_s / wall_s, num_builders=num_builders)
    if run.stall < _HARDLY and sum(taken.sizes) >= _MANY_WINDOWS * window_samples:
        return run
    built = _built(itertools.chain.from_iterable(tracks), sampled)
    num_built, built_s = sum(size for *_, size in built), sum(stop - start for start, stop, _ in built)
    # Some windows lay ready when the run began: a loop that has seen no more tells what its step took, unless less can
    # be built.
    if built_s <= 0 or (run.stall < _HARDLY and num_builders * num_built / built_s >= run.rate_s):
        return run
    whole, low, high = built_rate(
        built, num_first=num_builders, begun=taken.begun, sizes=taken.sizes, window_samples=window_samples
    ) or rough_rate(built)
    # Less was built than the loop took of what lay ready: the rest of its time it would have waited.
    stall = max(run.stall, 1 - whole / run.rate_s) if run.rate_s > 0 else run.stall
    return replace(run, rate_s=whole, low=min(low, whole), high=max(high, whole), stall=stall)


def steady_rate(times: Sequence[float], sizes: Sequence[int]) -> tuple[float, float, float] | None:
    """Return the samples/s once a run was under way, and of its slowest and fastest part; None where too little came.

    Args:
        times: When each batch was taken, ascending.
        sizes: Samples of each.
    """
    num = len(times)
    first = min(_FIRST, num // 4)
    if num - first < 2:
        return None
    marks = sorted({int(i) for i in np.linspace(first, num - 1, _NUM_PIECES + 1)})
    done = np.concatenate([[0], np.cumsum(sizes)])
    parts = [
        float(done[b + 1] - done[a + 1]) / (times[b] - times[a])
        for a, b in itertools.pairwise(marks)
        if times[b] > times[a]
    ]
    if not parts:
        return None
    whole = float(done[marks[-1] + 1] - done[marks[0] + 1]) / (times[marks[-1]] - times[marks[0]])
    return whole, min(whole, *parts), max(whole, *parts)


def built_rate(
    built: Sequence[tuple[float, float, int]],
    *,
    num_first: int,
    begun: Sequence[float],
    sizes: Sequence[int],
    window_samples: float = math.inf,
) -> tuple[float, float, float] | None:
    """Return the samples/s of a run that units are built for; None of too few, or where none of them were taken.

    Batches come window by window, units several at a time and huge ones seldom. So each unit's samples count all along
    the time that it took:

        builder 0   ┆ 500 ┆ 500 ┆ 500 ┆ 500 ┆
        builder 1   ┆         5,000         ┆       at every moment, what all of them were at, over how long that took

    What is built ahead of the loop is no throughput. Within a window it comes and goes; a lead that has grown by more
    is a loop that falls behind, and as large a share of every part's rate is none.

    Args:
        built: When each unit was begun and when it was done, and its samples.
        num_first: Units that only filled the pipe: as many as there are builders.
        begun: When the loop had given each batch to its step.
        sizes: Samples of each batch.
        window_samples: Samples of a window.
    """
    until = begun[-1] if begun else 0.0
    ended = sorted(stop for _, stop, _ in built if stop <= until)
    if len(ended) < num_first + max(_MIN_BUILT, num_first):
        return None
    start, stop, size = (np.array(column, dtype=float) for column in zip(*built, strict=True))
    borders = np.linspace(ended[num_first - 1], ended[-1], 4)
    # How much of each unit was done by each border.
    done = np.clip((borders[:, None] - start) / np.maximum(stop - start, 1e-9), 0.0, 1.0) @ size
    num_built, seconds = float(done[-1] - done[0]), float(borders[-1] - borders[0])
    taken = np.concatenate([[0], np.cumsum(sizes)])[np.searchsorted(begun, borders[[0, -1]], side="right")]
    num_ahead = max(0.0, num_built - float(taken[1] - taken[0]) - window_samples)
    if num_ahead >= num_built or seconds <= 0:
        return None
    rates = np.diff(done) / np.diff(borders) * (1 - num_ahead / num_built)
    return (num_built - num_ahead) / seconds, float(rates.min()), float(rates.max())


def rough_rate(built: Sequence[tuple[float, float, int]]) -> tuple[float, float, float]:
    """Return about what a run gave of which only a few units were built, one at least."""
    seconds = max(stop for _, stop, _ in built) - min(start for start, *_ in built)
    rate_s = sum(size for *_, size in built) / seconds
    return rate_s, (1 - _ROUGH) * rate_s, (1 + _ROUGH) * rate_s


class Feeder:
    """A loader at work beside a loop that needs none of its batches: one is taken for each step, by another thread."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._wanted = threading.Semaphore(0)
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="stoker-doctor-beside", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Have one more batch made."""
        self._wanted.release()

    def close(self) -> None:
        """End it."""
        self._is_over = True
        self._wanted.release()
        self._thread.join()

    def _work(self) -> None:
        with closing(for_ever(self._loader)) as batches:
            for _ in batches:
                self._wanted.acquire()
                if self._is_over:
                    return


def _built(spans: Iterator[Span], sampled: Catalogue) -> list[tuple[float, float, int]]:
    """Return when each unit was begun and done, and its samples; what is read in one go is built at once."""
    longest: dict[int, Span] = {}
    for span in spans:
        if span.stage == "build" and span.chunk >= 0:
            start = sampled.unit(span.chunk)[0]
            known = longest.get(start)
            if known is None or span.stop_ns - span.start_ns > known.stop_ns - known.start_ns:
                longest[start] = span
    counts = sampled.num_samples
    return [
        (span.start_ns / 1e9, span.stop_ns / 1e9, int(counts[sampled.unit(start)].sum()))
        for start, span in longest.items()
    ]


def _once(loader: Loader) -> Generator[Any, None, None]:
    yield from loader


def for_ever(loader: Loader) -> Generator[Any, None, None]:
    """Yield epoch after epoch."""
    while True:
        yield from loader
