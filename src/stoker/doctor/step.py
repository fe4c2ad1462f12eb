"""The training step: a function of the user's, or only the time that it takes."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from stoker.errors import StokerError

# Seconds of work that the device may still have queued when it takes the next step: shorter sleeps overrun.
_QUEUE_S = 0.3e-3


class StepError(StokerError):
    """The user's step raised; the message is one line that names the place in the user's own code."""


class TimedStep:
    """A step that only takes time, as a device's does: the loop fetches the next batch meanwhile.

        loop     fetch 0 │ fetch 1 ·· wait │ fetch 2
        device           │█ step 0 ████████│█ step 1 ██     a fetch shorter than a step costs nothing

    Raises:
        ValueError: The time is not above 0.
    """

    is_given = True

    def __init__(
        self,
        step_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        if not step_s > 0:
            raise ValueError(f"a step must take some time, not {step_s} s")
        self.step_s, self.free_at = step_s, 0.0
        self._clock, self._wait = clock, wait

    @property
    def text(self) -> str:
        """What it is."""
        return f"a timed wait of {self.step_s * 1e3:.4g} ms"

    def begin(self, _: Any, /) -> None:
        """Begin a step, behind the one before.

        Blocks: until the device takes it.
        """
        arrived = self._clock()
        self._wait_until(_QUEUE_S)
        # A batch that arrives before the last step has ended begins right after it, however late the wait returns.
        self.free_at = max(self.free_at, arrived) + self.step_s

    def finish(self) -> None:
        """Wait for the last step's end."""
        self._wait_until(0.0)

    def scaled(self, times: float, /) -> TimedStep:
        """Return a step of the same time per sample: the time of another batch size is not known better."""
        return TimedStep(self.step_s * times)

    def _wait_until(self, left_s: float) -> None:
        """Wait until no more than `left_s` of the steps begun so far is still to come."""
        while (now := self._clock()) < self.free_at - left_s:
            self._wait(self.free_at - left_s - now)


class FunctionStep:
    """A step that is the user's function of a batch, by the name that the user gave it.

    Raises:
        StepError: From `begin` and `finish`: the function, or the device it gave work to, raised.
    """

    is_given = False

    def __init__(self, function: Callable[[Any], object], *, name: str) -> None:
        self._function = function
        self.text = name

    @property
    def takes_tensors(self) -> bool:
        """Whether the function's module uses torch: then it is given tensors unless told otherwise."""
        torch, function = sys.modules.get("torch"), self._function
        if torch is None:
            return False
        used = getattr(function, "__globals__", None) or getattr(type(function).__call__, "__globals__", {})
        return any(
            value is torch or (getattr(value, "__module__", None) or "").split(".")[0] == "torch"
            for value in used.values()
        )

    def begin(self, batch: Any, /) -> None:
        """Call the function."""
        try:
            self._function(batch)
        except Exception as error:
            raise StepError(f"the step {self.text} failed: {_told(error, self._function)}") from error

    def finish(self) -> None:
        """Wait for the CUDA device, if the process uses torch and has one."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise StepError(f"the step {self.text} failed on the device: {_one_line(error)}") from error

    def scaled(self, _: float, /) -> FunctionStep:
        """Return the same function: it sees how large a batch is."""
        return self


Step: TypeAlias = TimedStep | FunctionStep
"""Something that trains on batches."""


def num_samples_of(batch: Any) -> int:
    """Return the samples of a batch of arrays or tensors."""
    if not isinstance(batch, dict) or not batch:
        return 0
    return len(next(iter(batch.values())))


def _told(error: Exception, function: Callable[..., object]) -> str:
    """Return an error on one line, with the frame of the user's own code that is nearest to it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is ours
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file] or [
        frame for frame in frames if "site-packages" not in frame.filename
    ]
    at = f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {_one_line(error)}{at}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
