"""What the doctor measured, as numbers; the verdict, the screen, `--json` and the page are functions of them.

    Measurements
    ├── data, step         DataFacts, StepFacts   what was looked at
    ├── paths              PathResult             each way a sample can come, run whole with the step behind it
    ├── stages             StageResult            each stage alone: what explains a path's rate
    ├── ceilings           Ceiling                what the machine can do
    ├── gpus               GpuFacts               what the driver says, where there is a GPU
    └── verified           Verified               the best fixes once more, where that was asked for

Rates are samples/s, times seconds, sizes bytes. Everything is frozen.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

SOURCE, TENSORS, ARROW = "source", "tensors", "arrow"
"""Ways that samples can take: from the source, as tensors on SSD, as Arrow on SSD."""
RAM, SHARED, SUPPLY = "ram", "shared", "supply"
"""What they are compared with: batches in RAM; the same with a loader at work beside it; today's without a step."""
THREADS, PROCESSES, COLUMNS, DEDUPLICATED, LARGER = "threads", "processes", "columns", "deduplicated", "batch"
"""Today's path with one thing changed."""
FREE_LINK = "link"
"""Today's path behind a link without limits: no fix, but what no link can beat."""

MODEL = "step"
"""Key of the stage that eats: the training step."""
UNKNOWN = ""
"""Key of what limits where no figure tells."""

STAGE_NAMES = {
    "fetch": "fetch",
    "decode": "decode Parquet",
    "transform": "the transform",
    "convert": "convert to arrays",
    "publish": "pack and publish",
    "open": "read chunks from SSD",
    "gather": "gather batches",
    "batch": "work a batch, whatever its size",
    "augment": "augment",
    "copy": "copy to the GPU",
    "draw": "draw rows in Arrow",
    "dequeue": "Arrow to arrays",
    "skew": "skewed chunk sizes",
    MODEL: "the model",
    UNKNOWN: "the data path",
}
"""Stages as people read them."""

BUILD_STAGES = ("fetch", "decode", "transform", "convert", "publish")
"""What a chunk goes through when it is built."""

# Two measurements of the same thing on a quiet machine, and what one repeat alone may be off.
_LEAST_DOUBT, _ALONE = 0.01, 0.05


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate as it was measured, with its spread.

    Attributes:
        samples_s: Samples a second, the middle one of the repeats.
        low: Of the slowest repeat.
        high: Of the fastest repeat.
        num_rounds: How often it was measured.
    """

    samples_s: float
    low: float
    high: float
    num_rounds: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.samples_s <= self.high:
            raise ValueError(f"a rate lies between its lowest and highest: {self.low}, {self.samples_s}, {self.high}")

    @classmethod
    def of(cls, rates: Sequence[float]) -> Self:
        """Return several repeats as one."""
        return cls(samples_s=statistics.median(rates), low=min(rates), high=max(rates), num_rounds=len(rates))

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest repeat, as a share of the rate."""
        return (self.high - self.low) / (2 * self.samples_s) if self.samples_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What cannot be tried here: no more than this can come of it.

    Attributes:
        key: "network", "cores", "disk", "gpus".
        text: What would be changed.
        at_most_s: Samples/s that no such change can beat.
        why: What the bound is computed from.
    """

    key: str
    text: str
    at_most_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class PathResult:
    """One way that samples can come, measured whole.

    Attributes:
        key: See the constants above.
        name: As people read it.
        how: The line of code or the command that makes it so; "" where there is none.
        rate: Samples/s that came, in alternating repeats with all other paths.
        batch_size: Samples a batch.
        has_step: Whether the step was behind it.
        stages: Seconds that threads spent in each stage, a sample.
        build_share: Share of the time in which threads that build did.
        stall: Share of the loop's time in which it waited for a batch.
        cores_used: Processors that this process kept busy.
        others: Share of all processors that others took meanwhile.
        disk_s: Samples/s that the disk allows where memory cannot hold the data set, which the sample cannot show;
            None where it can.
        disk_bytes: Bytes on SSD for the whole data set.
    """

    key: str
    name: str
    rate: Rate
    batch_size: int
    how: str = ""
    has_step: bool = True
    stages: Mapping[str, float] = field(default_factory=dict)
    build_share: float = 0.0
    stall: float = 0.0
    cores_used: float = 0.0
    others: float = 0.0
    disk_s: float | None = None
    disk_bytes: float = 0.0

    @property
    def doubt(self) -> float:
        """How far the rate may be off, as a share: its spread, and what others took."""
        alone = _ALONE if self.rate.num_rounds < 2 else 0.0
        return max(_LEAST_DOUBT, self.rate.spread) + self.others / 4 + alone

    @property
    def is_disk_bound(self) -> bool:
        """Whether the disk, which was not in the run, allows less than came."""
        return self.disk_s is not None and self.disk_s < self.rate.samples_s

    @property
    def rate_s(self) -> float:
        """Samples/s to reckon with: as measured, or what a disk allows that was not in it."""
        return self.rate.samples_s if self.disk_s is None else min(self.rate.samples_s, self.disk_s)


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """One stage of building alone: its threads' time in a run whose bytes were in memory, or its reads by themselves.

    Attributes:
        key: See `STAGE_NAMES`.
        supply_s: Samples/s that all threads of it would give if they did nothing else.
        seconds: Of one thread, a sample.
        is_locked: Whether more threads give no more of it, though cores are free: they wait for the interpreter's lock.
        waits: Whether its thread waited for something else for most of it.
        by_threads: Samples/s at several numbers of threads.
    """

    key: str
    supply_s: float
    seconds: float = 0.0
    is_locked: bool = False
    waits: bool = False
    by_threads: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What the machine can do, measured in this run.

    Attributes:
        key: "network", "connection", "latency", "disk_read", "disk_write", "memory", "pcie_pinned", "pcie_pageable".
        name: As people read it.
        value: The figure.
        unit: "bytes/s" or "s".
        used: Share of it that today's path takes at its rate; None where that makes no sense.
        note: How it was measured.
    """

    key: str
    name: str
    value: float
    unit: str
    used: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What the driver says about one GPU while batches in RAM were trained; None where it does not tell.

    Attributes:
        name: Of the GPU.
        utilisation: Share of the time in which at least one kernel ran. A kernel on one SM of 132 counts as well.
        sm_clock_mhz: Clock of the SMs.
        max_sm_clock_mhz: The highest they can have.
        power_w: Power drawn.
        power_limit_w: Power allowed.
        memory_used_bytes: Memory in use, of all processes.
        memory_bytes: Memory there is.
        throttled: Why its clock is held down, in words; empty where it is not.
    """

    name: str
    utilisation: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_used_bytes: float | None
    memory_bytes: float | None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A fix that was run once more, beside what had been promised.

    Attributes:
        fix: Key of the path.
        promised_s: Samples/s that the examination measured.
        measured: Samples/s that came.
    """

    fix: str
    promised_s: float
    measured: Rate

    @property
    def error(self) -> float:
        """Promised over measured, minus one."""
        return self.promised_s / self.measured.samples_s - 1


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known of the training step.

    Attributes:
        text: As people read it: "train.py:step", "a timed wait of 10 ms".
        batch_size: Samples a step.
        is_given: Whether its time was given rather than measured.
        cores_used: Processors that it keeps busy on batches in RAM.
    """

    text: str
    batch_size: int
    is_given: bool
    cores_used: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What was looked at.

    Attributes:
        text: The data set as people read it.
        num_samples: Of the whole of it.
        num_files: Its files.
        num_chunks: Its chunks.
        is_remote: Whether it lies behind a network.
        num_probed: Chunks that the experiments read.
        source_bytes: Bytes a sample as they lie at the source, of the columns that are read.
        arrow_bytes: Bytes a sample as Arrow.
        tensor_bytes: Bytes a sample as a finished record with its lists.
        repeated_share: Share of the bytes that only repeats the row before.
        widest_column: The column with most bytes at the source; "" where unknown.
        widest_share: Its share of those bytes.
        evenness: So many of its chunks, all of one size, would say as much as all of them; 1 where they are even.
    """

    text: str
    num_samples: int
    num_files: int
    num_chunks: int
    is_remote: bool
    num_probed: int = 0
    source_bytes: float = 0.0
    arrow_bytes: float = 0.0
    tensor_bytes: float = 0.0
    repeated_share: float = 0.0
    widest_column: str = ""
    widest_share: float = 0.0
    evenness: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All that was measured; see the module's drawing.

    Attributes:
        data: What was looked at.
        step: The training step; None where none was given.
        today: Key of the path that samples take now: SOURCE or TENSORS.
        paths: Those that ran, today's first.
        stages: Of building, in their order; empty where today's path builds nothing.
        ceilings: Of the machine.
        cores: Processors that this process may use.
        num_threads: As the loader has it.
        gpus: What the driver says; empty without a GPU.
        gpu_note: Why there is none, or what its figures mean.
        verified: Fixes that were run once more.
        gpu_hour: Price of an hour of one GPU; None where none was given.
        num_gpus: GPUs that wait together.
        interrupted: What was being measured when the examination was interrupted; "" where it came to its end.
        machine: What the host is: processor, memory, system.
        versions: Of Stoker and what it runs on.
        command: How to run it again.
        budget_s: Seconds that were asked for.
        wall_s: Seconds that it took.
        when: The date.
        notes: What a reader should know.
    """

    data: DataFacts
    step: StepFacts | None
    today: str
    paths: tuple[PathResult, ...]
    stages: tuple[StageResult, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    cores: float = 1.0
    num_threads: int = 1
    gpus: tuple[GpuFacts, ...] = ()
    gpu_note: str = ""
    verified: tuple[Verified, ...] = ()
    gpu_hour: float | None = None
    num_gpus: int = 1
    interrupted: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = "stoker doctor"
    budget_s: float = 60.0
    wall_s: float = 0.0
    when: str = ""
    notes: tuple[str, ...] = ()

    def path(self, key: str) -> PathResult | None:
        """Return a path, or None where it did not run."""
        return next((path for path in self.paths if path.key == key), None)

    def stage(self, key: str) -> StageResult | None:
        """Return a stage, or None where it was not measured."""
        return next((stage for stage in self.stages if stage.key == key), None)

    def ceiling(self, key: str) -> float | None:
        """Return what the machine can do, or None where it was not measured."""
        return next((ceiling.value for ceiling in self.ceilings if ceiling.key == key), None)
