"""The verdict: which stage, how sure, what it costs; what comes after; the story of the paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.doctor.bounds import bounds_of, demand_of, supply_of
from stoker.doctor.causes import SKEW, Cause, cause_name, causes_of, limit_of, named_causes, step_parts, sure_word
from stoker.doctor.costs import PATH_NAMES, PATH_STAGES, Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import MODEL, PathResult, Rate, Verdict
from stoker.doctor.whatif import busy_of
from stoker.doctor.words import rate_text, share_text, time_text


def diagnose(plans: Mapping[str, Plan], *, today: str, notes: tuple[str, ...] = ()) -> Verdict:
    """Return the verdict on the path that the samples take now.

    Args:
        plans: The paths, by key.
        today: Key of the one that the samples take now.
        notes: What a reader should know.
    """
    plan = plans[today]
    causes = causes_of(plan)
    stages = named_causes(plan, causes)
    demand = demand_of(plan)
    story = tuple(_line(plans[key], is_today=key == today) for key in PATH_STAGES if key in plans)
    if demand is None:
        sentence = _without_step(plan, causes)
        lost: float | None = None
        sureness = causes[0].sureness if causes else 1.0
    elif stages == (MODEL,):
        headroom = supply_of(plan) / demand
        sentence = (
            f"The model is the limit, and there is nothing to gain: the loader could feed {headroom:.1f} times "
            f"the {rate_text(demand)} samples/s that the step eats."
            if headroom >= 1.05
            else f"The model is the limit, but only just: the loader gives all of the {rate_text(demand)} samples/s "
            "that the step eats, and hardly more."
        )
        lost = 1 - min(1.0, rate_of(plan) / demand)
        sureness = 1.0 if headroom >= 1.2 else 0.8
    else:
        lost = 1 - min(1.0, causes[0].rate / demand)
        sureness = causes[0].sureness
        sentence = _starved(plan, causes, stages, demand, lost)
    return Verdict(
        sentence=sentence,
        stages=stages,
        sureness=sureness,
        sure=sure_word(sureness),
        lost_share=lost,
        then=_then(plan, causes, stages),
        story=story,
        notes=notes,
    )


def path_of(plan: Plan, *, is_today: bool, measured: Rate | None, num_samples: int, disk_bytes: float) -> PathResult:
    """Return what is known of a path."""
    rate = rate_of(plan)
    causes = causes_of(plan)
    limit = causes[0].key if causes else MODEL
    after = [cause.key for cause in causes[1:2]]
    if causes and not after and demand_of(plan) is not None:
        after = [MODEL]
    return PathResult(
        key=plan.path,
        name=PATH_NAMES[plan.path],
        is_today=is_today,
        supply_s=supply_of(plan),
        predicted_s=rate,
        measured=measured,
        limit=limit,
        next_limit=after[0] if after else "",
        bounds=bounds_of(plan),
        busy=busy_of(plan),
        step_parts=step_parts(plan),
        epoch_s=num_samples / rate,
        cpu_s=sum(stage.cpu_s for stage in plan.stages),
        disk_bytes=disk_bytes,
    )


def _starved(plan: Plan, causes: tuple[Cause, ...], stages: tuple[str, ...], demand: float, lost: float) -> str:
    first = causes[0]
    who = _why(plan, first.key)
    step_s = plan.batch_size / demand
    behind = f", and hides {_named(stages[1])} behind it" if len(stages) > 1 else ""
    return (
        f"{who} starves the step ({sure_word(first.sureness)}){behind}: {rate_text(first.rate)} samples/s come where "
        f"it could eat {rate_text(demand)}, so it stands idle {share_text(lost)} of the time, "
        f"{time_text(plan.batch_size / first.rate - step_s)} at each step of {time_text(step_s)}."
    )


def _without_step(plan: Plan, causes: tuple[Cause, ...]) -> str:
    if not causes:
        return "Nothing was found that takes time: the data set is too small to say anything."
    rate = causes[0].rate
    return (
        f"{_why(plan, causes[0].key)} is what limits ({sure_word(causes[0].sureness)}): {rate_text(rate)} samples/s "
        f"can come, enough for steps of {time_text(plan.batch_size / rate)} or longer with batches of "
        f"{plan.batch_size:,}. Give --step-time or --step to know whether that is too little."
    )


def _then(plan: Plan, causes: tuple[Cause, ...], stages: tuple[str, ...]) -> str:
    if not causes or stages == (MODEL,):
        return ""
    first = causes[0]
    if len(causes) > 1:
        return (
            f"Once that is mended, {_named(causes[1].key)} limits, at {rate_text(first.mended)} samples/s "
            f"({first.mended / first.rate:.1f} times today's)."
        )
    if demand_of(plan) is None:
        return ""
    return f"Once that is mended, the model is the limit, at {rate_text(first.mended)} samples/s."


def _line(plan: Plan, *, is_today: bool) -> str:
    """Return one line of the story."""
    name = PATH_NAMES[plan.path]
    limit = limit_of(plan)
    busy = busy_of(plan)
    is_busy = "" if busy is None else f", the step busy {share_text(busy)}"
    who = "the model is the limit" if limit == MODEL else f"{_named(limit)} is the limit"
    when = "today, " if is_today else "with " if plan.path != "source" else ""
    return f"{when}{name}: {rate_text(rate_of(plan))} samples/s{is_busy}: {who}"


def _named(key: str) -> str:
    return cause_name(key)


def _why(plan: Plan, key: str) -> str:
    """Return a cause with what it lacks: "Fetch (the network is full)"."""
    name = cause_name(key)
    name = name[0].upper() + name[1:]
    if key == SKEW:
        return name
    bound = next((bound for bound in bounds_of(plan) if key in bound.stages[:1]), None)
    is_small = plan.builders_worth is not None and plan.num_builders >= plan.builders_worth
    few = "chunks are too small for more threads" if is_small else "too few threads"
    why = {
        "network": "the network is full",
        "disk_read": "the disk reads no faster",
        "disk_write": "the disk writes no faster",
        "memory": "memory gives no more",
        "cores": "all cores are busy, most with this",
        "gil": "it holds the GIL, so one core does it all",
        "builders": "threads wait for the first byte" if key == "fetch" else few,
        "readers": "too few threads",
        "assemblers": "too few threads",
        "loop": "it runs in the training loop's own thread",
        "pcie": "PCIe is full",
    }.get(bound.resource if bound is not None else "")
    return f"{name} ({why})" if why else name
