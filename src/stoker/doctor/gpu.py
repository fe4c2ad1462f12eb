"""What the driver says about the GPUs, through nvidia-ml-py where it and a GPU are there; and copies to one."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from stoker.doctor.results import GpuFacts

MEANING = (
    "GPU utilisation is the share of time in which at least one kernel ran, however small: a kernel on one of 132 "
    "multiprocessors counts in full."
)
"""What the figure is, for whoever reads it."""

NO_GPU = "no GPU here"
NO_LIBRARY = "a GPU may be here, but nvidia-ml-py is not: pip install 'stoker[gpu]' shows what its driver says"

# Asking torch would import it, which takes longer than the experiments that it is asked for.
_DRIVER = Path("/proc/driver/nvidia/version")
_EVERY_S = 0.1
_NUM_COPIES = 7
# NVML's names of the reasons that hold a clock down, and what they mean. Idling and being told a clock are no faults.
_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "power limit",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "temperature (driver)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "temperature (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}


class GpuWatch:
    """Asks the driver now and then inside a with block.

    Args:
        nvml: The module pynvml; None finds it.

    Attributes:
        note: Why there are no facts, or what they mean.
    """

    def __init__(self, nvml: Any = None) -> None:
        self.note = NO_GPU
        self._nvml = nvml if nvml is not None else _library()
        self._looks: list[list[dict[str, Any]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask every tenth of a second inside the block, from a thread of its own."""
        nvml = self._nvml
        if nvml is None:
            self.note = NO_LIBRARY if _DRIVER.exists() else NO_GPU
            yield
            return
        try:
            nvml.nvmlInit()
        except Exception:  # no driver, no device, no rights: the library has a class for each
            yield
            return
        is_over = threading.Event()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self.note = MEANING if handles else NO_GPU

        def watch() -> None:
            while True:
                self._looks.append([_look(nvml, handle) for handle in handles])
                if is_over.wait(_EVERY_S):
                    return

        thread = threading.Thread(target=watch, name="stoker-doctor-gpu", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            nvml.nvmlShutdown()

    def facts(self) -> tuple[GpuFacts, ...]:
        """Return what was seen of each GPU, averaged."""
        return tuple(
            _facts([look[i] for look in self._looks]) for i in range(len(self._looks[0]) if self._looks else 0)
        )


def has_cuda() -> bool:
    """Return whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def probe_copy(num_bytes: int) -> tuple[float, float]:
    """Return the bytes a second of copies to the current CUDA device, by its own clock: from pinned and other memory.

    The device reads pinned memory by itself; what lies elsewhere the driver copies there first.

    Args:
        num_bytes: Of a batch.
    """
    import torch

    host = torch.empty(max(1, num_bytes), dtype=torch.uint8)
    device = torch.empty_like(host, device="cuda")

    def rate(source: torch.Tensor) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        device.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return num_bytes / (float(begin.elapsed_time(end)) / 1e3)

    def middle(source: torch.Tensor) -> float:
        return statistics.median([rate(source) for _ in range(_NUM_COPIES)][1:])

    return middle(host.pin_memory()), middle(host)


def _library() -> Any:
    return importlib.import_module("pynvml") if importlib.util.find_spec("pynvml") is not None else None


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
        "reasons": lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }
    found = {}
    for name, ask in questions.items():
        # Not every GPU answers every question, nor does every version of the library know it.
        with suppress(Exception):
            found[name] = ask()
    mask = found.get("reasons", 0)
    return {**found, "throttled": {words for name, words in _REASONS.items() if mask & int(getattr(nvml, name, 0))}}


def _facts(looks: list[dict[str, Any]]) -> GpuFacts:
    def mean(name: str) -> float | None:
        values = [look[name] for look in looks if name in look]
        return sum(values) / len(values) if values else None

    name = next((look["name"] for look in looks if "name" in look), "a GPU")
    figures = [one.name for one in fields(GpuFacts) if one.name not in ("name", "throttled")]
    return GpuFacts(
        name=name.decode() if isinstance(name, bytes) else str(name),
        throttled=tuple(words for words in _REASONS.values() if any(words in look["throttled"] for look in looks)),
        **{figure: mean(figure) for figure in figures},
    )
