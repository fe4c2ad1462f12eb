"""Patterns that cost time, each with its name, its price and what to look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from stoker.doctor.watch.patterns import Turns, find_blocked, find_turns, is_trend, trend_of
from stoker.doctor.watch.tally import Floats, StepKind, Tallied
from stoker.doctor.words import share_text, time_text
from stoker.fields.offsets import Int64

Name: TypeAlias = Literal[
    "even-stall",
    "periodic-stall",
    "slow-worker",
    "too-few-workers",
    "head-of-line",
    "growing-stall",
    "fading-stall",
    "slow-steps",
    "epoch-start",
    "straggler",
]

# What costs less than this share of the time is not worth a line.
_WORTH_TELLING = 0.02
# Fewer steps than these show no pattern.
_MIN_STEPS = 16
# A step is slow beyond this many times the median one.
_SLOW_STEP = 3.0
# One is late alone where three quarters of the others' batches are ready: about half are where all are late.
_LONE = 0.75
# Stalls below this share of a step and its stall are the noise of handing over.
_NOISE = 0.02


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A pattern that costs time.

    Attributes:
        name: Which pattern.
        share: Share of the watched time that it costs.
        sentence: What was seen, with its numbers.
        advice: What to look at, or to try.
        period: Every how many batches or steps, where it has one.
        place: Which of them, counted from the epoch's first batch: with workers in turn, the worker.
        rank: Which rank, for a straggler.
    """

    name: Name
    share: float
    sentence: str
    advice: str
    period: int | None = None
    place: int | None = None
    rank: int | None = None


def find_patterns(seen: Tallied, *, num_workers: int | None) -> tuple[Finding, ...]:
    """Return what costs time, dearest first.

    Args:
        seen: The steps.
        num_workers: Workers of the loader that take turns, None or 0 where there are none or nobody knows.
    """
    found = _in_time(seen.parts)
    if len(seen.latest) >= _MIN_STEPS:
        stalls, steps = seen.latest[:, 1] / 1e9, seen.latest[:, 2] / 1e9
        cycle = float(stalls.mean() + steps.mean())
        found += _in_stalls(seen.latest, cycle=cycle, num_workers=num_workers or 0, has_trend=bool(found))
        found += _in_steps(seen.latest[:, 0], steps, cycle=cycle)
    found += _at_epochs(seen)
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _in_stalls(latest: Int64, *, cycle: float, num_workers: int, has_trend: bool) -> list[Finding]:
    index, stalls = latest[:, 0], latest[:, 1] / 1e9
    share = float(stalls.mean()) / cycle if cycle > 0 else 0.0
    if share < _WORTH_TELLING:
        return []
    found: list[Finding] = []
    is_lone = _is_lone(stalls, latest[:, 3], floor=_NOISE * cycle)
    turns = find_turns(index, stalls, floor=_NOISE * cycle)
    is_one_worker = turns is not None and turns.period == num_workers and len(turns.places) == 1
    if turns is not None:
        at_places = np.isin(index % turns.period, turns.places)
        cost = float(stalls[at_places].sum() / stalls.sum()) * share
        every = (
            f"{_which(turns.period, len(turns.places))} waits {time_text(turns.slow)}, "
            f"the others {time_text(turns.others)}"
        )
        place = turns.places[0]
        if not is_one_worker and is_lone is False and _is_often(turns, num_workers):
            found.append(_too_few(num_workers, share, every, period=turns.period, place=place))
        elif not is_one_worker:
            found.append(_periodic(turns, cost, every))
        elif is_lone or (is_lone is None and place):
            found.append(_slow_worker(place, num_workers, cost, every))
        else:
            found.append(_too_few(num_workers, cost, every, period=num_workers, place=place))
    blocked = None if is_one_worker else find_blocked(index, stalls, floor=_NOISE * cycle)
    if blocked is not None and blocked.share * share >= _WORTH_TELLING and blocked.share >= 0.5:
        apart = len(stalls) / blocked.num
        late = (
            f"one batch in {round(apart)} holds back those behind it: it is {time_text(blocked.mean)} late, "
            f"the next {blocked.num_behind} then come at once"
        )
        # Where all work at their limit, each turn of the workers has one that is last.
        if is_lone is False or (is_lone is None and apart <= 1.5 * num_workers):
            found.append(_too_few(num_workers, share, late))
        else:
            found.append(_head_of_line(blocked.share * share, late))
    if not found and not has_trend and float(np.median(stalls)) >= 0.5 * float(stalls.mean()):
        even = f"every batch waits about as long: {time_text(float(np.median(stalls)))}"
        found.append(_too_few(num_workers, share, even) if is_lone is False else _even(share, even, bool(is_lone)))
    return found


def _is_often(turns: Turns, num_workers: int) -> bool:
    """Say whether a turn of the workers has a wait or more: where all work at their limit, one of them is last."""
    return 1.5 * num_workers * len(turns.places) >= turns.period


def _is_lone(stalls: Floats, ready: Int64, *, floor: float) -> bool | None:
    """Say whether what the loop waited for was late alone, the others' batches ready; None where nobody knows."""
    is_known = (ready >= 0) & (stalls > floor)
    if not is_known.any():
        return None
    return float(np.average(ready[is_known], weights=stalls[is_known])) >= 1000 * _LONE


def _even(cost: float, even: str, is_ready: bool) -> Finding:
    if is_ready:
        return Finding(
            name="even-stall",
            share=cost,
            sentence=f"{even}, though the next ones lie ready: it is the handing over that takes so long",
            advice="fewer and larger tensors a batch, no objects that must be pickled; threads instead of processes",
        )
    return Finding(
        name="even-stall",
        share=cost,
        sentence=even,
        advice="the loader is too slow throughout: more of it in parallel, or less work a batch (transform once and "
        "cache; fewer columns)",
    )


def _periodic(turns: Turns, cost: float, every: str) -> Finding:
    return Finding(
        name="periodic-stall",
        share=cost,
        sentence=every,
        advice=f"something comes every {turns.period} batches: as many workers in turn, a file boundary, a buffer "
        "that is refilled",
        period=turns.period,
        place=turns.places[0],
    )


def _slow_worker(worker: int, num_workers: int, cost: float, every: str) -> Finding:
    return Finding(
        name="slow-worker",
        share=cost,
        sentence=f"worker {worker} of {num_workers} is slow: {every}",
        advice=f"look at what worker {worker} reads and on which core it runs; the other workers' batches are ready "
        "and have to wait for their turn",
        period=num_workers,
        place=worker,
    )


def _too_few(
    num_workers: int, cost: float, seen: str, *, period: int | None = None, place: int | None = None
) -> Finding:
    return Finding(
        name="too-few-workers",
        share=cost,
        sentence=f"{num_workers} workers work at their limit: {seen}",
        advice="more workers, or less work in each; where more change nothing, one of them alone is slow",
        period=period,
        place=place,
    )


def _head_of_line(cost: float, late: str) -> Finding:
    return Finding(
        name="head-of-line",
        share=cost,
        sentence=late,
        advice="a few samples are much dearer than the rest: split or cache them, queue more batches ahead, or let "
        "batches overtake each other (torch: DataLoader(in_order=False))",
    )


def _in_steps(index: Int64, steps: Floats, *, cycle: float) -> list[Finding]:
    median = float(np.median(steps))
    is_slow = steps > _SLOW_STEP * median
    extra = float((steps[is_slow] - median).sum()) / (len(steps) * cycle) if cycle > 0 else 0.0
    if extra < _WORTH_TELLING:
        return []
    turns = find_turns(index, steps, floor=2 * median)
    mean = float(steps[is_slow].mean())
    which = (
        f"one step in {round(len(steps) / int(is_slow.sum()))}"
        if turns is None
        else f"every {_ordinal(turns.period)} step"
    )
    return [
        Finding(
            name="slow-steps",
            share=extra,
            sentence=f"{which} takes {time_text(mean)}, the others {time_text(median)}",
            advice="not the loader: logging, a checkpoint, an evaluation or a collective inside the loop",
            period=None if turns is None else turns.period,
            place=None if turns is None else turns.places[0],
        )
    ]


def _in_time(parts: Int64) -> list[Finding]:
    trend = trend_of(parts)
    if trend is None or not is_trend(*trend):
        return []
    tau, shares = trend
    quarter = len(shares) // 4
    first, last = float(shares[:quarter].mean()), float(shares[-quarter:].mean())
    from_to = f"{share_text(first)} of the time in the first quarter of the run, {share_text(last)} in the last"
    if tau > 0:
        return [
            Finding(
                name="growing-stall",
                share=float((shares - shares[:quarter].mean()).clip(0).mean()),
                sentence=f"the stall grows: {from_to}",
                advice="memory that fills up, a cache that is too small, files that get larger, a disk that throttles",
            )
        ]
    return [
        Finding(
            name="fading-stall",
            share=float((shares - shares[-quarter:].mean()).clip(0).mean()),
            sentence=f"the stall fades: {from_to}",
            advice="caches that fill up; judge by a longer run, or leave out more warm-up steps",
        )
    ]


def _at_epochs(seen: Tallied) -> list[Finding]:
    num, stall_s = seen.num_of[StepKind.EPOCH_START], seen.stall_s_of[StepKind.EPOCH_START]
    total = (
        stall_s
        + seen.stall_s_of[StepKind.STEADY]
        + seen.step_s_of[StepKind.STEADY]
        + seen.step_s_of[StepKind.EPOCH_START]
    )
    if not num or not total or stall_s < _WORTH_TELLING * total:
        return []
    return [
        Finding(
            name="epoch-start",
            share=stall_s / total,
            sentence=f"an epoch's first batch takes {time_text(stall_s / num)}",
            advice="keep workers alive between epochs (torch: persistent_workers=True), and begin the next epoch's "
            "batches before it starts",
        )
    ]


def _which(period: int, num_places: int) -> str:
    if num_places > 1:
        return f"{num_places} of every {period} batches: each"
    return f"every {_ordinal(period)} batch"


def _ordinal(num: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(num % 10 if num % 100 not in (11, 12, 13) else 0, "th")
    return f"{num}{ending}"
