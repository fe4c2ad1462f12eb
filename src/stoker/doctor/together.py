"""What threads lose by working side by side: found from one run of the whole path. Pure.

Each stage alone, its data in the caches and its memory at hand, takes less than in a real run, where pages are fresh
and caches are shared; and threads that hand the GIL and locks to each other leave cores idle that stages alone would
use.
Both are measured where a whole path runs: the first as the processor time of the threads that build, the second as what
is left between the rate that came and the one that these times allow. Where what limits is no processor, what is left
is a share of the whole: a link that several threads never keep quite full.
"""

from __future__ import annotations

from dataclasses import replace

from stoker.doctor.bounds import bounds_of, residence_s
from stoker.doctor.causes import KEEPS_UP
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import MODEL
from stoker.doctor.whatif import with_cores

# Threads lose no more than this by handing things to each other: what is missing beyond has another reason. And no run
# gives so much more than its stages, each alone, allow.
_LEAST, _MOST = 0.4, 1.5
# Two measurements of the same thing lie so far apart on a quiet machine.
_SAME = 0.02
_NUM_HALVINGS = 20


def settled(plan: Plan, *, build_cpu_s: float | None, measured_s: float, cores_left: float) -> Plan:
    """Return the plan with what a real run of it has shown.

    Args:
        plan: As each stage alone says.
        build_cpu_s: Processor seconds a sample of the threads that built, in the run; None where too little was built.
        measured_s: Samples/s that came.
        cores_left: Processors that others left to the run.
    """
    plan = _with_build_cpu(plan, build_cpu_s)
    then = with_cores(plan, cores_left)
    predicted_s = rate_of(then)
    demand = plan.stage("step")
    is_fed = demand is not None and measured_s >= KEEPS_UP / max(demand.device_s, demand.host_s)
    if is_fed or abs(predicted_s / measured_s - 1) <= _SAME:
        return plan
    if measured_s < predicted_s and computes(then):
        low, high = _LEAST, 1.0
        if rate_of(_together(then, low)) <= measured_s:
            for _ in range(_NUM_HALVINGS):
                middle = (low + high) / 2
                low, high = (low, middle) if rate_of(_together(then, middle)) > measured_s else (middle, high)
            return _together(plan, low)
    # Less is the loader's doing, with or without a step behind it.
    reach = measured_s / (predicted_s if measured_s > predicted_s else rate_of(then.without(MODEL)))
    return replace(plan, reach=reach) if _LEAST <= reach <= _MOST else plan


def computes(plan: Plan) -> bool:
    """Return whether processors limit: all of them, the one with the GIL, or those of the threads there are."""
    resource = bounds_of(plan)[0].resource
    if resource not in ("builders", "computing"):
        return resource in ("cores", "gil")
    building = [stage for stage in plan.stages if stage.place == "build"]
    return sum(stage.cpu_s for stage in building) > 0.5 * sum(residence_s(stage, plan) for stage in building)


def _together(plan: Plan, share: float) -> Plan:
    return replace(plan, machine=replace(plan.machine, together=share))


def _with_build_cpu(plan: Plan, cpu_s: float | None) -> Plan:
    """Return the plan with the processor time of building as it was; what holds the GIL takes no more of that."""
    alone_s = sum(stage.cpu_s for stage in plan.stages if stage.place == "build")
    if cpu_s is None or not alone_s or cpu_s <= alone_s:
        return plan
    free_s = sum(stage.cpu_s - stage.gil_s for stage in plan.stages if stage.place == "build")
    for stage in plan.stages:
        if stage.place == "build":
            # Memory that is touched for the first time is waited for without the GIL.
            share = (stage.cpu_s - stage.gil_s) / free_s if free_s else stage.cpu_s / alone_s
            plan = plan.with_stage(replace(stage, cpu_s=stage.cpu_s + share * (cpu_s - alone_s)))
    return plan
