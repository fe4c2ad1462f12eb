"""One run of one path with its step behind it, for a while: what a training loop would see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

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
# Batches that tell a rate, however long they take.
_LEAST_BATCHES = 3
# A run lasts for so many turns of the builders, but for no more than so many times its seconds.
_TURNS, _LONGER = 3, 3
# Nor does it end while the rates of its parts differ by more than this factor. With fewer batches than the second, none
# are dropped: the rest would be too few.
_STEADY, _FORGETS = 1.08, 32


def take(
    batches: Iterator[Any],
    *,
    step: Step | None,
    seconds: float,
    num_samples: float = 0.0,
    longer: float = _LONGER,
    beside: Callable[[], object] | None = None,
) -> tuple[PathRun, int, tuple[float, float]]:
    """Train on batches for a while.

    Args:
        batches: Left where it is when the time is over.
        step: What trains; None only takes the batches.
        seconds: How long, from the first batch on.
        num_samples: How many at least, in some more time; as is taken for what is not steady yet.
        longer: So many times the seconds at most.
        beside: Called at each step, so that a loader can work beside it.

    Returns:
        What came, without rates where that was too little; its samples; and when, by `time.perf_counter`.

    Blocks: until the batch that is asked for when the time is over has come.
    """
    waits, begun, sizes, num_taken = list[float](), list[float](), list[int](), 0
    who_used, begun_s, got_s, looks_s = cores_from_now(), time.perf_counter(), 0.0, seconds
    while True:
        asked_s = time.perf_counter()
        if (batch := next(batches, None)) is None:
            break
        waits.append(time.perf_counter() - asked_s)
        if not num_taken:
            got_s = time.perf_counter()
            who_used = cores_from_now()  # by now all threads are there
        sizes.append(num_samples_of(batch))
        num_taken += sizes[-1]
        if step is not None:
            step.begin(batch)
        if beside is not None:
            beside()
        del batch
        begun.append(time.perf_counter())
        took_s = begun[-1] - got_s
        if took_s <= looks_s or len(begun) < _LEAST_BATCHES:
            continue
        slower, _, faster = rates_of(waits, begun, sizes)[0]
        is_steady = faster <= _STEADY * slower
        if took_s > longer * seconds or (num_taken >= num_samples and is_steady):
            break
        looks_s = took_s + seconds / 2
        if not is_steady and took_s < (longer - 1) * seconds and len(begun) >= _FORGETS:
            # The time to fill queues, start processes and touch memory is not part of the rate.
            for each in (waits, begun, sizes):
                del each[:]
    cores_used, others = who_used()
    ended_s = time.perf_counter()
    if step is not None:
        step.finish()
    rates, stall = rates_of(waits, begun, sizes)
    return PathRun(rates=rates, stall=stall, cores_used=cores_used, others=others), num_taken, (begun_s, ended_s)


def rates_of(waits: list[float], begun: list[float], sizes: list[int]) -> tuple[tuple[float, ...], float]:
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
        loader: With all of its chunks there; or of one long epoch, of which it builds every chunk.
        step: What trains.
        seconds: How long, from the first batch that counts.
        trace: The trace that a loader which builds chunks writes to.
        mean_chunk: Samples of a chunk that it builds.
        turn_samples: Samples that come together: the run is some times as long.
    """
    with closing(for_ever(loader) if trace is None else _once(loader)) as batches:
        settled = take(batches, step=step, seconds=SETTLES * seconds, longer=1)
        before = loader.stats()
        run, num_taken, (begun_s, ended_s) = take(
            batches, step=step, seconds=seconds, num_samples=_TURNS * turn_samples
        )
        stats = loader.stats()
    if not run.rates:  # the epoch ended
        run, num_taken, (begun_s, ended_s) = settled
    elif trace is None or stats.num_built > before.num_built:
        stats = stats.since(before)
    num_built = stats.num_built * mean_chunk
    num_of = dict.fromkeys(BUILD_STAGES, num_built)
    spent = {
        key: one.busy_s / max(1, num_of.get(key, num_taken)) for key, one in stats.stages.items() if one.busy_s > 0
    }
    run, building = replace(run, stages=spent), stats.stages.get("build", StageTotal())
    if trace is None or not run.rates or building.busy_s <= 0:
        return run
    tracks = [spans for name, spans in trace.spans().items() if name.startswith("stoker-build-")]
    late = (begun_s + ended_s) / 2
    num_builders = max(1, sum(any(span.stop_ns / 1e9 > late for span in track) for track in tracks))
    wall_s = max(1e-9, ended_s - begun_s) * max(1, len(tracks))
    run = replace(run, build_share=min(1.0, building.busy_s / wall_s), num_builders=num_builders)
    # A loop that has seen hardly more than what lay ready does not tell what can come: no more than what builders give
    # that build all the time.
    most_s = num_builders * num_built / building.busy_s
    if run.stall >= _HARDLY or run.samples_s <= most_s:
        return run
    rates = tuple(rate * most_s / run.samples_s for rate in run.rates)
    return replace(run, rates=rates, stall=max(run.stall, 1 - most_s / run.samples_s))


@contextmanager
def at_work(loader: Loader) -> Iterator[Callable[[], None]]:
    """Have a loader work beside a loop that needs none of its batches: another thread takes one for each call."""
    wanted, is_over = threading.Semaphore(0), threading.Event()

    def work() -> None:
        with closing(for_ever(loader)) as batches:
            for _ in batches:
                wanted.acquire()
                if is_over.is_set():
                    return

    thread = threading.Thread(target=work, name="stoker-doctor-beside", daemon=True)
    thread.start()
    try:
        yield wanted.release
    finally:
        is_over.set()
        wanted.release()
        thread.join()


def _once(loader: Loader) -> Generator[Any, None, None]:
    yield from loader


def for_ever(loader: Loader) -> Generator[Any, None, None]:
    """Yield epoch after epoch."""
    while True:
        yield from loader
