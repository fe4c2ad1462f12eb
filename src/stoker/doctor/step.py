"""The training step: a function of the user's, or only the time that it takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

# A step is tried this long before it counts: the first ones compile, allocate and fill caches.
_WARM_S = 0.3
_MIN_WARM = 2
# Work that a device may have queued when it is handed more. A shorter wait takes longer than it was asked to.
_QUEUE_S = 0.3e-3


class Step(Protocol):
    """Something that trains on batches."""

    @property
    def text(self) -> str:
        """What it is, for people."""
        ...

    @property
    def given_s(self) -> float | None:
        """Seconds a step, where they were given and need no measuring."""
        ...

    def begin(self, batch: Any, /) -> None:
        """Train on a batch; may return while the device still works on it.

        Blocks: until the device takes it.
        """
        ...

    def finish(self) -> None:
        """Wait until the device has done all it was given."""
        ...


class TimedStep:
    """A step that only takes time, as a device's does: the loop fetches the next batch meanwhile.

        loop     fetch 0 │ fetch 1 ·· wait │ fetch 2
        device           │█ step 0 ████████│█ step 1 ██     a fetch shorter than a step costs nothing

    Args:
        step_s: Seconds a step.
        clock: Gives the time in seconds.
        wait: Waits for a number of seconds.

    Raises:
        ValueError: The time is not above 0.
    """

    def __init__(
        self,
        step_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        if not step_s > 0:
            raise ValueError(f"a step must take some time, not {step_s} s")
        self.step_s = step_s
        self._clock = clock
        self._wait = wait
        self._free_at = 0.0

    @property
    def text(self) -> str:
        """What it is."""
        return f"a timed wait of {self.step_s * 1e3:.4g} ms"

    @property
    def given_s(self) -> float | None:
        """Seconds a step."""
        return self.step_s

    def begin(self, _: Any, /) -> None:
        """Begin a step, behind the one before."""
        arrived = self._clock()
        self._wait_until(_QUEUE_S)
        # Who comes before the last step has ended begins right behind it, however late a wait returns.
        self._free_at = max(self._free_at, arrived) + self.step_s

    def finish(self) -> None:
        """Wait for the last step's end."""
        self._wait_until(0.0)

    def _wait_until(self, left_s: float) -> None:
        """Wait until no more than `left_s` of the steps begun so far is still to come."""
        now = self._clock()
        while now < self._free_at - left_s:
            self._wait(self._free_at - left_s - now)
            now = self._clock()


class FunctionStep:
    """A step that is the user's function of a batch.

    Args:
        function: Called with a batch.
        name: What the user called it.
    """

    given_s: float | None = None

    def __init__(self, function: Callable[[Any], object], *, name: str) -> None:
        self._function = function
        self._name = name

    @property
    def text(self) -> str:
        """What it is."""
        return self._name

    def begin(self, batch: Any, /) -> None:
        """Call the function."""
        self._function(batch)

    def finish(self) -> None:
        """Wait for what torch's device still does, if the step has brought torch and a device along."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.synchronize()


def warm_up_step(step: Step, batch: Any) -> None:
    """Call a step until it has compiled and allocated what it does once."""
    if step.given_s is not None:
        return
    start = time.perf_counter()
    num = 0
    while num < _MIN_WARM or time.perf_counter() - start < _WARM_S:
        step.begin(batch)
        num += 1
    step.finish()
