"""Which stage limits a plan, what is behind it, and where the time between two steps goes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stoker.doctor.bounds import bounds_of, demand_of, supply_of
from stoker.doctor.costs import STAGE_NAMES, Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import MODEL, StepPart

SKEW = "skew"
"""In place of a stage: chunks of such different sizes that the large ones hold up the others."""

# The loader keeps up when it gives this share of the demand: no measurement here tells less apart.
KEEPS_UP = 0.97
# Two causes are named together when the second allows less than this many times the rate of the first.
_NEAR = 1.15
# Skew is a cause of its own when equal chunks would give so much more.
_SKEWED = 1.08
# A loader that could give so many times the demand is not what limits.
_AMPLE = 1.2
# What no measurement is surer than: clocks, caches and the rest of the machine are never twice the same.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that limits a plan.

    Attributes:
        key: A stage's, or `SKEW`.
        rate: Samples/s of the plan as it is.
        mended: The same once this is mended.
        sureness: 0 to 1: that it is this one and not the next.
    """

    key: str
    rate: float
    mended: float
    sureness: float


def cause_name(key: str) -> str:
    """Return a cause as people read it."""
    return "skewed chunk sizes" if key == SKEW else STAGE_NAMES[key]


def mended(plan: Plan, key: str) -> Plan:
    """Return the plan without what `key` costs."""
    if key == SKEW:
        return replace(plan, chunk_samples=(max(1, round(plan.mean_chunk)),))
    return plan.without(key)


def limit_of(plan: Plan) -> str:
    """Return what limits the plan: the stage that takes most of the tightest resource, or `SKEW`; "" for nothing."""
    bounds = bounds_of(plan)
    if not bounds:
        return ""
    rate = rate_of(plan)
    demand = demand_of(plan)
    if demand is not None and rate >= KEEPS_UP * demand:
        return MODEL
    if len(set(plan.chunk_samples)) > 1 and rate_of(mended(plan, SKEW)) > _SKEWED * rate:
        return SKEW
    # A step that computes here too shares cores with a loader that could feed it: the step takes them, not the loader.
    if demand is not None and bounds[0].stages[0] == MODEL and supply_of(plan) >= _AMPLE * demand:
        return MODEL
    for bound in bounds:
        for stage in bound.stages:
            if stage != MODEL:
                return stage
    return MODEL


def causes_of(plan: Plan) -> tuple[Cause, ...]:
    """Return what limits the plan, what would limit it after that, and so on until only the step does."""
    causes: list[Cause] = []
    rate = rate_of(plan)
    while True:
        key = limit_of(plan)
        if key in ("", MODEL):
            return tuple(causes)
        rest = mended(plan, key)
        after = rate_of(rest) if bounds_of(rest) else math.inf
        causes.append(Cause(key=key, rate=rate, mended=after, sureness=_sureness(plan, key, rate, after)))
        if not math.isfinite(after):
            return tuple(causes)
        plan, rate = rest, after


def named_causes(plan: Plan, causes: tuple[Cause, ...]) -> tuple[str, ...]:
    """Return the causes that a verdict names: the first, and the second where it is near or starves the step too."""
    if not causes:
        return (MODEL,) if demand_of(plan) is not None else ()
    if len(causes) == 1:
        return (causes[0].key,)
    first, second = causes[:2]
    starves = demand_of(plan) is not None and first.mended < KEEPS_UP * (demand_of(plan) or math.inf)
    is_near = first.mended < _NEAR * first.rate
    return (first.key, second.key) if starves or is_near else (first.key,)


def step_parts(plan: Plan) -> tuple[StepPart, ...]:
    """Return where the time between two steps goes: the step, and the wait for each cause in turn."""
    if demand_of(plan) is None:
        return ()
    causes = causes_of(plan)
    parts = [
        StepPart(
            key=cause.key,
            name=f"waits for {cause_name(cause.key)}",
            seconds=plan.batch_size * max(0.0, 1 / cause.rate - 1 / cause.mended),
        )
        for cause in causes
    ]
    rest = causes[-1].mended if causes else rate_of(plan)
    return (StepPart(key=MODEL, name=STAGE_NAMES[MODEL], seconds=plan.batch_size / rest), *parts)


def sure_word(sureness: float) -> str:
    """Return how sure that is, in a word."""
    if sureness >= 0.97:
        return "certain"
    return "likely" if sureness >= 0.75 else "a guess"


def _sureness(plan: Plan, key: str, rate: float, after: float) -> float:
    """Return the chance that the first bound is below the second, both spread as they were measured."""
    if not math.isfinite(after):
        return 1.0
    spreads = [stage.spread for stage in plan.stages if stage.key == key] or [0.0]
    others = [stage.spread for stage in plan.stages if stage.key != key] or [0.0]
    spread = math.hypot(max(spreads), max(others), _LEAST_SPREAD)
    return 0.5 * (1 + math.erf(math.log(max(after / rate, 1.0)) / spread / math.sqrt(2)))
