"""What the machine can do, and what happens on it meanwhile: disk, processors, GPUs. Nothing is left behind."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from stoker.host.machine import cores

MEANING = (
    "GPU utilisation is the share of time in which at least one kernel ran, however small: a kernel on one of 132 "
    "multiprocessors counts in full."
)
"""What the figure is, for whoever reads it."""

NO_GPU = "no GPU here"
NO_LIBRARY = (
    "there may be a GPU, but nvidia-ml-py is not installed: pip install 'stoker[gpu]' adds the driver's figures"
)

# Asking torch whether there is a GPU would import it, which takes longer than an experiment.
_DRIVER = Path("/proc/driver/nvidia/version")
_EVERY_S = 0.1
# NVML's names of the reasons that hold a clock down, and what they mean. Idling and being told a clock are no faults.
_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "power limit",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "temperature (driver)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "temperature (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}

_MIB = 1 << 20
_MEMORY = ("tmpfs", "ramfs")
# A look shorter than this says nothing: the system counts idling in hundredths of a second.
_LEAST_S = 0.05
# The system's own work, and what a virtual machine loses to its host, is no neighbour.
_SYSTEMS_SHARE = 0.08


def cores_from_now() -> Callable[[], tuple[float, float]]:
    """Start measuring the use of the processors; the function returned ends it.

    It returns the number of cores that this process and its children kept busy, and the share of all cores that other
    processes took: 0 where the system does not tell.
    """
    begun_s, cpu_s, idle_s = time.perf_counter(), _cpu_s(), _idle_s()

    def tell() -> tuple[float, float]:
        wall_s, idle_now_s = time.perf_counter() - begun_s, _idle_s()
        used = (_cpu_s() - cpu_s) / max(1e-9, wall_s)
        if idle_now_s is None or idle_s is None or wall_s < _LEAST_S:
            return used, 0.0
        others = 1 - (used + (idle_now_s - idle_s) / wall_s) / cores()
        return used, min(1.0, others) if others > _SYSTEMS_SHARE else 0.0

    return tell


def disk(folder: Path, limit_s: float) -> dict[str, float]:
    """Return the pace of the disk that `folder` lies on: bytes/s of "disk_read" and "disk_write".

    Reading is past the page cache where the system lets us, writing until the bytes are on the disk.

    Args:
        folder: A file is written there, and removed.
        limit_s: Seconds for each direction: a slow disk gets a smaller file.
    """
    block = np.random.default_rng(0).integers(0, 256, 4 * _MIB, dtype=np.uint8).data
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stoker-doctor-") as file:
        start, written = time.perf_counter(), 0
        while written < 256 * _MIB and (written == 0 or time.perf_counter() - start < limit_s):
            written += os.write(file.fileno(), block)
            if written % (32 * _MIB) == 0:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
        write_bytes_s = written / (time.perf_counter() - start)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, read = time.perf_counter(), 0
        while read < written and (read == 0 or time.perf_counter() - start < limit_s):
            read += len(os.pread(file.fileno(), 4 * _MIB, read))
        read_bytes_s = read / (time.perf_counter() - start)
    return {"disk_read": read_bytes_s, "disk_write": write_bytes_s}


def _cpu_s() -> float:
    """Return the processor seconds of this process, of its children that have ended, and of those that transform."""
    times, ticks = os.times(), 0
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError):  # it has just ended, or the system does not tell
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + times.children_user + times.children_system + ticks / os.sysconf("SC_CLK_TCK")


def _idle_s() -> float | None:
    """Return how long the processors this process may use have been idle; None where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines if line.split(" ", 1)[0] in ours]
        return sum(int(idle) + int(waiting) for _, _, _, _, idle, waiting, *_ in fields) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def is_memory(folder: Path) -> bool:
    """Return whether the folder lies on tmpfs."""
    mounts = {"/": ""}
    with suppress(OSError):
        mounts = dict(line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    return next(mounts[at] for at in map(str, (folder.resolve(), *folder.resolve().parents)) if at in mounts) in _MEMORY


@contextmanager
def watching_gpus() -> Iterator[dict[str, Any]]:
    """Ask the driver every tenth of a second inside the block, from a thread of its own.

    Yields:
        A dict that is filled when the block is over. "gpus": the figures of `_look` for each GPU, averaged, without
        those that the driver does not give. "gpu_note": why there are none, or what the figures mean.
    """
    nvml: Any = None if importlib.util.find_spec("pynvml") is None else importlib.import_module("pynvml")
    handles = list[Any]()
    found: dict[str, Any] = {"gpu_note": NO_LIBRARY if nvml is None and _DRIVER.exists() else NO_GPU}
    with suppress(Exception):  # no library, no driver, no device, no rights: the library has a class for each
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not handles:
        yield found
        return
    looks, is_over = list[list[dict[str, Any]]](), threading.Event()

    def watch() -> None:
        while True:
            looks.append([_look(nvml, handle) for handle in handles])
            if is_over.wait(_EVERY_S):
                return

    thread = threading.Thread(target=watch, name="stoker-doctor-gpu", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        nvml.nvmlShutdown()
        found |= {"gpus": tuple(_facts(nvml, one) for one in zip(*looks, strict=True)), "gpu_note": MEANING}


def has_cuda() -> bool:
    """Return whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _look(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what the driver tells right now; what it does not tell is left out."""
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3,
        "memory_used_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        "memory_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "throttled": lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }
    found = {}
    for name, ask in questions.items():
        # Not every GPU answers every question, nor does every version of the library know it.
        with suppress(Exception):
            found[name] = ask()
    return found


def _facts(nvml: Any, looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure; of names the first, of reasons all."""
    seen = {name: [look[name] for look in looks if name in look] for name in dict.fromkeys(chain(*looks))}
    name, masks = seen.pop("name", ["a GPU"])[0], seen.pop("throttled", [0])
    held_down = [words for key, words in _REASONS.items() if any(mask & getattr(nvml, key, 0) for mask in masks)]
    figures = {key: statistics.fmean(values) for key, values in seen.items()}
    return {"name": name.decode() if isinstance(name, bytes) else str(name), **figures, "throttled": tuple(held_down)}
