"""What the batches are for: an accelerator whose steps take a known time; and what it did when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from stoker.doctor.step import TimedStep
from stoker.fields.spec import Arrays

TimeRange: TypeAlias = tuple[float, float]
"""When something began, and when it ended, in seconds."""


class SimulatedAccelerator:
    """An accelerator that only takes time, in which other threads have the machine; `clock` is as of `TimedStep`."""

    def __init__(self, step_s: float, **clock: Any) -> None:
        self.step_s = step_s
        self._timed = TimedStep(step_s, **clock)
        self._steps: list[TimeRange] = []

    @property
    def description(self) -> str:
        """What it is, for the screen."""
        return f"simulated: each step is {self._timed.text}"

    def step(self, batch: Arrays, /) -> None:
        """Begin a step, and return while it runs: the loop fetches the next batch meanwhile, as with CUDA.

        Blocks: until the step before is nearly done.
        """
        self._timed.begin(batch)
        self._steps.append((self._timed.free_at - self.step_s, self._timed.free_at))

    def finish(self) -> Sequence[TimeRange]:
        """Return when each step since the last call ran, by `time.perf_counter`.

        Blocks: until the last one is done.
        """
        self._timed.finish()
        steps, self._steps = self._steps, []
        return steps


def waited_s(fetches: Sequence[TimeRange], steps: Sequence[TimeRange], *, start: float) -> float:
    """Return how long the accelerator had nothing to do because the loop was waiting for a batch.

        fetches  ──█████──────██──────────    the loop waits for batch 0, batch 1
        steps    ─────────███──────███────    step 0, step 1
                   ▲▲▲▲▲       ▲▲             counted: fetching while no step runs

    The epoch began at `start`, and each step has the batch of the fetch of its place.
    """
    total, free_from = 0.0, start
    for (asked, fetched), (began, ended) in zip(fetches, steps, strict=True):
        total += max(0.0, min(fetched, began) - max(asked, free_from))
        free_from = ended
    return total
