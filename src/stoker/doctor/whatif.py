"""What each change would give: another plan, and its rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stoker.doctor.bounds import demand_of
from stoker.doctor.builders import from_the_beginning, window_for, with_crew
from stoker.doctor.causes import limit_of
from stoker.doctor.costs import PATH_NAMES, Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import ARROW, MODEL, SOURCE, TENSORS, Fix, Materialise

# A change that gives less than this is not worth a line.
_WORTH = 1.03
# Of fixes that give nearly the same, the first of these is the best: what costs nothing comes first.
_CHEAPEST = ("processes", "threads", "batch", "tensors", "columns", "share", "arrow", "cores", "network")
_NEARLY = 1.02
MORE_THREADS = 4
"""Threads that wait cost little: so many times as many are tried."""
FASTER = 2
"""A link so many times as fast is tried."""
_MORE_BATCH = 4
MUCH = 0.15
"""A column is worth leaving out, and repeated features worth sharing, from this share of the bytes on."""
# What each processor more takes from all of them while threads hand locks and memory to each other, and how much more
# of it there is where they also hand over the GIL, from a half of the time on: no run on one processor shows it. Two
# did 1.82 times the work of one in a planted case whose transform needs no GIL, 1.15 to 1.5 times in three that decode
# or convert small chunks, of which the GIL alone explains 1.45 to 2.
_CONTENTION, _BY_THE_GIL, _MUCH_HELD = 0.1, 0.23, 0.5
# Stages whose work is less where less is kept and sent.
_OF_BATCHES = ("open", "gather", "batch", "copy")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the changes need to know beside the plans.

    Attributes:
        num_threads: Threads that the loader was told: so many processes take their place.
        has_transform: Whether there is a transform, and one that could run in processes.
        in_processes: Whether it runs in processes already.
        widest_column: The column with most bytes at the source; "" where nothing may be left out.
        widest_share: Its share of those bytes.
        widest_cpu_share: Its share of what decoding and converting cost.
        tried: The plans of fixes as a run of them has shown them, by key.
        shared_how: What to write to keep repeated features once.
    """

    num_threads: int
    has_transform: bool = False
    in_processes: bool = False
    widest_column: str = ""
    widest_share: float = 0.0
    widest_cpu_share: float = 0.0
    tried: Mapping[str, Plan] = field(default_factory=dict)
    shared_how: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change, and the plan that it makes.

    Attributes:
        key: Which.
        text: What to do.
        how: What to write or type for it.
        plan: Afterwards.
    """

    key: str
    text: str
    how: str
    plan: Plan


def with_cores(plan: Plan, cores: float) -> Plan:
    """Return the plan on a machine with so many cores, others' shares gone from them."""
    return replace(plan, machine=replace(plan.machine, cores=cores))


def at_speed(plan: Plan, speed: float) -> Plan:
    """Return the plan on processors that do `speed` times as much in a second: all but waiting for a source."""
    stages = tuple(
        replace(
            stage,
            cpu_s=stage.cpu_s / speed,
            gil_s=stage.gil_s / speed,
            # Those that assemble wait for memory; those that build for a source, a loop for what its transform asks.
            wait_s=stage.wait_s / speed if stage.place == "assemble" else stage.wait_s,
        )
        if stage.key != MODEL
        else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def more_threads(plan: Plan, *, num_more: int) -> Plan:
    """Return the plan with `num_more` threads of both kinds, as far as there are batches and chunks for them to make.

    Windows have chunks enough for all that build.
    """
    assemblers = min(plan.num_assemblers + num_more, max(plan.num_assemblers, plan.prefetch))
    computing = None if plan.num_computing is None else plan.num_computing + num_more
    builders = plan.num_builders + num_more
    if plan.builders_worth is not None:
        builders = max(plan.num_builders, min(builders, plan.builders_worth))
    more = replace(
        plan,
        num_builders=builders,
        most_builders=plan.most_builders and plan.most_builders + num_more,
        num_computing=computing,
        num_assemblers=assemblers,
        window=window_for(plan, builders),
    )
    return with_crew(more)


def more_cores(plan: Plan, *, num_threads: int, times: int = 2) -> Plan:
    """Return the plan on a machine with more cores, and threads to use them.

    What threads lose by each other grows with their number: n cores do the work of n / (1 + c * (n - 1)), with the c
    that was seen on those that there are (Gunther 2008, arXiv:0808.1431, without the second-order term). Whoever holds
    the GIL is slowed down by as much: it is handed to and fro more often. The plan as it is where that brings no more.
    """
    cores, machine = plan.machine.cores, plan.machine
    more = more_threads(
        replace(plan, machine=replace(machine, cores=cores * times)), num_more=(times - 1) * num_threads
    )
    if cores >= 2:
        contention = min(1.0, (1 / machine.together - 1) / (cores - 1))
    else:
        held = rate_of(more) * sum(stage.gil_s for stage in more.stages)
        contention = _CONTENTION + _BY_THE_GIL * min(1.0, held / _MUCH_HELD)
    beside = (1 + contention * (cores - 1)) / (1 + contention * (cores * times - 1))
    more = replace(more, machine=replace(more.machine, together=machine.together * beside))
    return more if rate_of(more) > rate_of(plan) else plan


def faster_network(plan: Plan, *, times: int = FASTER) -> Plan:
    """Return the plan behind a link with more bandwidth: fewer threads may be enough to use it."""
    machine = replace(
        plan.machine,
        network_bytes_s=plan.machine.network_bytes_s * times,
        connection_bytes_s=plan.machine.connection_bytes_s * times,
    )
    return with_crew(from_the_beginning(replace(plan, machine=machine)))


def in_processes(plan: Plan, *, num_processes: int) -> Plan:
    """Return the plan with everything up to publication in processes: each of them has a GIL of its own.

    What threads lose by handing things to each other, these do not.
    """
    stages = tuple(replace(stage, gil_s=0.0) if stage.place == "build" else stage for stage in plan.stages)
    machine = replace(plan.machine, together=1.0)
    return replace(
        plan,
        stages=stages,
        machine=machine,
        num_builders=num_processes,
        most_builders=0,
        num_computing=None,
        builders_worth=None,
    )


def larger_batch(plan: Plan, *, times: int = _MORE_BATCH) -> Plan:
    """Return the plan with larger batches: what a batch costs whatever its size is shared by more samples."""
    batch = plan.stage("batch")
    bigger = replace(plan, batch_size=plan.batch_size * times)
    return bigger if batch is None else bigger.with_stage(batch.scaled(1 / times))


def fewer_columns(plan: Plan, *, share: float, cpu_share: float) -> Plan:
    """Return the plan without columns that have `deduplicate` of the bytes and `cpu_share` of the work."""
    for key, less in (("fetch", share), ("decode", cpu_share), ("convert", cpu_share), ("publish", cpu_share)):
        cost = plan.stage(key)
        if cost is not None:
            plan = plan.with_stage(cost.scaled(1 - less))
    return plan


def shared_features(plan: Plan, *, times: float) -> Plan:
    """Return the plan with repeated features kept and sent once, which makes its batches so many times as fast."""
    stages = tuple(stage.scaled(1 / times) if stage.key in _OF_BATCHES else stage for stage in plan.stages)
    return replace(plan, stages=stages, gaps=())


def fixes_for(plans: Mapping[str, Plan], *, today: str, options: Options) -> tuple[Fix, ...]:
    """Return every change that is worth a line, best first; of nearly equal ones, the cheapest.

    Args:
        plans: The paths, by key.
        today: Key of the one that the samples take now.
        options: See `Options`.
    """
    fixes = fixes_of(changes_for(plans, today=today, options=options), today=plans[today])
    return tuple(_ranked([fix for fix in fixes if fix.times >= _WORTH]))


def fixes_of(changes: Sequence[Change], *, today: Plan) -> list[Fix]:
    """Return what each change gives, in their order."""
    now = rate_of(today)
    rates = [rate_of(change.plan) for change in changes]
    return [
        Fix(
            key=change.key,
            text=change.text,
            how=change.how,
            predicted_s=rate,
            times=rate / now,
            limit=limit_of(change.plan),
            busy=busy_of(change.plan),
        )
        for change, rate in zip(changes, rates, strict=True)
    ]


def busy_of(plan: Plan) -> float | None:
    """Return the share of the time in which the step runs; None without one."""
    demand = demand_of(plan)
    return None if demand is None else min(1.0, rate_of(plan) / demand)


def _ranked(fixes: list[Fix]) -> list[Fix]:
    left = sorted(fixes, key=lambda fix: -fix.predicted_s)
    ranked: list[Fix] = []
    while left:
        near = [fix for fix in left if fix.predicted_s * _NEARLY >= left[0].predicted_s]
        best = min(near, key=lambda fix: _CHEAPEST.index(fix.key))
        left.remove(best)
        ranked.append(best)
    return ranked


def changes_for(plans: Mapping[str, Plan], *, today: str, options: Options) -> list[Change]:
    """Return every change that could be made, whatever it gives; arguments as for `fixes_for`."""
    plan = plans[today]
    changes: list[Change] = []

    def add(key: str, text: str, how: str, changed: Plan) -> None:
        changes.append(Change(key=key, text=text, how=how, plan=options.tried.get(key, changed)))

    if today == SOURCE:
        threads = options.num_threads * MORE_THREADS
        more = more_threads(plan, num_more=threads - options.num_threads)
        add("threads", f"{threads} threads instead of {options.num_threads}", f"num_threads={threads}", more)
        if options.has_transform and not options.in_processes:
            apart = in_processes(plan, num_processes=options.num_threads)
            add("processes", "run the transform in processes", 'transform_in="processes"', apart)
        if plan.stage("fetch") is not None and math.isfinite(plan.machine.network_bytes_s):
            add("network", "a link twice as fast", "more bandwidth, or data nearby", faster_network(plan))
        if options.widest_share >= MUCH and options.widest_column:
            less = fewer_columns(plan, share=options.widest_share, cpu_share=options.widest_cpu_share)
            text = f"do without {options.widest_column} ({options.widest_share:.0%} of the bytes)"
            add("columns", text, "Dataset(columns=[...])", less)
    if limit_of(plan) != "gather":  # what memory gives to more cores, those that are here do not tell
        add("cores", "twice the cores", "a larger machine", more_cores(plan, num_threads=options.num_threads))
    if today in (SOURCE, ARROW):
        if ARROW in plans and today != ARROW:
            add(ARROW, "keep Arrow on SSD", "a cache of decoded tables", plans[ARROW])
        if TENSORS in plans:
            add(TENSORS, "keep tensors on SSD", "Loader(cache=DIR), or stoker warm", plans[TENSORS])
    elif "share" in options.tried:
        add("share", "keep repeated features once", options.shared_how, options.tried["share"])
    if plan.stage("batch") is not None:
        batch = plan.batch_size * _MORE_BATCH
        add("batch", f"batches of {batch:,}", f"batch_size={batch}", larger_batch(plan))
    return changes


def materialise(
    plans: Mapping[str, Plan], *, today: str, num_samples: int, disk_bytes: Mapping[str, float]
) -> tuple[Materialise, ...]:
    """Return what keeping Arrow tables or tensors takes and gives.

    Args:
        plans: The paths, by key.
        today: Key of the one that the samples take now.
        num_samples: Of an epoch.
        disk_bytes: Bytes a sample on SSD, by path.
    """
    if today != SOURCE:
        return ()
    now_s = num_samples / rate_of(plans[today])
    found = []
    for key in (ARROW, TENSORS):
        if key not in plans:
            continue
        total = disk_bytes[key] * num_samples
        # The first epoch is today's, and writes besides: at the disk's pace where that is the slower one.
        first_s = max(now_s, total / plans[key].machine.write_bytes_s)
        saved_s = now_s - num_samples / rate_of(plans[key])
        extra_s = first_s - now_s
        pays = 1 + -int(-extra_s // saved_s) if saved_s > 0.01 * now_s else None
        found.append(
            Materialise(
                key=key,
                name=PATH_NAMES[key],
                disk_bytes=total,
                extra_s=extra_s,
                saved_s=max(0.0, saved_s),
                pays_after=pays,
            )
        )
    return tuple(found)
