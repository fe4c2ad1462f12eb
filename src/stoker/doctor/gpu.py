"""What the driver says about the GPUs, through nvidia-ml-py where it and a GPU are there; and copies to one."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class CopyCost:
    """Bytes a second to the device.

    Attributes:
        pinned_bytes_s: From memory that the device reads by itself.
        pageable_bytes_s: From ordinary memory, which the driver copies into pinned memory first.
    """

    pinned_bytes_s: float
    pageable_bytes_s: float


def has_cuda() -> bool:
    """Return whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def probe_copy(num_bytes: int) -> CopyCost:
    """Return the pace of copies of one batch to the current CUDA device, by its own clock.

    Args:
        num_bytes: Of a batch.
    """
    import torch

    host = torch.empty(max(1, num_bytes), dtype=torch.uint8)
    pinned = host.pin_memory()
    device = torch.empty_like(host, device="cuda")

    def rate(source: torch.Tensor) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        device.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return num_bytes / (float(begin.elapsed_time(end)) / 1e3)

    pinned_rates = [rate(pinned) for _ in range(_NUM_COPIES)][1:]
    pageable_rates = [rate(host) for _ in range(_NUM_COPIES)][1:]
    return CopyCost(pinned_bytes_s=statistics.median(pinned_rates), pageable_bytes_s=statistics.median(pageable_rates))


def _library() -> Any:
    if importlib.util.find_spec("pynvml") is None:
        return None
    return importlib.import_module("pynvml")


def _look(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what the driver tells right now; what it does not tell is left out."""
    found: dict[str, Any] = {}

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            found[name] = question()
        except Exception:  # not every GPU answers every question, nor every version of the library knows it
            return

    ask("name", lambda: _text(nvml.nvmlDeviceGetName(handle)))
    ask("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    ask("sm_clock_mhz", lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
    ask("max_sm_clock_mhz", lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)))
    ask("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
    ask("power_limit_w", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3)
    ask("memory_used_bytes", lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used))
    ask("memory_bytes", lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).total))
    ask("reasons", lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    ask("throttled", lambda: tuple(_reasons(nvml, found.get("reasons", 0))))
    return found


def _reasons(nvml: Any, mask: int) -> Iterator[str]:
    for name, words in _REASONS.items():
        if mask & int(getattr(nvml, name, 0)):
            yield words


def _facts(looks: list[dict[str, Any]]) -> GpuFacts:
    def mean(name: str) -> float | None:
        values = [look[name] for look in looks if name in look]
        return sum(values) / len(values) if values else None

    throttled = {words for look in looks for words in look.get("throttled", ())}
    return GpuFacts(
        name=next((look["name"] for look in looks if "name" in look), "a GPU"),
        utilisation=mean("utilisation"),
        sm_clock_mhz=mean("sm_clock_mhz"),
        max_sm_clock_mhz=mean("max_sm_clock_mhz"),
        power_w=mean("power_w"),
        power_limit_w=mean("power_limit_w"),
        memory_used_bytes=mean("memory_used_bytes"),
        memory_bytes=mean("memory_bytes"),
        throttled=tuple(words for words in _REASONS.values() if words in throttled),
    )


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
