"""From measurements to plans: what each probe found, as what a sample takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.doctor.arrow import ArrowCost
from stoker.doctor.builders import with_crew
from stoker.doctor.costs import Machine, Plan, StageCost
from stoker.doctor.probe_batches import WarmCost
from stoker.doctor.probe_build import BUILD_STAGES, Built
from stoker.doctor.probe_copy import CopyCost
from stoker.doctor.probe_fetch import FetchCost
from stoker.doctor.probe_step import StepCost
from stoker.doctor.results import ARROW, SOURCE, TENSORS

# A step whose function is gone so much of its time leaves the loop no time beside it: it is done by the host.
_SYNCHRONOUS = 0.9
# Of the time: who works for so much of it is who all others wait for.
_BUSY = 0.9


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the probes found.

    Attributes:
        machine: Its ceilings.
        batch_size: Samples a step.
        num_builders: Threads that build to begin with.
        most_builders: As many as there may be where more of them bring more.
        least_builders: As many as a loader begins with.
        builders_worth: As many as a loader has at most, with any number of threads; None for any number.
        num_computing: Of these, as many as may decode, transform and convert at a time; None for all.
        num_threads: Threads that assemble.
        prefetch: Batches made ahead.
        window: Chunks that are mixed together.
        unit_samples: Samples of each unit, as one thread builds it.
        source_bytes: Bytes a sample at the source.
        arrow_bytes: Bytes a sample as Arrow.
        tensor_bytes: Bytes a sample as a finished record.
        is_remote: Whether the source lies behind a network.
        source_stays: Whether a local source fits into memory beside all else, so that only the first epoch reads it.
        arrow_stays: The same of Arrow on SSD.
        tensors_stay: The same of tensors on SSD.
        fetch: Fetching.
        fetch_cpu_s: Processor seconds a sample of fetching.
        built: Building.
        warm: Warm batches.
        arrow: Arrow on SSD; None where it was not measured.
        copy: Copying to the device; None without one.
        step: The step; None without one.
        cores_left: Processors that others left to this process while it was measured.
        step_rates: Samples/s of the step at each batch size that was tried.
    """

    machine: Machine
    batch_size: int
    num_builders: int
    most_builders: int
    least_builders: int
    num_computing: int | None
    num_threads: int
    prefetch: int
    window: int
    unit_samples: tuple[int, ...]
    source_bytes: float
    arrow_bytes: float
    tensor_bytes: float
    is_remote: bool
    source_stays: bool
    arrow_stays: bool
    tensors_stay: bool
    fetch: FetchCost
    fetch_cpu_s: float
    built: Built
    warm: WarmCost
    arrow: ArrowCost | None
    copy: CopyCost | None
    step: StepCost | None
    cores_left: float
    builders_worth: int | None = None
    step_rates: Mapping[int, float] = field(default_factory=dict)

    @property
    def num_assemblers(self) -> int:
        """Threads that assemble at once."""
        return max(1, min(self.num_threads, self.prefetch))


def plans_of(found: Findings) -> dict[str, Plan]:
    """Return the plan of each path that was measured."""
    last = _last(found)
    warm = (*_warm(found), *last)
    plans = {SOURCE: with_crew(_plan(found, SOURCE, (*_source(found), *warm)))}
    if found.arrow is not None:
        plans[ARROW] = _plan(found, ARROW, (*_arrow(found, found.arrow), *last))
    opened = StageCost(
        key="open", place="assemble", read_bytes=0.0 if found.tensors_stay else found.tensor_bytes
    )  # what stays in the page cache is read once
    plans[TENSORS] = _plan(found, TENSORS, (opened, *warm))
    return plans


def _plan(found: Findings, path: str, stages: tuple[StageCost, ...]) -> Plan:
    return Plan(
        path=path,
        stages=stages,
        machine=found.machine,
        batch_size=found.batch_size,
        num_builders=found.num_builders,
        most_builders=found.most_builders if path == SOURCE else 0,
        least_builders=found.least_builders,
        builders_worth=found.builders_worth if path == SOURCE else None,
        num_computing=found.num_computing,
        num_assemblers=found.num_threads if path == ARROW else found.num_assemblers,
        prefetch=max(found.prefetch, found.num_threads) if path == ARROW else found.prefetch,
        chunk_samples=found.unit_samples,
        window=found.window,
        gaps=found.warm.gaps if path == TENSORS else (),
    )


def _source(found: Findings) -> tuple[StageCost, ...]:
    mean = sum(found.unit_samples) / len(found.unit_samples)
    fetch = StageCost(
        key="fetch",
        place="build",
        cpu_s=found.fetch_cpu_s,
        wait_s=found.fetch.wait_s / mean,
        net_bytes=found.source_bytes if found.is_remote else 0.0,
        read_bytes=0.0 if found.is_remote or found.source_stays else found.source_bytes,
        spread=found.fetch.spread,
    )
    built = [
        StageCost(key=key, place="build", cpu_s=cost.cpu_s, gil_s=cost.gil_s, wait_s=cost.wait_s, spread=cost.spread)
        for key in BUILD_STAGES
        if (cost := found.built.stages.get(key)) is not None
    ]
    return (fetch, *built)


def _warm(found: Findings) -> tuple[StageCost, ...]:
    """Return gathering, split into what a sample costs and what a batch costs whatever its size."""
    warm = found.warm
    at_once = found.num_assemblers
    # What the walls of a full drain say, beyond what the processors did: threads that stand in each other's way.
    each_wall_s = max(0.0, 1 / warm.rate.samples_s - warm.fixed_s / found.batch_size)
    gather = StageCost(
        key="gather",
        place="assemble",
        cpu_s=warm.each_cpu_s,
        gil_s=warm.each_gil_s,
        memory_bytes=found.tensor_bytes,
        wait_s=max(0.0, at_once * each_wall_s - warm.each_cpu_s),
        spread=warm.rate.spread,
    )
    fixed_s = warm.fixed_s / found.batch_size
    batch = StageCost(
        key="batch",
        place="assemble",
        cpu_s=fixed_s,
        gil_s=fixed_s,
        wait_s=(at_once - 1) * fixed_s,
        spread=warm.rate.spread,
    )
    return (gather, batch)


def _arrow(found: Findings, arrow: ArrowCost) -> tuple[StageCost, ...]:
    """Return drawing and converting, the time in it that goes by while they wait for each other."""
    each_s = 1 / arrow.rate_s
    # Nothing takes more of a resource than there was of it while all of them worked.
    gil = min(1.0, each_s / max(arrow.draw_gil_s + arrow.dequeue_gil_s, 1e-12))
    cpu = min(1.0, found.machine.cores * each_s / max(arrow.draw_s + arrow.dequeue_s, 1e-12))
    # Who is at work nearly all the time is who limits; the others could do more.
    is_loop = arrow.loop_s >= _BUSY * each_s
    loop_s = each_s if is_loop else arrow.loop_s
    draw_wait_s = 0.0 if is_loop else max(0.0, found.num_threads * each_s - cpu * arrow.draw_s)
    return (
        StageCost(key="read", place="assemble", read_bytes=0.0 if found.arrow_stays else found.arrow_bytes),
        StageCost(
            key="draw",
            place="assemble",
            cpu_s=cpu * arrow.draw_s,
            gil_s=min(gil * arrow.draw_gil_s, cpu * arrow.draw_s),
            wait_s=draw_wait_s,
            spread=arrow.spread,
        ),
        StageCost(
            key="dequeue",
            place="loop",
            cpu_s=cpu * arrow.dequeue_s,
            gil_s=min(gil * arrow.dequeue_gil_s, cpu * arrow.dequeue_s),
            wait_s=max(0.0, loop_s - cpu * arrow.dequeue_s),
            spread=arrow.spread,
        ),
    )


def _last(found: Findings) -> tuple[StageCost, ...]:
    stages: list[StageCost] = []
    if found.copy is not None:
        stages.append(
            StageCost(key="copy", place="device", pcie_bytes=found.tensor_bytes, spread=found.copy.spread)
        )  # fmt: skip
    step = found.step
    if step is not None:
        is_synchronous = step.host_s >= _SYNCHRONOUS * step.step_s
        stages.append(
            StageCost(
                key="step",
                place="device",
                cpu_s=step.cpu_s / found.batch_size,
                gil_s=step.gil_s / found.batch_size,
                device_s=step.step_s / found.batch_size,
                host_s=(step.step_s if is_synchronous else step.host_s) / found.batch_size,
                spread=(step.high_s - step.low_s) / (2 * step.step_s),
            )
        )
    return tuple(stages)
