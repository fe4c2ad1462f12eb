"""Patterns that cost time, each with its name, its price and what to look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from stoker.doctor.watch.patterns import find_blocked, find_turns, is_trend, trend_of
from stoker.doctor.watch.tally import Floats, Ints, Kind, Tallied
from stoker.doctor.watch.words import share_text, time_text

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


def find_all(seen: Tallied, *, num_workers: int | None) -> tuple[Finding, ...]:
    """Return what costs time, dearest first.

    Args:
        seen: The steps.
        num_workers: Workers of the loader that take turns, None or 0 where there are none or nobody knows.
    """
    found = _in_time(seen.parts)
    if len(seen.latest) >= _MIN_STEPS:
        index = seen.latest[:, 0]
        stalls, steps = seen.latest[:, 1] / 1e9, seen.latest[:, 2] / 1e9
        cycle = float(stalls.mean() + steps.mean())
        found += _in_stalls(index, stalls, cycle=cycle, num_workers=num_workers or 0, has_trend=bool(found))
        found += _in_steps(index, steps, cycle=cycle)
    found += _at_epochs(seen)
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _in_stalls(index: Ints, stalls: Floats, *, cycle: float, num_workers: int, has_trend: bool) -> list[Finding]:
    share = float(stalls.mean()) / cycle if cycle > 0 else 0.0
    if share < _WORTH_TELLING:
        return []
    found: list[Finding] = []
    turns = find_turns(index, stalls, floor=_NOISE * cycle)
    if turns is not None:
        at_places = np.isin(index % turns.period, turns.places)
        cost = float(stalls[at_places].sum() / stalls.sum()) * share
        every = f"{_which(turns.period, len(turns.places))} waits {time_text(turns.slow)}, the others "
        every += time_text(turns.others)
        place = turns.places[0]
        if turns.period != num_workers or len(turns.places) > 1:
            found.append(
                Finding(
                    name="periodic-stall",
                    share=cost,
                    sentence=every,
                    advice=f"something comes every {turns.period} batches: as many workers in turn, a file boundary, "
                    "a buffer that is refilled",
                    period=turns.period,
                    place=place,
                )
            )
        elif place:
            found.append(
                Finding(
                    name="slow-worker",
                    share=cost,
                    sentence=f"worker {place} of {num_workers} is slow: {every}",
                    advice=f"look at what worker {place} reads and on which core it runs; "
                    "the other workers' batches are ready and have to wait for their turn",
                    period=turns.period,
                    place=place,
                )
            )
        else:
            found.append(
                Finding(
                    name="too-few-workers",
                    share=cost,
                    sentence=f"{num_workers} workers deliver together and then work together: {every}",
                    advice="more workers, or less work in each; where more change nothing, worker 0 alone is slow",
                    period=turns.period,
                    place=place,
                )
            )
    if turns is None or turns.period != num_workers:
        blocked = find_blocked(index, stalls, floor=_NOISE * cycle)
        if blocked is not None and blocked.share * share >= _WORTH_TELLING and blocked.share >= 0.5:
            found.append(
                Finding(
                    name="head-of-line",
                    share=blocked.share * share,
                    sentence=f"one batch in {round(len(stalls) / blocked.num)} holds back those behind it: it is "
                    f"{time_text(blocked.mean)} late, the next {blocked.num_behind} then come at once",
                    advice="a few samples are much dearer than the rest: split or cache them, queue more batches "
                    "ahead, or let batches overtake each other (torch: DataLoader(in_order=False))",
                )
            )
    if not found and not has_trend and float(np.median(stalls)) >= 0.5 * float(stalls.mean()):
        found.append(
            Finding(
                name="even-stall",
                share=share,
                sentence=f"every batch waits about as long: {time_text(float(np.median(stalls)))}",
                advice="the loader is too slow throughout: more of it in parallel, or less work a batch "
                "(transform once and cache; fewer columns)",
            )
        )
    return found


def _in_steps(index: Ints, steps: Floats, *, cycle: float) -> list[Finding]:
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


def _in_time(parts: Ints) -> list[Finding]:
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
    num, stall_s = seen.num_of[Kind.EPOCH_START], seen.stall_s_of[Kind.EPOCH_START]
    total = stall_s + seen.stall_s_of[Kind.STEADY] + seen.step_s_of[Kind.STEADY] + seen.step_s_of[Kind.EPOCH_START]
    if not num or stall_s < _WORTH_TELLING * total:
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
