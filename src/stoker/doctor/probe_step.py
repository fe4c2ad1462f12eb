"""The step alone: on one frozen batch, and on batches that lie in RAM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.doctor.gilwatch import GilWatch
from stoker.doctor.results import Rate
from stoker.doctor.step import Step, warm_up_step

_NUM_ROUNDS = 5
_MIN_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one step takes.

    Attributes:
        step_s: Seconds, one behind the other.
        host_s: Of them, seconds in which the loop's thread is in the step.
        cpu_s: Processor seconds.
        gil_s: Of these, with the GIL held.
        low_s: Of the fastest round.
        high_s: Of the slowest.
        num_rounds: Rounds.
    """

    step_s: float
    host_s: float
    cpu_s: float
    gil_s: float
    low_s: float
    high_s: float
    num_rounds: int


def probe_step(step: Step, batch: Any, *, seconds: float) -> StepCost:
    """Return what a step takes on a batch that is there already.

    Args:
        step: The step.
        batch: The frozen batch.
        seconds: Time for it; at least a few steps are made whatever they take.
    """
    if step.given_s is not None:
        given = step.given_s
        return StepCost(step_s=given, host_s=0.0, cpu_s=0.0, gil_s=0.0, low_s=given, high_s=given, num_rounds=1)
    warm_up_step(step, batch)
    times: list[float] = []
    hosts: list[float] = []
    cpus: list[float] = []
    for _ in range(_NUM_ROUNDS):
        step_s, host_s, cpu_s = _round(step, batch, seconds / (_NUM_ROUNDS + 1))
        times.append(step_s)
        hosts.append(host_s)
        cpus.append(cpu_s)
    watch = GilWatch()
    start = time.perf_counter_ns()
    with watch:
        _round(step, batch, seconds / (_NUM_ROUNDS + 1))
    held = watch.held_share([(start, time.perf_counter_ns())]) or 0.0
    step_s = statistics.median(times)
    return StepCost(
        step_s=step_s,
        host_s=min(step_s, statistics.median(hosts)),
        cpu_s=statistics.median(cpus),
        gil_s=min(held * step_s, statistics.median(cpus)),
        low_s=min(times),
        high_s=max(times),
        num_rounds=_NUM_ROUNDS,
    )


def rate_in_ram(step: Step, batches: Sequence[Any], *, batch_size: int, seconds: float) -> Rate:
    """Return the samples/s of the step on batches that lie in memory, in turn: what no data path can beat."""
    rates = []
    for _ in range(3):
        step.finish()
        start = time.perf_counter()
        num = 0
        while num < len(batches) or time.perf_counter() - start < seconds / 3:
            step.begin(batches[num % len(batches)])
            num += 1
            if num >= _MIN_STEPS and time.perf_counter() - start > seconds:
                break
        step.finish()
        rates.append(num * batch_size / (time.perf_counter() - start))
    return Rate(samples_s=statistics.median(rates), low=min(rates), high=max(rates), num_rounds=len(rates))


def _round(step: Step, batch: Any, seconds: float) -> tuple[float, float, float]:
    """Return the seconds of a step, those in its function, and its processor seconds."""
    step.finish()
    cpu_s = time.process_time()
    start = time.perf_counter()
    num = 0
    host_s = 0.0
    while num < _MIN_STEPS or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        step.begin(batch)
        host_s += time.perf_counter() - began
        num += 1
    step.finish()
    wall_s = time.perf_counter() - start
    return wall_s / num, host_s / num, (time.process_time() - cpu_s) / num
