"""How many threads a loader will come to build with: as `stoker.cache.threads` finds out, by arithmetic. Pure."""

from __future__ import annotations

from dataclasses import replace

from stoker.cache.threads import AT_WORK, WORTH
from stoker.doctor.bounds import demand_of, residence_s, takes_a_place
from stoker.doctor.causes import KEEPS_UP
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of


def window_for(plan: Plan, num_builders: int) -> int:
    """Return the plan's window, or a larger one where so many threads would wait for each other's chunks."""
    return max(plan.window, num_builders)


def from_the_beginning(plan: Plan) -> Plan:
    """Return the plan with as many threads that build as a loader begins with, where it may come to have more."""
    if not _may_grow(plan):
        return plan
    return replace(plan, num_builders=min(plan.num_builders, plan.least_builders))


def with_fewer(plan: Plan) -> Plan | None:
    """Return the plan with the threads that it had before the last of them came; None where no more have come."""
    if not _may_grow(plan) or plan.num_builders <= plan.least_builders:
        return None
    num = plan.least_builders
    while 2 * num < plan.num_builders:
        num *= 2
    return replace(plan, num_builders=num)


def with_crew(plan: Plan) -> Plan:
    """Return the plan with as many threads that build as bring more, twice as many at a time."""
    if plan.num_computing is None:
        return plan
    computing_s = sum(
        residence_s(stage, plan) for stage in plan.stages if stage.place == "build" and takes_a_place(stage)
    )
    demand = demand_of(plan)
    while plan.num_builders < plan.most_builders:
        rate = rate_of(plan)
        is_fed = demand is not None and rate >= KEEPS_UP * demand
        if is_fed or rate * computing_s >= AT_WORK * plan.num_computing:
            break
        num = min(2 * plan.num_builders, plan.most_builders)
        larger = replace(plan, num_builders=num, window=window_for(plan, num))
        if rate_of(larger) < WORTH * rate:
            break
        plan = larger
    return plan


def _may_grow(plan: Plan) -> bool:
    """Return whether a loader finds out how many threads build, rather than being told."""
    return plan.num_computing is not None and plan.most_builders > 0
