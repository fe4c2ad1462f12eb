"""A real model on a real GPU, in place of the simulated accelerator. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from torch import nn

from stoker.demo.accelerator import TimeRange
from stoker.demo.ways import BATCH_SIZE
from stoker.fields.spec import Array, Arrays, Ragged

_WIDTH = 2_048
_MAX_DEPTH = 4_096
_INPUTS = {"dense": 40, "context": 6, "query_embedding": 64}


class CudaAccelerator:
    """An MLP that trains on the batches, as deep as a step of so many seconds needs; `step_s` is what one then takes.

    The copy to the GPU is the loop's, from ordinary memory, and the same for every way.
    """

    def __init__(self, step_s: float) -> None:
        self._device = torch.device("cuda")
        self._steps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began: torch.cuda.Event
        self._began_at: float
        batch: dict[str, Array] = {name: np.zeros((BATCH_SIZE, k), dtype=np.float32) for name, k in _INPUTS.items()}
        batch["label"] = np.zeros(BATCH_SIZE, dtype=np.uint8)
        self._make(depth=4)
        shallow_s = self._time(batch)
        self._make(depth=min(_MAX_DEPTH, max(1, round(4 * step_s / shallow_s))))
        self.step_s = self._time(batch)

    @property
    def description(self) -> str:
        """What it is, for the screen."""
        name = torch.cuda.get_device_name(self._device)
        return f"{name}: an MLP of {self._depth} layers trains, {self.step_s * 1e3:.2f} ms a step"

    def step(self, batch: Arrays) -> None:
        """Copy the batch to the GPU and begin a training step on it."""
        inputs = torch.cat([self._on_device(batch[name]) for name in _INPUTS], dim=1)
        label = self._on_device(batch["label"]).float()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        self._optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self._model(inputs).squeeze(1), label)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        stop.record()
        if self._steps:
            # One step in the making, one running: a loop further ahead would only fill the GPU's queue.
            self._steps[-1][1].synchronize()
        self._steps.append((start, stop))

    def finish(self) -> Sequence[TimeRange]:
        """Return when the steps since the last call ran, by the GPU's own clock set to the host's."""
        torch.cuda.synchronize()
        began_at, began = self._began_at, self._began
        times = [
            (began_at + began.elapsed_time(start) / 1e3, began_at + began.elapsed_time(stop) / 1e3)
            for start, stop in self._steps
        ]
        self._steps = []
        self._began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._began.record()
        torch.cuda.synchronize()
        self._began_at = time.perf_counter()
        return times

    def _make(self, depth: int) -> None:
        torch.manual_seed(0)
        hidden = [module for _ in range(depth) for module in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
        model = nn.Sequential(nn.Linear(sum(_INPUTS.values()), _WIDTH), nn.ReLU(), *hidden, nn.Linear(_WIDTH, 1))
        self._depth = depth + 2
        self._model = model.to(self._device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)

    def _time(self, batch: dict[str, Array]) -> float:
        """Return the seconds of a step once the GPU is warm."""
        for num_steps in (5, 20):
            self.finish()
            for _ in range(num_steps):
                self.step(dict(batch))
        return median(stop - start for start, stop in self.finish())

    def _on_device(self, array: Array | Ragged) -> torch.Tensor:
        assert not isinstance(array, Ragged)
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
