"""One run of one path with its step behind it, for a while: what a training loop would see."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.doctor.causes import limit_of
from stoker.doctor.machine import Neighbours
from stoker.doctor.results import RunSpan
from stoker.doctor.sampled import SampledCatalogue
from stoker.doctor.step import Step, num_samples_of
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace
from stoker.metrics.stages import Span, StageTotal

# What fills the pipe, and what the first steps do once, is no part of the rate.
_FIRST = 6
_NUM_PIECES = 5
# Units that a rate of building is made of, at least.
_MIN_BUILT = 6
# A loop that waited less than this was not limited by its batches.
_HARDLY = 0.05
# Batches that tell a rate, however long they take.
_LEAST_BATCHES = 3
# A run goes on for so many times its seconds where it has not come to as many samples as it should.
_LONGER = 3
# Of a thread's spans that a window of the timeline shows.
_SHOWN = frozenset(("fetch", "decode", "transform", "convert", "publish", "gather", "augment", "copy", "wait", "step"))
# Pieces of a timeline that no eye can tell apart are one: so many to its whole length.
_NUM_PIXELS = 800


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
        limit: Key of the stage that the path spent most on.
        num_builders: Threads that built.
        spans: A stretch of it.
    """

    rate_s: float
    low: float = 0.0
    high: float = 0.0
    stall: float = 0.0
    cores_used: float = 0.0
    others: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    num_builders: int = 0
    spans: tuple[RunSpan, ...] = ()


@dataclass
class Taken:
    """When a loop asked for each batch, had it, and had given it to the step, by `time.perf_counter`."""

    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    cores_used: float = 0.0
    others: float = 0.0

    @property
    def stall(self) -> float:
        """Share of the time, from the second batch on, in which the loop waited."""
        if len(self.got) < 2:
            return 1.0
        waited = sum(got - asked for asked, got in zip(self.asked[1:], self.got[1:], strict=True))
        return min(1.0, waited / max(1e-9, self.begun[-1] - self.got[0]))


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
    taken = Taken()
    neighbours = Neighbours()
    num = 0
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
    taken = take(batches, step=step, seconds=seconds, beside=beside)
    return _run_of(taken, stages={}, limit="")


def run_warm(loader: Loader, *, step: Step | None, seconds: float) -> PathRun:
    """Return what a loader gives whose chunks are all there; its first batches do not count."""
    with closing(_for_ever(loader)) as batches:
        take(batches, step=step, seconds=0.3 * seconds)  # maps, checks, touches: once
        before = loader.stats()
        taken = take(batches, step=step, seconds=seconds)
        stages = _a_sample(loader.stats().since(before).stages, sum(taken.sizes))
    return _run_of(taken, stages=stages, limit=limit_of(stages, build_share=0.0, evenness=1.0))


def run_cold(
    loader: Loader,
    sampled: SampledCatalogue,
    trace: Trace,
    *,
    step: Step | None,
    seconds: float,
    window_samples: float,
    evenness: float,
) -> PathRun:
    """Return what a loader gives that builds every chunk.

    Args:
        loader: Of one epoch that is long enough.
        sampled: Its chunks.
        trace: That the loader writes to.
        step: What trains.
        seconds: How long, from the first batch on.
        window_samples: Samples of a window: the run is some windows long.
        evenness: Of the chunks.
    """
    with closing(_once(loader)) as batches:
        taken = take(batches, step=step, seconds=seconds, num_samples=3 * window_samples)
    stages = _a_sample(loader.stats().stages, loader.stats().num_samples)
    spans = trace.spans()
    builders = [track for track in spans if track.startswith("stoker-build-") and spans[track]]
    late = _middle(taken)
    num_builders = sum(any(span.stop_ns / 1e9 > late for span in spans[track]) for track in builders)
    busy_s = sum(
        (span.stop_ns - span.start_ns) / 1e9 for track in builders for span in spans[track] if span.stage == "build"
    )
    wall_s = taken.begun[-1] - taken.asked[0] if taken.begun else 0.0
    share = busy_s / max(1e-9, wall_s * max(1, len(builders)))
    run = _run_of(
        taken,
        stages=stages,
        limit=limit_of(stages, build_share=share, evenness=evenness),
        num_builders=max(1, num_builders),
        spans=_timeline(spans, taken),
    )
    if taken.stall < _HARDLY:
        return run
    built = _built(spans, sampled)
    rates = built_rate(
        built, num_first=max(1, num_builders), begun=taken.begun, sizes=taken.sizes, window_samples=window_samples
    )
    if rates is None:
        return run
    whole, low, high = rates
    return PathRun(**{**run.__dict__, "rate_s": whole, "low": min(low, whole), "high": max(high, whole)})


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
        with closing(_for_ever(self._loader)) as batches:
            for _ in batches:
                self._wanted.acquire()
                if self._is_over:
                    return


def _run_of(
    taken: Taken,
    *,
    stages: Mapping[str, float],
    limit: str,
    num_builders: int = 0,
    spans: tuple[RunSpan, ...] = (),
) -> PathRun:
    rate_s, low, high = steady_rate(taken.begun, taken.sizes) or (0.0, 0.0, 0.0)
    return PathRun(
        rate_s=rate_s,
        low=low,
        high=high,
        stall=taken.stall,
        cores_used=taken.cores_used,
        others=taken.others,
        stages=stages,
        limit=limit,
        num_builders=num_builders,
        spans=spans,
    )


def _a_sample(stages: Mapping[str, StageTotal], num_samples: int) -> dict[str, float]:
    """Return the seconds of each stage, a sample."""
    return {key: total.busy_s / max(1, num_samples) for key, total in stages.items() if total.busy_s > 0}


def _middle(taken: Taken) -> float:
    return (taken.got[0] + taken.begun[-1]) / 2 if taken.begun else 0.0


def _built(spans: Mapping[str, Sequence[Span]], sampled: SampledCatalogue) -> list[tuple[float, float, int]]:
    """Return when each unit was begun and done, and its samples; what is read in one go is built at once."""
    longest: dict[int, Span] = {}
    for span in itertools.chain.from_iterable(spans.values()):
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


def _timeline(spans: Mapping[str, Sequence[Span]], taken: Taken) -> tuple[RunSpan, ...]:
    """Return a stretch from the middle of a run as tracks: who built, who made batches, when the loop waited."""
    if len(taken.got) < 2:
        return ()
    length_s = max(0.05, min(0.25 * (taken.begun[-1] - taken.got[0]), 2.0))
    from_s = _middle(taken)
    found: list[RunSpan] = []
    for track, of_track in spans.items():
        name = track.removeprefix("stoker-").replace("-", " ") if track.startswith("stoker-") else "loop"
        for stage in dict.fromkeys(span.stage for span in of_track if span.stage in _SHOWN):
            pieces = [(span.start_ns / 1e9, span.stop_ns / 1e9) for span in of_track if span.stage == stage]
            found += [
                RunSpan(track=name, stage=stage, start_s=start - from_s, stop_s=stop - from_s)
                for start, stop in _merged(pieces, from_s, from_s + length_s)
            ]
    return tuple(sorted(found, key=lambda span: (span.track, span.start_s)))


def _merged(pieces: Sequence[tuple[float, float]], from_s: float, to_s: float) -> list[tuple[float, float]]:
    """Return what of some pieces lies in a stretch, those that no eye can tell apart as one."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(pieces):
        start, stop = max(start, from_s), min(stop, to_s)
        if stop <= start:
            continue
        if merged and start - merged[-1][1] < (to_s - from_s) / _NUM_PIXELS:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _once(loader: Loader) -> Generator[Any, None, None]:
    yield from loader


def _for_ever(loader: Loader) -> Generator[Any, None, None]:
    while True:
        yield from loader
