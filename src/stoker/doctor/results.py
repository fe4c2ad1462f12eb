"""What the doctor found, as numbers: what the terminal, `--json` and the page are made from.

    DoctorResult
    ├── verdict      Verdict      the sentence, the stages it names, how sure, what it costs
    ├── stages       StageResult  each stage alone: supply against demand
    ├── paths        PathResult   the ways a sample can come: from the source, as Arrow on SSD, as tensors on SSD
    ├── fixes        Fix          what each change would give, best first
    ├── ceilings     Ceiling      what the machine can do
    ├── sweep        BatchPoint   larger batches: for the loader, and for the step
    ├── materialise  Materialise  where in the path to keep what was made: GB on SSD, epochs until it pays
    ├── money        Money        what it costs, where a price was given
    ├── gpu          GpuFacts     what the driver says, where there is a GPU
    ├── verified     Verified     the best fix applied, where that was asked for
    └── timeline     Span         one window of today's path, as it was measured

Rates are samples/s, times seconds, sizes bytes. Everything is frozen; `to_json` gives what JSON can write.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

SOURCE, ARROW, TENSORS = "source", "arrow", "tensors"
"""Keys of the paths, in the order of the story."""

MODEL = "step"
"""Key of the stage that eats: the training step."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate as it was measured, with its spread.

    Attributes:
        samples_s: Samples a second, the middle one of the rounds.
        low: Of the slowest round.
        high: Of the fastest round.
        num_rounds: How often it was measured.
    """

    samples_s: float
    low: float
    high: float
    num_rounds: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.samples_s <= self.high:
            raise ValueError(f"a rate lies between its lowest and highest: {self.low}, {self.samples_s}, {self.high}")

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest round, as a share of the rate."""
        return (self.high - self.low) / (2 * self.samples_s) if self.samples_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """A stage alone, at one number of threads.

    Attributes:
        num_threads: How many did it at once.
        samples_s: All of them together.
    """

    num_threads: int
    samples_s: float


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """One stage, alone on this machine.

    Attributes:
        key: "list", "fetch", "decode", "transform", "convert", "publish", "read", "open", "gather", "copy", "step".
        name: As people read it.
        paths: Keys of the paths that it is part of.
        supply: What it can give with the machine to itself.
        headroom: Supply over demand; None without a step. Below 1 it starves the step by itself.
        cpu_s: Processor seconds a sample.
        gil_s: Of these, with the GIL held.
        wait_s: Seconds a sample that one thread waits for a network or a disk.
        size_bytes: Bytes a sample that it gives.
        threads: The same at several numbers of threads; empty where it makes no sense.
        note: What a reader should know.
    """

    key: str
    name: str
    paths: tuple[str, ...]
    supply: Rate
    headroom: float | None
    cpu_s: float = 0.0
    gil_s: float = 0.0
    wait_s: float = 0.0
    size_bytes: float = 0.0
    threads: tuple[Concurrency, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What one resource allows on one path: capacity over what a sample takes of it.

    Attributes:
        resource: "network", "latency", "cores", "gil", "disk", "memory", "pcie", "loop", "step".
        name: As people read it.
        samples_s: The bound.
        stages: Stages that use it, the one that takes most first.
    """

    resource: str
    name: str
    samples_s: float
    stages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Part of the time between two steps.

    Attributes:
        key: Key of the stage that is waited for; "step" for the step itself.
        name: As people read it.
        seconds: Of each step. All parts together are the time between two steps.
    """

    key: str
    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PathResult:
    """One way that samples can take to the step.

    Attributes:
        key: "source", "arrow" or "tensors".
        name: As people read it: "Arrow on SSD".
        is_today: Whether it is the way the user's samples take now.
        supply_s: Samples/s that it can give with nobody to wait for: the tightest bound but the step.
        predicted_s: Samples/s with the step, as the model says.
        measured: Samples/s with the step (without one: of the loader alone), where that was run.
        limit: Key of the stage that limits it; "step" where the model does.
        next_limit: Key of the stage that would limit it once `limit` is mended; "" where none.
        bounds: What each resource allows, tightest first.
        busy: Share of the time in which the step runs; None without a step.
        step_parts: Where the time between two steps goes; empty without a step.
        epoch_s: Seconds an epoch.
        cpu_s: Processor seconds a sample.
        disk_bytes: Bytes on SSD, of the whole data set.
    """

    key: str
    name: str
    is_today: bool
    supply_s: float
    predicted_s: float
    measured: Rate | None
    limit: str
    next_limit: str
    bounds: tuple[Bound, ...]
    busy: float | None
    step_parts: tuple[StepPart, ...]
    epoch_s: float
    cpu_s: float = 0.0
    disk_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong, in words.

    Attributes:
        sentence: Which stage, how sure, what it costs: one sentence.
        stages: Keys of the stages it names, the tightest first: two where two causes are near each other or one hides
            the other; ("step",) where the model is the limit.
        sureness: 0 to 1: how far the measurements' spread lets one be sure of the first stage.
        sure: The same in a word: "certain", "likely", "a guess".
        lost_share: Share of the step's time that is lost; None without a step.
        then: What limits once that is mended, as a sentence; "" where there is nothing to mend.
        story: Today, with Arrow on SSD, with tensors on SSD: a line each.
        notes: What a reader should know.
    """

    sentence: str
    stages: tuple[str, ...]
    sureness: float
    sure: str
    lost_share: float | None
    then: str = ""
    story: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What one change would give.

    Attributes:
        key: "threads", "cores", "processes", "arrow", "tensors", "columns", "share", "batch", "prefetch", ...
        text: What to do, as a short order: "keep tensors on SSD".
        how: What to write or type for it.
        predicted_s: Samples/s afterwards, with the step.
        times: That over today's.
        limit: Key of the stage that limits afterwards.
        busy: Share of the time in which the step runs afterwards; None without a step.
        measured: Where it was tried, what came out.
    """

    key: str
    text: str
    how: str
    predicted_s: float
    times: float
    limit: str
    busy: float | None
    measured: Rate | None = None


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What the machine can do, measured in this run.

    Attributes:
        key: "network", "latency", "disk_read", "disk_write", "cores", "memory", "pcie_pinned", "pcie_pageable".
        name: As people read it.
        value: The figure.
        unit: "bytes/s", "s" or "cores".
        used: Share of it that today's path takes at its rate; None where that makes no sense.
        note: How it was measured, or what a reader should know.
    """

    key: str
    name: str
    value: float
    unit: str
    used: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class BatchPoint:
    """One batch size.

    Attributes:
        batch_size: Samples.
        loader_s: Samples/s of the warm loader.
        step_s: Samples/s of the step; None without a step, or where its time was given rather than measured.
    """

    batch_size: int
    loader_s: float
    step_s: float | None


@dataclass(frozen=True, kw_only=True)
class BatchSweep:
    """Where larger batches stop paying.

    Attributes:
        points: By batch size.
        loader_knee: The smallest batch at which the loader gives nearly all it can.
        step_knee: The same for the step; None where it was not measured.
    """

    points: tuple[BatchPoint, ...]
    loader_knee: int
    step_knee: int | None


@dataclass(frozen=True, kw_only=True)
class Materialise:
    """Keeping what was made at one place of the path.

    Attributes:
        key: "arrow" or "tensors".
        name: As people read it.
        disk_bytes: On SSD, for the whole data set.
        extra_s: Seconds that the first epoch takes more for writing it.
        saved_s: Seconds that each later epoch takes less.
        pays_after: Epochs after which it has paid for itself; None where it never does.
    """

    key: str
    name: str
    disk_bytes: float
    extra_s: float
    saved_s: float
    pays_after: int | None


@dataclass(frozen=True, kw_only=True)
class MoneyPart:
    """What a stage's share of an epoch costs."""

    key: str
    name: str
    cost: float


@dataclass(frozen=True, kw_only=True)
class Money:
    """What today's path costs.

    Attributes:
        gpu_hour: Price of an hour, in whatever currency it was given.
        num_gpus: GPUs that wait together.
        epoch: An epoch.
        stalls: Of that, the time in which the step waits.
        parts: The whole of it by stage; the step's own is what training itself costs.
        best_fix: An epoch after the best fix.
    """

    gpu_hour: float
    num_gpus: int
    epoch: float
    stalls: float
    parts: tuple[MoneyPart, ...]
    best_fix: float


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What the driver says about one GPU while the frozen batch was trained.

    Attributes:
        name: Of the GPU.
        utilisation: Share of the time in which at least one kernel ran. A kernel on one SM of 132 counts as well.
        sm_activity: Share of the SMs that were at work, averaged; None where the driver does not tell.
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
    sm_activity: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_used_bytes: float | None
    memory_bytes: float | None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A fix that was applied, beside what had been predicted.

    Attributes:
        fix: Key of the fix.
        text: What was done.
        predicted_s: Samples/s predicted.
        measured: Samples/s measured.
    """

    fix: str
    text: str
    predicted_s: float
    measured: Rate

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured.samples_s - 1


@dataclass(frozen=True, kw_only=True)
class RunSpan:
    """A piece of work in the run of today's path.

    Attributes:
        track: "build 3", "assemble 1", "loop", "step".
        stage: Key of the stage; "wait" where the loop waits for a batch.
        start_s: From the beginning of what is shown.
        stop_s: The same.
    """

    track: str
    stage: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What the doctor knows of the training step.

    Attributes:
        text: As people read it: "train.py:step, a real function", "a timed wait of 10.00 ms".
        batch_size: Samples a step.
        step_s: Seconds of a step on a batch that is there already: the frozen batch.
        demand: Samples/s that it could eat.
        is_given: Whether the time was given rather than measured.
        host_s: Of it, seconds in which the loop's thread is not free to fetch the next batch.
        cpu_s: Processor seconds of a step.
    """

    text: str
    batch_size: int
    step_s: float
    demand: Rate
    is_given: bool
    host_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What was looked at.

    Attributes:
        text: The data set as people read it.
        num_samples: Of the whole of it.
        num_files: Its files.
        num_chunks: Its chunks.
        num_probed: Chunks that the experiments read.
        source_bytes: Bytes a sample as they lie at the source, of the columns that are read.
        arrow_bytes: Bytes a sample as Arrow.
        tensor_bytes: Bytes a sample as a finished record with its lists.
        is_remote: Whether it lies behind a network.
        repeated_share: Share of the tensors' bytes that only repeats the sample before; None where not measured.
        repeated_columns: Columns that stay the same in runs of samples.
        widest_column: The column with most bytes at the source; "" where unknown.
        widest_share: Its share of those bytes.
    """

    text: str
    num_samples: int
    num_files: int
    num_chunks: int
    num_probed: int
    source_bytes: float
    arrow_bytes: float
    tensor_bytes: float
    is_remote: bool
    repeated_share: float | None = None
    repeated_columns: tuple[str, ...] = ()
    widest_column: str = ""
    widest_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """All that the doctor found; see the module's drawing.

    Attributes:
        data: What was looked at.
        step: The training step; None where none was given: then there is supply, and no demand.
        verdict: What is wrong.
        stages: Each stage alone, in the order of the path.
        paths: The ways samples can take, in the order of the story.
        ram: Samples/s with all batches in RAM, with the step: what no data path can beat; None without a step.
        fixes: Best first; empty where there is nothing to gain.
        ceilings: Of the machine.
        sweep: Larger batches; None where it was not measured.
        materialise: Where in the path to keep what was made.
        money: None without a price.
        gpus: What the driver says.
        gpu_note: Why there is nothing about a GPU, or what its figures mean.
        verified: The best fix applied; None where not asked for.
        timeline: One window of today's path, as it was measured.
        machine: What it ran on: processor, cores, memory, system. Names no host and no user.
        versions: Version of each part.
        command: How to do it again.
        budget_s: Time it was given.
        wall_s: Time it took.
        when: Date of the run, ISO.
        notes: What a reader should know beside the numbers.
        tried: Every fix that was applied, where all were asked for.
    """

    data: DataFacts
    step: StepFacts | None
    verdict: Verdict
    stages: tuple[StageResult, ...]
    paths: tuple[PathResult, ...]
    ram: Rate | None
    fixes: tuple[Fix, ...]
    ceilings: tuple[Ceiling, ...]
    sweep: BatchSweep | None
    materialise: tuple[Materialise, ...]
    money: Money | None
    gpus: tuple[GpuFacts, ...]
    gpu_note: str
    verified: Verified | None
    timeline: tuple[RunSpan, ...]
    machine: dict[str, str]
    versions: dict[str, str]
    command: str
    budget_s: float
    wall_s: float
    when: str
    notes: tuple[str, ...] = field(default=())
    tried: tuple[Verified, ...] = field(default=())

    @property
    def today(self) -> PathResult:
        """The path that the user's samples take now."""
        return next(path for path in self.paths if path.is_today)

    def stage(self, key: str) -> StageResult | None:
        """Return one stage, None where it was not measured."""
        return next((stage for stage in self.stages if stage.key == key), None)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON can write it, the figures that are worked out included."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.verified is not None:
            data["verified"]["error"] = self.verified.error
        return data
