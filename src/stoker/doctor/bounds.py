"""Bounds: what no change of the machine can beat, computed from what was measured. Pure.

A bound is no promise: a link twice as fast gives at most twice as much, and no more than a link without limits gave.
"""

from __future__ import annotations

import math

from stoker.doctor.results import FREE_LINK, MODEL, SOURCE, SUPPLY, Bound, Measurements, PathResult

_GAIN = 1.05
# Processors are what limits where so much of those that others leave is in use.
_IN_USE = 0.7


def bounds_of(
    numbers: Measurements, today: PathResult, *, demand_s: float | None, stages: tuple[str, ...]
) -> tuple[Bound, ...]:
    """Return what cannot be tried here and may give more than today's path, the highest first.

    Args:
        numbers: What was measured.
        today: The path that samples take now.
        demand_s: What the step could eat; None without one.
        stages: That the verdict names.
    """
    if stages == (MODEL,):
        return _gpus(numbers, demand_s)
    most_s = math.inf if demand_s is None else demand_s
    found = [
        bound for bound in (_network(numbers, today, stages), _cores(numbers, today, stages), _disk(today)) if bound
    ]
    capped = (
        Bound(key=bound.key, text=bound.text, at_most_s=min(bound.at_most_s, most_s), why=bound.why) for bound in found
    )
    worth = [bound for bound in capped if bound.at_most_s > _GAIN * today.rate_s]
    return tuple(sorted(worth, key=lambda bound: -bound.at_most_s))


def disk_bound(*, read_bytes_s: float, sample_bytes: float, what: str) -> Bound:
    """Return what a disk allows where all that a path reads comes from it."""
    return Bound(
        key="disk",
        text="this disk, in a data set larger than memory",
        at_most_s=read_bytes_s / max(1e-9, sample_bytes),
        why=f"its sequential pace over the bytes of {what}: the sample that was measured lies in memory",
    )


def _network(numbers: Measurements, today: PathResult, stages: tuple[str, ...]) -> Bound | None:
    if today.key != SOURCE or not numbers.data.is_remote or "fetch" not in stages:
        return None
    free = numbers.path(FREE_LINK)
    return Bound(
        key="network",
        text="a link twice as fast",
        at_most_s=min(2 * today.rate_s, math.inf if free is None else max(free.rate_s, today.rate_s)),
        why="twice today's rate, and no more than came with the bytes already in memory",
    )


def _cores(numbers: Measurements, today: PathResult, stages: tuple[str, ...]) -> Bound | None:
    stage = numbers.stage(stages[0])
    is_waiting = stages[0] in ("fetch", "open", "skew") or (stage is not None and stage.waits)
    if is_waiting or today.cores_used < _IN_USE * numbers.cores * (1 - today.others):
        return None
    at_most_s = 2 * today.rate_s
    network = next((one.value for one in numbers.ceilings if one.key == "network"), math.inf)
    if today.key == SOURCE and numbers.data.is_remote:
        at_most_s = min(at_most_s, max(today.rate_s, network / max(1e-9, numbers.data.source_bytes)))
    return Bound(
        key="cores",
        text=f"{2 * numbers.cores:.3g} cores in place of {numbers.cores:.3g}",
        at_most_s=at_most_s,
        why="twice today's rate: cores share memory, a lock and a link",
    )


def _disk(today: PathResult) -> Bound | None:
    bound = today.disk_bound
    if bound is None or bound.at_most_s >= today.rate.samples_s:
        return None
    return Bound(
        key="disk",
        text="a disk twice as fast, or memory for the data set",
        at_most_s=min(2 * bound.at_most_s, today.rate.samples_s),
        why="twice the disk's pace, and no more than came from memory",
    )


def _gpus(numbers: Measurements, demand_s: float | None) -> tuple[Bound, ...]:
    supply = numbers.path(SUPPLY)
    if supply is None or demand_s is None or supply.rate_s < 2 * demand_s:
        return ()
    num_gpus = math.floor(supply.rate_s / demand_s)
    return (
        Bound(
            key="gpus",
            text=f"steps like this one on {num_gpus:,} GPUs of this host",
            at_most_s=supply.rate_s,
            why="what this loader gives with no step behind it: it can feed no more of them",
        ),
    )
