"""What a sample takes of the machine, stage by stage: the numbers that everything else is worked out from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from stoker.doctor.results import ARROW, SOURCE, TENSORS

Place: TypeAlias = Literal["build", "assemble", "loop", "device"]
"""Who does it: a thread that builds chunks, one that assembles batches, the training loop's own, or the device."""

STAGE_NAMES: Mapping[str, str] = {
    "fetch": "fetch",
    "decode": "decode Parquet",
    "transform": "transform",
    "convert": "convert to arrays",
    "publish": "pack and publish",
    "read": "read Arrow files",
    "draw": "conversion: drawing rows from Arrow",
    "dequeue": "conversion: Arrow to arrays, each batch",
    "open": "open windows",
    "gather": "gather",
    "batch": "fixed work a batch",
    "copy": "copy to the GPU",
    "step": "training step",
}
"""Every stage, in the order of the path, as people read it."""

PATH_NAMES: Mapping[str, str] = {
    SOURCE: "every epoch from the source",
    ARROW: "Arrow on SSD",
    TENSORS: "tensors on SSD",
}

PATH_STAGES: Mapping[str, tuple[str, ...]] = {
    SOURCE: ("fetch", "decode", "transform", "convert", "publish", "gather", "batch", "copy", "step"),
    ARROW: ("read", "draw", "dequeue", "copy", "step"),
    TENSORS: ("open", "gather", "batch", "copy", "step"),
}
"""What a sample goes through on each path, in order."""

_SCALED = (
    "cpu_s",
    "gil_s",
    "net_bytes",
    "read_bytes",
    "write_bytes",
    "memory_bytes",
    "pcie_bytes",
    "device_s",
    "host_s",
)


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What one stage takes for one sample, on average.

    Attributes:
        key: Which stage; see `STAGE_NAMES`.
        place: Who does it.
        cpu_s: Processor seconds, those with the GIL held included.
        gil_s: Of these, with the GIL held.
        wait_s: Seconds of pure waiting that no bandwidth explains: latency. Only that thread waits.
        net_bytes: Bytes that come over the network.
        read_bytes: Bytes that are read from the local disk.
        write_bytes: Bytes that are written to it.
        memory_bytes: Bytes that are copied from memory that no cache holds, each read once and written once.
        pcie_bytes: Bytes that are copied to the device.
        device_s: Seconds in which the device is busy with it.
        host_s: Of a stage on the device: seconds in which the loop's thread cannot do anything else.
        spread: How far its measurements lay apart, as a share of the whole.
    """

    key: str
    place: Place
    cpu_s: float = 0.0
    gil_s: float = 0.0
    wait_s: float = 0.0
    net_bytes: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    memory_bytes: float = 0.0
    pcie_bytes: float = 0.0
    device_s: float = 0.0
    host_s: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.key not in STAGE_NAMES:
            raise ValueError(f"there is no stage {self.key!r}; there are {', '.join(STAGE_NAMES)}")
        for name in (*_SCALED, "wait_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{self.key}: {name} must be a number of at least 0, not {value}")
        # What measures the GIL and what measures the processor are two clocks.
        if self.gil_s > self.cpu_s:
            object.__setattr__(self, "cpu_s", self.gil_s)

    def scaled(self, share: float) -> StageCost:
        """Return the cost of doing only `deduplicate` of the work, the waiting left as it is."""
        return replace(self, **{name: getattr(self, name) * share for name in _SCALED})


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine can do.

    Attributes:
        cores: Processors that this process gets: fewer than it sees where others use them.
        network_bytes_s: All connections together.
        connection_bytes_s: What one request alone gets; large chunks are fetched by several at once.
        read_bytes_s: Disk, sequential.
        write_bytes_s: The same, writing.
        memory_bytes_s: Bytes a second that all cores together copy. More cores of another machine may get no more.
        pcie_bytes_s: From pinned memory to the device.
        together: Share of the cores and of the GIL that threads get to use when they work side by side: the rest goes
            by while they hand the GIL, locks and memory to each other.
    """

    cores: float
    network_bytes_s: float = math.inf
    connection_bytes_s: float = math.inf
    read_bytes_s: float = math.inf
    write_bytes_s: float = math.inf
    memory_bytes_s: float = math.inf
    pcie_bytes_s: float = math.inf
    together: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        if self.together > 1:
            raise ValueError(f"together is a share, not {self.together}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One path through one machine with its settings: what the model gives a rate for.

    Attributes:
        path: Which path.
        stages: What a sample takes in each of its stages.
        machine: What there is to take.
        batch_size: Samples a step.
        num_builders: Threads that build chunks.
        most_builders: As many as there may be where more of them bring more; 0 where they stay as many as they are.
        least_builders: As many as there are to begin with, where there may be more.
        builders_worth: As many as there would be at most with more threads, since small chunks leave no work for more;
            None for any number.
        num_computing: Of these, as many as may decode, transform and convert at a time; None for all.
        num_assemblers: Threads that assemble batches.
        prefetch: Batches made ahead of the step.
        chunk_samples: Samples of each chunk, in their order: skewed ones hold up those beside them.
        window: Chunks that are mixed together.
        gaps: Time between one batch and the next where nobody kept them waiting, as multiples of the mean: batches
            come unevenly, and a step that could nearly eat them all waits for the late ones. Empty for even ones.
        reach: What a run of the path gave, as a share of what its stages say, where no handing over explains it.
    """

    path: str
    stages: tuple[StageCost, ...]
    machine: Machine
    batch_size: int
    num_builders: int = 1
    most_builders: int = 0
    least_builders: int = 1
    builders_worth: int | None = None
    num_computing: int | None = None
    num_assemblers: int = 1
    prefetch: int = 12
    chunk_samples: tuple[int, ...] = field(default=(65_536,) * 8)
    window: int = 4
    gaps: tuple[float, ...] = ()
    reach: float = 1.0

    def __post_init__(self) -> None:
        if self.path not in PATH_STAGES:
            raise ValueError(f"there is no path {self.path!r}; there are {', '.join(PATH_STAGES)}")
        keys = [stage.key for stage in self.stages]
        if strange := [key for key in keys if key not in PATH_STAGES[self.path]]:
            raise ValueError(f"{strange[0]} is no stage of the path {self.path!r}")
        if len(set(keys)) < len(keys):
            raise ValueError(f"a stage is there twice: {keys}")
        for name in ("batch_size", "num_builders", "num_assemblers", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.reach > 0:
            raise ValueError(f"reach must be above 0, not {self.reach}")
        if any(gap < 0 for gap in self.gaps):
            raise ValueError("no batch comes before the one before it: gaps must be at least 0")
        if self.num_computing is not None and self.num_computing < 1:
            raise ValueError(f"num_computing must be at least 1, not {self.num_computing}")
        if not self.chunk_samples or min(self.chunk_samples) < 1:
            raise ValueError("there must be chunks, and samples in each")

    def stage(self, key: str) -> StageCost | None:
        """Return one stage's cost, None where the path does without it."""
        return next((stage for stage in self.stages if stage.key == key), None)

    def with_stage(self, cost: StageCost) -> Plan:
        """Return the plan with another cost for a stage that it has."""
        return replace(self, stages=tuple(cost if stage.key == cost.key else stage for stage in self.stages))

    def without(self, *keys: str) -> Plan:
        """Return the plan as if these stages cost nothing."""
        return replace(self, stages=tuple(stage for stage in self.stages if stage.key not in keys))

    @property
    def mean_chunk(self) -> float:
        """Samples of a chunk, on average."""
        return sum(self.chunk_samples) / len(self.chunk_samples)
