"""What the doctor may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from stoker.doctor import probe_machine
from stoker.doctor.probe_machine import Disk
from stoker.doctor.step import Step
from stoker.host.machine import free_memory_bytes, num_cores
from stoker.loader.loader import Loader

BATCH_SIZE = 4_096
BUDGET_S = 60.0


MakeLoader: TypeAlias = Callable[..., Loader]
"""Makes a loader of a data set and the options of `stoker.Loader`: that one, or one whose batches are tensors."""


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """How to examine a data set.

    Args:
        step: The training step; None reports supply alone, and what demand it can carry.
        batch_size: Samples a step.
        num_threads: As the loader has it.
        transform_in: As the loader has it.
        prefetch: As the loader has it.
        cache: The cache that training uses: where it holds the data set, the path of today is the warm one.
        scratch: Folder for what the experiments write, on the disk whose pace counts; beside the cache unless told.
        budget_s: Seconds for all experiments.
        verify: Whether the best fix is applied for a short run.
        verify_all: Whether every fix that can be applied here is, and today's path beside them.
        gpu_hour: Price of an hour of one GPU.
        num_gpus: GPUs that wait together.
        disk: Measures the disk that a folder lies on, in so many seconds each way.
        free_memory_bytes: Says how much memory is free: what takes more of it comes from the disk in each epoch.
        make_loader: Makes the loaders that are measured.
        is_on_device: Whether their batches are copied to a GPU.
        on_progress: Told what is measured now, and which share of the budget is gone.
        command: How a reader runs the same again.

    Raises:
        ValueError: A number is out of range.
    """

    step: Step | None = None
    batch_size: int = BATCH_SIZE
    num_threads: int = field(default_factory=num_cores)
    transform_in: Literal["threads", "processes"] = "threads"
    prefetch: int = 12
    cache: Path | None = None
    scratch: Path | None = None
    budget_s: float = BUDGET_S
    verify: bool = False
    verify_all: bool = False
    gpu_hour: float | None = None
    num_gpus: int = 1
    disk: Callable[[Path, float], Disk] = lambda folder, limit_s: probe_machine.disk(folder, limit_s=limit_s)
    free_memory_bytes: Callable[[], int] = free_memory_bytes
    make_loader: MakeLoader = Loader
    is_on_device: bool = False
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
