"""From what was examined to the result that is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.dataset.catalogue import Catalogue
from stoker.doctor.bounds import demand_of
from stoker.doctor.costs import PATH_STAGES, STAGE_NAMES, Plan, StageCost
from stoker.doctor.diagnose import diagnose, path_of
from stoker.doctor.facts import RowFacts
from stoker.doctor.flow import rate_of
from stoker.doctor.money import money_of
from stoker.doctor.plans import Findings
from stoker.doctor.probe_machine import Disk
from stoker.doctor.results import (
    ARROW,
    MODEL,
    SOURCE,
    TENSORS,
    BatchPoint,
    BatchSweep,
    Ceiling,
    Concurrency,
    DataFacts,
    DoctorResult,
    GpuFacts,
    Rate,
    RunSpan,
    StageResult,
    StepFacts,
)
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.sweep import sweep_of
from stoker.doctor.whatif import Options, fixes_for, materialise, with_cores
from stoker.doctor.words import rate_text
from stoker.host.machine import machine, versions

# Looks at a quiet machine's processors lie this near to each other, the middle half of them; fewer looks say nothing.
_STEADY, _LEAST_LOOKS = 1.08, 5
# A stage that gives more takes nothing that can be told, as reading from the page cache, which is a part of decoding.
_MOST_SAMPLES_S = 1e11


@dataclass(frozen=True, kw_only=True)
class Examined:
    """All that an examination found, before anything is concluded.

    Attributes:
        settings: How it was asked for.
        catalogue: The data set.
        text: The data set as people read it.
        num_probed: Chunks that were read.
        found: What the probes found.
        plans: The paths, by key.
        today: Key of the one that samples take now.
        tried: The plans of fixes as a run of them has shown them, by key.
        shared_how: What to write to keep repeated features once.
        can_be_sent: Whether processes can be given the data set.
        measured: Rates of whole paths.
        facts: What the rows say.
        step: The step; None without one.
        ram: The step on batches in RAM; None without one.
        disk: The disk's pace.
        memory_bytes_s: Of memory.
        gpus: What the driver says.
        gpu_note: What that means, or why there is nothing.
        timeline: A stretch of today's path.
        opened_s: Seconds until the data set was open.
        speeds: Of the processors, look by look; see `Pace`.
        notes: What a reader should know.
    """

    settings: DoctorSettings
    catalogue: Catalogue
    text: str
    num_probed: int
    found: Findings
    plans: Mapping[str, Plan]
    today: str
    tried: Mapping[str, Plan]
    shared_how: str
    can_be_sent: bool
    measured: Mapping[str, Rate]
    facts: RowFacts
    step: StepFacts | None
    ram: Rate | None
    disk: Disk
    memory_bytes_s: float
    gpus: tuple[GpuFacts, ...]
    gpu_note: str
    timeline: tuple[RunSpan, ...]
    opened_s: float
    speeds: tuple[float, ...]
    notes: tuple[str, ...]


def result_of(examined: Examined, *, wall_s: float, when: str) -> DoctorResult:
    """Return the result.

    Args:
        examined: What was found.
        wall_s: Seconds it took.
        when: The date.
    """
    found, plans, today, settings = examined.found, examined.plans, examined.today, examined.settings
    num_samples = int(examined.catalogue.num_samples.sum())
    sizes = {SOURCE: 0.0, ARROW: found.arrow_bytes, TENSORS: found.tensor_bytes}
    fixes = fixes_for(
        plans,
        today=today,
        options=options_of(examined),
    )
    paths = tuple(
        path_of(
            plans[key],
            is_today=key == today,
            measured=examined.measured.get(key),
            num_samples=num_samples,
            disk_bytes=sizes[key] * num_samples,
        )
        for key in PATH_STAGES
        if key in plans
    )
    now = next(path for path in paths if path.is_today)
    money = None
    if settings.gpu_hour is not None and now.step_parts:
        money = money_of(now, gpu_hour=settings.gpu_hour, num_gpus=settings.num_gpus, fixes=fixes)
    return DoctorResult(
        data=DataFacts(
            text=examined.text,
            num_samples=num_samples,
            num_files=len(examined.catalogue.files),
            num_chunks=len(examined.catalogue),
            num_probed=examined.num_probed,
            source_bytes=found.source_bytes,
            arrow_bytes=found.arrow_bytes,
            tensor_bytes=found.tensor_bytes,
            is_remote=found.is_remote,
            repeated_share=examined.facts.repeated_share,
            repeated_columns=examined.facts.repeated_columns,
            widest_column=examined.facts.widest_column,
            widest_share=examined.facts.widest_share,
        ),
        step=examined.step,
        verdict=diagnose(plans, today=today, notes=examined.notes),
        stages=stages_of(plans, found),
        paths=paths,
        ram=examined.ram,
        fixes=fixes,
        ceilings=_ceilings(examined),
        sweep=_sweep(found),
        materialise=materialise(plans, today=today, num_samples=num_samples, disk_bytes=sizes),
        money=money,
        gpus=examined.gpus,
        gpu_note=examined.gpu_note,
        verified=None,
        timeline=examined.timeline,
        machine=machine(),
        versions=versions(),
        command=settings.command,
        budget_s=settings.budget_s,
        wall_s=wall_s,
        when=when,
        notes=_notes(examined),
    )


def options_of(examined: Examined) -> Options:
    """Return what the changes need to know."""
    settings, facts = examined.settings, examined.facts
    return Options(
        num_threads=settings.num_threads,
        has_transform=examined.catalogue.dataset.transform is not None and examined.can_be_sent,
        in_processes=settings.transform_in == "processes",
        widest_column=facts.widest_column if len(examined.catalogue.schema) > 1 else "",
        widest_share=facts.widest_share,
        widest_cpu_share=facts.widest_cpu_share,
        tried=examined.tried,
        shared_how=examined.shared_how,
    )


def stages_of(plans: Mapping[str, Plan], found: Findings) -> tuple[StageResult, ...]:
    """Return each stage alone: what it can give with the machine to itself, beside the demand."""
    demand = demand_of(next(iter(plans.values())))
    results = []
    for key in STAGE_NAMES:
        on = [path for path in plans if plans[path].stage(key) is not None]
        if not on:
            continue
        plan = plans[on[0]]
        cost = plan.stage(key)
        assert cost is not None
        supply = _alone(plan, cost)
        if supply > _MOST_SAMPLES_S:
            continue
        results.append(
            StageResult(
                key=key,
                name=STAGE_NAMES[key],
                paths=tuple(on),
                supply=Rate(samples_s=supply, low=supply * max(0.0, 1 - cost.spread), high=supply * (1 + cost.spread)),
                headroom=None if demand is None or key == MODEL else supply / demand,
                cpu_s=cost.cpu_s,
                gil_s=cost.gil_s,
                wait_s=cost.wait_s,
                size_bytes=_gives(key, found),
                threads=_threads(key, plan, cost, found),
            )
        )
    return tuple(results)


def _alone(plan: Plan, cost: StageCost) -> float:
    """Return what a stage gives with the machine to itself."""
    if cost.key == MODEL:
        demand = demand_of(plan)
        return math.inf if demand is None else demand
    only = replace(plan.without(*(stage.key for stage in plan.stages if stage.key != cost.key)), reach=1.0)
    try:
        return rate_of(only)
    except ValueError:
        return math.inf


def _gives(key: str, found: Findings) -> float:
    sizes = {"fetch": found.source_bytes, "decode": found.arrow_bytes, "read": found.arrow_bytes}
    return sizes.get(key, found.tensor_bytes)


def _threads(key: str, plan: Plan, cost: StageCost, found: Findings) -> tuple[Concurrency, ...]:
    """Return a stage's supply at each number of threads that was tried."""
    if key == "fetch":
        return tuple(
            Concurrency(num_threads=num, samples_s=rate / found.source_bytes)
            for num, rate in found.fetch.by_threads
            if found.source_bytes and math.isfinite(rate)
        )
    built = found.built.stages.get(key)
    if built is None:
        return ()
    gil = 1 / cost.gil_s if cost.gil_s else math.inf
    at: dict[int, list[float]] = {}
    for num, cpu_s in built.by_threads:
        if cpu_s:
            at.setdefault(num, []).append(min(gil, min(num, plan.machine.cores) / cpu_s))
    return tuple(Concurrency(num_threads=num, samples_s=max(rates)) for num, rates in sorted(at.items()))


def _ceilings(examined: Examined) -> tuple[Ceiling, ...]:
    found, plan = examined.found, examined.plans[examined.today]
    rate = rate_of(plan)
    machine = found.machine

    def taken(attribute: str, capacity: float) -> float | None:
        total = sum(getattr(stage, attribute) for stage in plan.stages)
        return rate * total / capacity if total and math.isfinite(capacity) else None

    ceilings = []
    if found.is_remote:
        ceilings.append(
            Ceiling(
                key="network",
                name="network",
                value=machine.network_bytes_s,
                unit="bytes/s",
                used=taken("net_bytes", machine.network_bytes_s),
                note=f"the best of {', '.join(str(num) for num, _ in found.fetch.by_threads)} fetches at once",
            )
        )
        ceilings.append(
            Ceiling(
                key="latency", name="latency", value=found.fetch.wait_s, unit="s", note="of one fetch, its check too"
            )
        )
    ceilings += [
        Ceiling(
            key="cores",
            name="cores",
            value=machine.cores,
            unit="cores",
            used=taken("cpu_s", machine.cores),
            note=f"of which others left {found.cores_left:.1f}" if found.cores_left < 0.85 * machine.cores else "",
        ),
        Ceiling(
            key="memory",
            name="memory",
            value=examined.memory_bytes_s,
            unit="bytes/s",
            used=rate * 2 * found.tensor_bytes / examined.memory_bytes_s,
            note="copied by all cores",
        ),
        Ceiling(
            key="disk_read",
            name="disk, reading",
            value=machine.read_bytes_s,
            unit="bytes/s",
            used=taken("read_bytes", machine.read_bytes_s),
            note="this folder is memory, no disk" if examined.disk.is_memory else "sequential, past the page cache",
        ),
        Ceiling(
            key="disk_write",
            name="disk, writing",
            value=machine.write_bytes_s,
            unit="bytes/s",
            used=taken("write_bytes", machine.write_bytes_s),
            note="sequential, until it is on the disk",
        ),
    ]
    if found.copy is not None:
        pinned, pageable = found.copy.pinned_bytes_s, found.copy.pageable_bytes_s
        used = taken("pcie_bytes", pinned)
        ceilings += [
            Ceiling(key="pcie_pinned", name="PCIe, pinned", value=pinned, unit="bytes/s", used=used),
            Ceiling(key="pcie_pageable", name="PCIe, pageable", value=pageable, unit="bytes/s"),
        ]
    return tuple(ceilings)


def _sweep(found: Findings) -> BatchSweep | None:
    step = found.step
    return sweep_of(
        [
            BatchPoint(
                batch_size=point.batch_size,
                loader_s=point.loader_s,
                step_s=found.step_rates.get(point.batch_size) if step is not None else None,
            )
            for point in found.warm.points
        ]
    )


def _notes(examined: Examined) -> tuple[str, ...]:
    notes = list(examined.notes)
    found = examined.found
    if found.cores_left < 0.85 * found.machine.cores:
        notes.append(
            f"Others use this machine: {found.cores_left:.1f} of {found.machine.cores:.3g} cores were left. What was "
            "measured is for that; what is predicted is for a machine of one's own."
        )
    if (note := pace_note(examined.speeds)) is not None:
        notes.append(note)
    left = with_cores(examined.plans[examined.today], found.cores_left)
    predicted, measured = rate_of(left), examined.measured.get(examined.today)
    if measured is not None and abs(predicted / measured.samples_s - 1) > 0.25:
        notes.append(
            f"Today's path was measured at {rate_text(measured.samples_s)} samples/s where the model says "
            f"{rate_text(predicted)}: something is at work that no experiment saw, so predictions are less sure."
        )
    return tuple(notes)


def pace_note(speeds: Sequence[float]) -> str | None:
    """Return what to say of processors that do not keep one pace; None where they do.

    Args:
        speeds: Look by look; see `Pace`.
    """
    if len(speeds) < _LEAST_LOOKS:
        return None
    low, _, high = statistics.quantiles(speeds, n=4, method="inclusive")
    if high <= _STEADY * low:
        return None
    return (
        f"The pace of the processors went up and down by {high / low - 1:.0%} during the examination, as on a host "
        "where neighbours come and go. Rates that processors limit, measured or predicted, are no surer than that."
    )
