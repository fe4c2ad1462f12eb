"""Time and bytes of each stage of the path, added up over all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OnStage = Callable[[str, int, int, int], None]
"""Told of each piece of work: (stage, start_ns, stop_ns, num_bytes), from any thread."""


@dataclass(frozen=True, kw_only=True)
class StageTotal:
    """What a stage has done so far.

    Attributes:
        num_calls: Pieces of work.
        busy_s: Seconds spent on them, added over threads.
        num_bytes: Bytes that went through.
    """

    num_calls: int = 0
    busy_s: float = 0.0
    num_bytes: int = 0


class Stages:
    """Totals by stage. An instance is itself an `OnStage`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, list[int]] = {}

    def __call__(self, stage: str, start_ns: int, stop_ns: int, num_bytes: int) -> None:
        """Add one piece of work."""
        with self._lock:
            total = self._totals.setdefault(stage, [0, 0, 0])
            total[0] += 1
            total[1] += stop_ns - start_ns
            total[2] += num_bytes

    def totals(self) -> dict[str, StageTotal]:
        """Return the totals so far, in the order in which stages first ran."""
        with self._lock:
            return {
                stage: StageTotal(num_calls=calls, busy_s=ns / 1e9, num_bytes=num_bytes)
                for stage, (calls, ns, num_bytes) in self._totals.items()
            }


def ignore_stage(stage: str, start_ns: int, stop_ns: int, num_bytes: int) -> None:
    """Tell nobody."""


@contextmanager
def timed(on_stage: OnStage, stage: str, num_bytes: int = 0) -> Iterator[None]:
    """Tell `on_stage` how long the block took, also when it failed."""
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        on_stage(stage, start_ns, time.perf_counter_ns(), num_bytes)
