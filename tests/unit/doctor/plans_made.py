"""Plans whose numbers are made up: a healthy path, and one thing wrong with it."""

from __future__ import annotations

import dataclasses

from stoker.doctor.costs import Machine, Plan, StageCost

BATCH = 4_096
CHUNK = 65_536
DEMAND = 1_000_000.0

# What a sample takes where nothing is wrong: every bound lies at three times the demand at least.
HEALTHY = {
    "fetch": StageCost(key="fetch", place="build", cpu_s=0.02e-6, wait_s=0.06 / CHUNK, net_bytes=180.0),
    "decode": StageCost(key="decode", place="build", cpu_s=0.8e-6),
    "transform": StageCost(key="transform", place="build", cpu_s=0.2e-6, gil_s=0.02e-6),
    "convert": StageCost(key="convert", place="build", cpu_s=0.1e-6, gil_s=0.02e-6),
    "publish": StageCost(key="publish", place="build", cpu_s=0.3e-6, gil_s=0.01e-6),
    "gather": StageCost(key="gather", place="assemble", cpu_s=0.2e-6, gil_s=0.01e-6),
    "batch": StageCost(key="batch", place="assemble", cpu_s=100e-6 / BATCH, gil_s=60e-6 / BATCH),
    "copy": StageCost(key="copy", place="device", pcie_bytes=1_000.0),
}
MACHINE = Machine(
    cores=8,
    network_bytes_s=1.2e9,
    connection_bytes_s=100e6,
    read_bytes_s=3e9,
    write_bytes_s=2e9,
    pcie_bytes_s=20e9,
)


def step_cost(demand: float = DEMAND) -> StageCost:
    """A step that eats `demand` samples/s on a device of its own."""
    return StageCost(key="step", place="device", device_s=1 / demand)


def source_plan(**changed: StageCost) -> Plan:
    """The path from the source; named stages replaced."""
    stages = {**HEALTHY, "step": step_cost(), **changed}
    return Plan(
        path="source",
        stages=tuple(stages.values()),
        machine=MACHINE,
        batch_size=BATCH,
        num_builders=14,
        num_assemblers=4,
        chunk_samples=(CHUNK,) * 16,
        window=8,
    )


def tensors_plan(**changed: StageCost) -> Plan:
    """The warm path; named stages replaced."""
    stages = {key: HEALTHY[key] for key in ("gather", "batch", "copy")}
    stages |= {"open": StageCost(key="open", place="assemble"), "step": step_cost(), **changed}
    return Plan(
        path="tensors",
        stages=tuple(stages.values()),
        machine=MACHINE,
        batch_size=BATCH,
        num_assemblers=4,
        chunk_samples=(CHUNK,) * 16,
        window=8,
    )


def arrow_plan(**changed: StageCost) -> Plan:
    """Arrow on SSD; named stages replaced."""
    stages = {
        "read": StageCost(key="read", place="assemble"),
        "draw": StageCost(key="draw", place="assemble", cpu_s=1.6e-6),
        "dequeue": StageCost(key="dequeue", place="loop", cpu_s=1.4e-6, gil_s=0.4e-6),
        "copy": HEALTHY["copy"],
        "step": step_cost(),
        **changed,
    }
    return Plan(
        path="arrow",
        stages=tuple(stages.values()),
        machine=MACHINE,
        batch_size=BATCH,
        num_assemblers=8,
        prefetch=16,
        chunk_samples=(CHUNK,) * 16,
        window=8,
    )


def changed(key: str, **values: float) -> StageCost:
    """A healthy stage with some of its numbers replaced."""
    return dataclasses.replace(HEALTHY[key], **values)


def on(plan: Plan, **machine: float) -> Plan:
    """The plan on another machine."""
    return dataclasses.replace(plan, machine=dataclasses.replace(plan.machine, **machine))
