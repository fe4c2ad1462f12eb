"""The device's own clock: how long it had nothing to do while the loop waited, without making anybody wait."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

# Marks that wait to be read. A device that is so many samples behind is not waiting for data.
_MAX_PENDING = 64


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """What a device did around some of the steps, by its own clock.

    Attributes:
        num: Steps that were sampled.
        idle_s: Mean time from the end of a step's work to the beginning of the next one's.
        busy_s: Mean time from the beginning of a step's work to its end.
    """

    num: int
    idle_s: float
    busy_s: float

    @property
    def idle_share(self) -> float:
        """Share of the device's time in which it had nothing of a step to do."""
        whole = self.idle_s + self.busy_s
        return self.idle_s / whole if whole > 0 else 0.0


class DeviceSampler:
    """Marks every n-th step on the device and reads the marks when they are past.

        host     ask ──stall── got ──launch── ask
        device   ██ step i ██|░░ idle ░░|██ step i+1 ██|
                          mark        mark          mark

    A device that is behind comes to the first two marks at once: no idle time, however long the host waited.

    Args:
        device: "cuda", "cuda:1", ...
        every: Steps from one sample to the next.

    Raises:
        ValueError: torch sees no such device.
        ImportError: There is no torch.

    Source:
        torch.cuda.Event: `record` returns at once, `query` does not wait, `elapsed_time` is in milliseconds.
    """

    def __init__(self, device: str, *, every: int) -> None:
        self._device, self._cuda = _cuda_device(device)
        self._every = every
        self._count = 0
        self._open: list[Any] = []
        self._pending: deque[list[Any]] = deque()
        self._num = 0
        self._idle_s = self._busy_s = 0.0

    def ask(self) -> None:
        """Note that the loop wants a batch: what it has launched so far is the step."""
        if len(self._open) == 2:
            self._pending.append([*self._open, self._mark()])
            self._open = []
            self._read()
        self._count += 1
        if self._count % self._every == 0 and len(self._pending) < _MAX_PENDING:
            self._open = [self._mark()]

    def got(self) -> None:
        """Note that the batch is there: what is launched from now on is the next step."""
        if len(self._open) == 1:
            self._open.append(self._mark())

    def drop(self) -> None:
        """Forget the sample under way: it is no ordinary step."""
        self._open = []

    def times(self) -> DeviceTimes:
        """Return the means of what the device has come past."""
        self._read()
        num = max(1, self._num)
        return DeviceTimes(num=self._num, idle_s=self._idle_s / num, busy_s=self._busy_s / num)

    def _mark(self) -> Any:
        """Put a mark behind the work launched so far: an event on the current stream."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def _read(self) -> None:
        while self._pending and self._pending[0][2].query():
            ended, begun, done = self._pending.popleft()
            self._idle_s += max(0.0, ended.elapsed_time(begun) / 1e3)
            self._busy_s += max(0.0, begun.elapsed_time(done) / 1e3)
            self._num += 1


def _cuda_device(name: str) -> tuple[Any, Any]:
    """Return a device and `torch.cuda`."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("device= needs torch: pip install 'stoker[torch]'") from error
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is none that torch knows: 'cuda', 'cuda:1', ...") from error
    if device.type != "cuda":
        raise ValueError(f"device must be a CUDA one, not {name!r}; for others pass synchronize=")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {name} here; torch sees {torch.cuda.device_count()} GPUs")
    return device, torch.cuda


def may_be_async() -> bool:
    """Say whether this process uses a framework whose steps may only launch work for later."""
    if "jax" in sys.modules:  # launches at once on every backend, the CPU's included
        return True
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())
