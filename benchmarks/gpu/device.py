"""Time on a device: events on a GPU, the clock on a CPU, so that tests run the same code without one."""

from __future__ import annotations

import time
from typing import Any

import torch


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
