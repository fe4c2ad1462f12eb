"""What the batches are for: an accelerator whose steps take a known time; and what it did when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stoker.fields.spec import Arrays


class TimeRange(NamedTuple):
    """A stretch of time in seconds."""

    start: float
    stop: float


class SimulatedAccelerator:
    """An accelerator that only takes time: a step is a wait, in which other threads have the machine.

        loop    fetch 0 │ fetch 1 ·· wait │ fetch 2 ·· wait
        steps           │█ step 0 ████████│█ step 1 ████████     a fetch shorter than a step costs nothing

    Args:
        step_s: Seconds that a step takes.
        clock: Gives the time in seconds.
        wait: Waits for a number of seconds.
    """

    def __init__(
        self,
        step_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.step_s = step_s
        self._clock = clock
        self._wait = wait
        self._free_at = 0.0
        self._steps: list[TimeRange] = []

    @property
    def description(self) -> str:
        """What it is, for the screen."""
        return f"simulated: each step is a timed wait of {self.step_s * 1e3:.2f} ms"

    def step(self, _: Arrays, /) -> None:
        """Begin a step, and return while it runs: the loop fetches the next batch meanwhile, as with CUDA.

        Blocks: until the step before is done.
        """
        self._wait_until_free()
        # Who comes before the last step has ended begins right behind it, however late a wait returns: the step was
        # in the accelerator's queue. Who comes later begins now.
        self._free_at = max(self._free_at, self._arrived) + self.step_s
        self._steps.append(TimeRange(self._free_at - self.step_s, self._free_at))

    def finish(self) -> Sequence[TimeRange]:
        """Return when each step since the last call ran, by `time.perf_counter`.

        Blocks: until the last one is done.
        """
        self._wait_until_free()
        steps, self._steps = self._steps, []
        return steps

    def _wait_until_free(self) -> None:
        self._arrived = now = self._clock()
        while now < self._free_at:
            self._wait(self._free_at - now)
            now = self._clock()


def waited_s(fetches: Sequence[TimeRange], steps: Sequence[TimeRange], *, start: float) -> float:
    """Return how long the accelerator had nothing to do because the loop was waiting for a batch.

        fetches  ──█████──────██──────────    the loop waits for batch 0, batch 1
        steps    ─────────███──────███────    step 0, step 1
                   ▲▲▲▲▲       ▲▲             counted: fetching while no step runs

    Args:
        fetches: When the loop waited for the batch of each step.
        steps: The steps, in order, as many as fetches.
        start: When the epoch began.
    """
    total = 0.0
    free_from = start
    for fetch, step in zip(fetches, steps, strict=True):
        total += max(0.0, min(fetch.stop, step.start) - max(fetch.start, free_from))
        free_from = step.stop
    return total
