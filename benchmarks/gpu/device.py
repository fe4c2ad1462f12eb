"""Time on a device: events on a GPU, the clock on a CPU, so that tests run the same code without one."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


class Marks:
    """Marks in a device's work, and the seconds between them.

    Args:
        device: Which.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark behind all work that the current stream was given so far."""
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        """Return the seconds between two marks. Blocks: until the device has come to the second."""
        if not self._is_gpu:
            return float(stop - start)
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3


def busy_share(marks: Marks, steps: list[tuple[Any, Any]]) -> float:
    """Return the share of the time from the first step's beginning to the last one's end in which steps ran.

    Args:
        marks: Made them.
        steps: Beginning and end of each.
    """
    busy_s = sum(marks.seconds(start, stop) for start, stop in steps)
    return busy_s / marks.seconds(steps[0][0], steps[-1][1])


def seconds_of(category: str, work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a GPU spends on what belongs to some work, by its profiler; on a CPU, all that it takes.

    Args:
        category: The profiler's name of operations: "gpu_memcpy", "kernel".
        work: What is done.
        device: Where.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(str(path := Path(folder) / "trace.json"))
        events = json.loads(path.read_text())["traceEvents"]
    return float(sum(event["dur"] for event in events if event.get("cat") == category)) / 1e6
