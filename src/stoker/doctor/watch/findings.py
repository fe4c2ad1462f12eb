"""Patterns that cost time, each with its name, its price and what to look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.doctor.watch.meter import COUNTED, Floats, StepKind, Tally
from stoker.doctor.watch.patterns import Turns, find_blocked, find_change, find_turns
from stoker.doctor.watch.traits import LoaderTraits
from stoker.fields.offsets import Int64
from stoker.words import count_text, share_text, time_text

# A pattern that costs less than this share of the time is not worth a line.
_WORTH_TELLING = 0.02
# Fewer steps than these show no pattern.
_MIN_STEPS = 16
# A step is slow beyond this many times the median one; a stall is rare beyond ten times.
_SLOW_STEP, _RARE = 3.0, 10.0
# Stalls below this share of a step and its stall are the noise of handing over.
_NOISE = 0.02
# From the share of the stall in which a worker was late, it counts as always late or as (nearly) never late.
_ALWAYS, _SELDOM = 0.6, 0.4
# An expensive batch that came once or twice is an accident.
_MIN_DEAR = 3


# What to do about a pattern, whatever the loader is.
_ADVICE: dict[str, str] = {
    "rare-stall": "the loader's rate is not the cause: look for a buffer that is refilled, a file that is opened, a "
    "busy store or machine; if it comes again, start that work earlier",
    "periodic-stall": "look for what happens every {period} batches: a file boundary, a buffer that is refilled, "
    "{period} workers in turn",
    "slow-worker": "look at what {who} reads and on which core it runs; the other workers' batches are ready and have "
    "to wait for their turn",
    "too-few-workers": "use more workers, or give each less work; if more workers change nothing, one of them is "
    "slow, or the machine has no core left for them",
    "head-of-line": "a few samples take far longer than the rest: split or cache them, queue more batches ahead, or "
    "let batches overtake each other (torch: DataLoader(in_order=False))",
    "growing-stall": "look for memory that fills up, a cache that is too small, files that grow, a throttled disk",
    "fading-stall": "caches may be filling up: judge by a longer run, or leave out more warm-up steps (warmup=)",
    "stall-jump": "something changed there: other files, a cache that was full, a neighbour on the machine",
    "slow-steps": "not the loader: look for logging, a checkpoint, an evaluation or a collective inside the loop",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A pattern that costs time.

    Attributes:
        name: Which pattern: "slow-worker", "epoch-start", ...; docs/how-to/watch.md has all.
        share: Share of the watched time that it costs.
        sentence: What was seen, with its numbers.
        advice: What to look at, or to try.
        period: Every how many batches or steps, where it has one.
        place: The first batch or step of the pattern, counted from the epoch's first; for a jump, its step.
        workers: Which workers, where some are slow.
        rank: Which rank, for a straggler.
    """

    name: str
    share: float
    sentence: str
    advice: str
    period: int | None = None
    place: int | None = None
    workers: tuple[int, ...] = ()
    rank: int | None = None


def _found(name: str, share: float, sentence: str, *, who: str = "", **more: Any) -> Finding:
    advice = _ADVICE[name].format(who=who, period=more.get("period"))
    return Finding(name=name, share=share, sentence=sentence, advice=advice, **more)


def find_patterns(seen: Tally, traits: LoaderTraits) -> tuple[Finding, ...]:
    """Return what costs time, dearest first."""
    found = _in_time(seen)
    if len(seen.latest) >= _MIN_STEPS:
        stalls, steps = seen.latest[:, 1] / 1e9, seen.latest[:, 2] / 1e9
        cycle = float(stalls.mean() + steps.mean())
        if stalls.mean() >= _WORTH_TELLING * cycle > 0:
            found += _in_stalls(seen.latest, cycle, traits, explained=sum(finding.share for finding in found))
        found += _in_steps(seen.latest[:, 0], steps, cycle=cycle)
    found += _at_epochs(seen, traits)
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _in_stalls(latest: Int64, cycle: float, traits: LoaderTraits, *, explained: float) -> list[Finding]:
    """Return the one pattern that the stalls have, where a change with time does not explain so much of them."""
    index, stalls, num_workers = latest[:, 0], latest[:, 1] / 1e9, 0 if traits.is_ours else traits.num_workers or 0
    share, floor, median = float(stalls.mean()) / cycle, _NOISE * cycle, float(np.median(stalls))
    every = f"the loop waits {time_text(median)} or more for half of the batches"
    apart: int | None = None
    long, behind = find_blocked(index, stalls, floor=floor)
    if stalls[long].sum() >= 0.5 * stalls.sum():  # one batch in so many holds others back
        apart = round(float(np.median(np.diff(long)))) if len(long) > 1 else len(stalls)
        late, at_once = time_text(float(stalls[long].mean())), int(np.median(behind))
        every = f"one batch in {apart} is {late} late, the next {at_once} come at once"
    if (turns := find_turns(index, stalls, floor=floor)) is not None:
        period, places = turns
        is_long = np.isin(index % period, places)
        which = f"{len(places)} of every {period} batches" if len(places) > 1 else f"every {_ordinal(period)} batch"
        long_s, short_s = float(stalls[is_long].mean()), float(stalls[~is_long].mean())
        every = f"the loop waits {time_text(long_s)} for {which}, {time_text(short_s)} for the others"
    slow = _slow_workers(latest, turns, apart, num_workers, floor=floor)
    # Where all workers are at their limit, one is last in each of their turns, and not just now and then.
    if len(slow) == num_workers > 0 and (apart is None or apart <= 1.5 * num_workers):
        cost, who = share - explained, count_text(num_workers, "worker")
        return [_found("too-few-workers", cost, f"{who} at the limit: {every}")] if cost >= _WORTH_TELLING else []
    if 0 < len(slow) < num_workers:
        who, are = ("worker", "is") if len(slow) == 1 else ("workers", "are")
        who = f"{who} {' and '.join(map(str, slow))}"
        sentence = f"{who} of {num_workers} {are} slow: {every}"
        # What the loop waits for the others' batches, it would wait for theirs, too.
        theirs = np.isin(index % num_workers, slow) | (not traits.is_in_order)
        usual = float(stalls[~theirs].sum()) / max(1, int((~theirs).sum()))
        cost = share * float((stalls[theirs] - usual).clip(0).sum() / stalls.sum())
        return [_found("slow-worker", cost, sentence, who=who, period=num_workers, place=slow[0], workers=slow)]
    if turns is not None:
        cost = share * float(stalls[is_long].sum() / stalls.sum())
        return [_found("periodic-stall", cost, every, period=period, place=places[0])]
    if apart is not None and num_workers > 1 and not slow and traits.is_in_order and len(long) >= _MIN_DEAR:
        cost = share * float(stalls[long].sum() / stalls.sum())
        return [_found("head-of-line", cost, f"batches hold back those behind them: {every}")]
    is_rare = stalls > max(floor, _RARE * median)
    if is_rare.mean() <= 0.1 and stalls[is_rare].sum() >= 0.5 * stalls.sum():
        rare_s = time_text(float(stalls[is_rare].mean()))
        which = f"{is_rare.sum()} of {len(stalls):,} batches"
        sentence = f"the loop waits {rare_s} for {which}, {time_text(median)} for the others"
        return [_found("rare-stall", share * float(stalls[is_rare].sum() / stalls.sum()), sentence)]
    return [] if explained else [_throughout(stalls, share, traits, is_ready=bool((latest[:, 3] >= 0).any()))]


def _slow_workers(
    latest: Int64, turns: Turns | None, apart: int | None, num_workers: int, *, floor: float
) -> tuple[int, ...]:
    """Return the workers that the loop waits for, all of them where none has a batch ready; () says nothing."""
    everyone, stalls, late = tuple(range(num_workers)), latest[:, 1] / 1e9, latest[:, 3]
    is_known = (late >= 0) & (stalls > floor)
    if is_known.any() and num_workers > 1:
        # The share of the stall in which each had batches yet to make.
        bits = (late[is_known][:, None] >> np.arange(num_workers)) & 1
        shares = (bits * stalls[is_known][:, None]).sum(axis=0) / stalls[is_known].sum()
        slow = tuple(np.flatnonzero(shares >= _ALWAYS).tolist())
        is_often = 2 * num_workers * int((stalls > floor).sum()) >= len(stalls)
        if slow and is_often and 2 * len(slow) <= num_workers and (np.delete(shares, slow) <= _SELDOM).all():
            return slow
        return everyone if shares.sum() >= _ALWAYS * num_workers else ()
    if turns is not None:
        period, places = turns
        slow = tuple(worker for worker in everyone if num_workers % period == 0 and worker % period in places)
        # Where all workers are at their limit, batches come in bursts that begin with worker 0's.
        return everyone if 0 in slow else slow
    return everyone if apart is not None and apart <= 1.5 * num_workers else ()


def _throughout(stalls: Floats, share: float, traits: LoaderTraits, *, is_ready: bool) -> Finding:
    low, median, high = (float(value) for value in np.percentile(stalls, (10, 50, 90)))
    is_even = low >= 0.5 * median and high <= 2 * median
    if is_even:
        sentence = f"the loop waits about {time_text(median)} for every batch"
    else:
        sentence = f"waits differ: {time_text(high)} or more for one batch in ten, {time_text(low)} or less for another"
    if is_ready and is_even:
        sentence += ", though the next ones are ready: handing a batch to the loop takes that long"
        advice = "use fewer and larger tensors in a batch, no objects that must be pickled, or threads, not processes"
    elif traits.is_ours:
        advice = "`print(loader.stats())` says which stage is slow; `stoker doctor` tries what would help"
    elif traits.num_workers == 0:
        advice = "num_workers=0 makes each batch in the loop itself: with workers, batches are made beside the steps"
    else:
        advice = (
            "the loader is too slow throughout: run more of it in parallel, or do less work for each batch "
            "(transform once and cache; read fewer columns)"
        )
    return Finding(name="even-stall" if is_even else "uneven-stall", share=share, sentence=sentence, advice=advice)


def _in_steps(index: Int64, steps: Floats, *, cycle: float) -> list[Finding]:
    median = float(np.median(steps))
    is_slow = steps > _SLOW_STEP * median
    extra = float((steps[is_slow] - median).sum()) / (len(steps) * cycle) if cycle > 0 else 0.0
    if extra < _WORTH_TELLING:
        return []
    turns = find_turns(index, steps, floor=2 * median)
    mean = float(steps[is_slow].mean())
    which = (
        f"one step in {round(len(steps) / int(is_slow.sum()))}" if turns is None else f"every {_ordinal(turns[0])} step"
    )
    where: dict[str, Any] = {} if turns is None else {"period": turns[0], "place": turns[1][0]}
    return [_found("slow-steps", extra, f"{which} takes {time_text(mean)}, the others {time_text(median)}", **where)]


def _in_time(seen: Tally) -> list[Finding]:
    change = find_change(seen.parts)
    if change is None or change[-1] < _WORTH_TELLING:
        return []
    kind, levels, span, cost = change
    before, after = map(share_text, levels)
    if kind == "jump":
        warmup, num = seen.num(StepKind.WARMUP), seen.num(*COUNTED)
        begin, end = (warmup + round(at * num) for at in span)
        until = f" up to step {end:,}" if span[1] < 1 else ""
        sentence = f"the stall jumps at about step {begin:,}: {before} of the time before it, {after} after it{until}"
        return [_found("stall-jump", cost, sentence, place=begin)]
    does = "grows" if kind == "growing" else "fades"
    sentence = f"the stall {does}: {before} of the time in the first quarter of the run, {after} in the last"
    return [_found(f"{kind}-stall", cost, sentence)]


def _at_epochs(seen: Tally, traits: LoaderTraits) -> list[Finding]:
    num, stall_s = seen.num(StepKind.EPOCH_START), seen.stall_s(StepKind.EPOCH_START)
    if not stall_s or stall_s < _WORTH_TELLING * seen.counted_s:
        return []
    if traits.is_ours:
        advice = "longer epochs have fewer first batches; look at what is done between two epochs, and at "
        advice += "`loader.stats()`"
    elif traits.num_workers == 0:
        advice = "that batch is made in the loop itself: workers make it beside other work; longer epochs have fewer"
    elif traits.is_persistent:
        advice = "the workers live on, but begin an epoch with empty queues: longer epochs have fewer first batches"
    else:
        advice = "keep workers alive between epochs (torch: persistent_workers=True), and begin the next epoch's "
        advice += "batches before it starts"
    sentence = f"an epoch's first batch takes {time_text(stall_s / num)}"
    return [Finding(name="epoch-start", share=stall_s / seen.counted_s, sentence=sentence, advice=advice)]


def _ordinal(num: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(num % 10 if num % 100 not in (11, 12, 13) else 0, "th")
    return f"{num}{ending}"
