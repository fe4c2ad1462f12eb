"""Settings of an examination, and the time that it has left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.doctor.machine import disk
from stoker.doctor.step import Step
from stoker.fields.spec import Arrays
from stoker.host.machine import free_memory_bytes, num_cores
from stoker.loader.loader import Loader

BATCH_SIZE = 4_096
BUDGET_S = 60.0
LEAST_S = 0.15
"""Nothing is measured for less: it would say nothing."""


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """How to examine a data set.

    Args:
        step: The training step; None reports supply alone, and what demand it can carry.
        batch_size: Samples a step.
        num_threads: As the loader has it.
        transform_in: As the loader has it.
        cache: The cache that training uses: where it holds the data set, the path of today is the warm one.
        scratch: Folder for what the experiments write, on the disk that training would use; None: beside the cache, or
            the temporary folder without one.
        device: What batches lie on: None for NumPy arrays, else tensors on "cpu", "cuda", "cuda:1", ...
        make_loader: Called with a data set and the options of `stoker.Loader`; returns a loader of batches on `device`.
        deliver: Turns a batch of arrays into one on `device`, for paths without a loader.
        budget_s: Seconds for all experiments.
        verify: How many of the best fixes to run once more at the end.
        gpu_hour: Price of an hour of one GPU.
        num_gpus: GPUs that wait together.
        disk: Measures the disk that a folder lies on, in so many seconds each way; see `machine.disk`.
        free_memory_bytes: Returns the free memory; a data set that needs more of it is read from disk in each epoch.
        on_progress: Called with what is measured now, and the share of the budget that is used.
        command: The command that repeats the examination.

    Raises:
        ValueError: A number is out of range.
    """

    step: Step | None = None
    batch_size: int = BATCH_SIZE
    num_threads: int = field(default_factory=num_cores)
    transform_in: Literal["threads", "processes"] = "threads"
    cache: Path | None = None
    scratch: Path | None = None
    device: str | None = None
    make_loader: Callable[..., Loader] = Loader
    deliver: Callable[[Arrays], Any] = lambda arrays: arrays
    budget_s: float = BUDGET_S
    verify: int = 0
    gpu_hour: float | None = None
    num_gpus: int = 1
    disk: Callable[[Path, float], dict[str, float]] = disk
    free_memory_bytes: Callable[[], int] = free_memory_bytes
    on_progress: Callable[[str, float], object] = lambda _what, _share: None
    command: str = "stoker doctor"

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_threads", "num_gpus"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.budget_s >= 1:
            raise ValueError(f"a budget of {self.budget_s} s is too little for any experiment: give 1 s at least")
        if self.gpu_hour is not None and not self.gpu_hour >= 0:
            raise ValueError(f"gpu_hour is a price, not {self.gpu_hour}")


class Budget:
    """The seconds that experiments may take, and what is being measured in them.

    Attributes:
        doing: What is being measured.
        begun_s: When the experiments began, by `time.perf_counter`.
    """

    def __init__(self, settings: DoctorSettings) -> None:
        self._total_s, self._tell = settings.budget_s, settings.on_progress
        self.doing, self.begun_s = "", time.perf_counter()

    def say(self, doing: str) -> None:
        """Say what is being measured now."""
        self.doing = doing
        self._tell(doing, min(1.0, max(0.0, 1 - self.left_s() / self._total_s)))

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until so large a share of them is gone."""
        return self.begun_s + share * self._total_s - time.perf_counter()

    def slice_s(self, share: float) -> float:
        """Return the seconds of a share of the budget: less where time runs out."""
        return max(LEAST_S, min(share * self._total_s, 0.5 * self.left_s()))
