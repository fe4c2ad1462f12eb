"""One run of one path with its step behind it, for a while: what a training loop would see."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from stoker.doctor.machine import cores_from_now
from stoker.doctor.results import BUILD_STAGES, PathRun
from stoker.doctor.step import Step, num_samples_of
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace
from stoker.metrics.stages import StageTotal

SETTLES = 0.5
"""A run settles for this share of its seconds before it counts: memory is touched for the first time only once."""

# The first batches fill the pipe, and the first steps set up: these are no part of the rate.
_FIRST = 6
# A loop that waited for less of its time than this was not limited by its batches.
_HARDLY = 0.05
# Nor does so many times what builders give come for long, however few they are.
_FAR_MORE = 2.0
# Batches that tell a rate, however long they take.
_LEAST_BATCHES = 3
# So many of the last builds a thread tell which threads still build.
_LAST_BUILDS = 2
# A run lasts for so many turns of the builders, but for no more than so many times its seconds.
_TURNS, _LONGER = 3, 3
# Nor does it end while the rates of its parts differ by more than this factor. With fewer batches than the second, none
# are dropped: the rest would be too few.
_STEADY, _FORGETS = 1.08, 32

Times = Sequence[tuple[float, float]]
"""From when to when, by `time.perf_counter`."""


def take(
    batches: Iterator[Any],
    *,
    step: Step | None,
    seconds: float,
    num_samples: float = 0.0,
    longer: float = _LONGER,
    beside: Callable[[], object] | None = None,
) -> tuple[PathRun, int, Times]:
    """Train on batches for a while.

    Args:
        batches: Left where it is when the time is over.
        step: What trains; None only takes the batches.
        seconds: How long, from the first batch on.
        num_samples: How many at least, in some more time; as is taken for what is not steady yet.
        longer: So many times the seconds at most.
        beside: Called at each step, so that a loader can work beside it.

    Returns:
        What came, without rates where that was too little; the samples of all batches; and when it waited for each.

    Blocks: until the batch that is asked for when the time is over has come.
    """
    waits, begun, sizes, num_taken = list[tuple[float, float]](), list[float](), list[int](), 0
    first = 0  # what came before this batch is forgotten
    who_used, began_s, looks_s = cores_from_now(), math.inf, seconds
    while True:
        asked_s = time.perf_counter()
        if (batch := next(batches, None)) is None:
            break
        waits.append((asked_s, time.perf_counter()))
        if not num_taken:
            began_s = waits[0][1]
            who_used = cores_from_now()  # by now all threads are there
        sizes.append(num_samples_of(batch))
        num_taken += sizes[-1]
        if step is not None:
            step.begin(batch)
        if beside is not None:
            beside()
        del batch
        begun.append(time.perf_counter())
        took_s = begun[-1] - began_s
        num_batches = len(begun) - first
        if took_s <= looks_s or num_batches < _LEAST_BATCHES:
            continue
        looks_s, has_all = took_s + seconds / 2, num_taken >= num_samples
        parts = rates_of(_lengths(waits[first:]), begun[first:], sizes[first:])[0]
        after = what_next(took_s / seconds, longer=longer, has_all=has_all, parts=parts, num_batches=num_batches)
        if after == "end":
            break
        if after == "forget":
            first = len(begun)
    cores_used, others = who_used()
    if step is not None:
        step.finish()
    rates, stall = rates_of(_lengths(waits[first:]), begun[first:], sizes[first:])
    return PathRun(rates=rates, stall=stall, cores_used=cores_used, others=others), num_taken, waits


def what_next(
    times: float, *, longer: float, has_all: bool, parts: Sequence[float], num_batches: int
) -> Literal["end", "forget", "go on"]:
    """Return what a run does after a while: whether it ends, and whether what came so far counts.

        times    0 ──── 1 ──────────────────── longer - 1 ─────────── longer
                        ends where it is steady and has all that it needs   ends
                        forgets while it is not steady │ a rest would be too short

    The time to fill queues, start processes and touch memory is not part of a rate: what came while it was not steady
    is forgotten.

    Args:
        times: How long it took, in multiples of its seconds.
        longer: How long it takes at most, in such multiples.
        has_all: Whether as many samples came as it needs.
        parts: Rates of its slower part, of all of it, and of its faster part.
        num_batches: What they were told from.
    """
    is_steady = parts[-1] <= _STEADY * parts[0]
    if times > longer or (has_all and is_steady):
        return "end"
    return "forget" if not is_steady and times < longer - 1 and num_batches >= _FORGETS else "go on"


def rates_of(waits: Sequence[float], begun: list[float], sizes: list[int]) -> tuple[tuple[float, ...], float]:
    """Return a loop's samples/s, and the share of its time in which it waited.

        waits    ███▁▁▁▁▁██▁▁▁▁▁███▁▁▁▁▁██▁▁▁▁▁      batches come window by window, several at a time
                        └──────────┴───────┘          from the longest wait of each third to that of the next

    Where a loop waits, what comes is what can come, and between two such waits the pipe is as full as before. A loop
    that hardly waits has its own pace all the time.

    Args:
        waits: Seconds that it waited for each batch.
        begun: When it had given each to its step.
        sizes: Samples of each.

    Returns:
        The rates of the slower part, of all of it, and of the faster part, none of too few batches; and the share.
    """
    num = len(begun)
    if num < _LEAST_BATCHES:
        return (), 1.0
    waited, taken = (np.concatenate([[0.0], np.cumsum(each)]) for each in (waits, sizes))
    thirds = np.array_split(np.arange(min(_FIRST, num // 4), num), 3)
    marks = [int(thirds[0][0]), int(thirds[1][0]), int(thirds[2][-1])]
    if waited[-1] - waited[marks[0] + 1] >= _HARDLY * (begun[-1] - begun[marks[0]]):
        marks = [int(third[np.argmax(np.array(waits)[third])]) for third in thirds]

    def between(a: int, b: int, total: Any) -> float:
        return float(total[b + 1] - total[a + 1]) / max(1e-9, begun[b] - begun[a])

    first, middle, last = marks
    rates = (between(*span, taken) for span in ((first, middle), (middle, last), (first, last)))
    return tuple(sorted(rates)), min(1.0, between(first, last, waited))


def run_loader(
    loader: Loader,
    *,
    step: Step | None,
    seconds: float,
    trace: Trace | None = None,
    mean_chunk: float = 0.0,
    turn_samples: float = 0.0,
) -> PathRun:
    """Return what a loader gives; what comes first, while it maps, checks, touches or starts processes, does not count.

    Args:
        loader: With all of its chunks there; or of one long epoch, of which it builds every chunk. Closed at the end.
        step: What trains.
        seconds: How long, from the first batch that counts.
        trace: The trace that a loader which builds chunks writes to.
        mean_chunk: Samples of a chunk that it builds.
        turn_samples: Samples that come together: the run is some times as long.
    """
    with loader, closing(_epochs(loader, is_endless=trace is None)) as batches:
        settled = take(batches, step=step, seconds=SETTLES * seconds, longer=1)
        before = loader.stats()
        taken = take(batches, step=step, seconds=seconds, num_samples=_TURNS * turn_samples)
        stats = loader.stats()
    run, num_taken, _ = taken if taken[0].rates else settled  # where the epoch ended
    if taken[0].rates and (trace is None or stats.num_built > before.num_built):
        stats = stats.since(before)  # else all that came lay ready: what builders gave before tells what can come
    num_built = stats.num_built * mean_chunk
    num_of = dict.fromkeys(BUILD_STAGES, num_built)
    spent = {
        key: one.busy_s / max(1, num_of.get(key, num_taken)) for key, one in stats.stages.items() if one.busy_s > 0
    }
    run, busy_s = replace(run, stages=spent), stats.stages.get("build", StageTotal()).busy_s
    if trace is None or not run.rates or busy_s <= 0:
        return run
    builds = [
        [(span.start_ns / 1e9, span.stop_ns / 1e9) for span in spans if span.stage == "build"]
        for spans in trace.spans().values()
    ]
    # All of it: a chunk may take longer than what counts.
    num_builders, at_work, share = builders_at_work([times for times in builds if times], [*settled[2], *taken[2]])
    run = replace(run, num_builders=num_builders, build_share=share)
    # A loop that has seen hardly more than what lay ready does not tell what can come: no more than what builders give
    # while any of them builds. One that waits tells it, unless it came to the end of all that is built.
    most_s = at_work * num_built / busy_s
    if not 0 < most_s * (1 if run.stall < _HARDLY else _FAR_MORE) < run.samples_s:
        return run
    rates = tuple(rate * most_s / run.samples_s for rate in run.rates)
    return replace(run, rates=rates, stall=max(run.stall, 1 - most_s / run.samples_s))


def builders_at_work(builds: Sequence[Times], waits: Times) -> tuple[int, float, float]:
    """Return how many threads build at last, how many do while any does, and what share of them while the loop waits.

        builds   ████▏███▏████····    two threads, and when the loop waits for a batch
                 ███▏██▏·· ·······
        waits        ┆▔▔▔▔▔▔▔┆▔▔▔     what it waits for is one huge chunk: the other thread has nothing to do

    Args:
        builds: When each thread built its chunks, all of them: who builds at last is told by the last few, however long
            ago they were begun.
        waits: When the loop waited, in order.
    """
    begun_s, ended_s = waits[0][0], waits[-1][1]
    since_s = sorted(start for thread in builds for start, _ in thread)[-_LAST_BUILDS * len(builds) :][0]
    num = sum(any(stop > since_s for _, stop in thread) for thread in builds)
    inside = sorted((max(a, begun_s), min(b, ended_s)) for thread in builds for a, b in thread)
    inside = [(a, b) for a, b in inside if b > a]
    any_s, until_s = 0.0, -math.inf
    for start_s, stop_s in inside:
        any_s += max(0.0, stop_s - max(start_s, until_s))
        until_s = max(until_s, stop_s)
    # How long the loop had waited by any moment.
    moments, waited = np.ravel(waits), np.cumsum([(b - a) * side for a, b in waits for side in (0, 1)])
    waiting = np.diff(np.interp(np.reshape(inside, (-1, 2)), moments, waited), axis=1)
    at_work = sum(b - a for a, b in inside) / any_s if any_s else 0.0
    return num, at_work, float(waiting.sum()) / max(1e-9, num * float(waited[-1]))


@contextmanager
def at_work(loader: Loader) -> Iterator[Callable[[], object]]:
    """Have a loader work beside a loop that needs none of its batches: another thread takes one for each call.

    What the loader raises is raised by a later call, or at the end of the block.
    """
    asked = deque[Future[Any]]()

    def check() -> None:
        while asked and asked[0].done():
            if not (one := asked.popleft()).cancelled():
                one.result()

    with (
        loader,
        closing(_epochs(loader, is_endless=True)) as batches,
        ThreadPoolExecutor(1, thread_name_prefix="stoker-doctor-beside") as pool,
    ):

        def want() -> None:
            check()
            asked.append(pool.submit(next, batches))

        try:
            yield want
        finally:
            pool.shutdown(cancel_futures=True)
        check()


def _epochs(loader: Loader, *, is_endless: bool) -> Generator[Any, None, None]:
    yield from loader
    while is_endless:
        yield from loader


def _lengths(times: Times) -> list[float]:
    return [stop - start for start, stop in times]
