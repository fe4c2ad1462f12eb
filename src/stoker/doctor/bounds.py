"""Capacity bounds: what each resource allows, were all others without end. Pure.

rate  ≤  capacity of a resource / what a sample takes of it           for each of

network     bytes/s of all connections       fetch
disk        bytes/s, reading and writing      fetch (local), read, publish, open
memory      bytes copied a second             gather
cores       processor seconds a second        everything that computes
GIL         one second a second               whatever holds it
builders    threads that build                a chunk keeps one from its first byte to its publication
computing   those of them that may compute    others fetch from a network or publish meanwhile
assemblers  threads that assemble
loop        the training loop's own thread    batches converted there, the step's own part on the host
PCIe        bytes/s to the device             copy
step        the device                        the model
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from stoker.doctor.costs import Plan, StageCost
from stoker.doctor.results import MODEL, Bound
from stoker.storage.fetch import requests_at_once


class _Resource(NamedTuple):
    key: str
    name: str
    capacity: Callable[[Plan], float]
    taken: Callable[[StageCost, Plan], float]


def residence_s(stage: StageCost, plan: Plan) -> float:
    """Return how long a sample keeps the thread that does the stage, with the machine to itself."""
    if stage.place == "device":
        return stage.host_s
    machine = plan.machine
    transfer_s = 0.0
    if stage.net_bytes:
        at_once = requests_at_once(stage.net_bytes * plan.mean_chunk)
        transfer_s = stage.net_bytes / min(at_once * machine.connection_bytes_s, machine.network_bytes_s)
    disk_s = 0.0
    if stage.read_bytes:
        disk_s += stage.read_bytes / machine.read_bytes_s
    # Writing goes to the page cache and from there to the disk behind everyone's back: it keeps no thread.
    return stage.wait_s + transfer_s + disk_s + stage.cpu_s


def takes_a_place(stage: StageCost) -> bool:
    """Return whether a stage of building is done by those that compute: not what waits for a network, or publishes."""
    return stage.place == "build" and stage.key != "publish" and not stage.net_bytes


def _at(place: str) -> Callable[[StageCost, Plan], float]:
    places = ("loop", "device") if place == "loop" else (place,)
    return lambda stage, plan: residence_s(stage, plan) if stage.place in places else 0.0


_RESOURCES = (
    _Resource("network", "network", lambda p: p.machine.network_bytes_s, lambda s, _: s.net_bytes),
    _Resource("disk_read", "disk, reading", lambda p: p.machine.read_bytes_s, lambda s, _: s.read_bytes),
    _Resource("disk_write", "disk, writing", lambda p: p.machine.write_bytes_s, lambda s, _: s.write_bytes),
    _Resource("memory", "memory", lambda p: p.machine.memory_bytes_s, lambda s, _: s.memory_bytes),
    _Resource("cores", "cores", lambda p: p.machine.cores * p.machine.together, lambda s, _: s.cpu_s),
    _Resource("gil", "GIL", lambda p: p.machine.together, lambda s, _: s.gil_s),
    _Resource("builders", "threads that build", lambda p: p.num_builders, _at("build")),
    _Resource(
        "computing",
        "threads that decode and transform",
        lambda p: p.num_builders if p.num_computing is None else min(p.num_computing, p.num_builders),
        lambda s, p: residence_s(s, p) if takes_a_place(s) else 0.0,
    ),
    _Resource(
        "assemblers",
        "threads that assemble",
        lambda p: min(p.num_assemblers, max(1, p.prefetch)),
        _at("assemble"),
    ),
    _Resource("loop", "the loop's own thread", lambda _: 1.0, _at("loop")),
    _Resource("pcie", "PCIe", lambda p: p.machine.pcie_bytes_s, lambda s, _: s.pcie_bytes),
    _Resource("step", "training step", lambda _: 1.0, lambda s, _: s.device_s),
)


def bounds_of(plan: Plan) -> tuple[Bound, ...]:
    """Return what each resource that is used allows, tightest first.

    The stages of a bound are those that use the resource, the one that takes most of it first.
    """
    found = []
    for resource in _RESOURCES:
        used = {stage.key: resource.taken(stage, plan) for stage in plan.stages}
        total = sum(used.values())
        if total > 0:
            samples_s = resource.capacity(plan) / total
            stages = tuple(sorted((key for key in used if used[key] > 0), key=lambda key: -used[key]))
            if math.isfinite(samples_s):
                found.append(Bound(resource=resource.key, name=resource.name, samples_s=samples_s, stages=stages))
    return tuple(sorted(found, key=lambda bound: bound.samples_s))


def supply_of(plan: Plan) -> float:
    """Return the rate that the path allows with nobody to wait for: the tightest bound without the step."""
    bounds = bounds_of(plan.without(MODEL))
    return bounds[0].samples_s if bounds else math.inf


def demand_of(plan: Plan) -> float | None:
    """Return the rate at which the step alone could eat; None where there is no step."""
    step = plan.stage(MODEL)
    if step is None:
        return None
    return 1 / max(step.device_s, step.host_s)
