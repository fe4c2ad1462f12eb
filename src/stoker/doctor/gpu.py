"""What the driver says about the GPUs, through nvidia-ml-py where it and a GPU are there."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

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


@contextmanager
def watching_gpus(nvml: Any = None) -> Iterator[dict[str, Any]]:
    """Ask the driver every tenth of a second inside the block, from a thread of its own.

    Args:
        nvml: The module pynvml; None finds it.

    Yields:
        A dict that is filled when the block is over. "gpus": the figures of `_look` for each GPU, averaged, without
        those that the driver does not give. "gpu_note": why there are none, or what the figures mean.
    """
    if nvml is None and importlib.util.find_spec("pynvml") is not None:
        nvml = importlib.import_module("pynvml")
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
