"""What the doctor measured, as numbers; the verdict, the screen, `--json` and the page are functions of them.

    Measurements
    ├── data         DataFacts     what was looked at
    ├── paths        PathResult    each way a sample can come, run whole with the step behind it
    ├── stages       StageResult   each stage alone: what explains a path's rate
    ├── ceilings                   what the machine can do
    └── gpus                       what the driver says, where there is a GPU

Rates are samples/s, times seconds, sizes bytes. Everything is frozen.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SOURCE, TENSORS, ARROW = "source", "tensors", "arrow"
"""Ways that samples can take: from the source, as tensors on SSD, as Arrow on SSD."""
RAM, SHARED, SUPPLY = "ram", "shared", "supply"
"""What they are compared with: batches in RAM; the same with a loader at work beside it; today's without a step."""
THREADS, PROCESSES, COLUMNS, DEDUPLICATED, LARGER = "threads", "processes", "columns", "deduplicated", "batch"
"""Today's path with one thing changed."""

MODEL = "step"
"""Key of the stage that eats: the training step."""
UNKNOWN = ""
"""Key of what limits where no figure tells."""

STAGE_NAMES = {
    "fetch": "fetch",
    "decode": "decoding Parquet",
    "transform": "the transform",
    "convert": "converting to arrays",
    "publish": "packing and publishing",
    "open": "reading chunks from SSD",
    "gather": "gathering batches",
    "batch": "the fixed work of each batch",
    "augment": "augmenting",
    "copy": "copying to the GPU",
    "draw": "drawing rows in Arrow",
    "dequeue": "turning Arrow into arrays",
    "skew": "skewed chunk sizes",
    MODEL: "the model",
    UNKNOWN: "the data path",
}
"""Stages as people read them."""

BUILD_STAGES = ("fetch", "decode", "transform", "convert", "publish")
"""What a chunk goes through when it is built."""

# Two measurements of the same thing on a quiet machine, and what one repeat alone may be off. Two that agree may do so
# by chance: half of that.
_LEAST_DOUBT, _ALONE = 0.01, 0.15
LEAST_ROUNDS = 3
"""Repeats from which on a rate is no matter of chance."""
SETTLED = 0.025
"""A rate that is in more doubt than this is no figure to promise: a range is promised in its place."""


@dataclass(frozen=True, kw_only=True)
class PathRun:
    """What a run of one path gave.

    Attributes:
        rates: Samples/s: of its slower part, of all of it, of its faster part; empty where too little came to tell.
        stall: Share of the loop's time in which it waited for a batch.
        cores_used: Processors that this process kept busy.
        others: Share of all processors that others took.
        stages: Seconds that threads spent in each stage, a sample.
        build_share: Share of the threads that build that did while the loop waited.
        num_builders: Threads that built.
    """

    rates: tuple[float, ...] = ()
    stall: float = 0.0
    cores_used: float = 0.0
    others: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    build_share: float = 0.0
    num_builders: int = 0

    @property
    def samples_s(self) -> float:
        """Samples/s that came, the middle one of its rates; 0 where too little came to tell."""
        return statistics.median(self.rates) if self.rates else 0.0


@dataclass(frozen=True, kw_only=True)
class PathResult(PathRun):
    """One way that samples can come, measured whole, in alternating repeats with all other paths.

    Its `rates` are those of its repeats, or of the parts of the only one.

    Attributes:
        key: See the constants above.
        name: As people read it.
        how: The line of code or the command that makes it so; "" where there is none.
        num_rounds: How often it was run.
        batch_size: Samples a batch.
        has_step: Whether the step was behind it.
        disk_s: Samples/s that the disk allows where memory cannot hold the data set, which the sample cannot show;
            None where it can.
        came_s: Samples/s when it was run once more at the end; None where it was not.
    """

    key: str
    name: str
    how: str = ""
    num_rounds: int = 1
    batch_size: int
    has_step: bool = True
    disk_s: float | None = None
    came_s: float | None = None

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest repeat, as a share of the rate."""
        return (max(self.rates) - min(self.rates)) / (2 * self.samples_s) if self.samples_s else 0.0

    @property
    def doubt(self) -> float:
        """How far the rate may be off, as a share: by its spread, by what others took, by chance of few repeats."""
        too_few = _ALONE / self.num_rounds if self.num_rounds < LEAST_ROUNDS else 0.0
        return max(_LEAST_DOUBT, self.spread) + self.others / 4 + too_few

    @property
    def is_disk_bound(self) -> bool:
        """Whether the disk, which was not in the run, allows less than came."""
        return self.disk_s is not None and self.disk_s < self.samples_s

    @property
    def rate_s(self) -> float:
        """Samples/s to reckon with: as measured, or what a disk allows that was not in it."""
        return self.samples_s if self.disk_s is None else min(self.samples_s, self.disk_s)

    @property
    def promised(self) -> tuple[float, float]:
        """From and to how many samples/s are to be expected of it: one figure where its repeats agree."""
        if self.doubt <= SETTLED or self.is_disk_bound:
            return self.rate_s, self.rate_s
        beyond = min(0.9, self.doubt - self.spread / 2)  # what a few repeats have not shown
        return min(self.rates) * (1 - beyond), max(self.rates) * (1 + beyond)

    @property
    def error(self) -> float:
        """What was promised over what came when it was run once more, minus one; 0 where it was not."""
        least_s, most_s = self.promised
        return min(max(self.came_s, least_s), most_s) / self.came_s - 1 if self.came_s else 0.0


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """One stage of building alone: its threads' time in a run whose bytes were in memory, or its reads by themselves.

    Attributes:
        key: See `STAGE_NAMES`.
        supply_s: Samples/s that all threads of it would give if they did nothing else.
        seconds: Of one thread, a sample.
        is_locked: Whether more threads give no more of it, though cores are free: they wait for the interpreter's lock.
        waits: Whether its thread waited for something else for most of it.
    """

    key: str
    supply_s: float
    seconds: float = 0.0
    is_locked: bool = False
    waits: bool = False


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
        repeated_share: Share of the bytes that keeping repeated features once would save.
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
        step: The training step as people read it: "train.py:step", "a timed wait of 10 ms"; "" where none was given.
        is_given: Whether the step's time was given rather than measured.
        batch_size: Samples a step.
        today: Key of the path that samples take now: SOURCE or TENSORS.
        paths: Those that ran, today's first.
        stages: Of building, in their order; empty where today's path builds nothing.
        ceilings: What the machine can do, measured in this run: bytes/s of "network", "connection" (one read alone),
            "disk_read", "disk_write", and seconds of "latency".
        cores: Processors that this process may use.
        num_threads: As the loader has it.
        gpus: What the driver says of each GPU, see `watching_gpus`; empty without one.
        gpu_note: Why there is none, or what its figures mean.
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
    step: str = ""
    is_given: bool = False
    batch_size: int = 1
    today: str
    paths: tuple[PathResult, ...]
    stages: tuple[StageResult, ...] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict)
    cores: float = 1.0
    num_threads: int = 1
    gpus: tuple[Mapping[str, Any], ...] = ()
    gpu_note: str = ""
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
