"""A whole path with its step: what a training run would see, for a while."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from stoker.doctor.meter import Contention
from stoker.doctor.results import Rate, RunSpan
from stoker.doctor.sampled import BUILD_CPU, BUILT
from stoker.doctor.step import Step
from stoker.fields.spec import Ragged
from stoker.host.machine import cores

# What fills the pipe, and what the first steps do once, is no part of the rate.
_FIRST = 6
_NUM_PIECES = 5
# Units that a rate of building is made of, at least.
_MIN_BUILT = 6
# Parts of a run whose rates say how far they lie apart.
_NUM_PARTS = 3


@dataclass(kw_only=True)
class Listener:
    """Notes what builds chunks, by thread: an `OnStage`."""

    pieces: list[tuple[int, str, int, int]] = field(default_factory=list)
    built: list[tuple[float, float, int]] = field(default_factory=list)
    build_cpu: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, stage: str, start_ns: int, stop_ns: int, num_bytes: int) -> None:
        """Note one piece of work."""
        if stage == BUILT:
            self.built.append((start_ns / 1e9, stop_ns / 1e9, num_bytes))
        elif stage == BUILD_CPU:
            self.build_cpu.append((stop_ns / 1e9, num_bytes))
        else:
            self.pieces.append((threading.get_ident(), stage, start_ns, stop_ns))


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What a run gave.

    Attributes:
        rate: Samples/s once it was under way; None where too little came to tell.
        num_samples: Samples handed over.
        wall_s: Seconds, all of them.
        cores_left: Processors that others left to this process meanwhile.
        asked: When the loop asked for each batch, by `time.perf_counter`.
        got: When it had it.
        begun: When the step had taken it.
        sizes: Samples of each.
    """

    rate: Rate | None
    num_samples: int
    wall_s: float
    cores_left: float
    asked: tuple[float, ...]
    got: tuple[float, ...]
    begun: tuple[float, ...]
    sizes: tuple[int, ...]


def num_samples_of(batch: Any) -> int:
    """Return the samples of a batch of arrays or tensors."""
    if not isinstance(batch, dict) or not batch:
        return 0
    first = next(iter(batch.values()))
    if isinstance(first, Ragged):
        return len(first.offsets) - 1
    return int(np.shape(first)[0])


def run_whole(
    batches: Iterator[Any], *, step: Step | None, seconds: float, window_batches: float | None = None
) -> Whole:
    """Train on batches for a while, and return at which rate.

    Args:
        batches: Left where it is when the time is over.
        step: What trains; None only takes the batches.
        seconds: How long, from the first batch on.
        window_batches: Batches of a window, where batches come window by window: the rate is then taken over whole
            windows.

    Blocks: until the batch that is asked for when the time is over has come.
    """
    asked: list[float] = []
    got: list[float] = []
    begun: list[float] = []
    sizes: list[int] = []
    contention = Contention(cores())
    while True:
        asked.append(time.perf_counter())
        batch = next(batches, None)
        if batch is None:
            asked.pop()
            break
        got.append(time.perf_counter())
        if len(got) == 1:
            contention.begin()  # by now all threads are there
        sizes.append(num_samples_of(batch))
        if step is not None:
            step.begin(batch)
        begun.append(time.perf_counter())
        del batch
        if begun[-1] - got[0] > seconds:
            break
    cores_left = contention.cores_left()
    if step is not None:
        step.finish()
    stop = time.perf_counter()
    return Whole(
        rate=steady_rate(begun, sizes, window_batches=window_batches),
        num_samples=sum(sizes),
        wall_s=stop - asked[0] if asked else 0.0,
        cores_left=cores_left,
        asked=tuple(asked),
        got=tuple(got),
        begun=tuple(begun),
        sizes=tuple(sizes),
    )


def steady_rate(times: Sequence[float], sizes: Sequence[int], *, window_batches: float | None = None) -> Rate | None:
    """Return the samples/s once a run was under way, with its spread; None where too little came.

    Args:
        times: When each batch was taken, ascending.
        sizes: Samples of each.
        window_batches: Batches of a window, where they come window by window.
    """
    marks = _marks(len(times), window_batches)
    if len(marks) < 2 or times[marks[-1]] <= times[marks[0]]:
        return None
    done = np.concatenate([[0], np.cumsum(sizes)])
    whole = float(done[marks[-1]] - done[marks[0]]) / (times[marks[-1]] - times[marks[0]])
    rates = [float(done[b] - done[a]) / (times[b] - times[a]) for a, b in pairwise(marks) if times[b] > times[a]]
    # Windows of which one was early and the next one late say little of the whole: the middle half of them counts.
    low, high = (min(rates), max(rates)) if len(rates) < 4 else np.quantile(rates, [0.25, 0.75])
    return Rate(
        samples_s=whole, low=min(whole, float(low)), high=max(whole, float(high)), num_rounds=max(1, len(rates))
    )


def _marks(num: int, window_batches: float | None) -> list[int]:
    """Return the batches between which rates are taken."""
    if window_batches is not None and window_batches >= 2:
        # Batches of a window come at once, then none for a while: only from one window's first to another's is fair.
        return [round(k * window_batches) for k in range(1, int((num - 1) // window_batches) + 1)]
    first = min(_FIRST, num // 4)
    return sorted({int(i) for i in np.linspace(first, num - 1, _NUM_PIECES + 1)}) if num - first > 1 else []


def stall_share(whole: Whole) -> float:
    """Return the share of a run, from its second batch on, in which the loop waited for batches."""
    if len(whole.got) < 2:
        return 1.0
    waited = sum(got - asked for asked, got in zip(whole.asked[1:], whole.got[1:], strict=False))
    return waited / max(1e-9, whole.begun[-1] - whole.got[0])


def as_one(runs: Sequence[Whole]) -> Whole:
    """Return the runs of several epochs as one: the beginnings of epochs count in none, for real ones are long."""
    told: list[tuple[float, float, Rate]] = []
    for run in runs:
        marks = _marks(len(run.begun), None)
        if run.rate is not None and len(marks) > 1:
            samples = float(sum(run.sizes[marks[0] : marks[-1]]))
            told.append((samples, run.begun[marks[-1]] - run.begun[marks[0]], run.rate))
    rate: Rate | None = None
    if told:
        mean = sum(samples for samples, _, _ in told) / sum(seconds for _, seconds, _ in told)
        rates = [each.samples_s for _, _, each in told]
        rate = Rate(samples_s=mean, low=min(mean, *rates), high=max(mean, *rates), num_rounds=len(told))
    wall_s = sum(run.wall_s for run in runs)
    return Whole(
        rate=rate,
        num_samples=sum(run.num_samples for run in runs),
        wall_s=wall_s,
        cores_left=sum(run.cores_left * run.wall_s for run in runs) / wall_s,
        asked=tuple(at for run in runs for at in run.asked),
        got=tuple(at for run in runs for at in run.got),
        begun=tuple(at for run in runs for at in run.begun),
        sizes=tuple(size for run in runs for size in run.sizes),
    )


def mean_rate(rates: Sequence[Rate], seconds: Sequence[float] | None = None) -> Rate:
    """Return what several runs gave together: their mean, from the slowest of them to the fastest.

    Args:
        rates: Of each.
        seconds: How long each took; None for runs of one length.
    """
    mean = statistics.fmean([rate.samples_s for rate in rates], seconds)
    # Rounded, a mean of equal rates may lie beside them.
    mean = min(max(mean, min(rate.low for rate in rates)), max(rate.high for rate in rates))
    return Rate(
        samples_s=mean,
        low=min(rate.low for rate in rates),
        high=max(rate.high for rate in rates),
        num_rounds=sum(rate.num_rounds for rate in rates),
    )


def built_rate(
    built: Sequence[tuple[float, float, int]], *, num_first: int, whole: Whole, window_samples: float = math.inf
) -> Rate | None:
    """Return the samples/s of a run that units are built for; None of too few, or where none of them were taken.

    Batches come window by window, units several at a time and huge ones seldom. So each unit's samples count all along
    the time that it took:

        builder 0   ┆ 500 ┆ 500 ┆ 500 ┆ 500 ┆
        builder 1   ┆         5,000         ┆       at every moment, what all of them were at, over how long that took

    What is built ahead of the loop is no throughput. Within a window it comes and goes; a lead that has grown by more
    is a loop that falls behind, and as large a share of every part's rate is none. A lead that has shrunk says nothing:
    in the beginning all builders end together.

    Args:
        built: When each unit was begun and when it was done, and its samples.
        num_first: Units that only filled the pipe: as many as there are builders.
        whole: The run. What was built while all came to an end had the machine to itself, and does not count.
        window_samples: Samples of a window.
    """
    until = whole.begun[-1] if whole.begun else 0.0
    ended = sorted(stop for _, stop, _ in built if stop <= until)
    if len(ended) < num_first + max(_MIN_BUILT, num_first):
        return None
    start, stop, size = (np.array(column, dtype=float) for column in zip(*built, strict=True))
    borders = np.linspace(ended[num_first - 1], ended[-1], _NUM_PARTS + 1)
    # How much of each unit was done by each border.
    done = np.clip((borders[:, None] - start) / np.maximum(stop - start, 1e-9), 0.0, 1.0) @ size
    num_built, seconds = float(done[-1] - done[0]), float(borders[-1] - borders[0])
    taken = np.concatenate([[0], np.cumsum(whole.sizes)])[np.searchsorted(whole.begun, borders[[0, -1]], side="right")]
    num_ahead = max(0.0, num_built - float(taken[1] - taken[0]) - window_samples)
    if num_ahead >= num_built or seconds <= 0:
        return None
    rates = np.diff(done) / np.diff(borders) * (1 - num_ahead / num_built)
    rate = (num_built - num_ahead) / seconds
    return Rate(
        samples_s=rate,
        low=min(rate, float(rates.min())),
        high=max(rate, float(rates.max())),
        num_rounds=len(ended) - num_first,
    )


def build_cpu_s(listener: Listener) -> float | None:
    """Return the processor seconds a sample that building took in a run; None of too few units.

    The first half is left out: whether memory is at hand in it says what ran before, and nothing of the path.
    """
    counted = listener.build_cpu[len(listener.build_cpu) // 2 :]
    num_samples = sum(size for _, size in counted)
    return sum(cpu_s for cpu_s, _ in counted) / num_samples if len(counted) >= _MIN_BUILT // 2 and num_samples else None


def spans_of(whole: Whole, listener: Listener, *, step_s: float, from_s: float, length_s: float) -> tuple[RunSpan, ...]:
    """Return a stretch of a run as tracks: who built, when the loop waited, when the step ran.

    Args:
        whole: The run.
        listener: What it noted meanwhile.
        step_s: Seconds of a step on the device.
        from_s: When to begin, by `time.perf_counter`.
        length_s: How long.
    """
    spans: list[RunSpan] = []

    def add(track: str, stage: str, start: float, stop: float) -> None:
        start, stop = max(start, from_s), min(stop, from_s + length_s)
        if stop > start:
            spans.append(RunSpan(track=track, stage=stage, start_s=start - from_s, stop_s=stop - from_s))

    names: dict[int, str] = {}
    ended: dict[int, float] = {}
    for thread, stage, start_ns, stop_ns in sorted(listener.pieces, key=lambda piece: piece[2]):
        track = names.setdefault(thread, f"build {len(names)}")
        start, stop = start_ns / 1e9, stop_ns / 1e9
        # Between two readings the thread transforms, converts and publishes what it has read.
        if stage == "fetch" and thread in ended and start > ended[thread]:
            add(track, "convert", ended[thread], start)
        add(track, stage, start, stop)
        ended[thread] = stop
    free = 0.0
    for asked, got, begun in zip(whole.asked, whole.got, whole.begun, strict=False):
        add("loop", "wait", asked, got)
        free = max(free, got)
        add("step", "step", free, free + max(step_s, 0.0) if step_s else begun)
        free += step_s
    return tuple(sorted(spans, key=lambda span: (span.track, span.start_s)))


def middle(rates: Sequence[float]) -> Rate:
    """Return rates of several rounds as one with its spread."""
    return Rate(samples_s=statistics.median(rates), low=min(rates), high=max(rates), num_rounds=len(rates))
