"""Bytes that come to a device: in one copy a batch, and from chunks that stay there.

How fast the device does its part decides what a step has to share with it; how fast whole epochs come is what the host
can do. Both are told.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import Marks, seconds_of
from benchmarks.measure import Answer, compare, sized
from benchmarks.warm_gather import BATCH_SIZE, STACKED
from stoker import Dataset
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names
from stoker.torch import TorchLoader
from stoker.torch.cuda import ResidentRows

COPY_BYTES = sized(256 << 20, small=1 << 20)
# Of what lies on the device. An epoch of few batches is over in milliseconds, so several are made.
LARGE_BATCH_SIZE, NUM_EPOCHS = 65_536, 8
_RAGGED = ("country", "clicked_items", "viewed_categories")


def run_copy(data: DemoData, folder: Path, *, device: torch.device, num_rounds: int) -> Answer:
    """Batches that cross in one copy each, or several in one, against large copies from pinned memory."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    with TorchLoader(dataset(data), device=device, **options(folder)) as loader:
        epochs = _Epochs(loader, device, category="gpu_memcpy")
        return compare(
            "copies to the device / pinned copies of large blocks",
            ours=epochs.rate,
            ceiling=lambda: copied(target, source, device),
            unit="GB/s while a copy runs",
            num_rounds=num_rounds,
            promise=0.9,
            remarks=lambda: (
                f"batches of {BATCH_SIZE:,} rows, fixed-width fields, {loader.spec.record_bytes} bytes a row",
                epochs.words,
            ),
        )


def run_resident(
    data: DemoData, folder: Path, *, device: torch.device, num_rounds: int, make: type[TorchLoader] = TorchLoader
) -> Answer:
    """Batches of chunks that stay on the device, gathered there, against copies there."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    settings = options(folder) | {"batch_size": min(LARGE_BATCH_SIZE, data.num_rows // 4)}
    with make(dataset(data), device=device, resident=1 << 40, **settings) as loader:
        rows = loader._torch_delivery.resident
        assert isinstance(rows, ResidentRows)
        for _ in loader:  # brings all chunks there
            pass
        epochs = _Epochs(loader, device, category="kernel", num_epochs=NUM_EPOCHS)
        return compare(
            "gathers of chunks that stay on the device / copies there",
            ours=epochs.rate,
            ceiling=lambda: copied(target, source, device),
            unit="GB/s while a gather runs, each byte counted once",
            num_rounds=num_rounds,
            promise=0.5,
            remarks=lambda: (
                f"{rows.num_bytes / 1e9:.2f} GB stay there; batches of {settings['batch_size']:,} rows, "
                f"{NUM_EPOCHS} epochs a round",
                epochs.words,
            ),
        )


class _Epochs:
    """Whole epochs: how fast all of one comes, and how fast what the device does of it.

    Args:
        loader: Of them.
        device: Where the batches go.
        category: See `seconds_of`.
        num_epochs: A round.
    """

    def __init__(self, loader: TorchLoader, device: torch.device, *, category: str, num_epochs: int = 1) -> None:
        self._loader, self._device = loader, device
        self._category, self._num_epochs = category, num_epochs
        self._rates: list[float] = []

    def rate(self) -> float:
        """Return GB/s of what the device does."""
        num_bytes = self._num_epochs * self._loader.num_samples * self._loader.spec.record_bytes
        marks = Marks(self._device)
        start = marks.mark()
        self._pass_by()
        self._rates.append(num_bytes / marks.seconds(start, marks.mark()) / 1e9)
        return num_bytes / seconds_of(self._category, self._pass_by, self._device) / 1e9

    def _pass_by(self) -> None:
        num_rows = sum(len(batch["label"]) for _ in range(self._num_epochs) for batch in self._loader)
        if num_rows != self._num_epochs * self._loader.num_samples:
            raise AssertionError(f"{num_rows} rows were delivered")

    @property
    def words(self) -> str:
        """How fast whole epochs came, for people."""
        return f"whole epochs without a step come at {statistics.median(self._rates):.1f} GB/s"


def dataset(data: DemoData) -> Dataset:
    """Return the demo's fields of fixed width, stacked."""
    columns = [name for name in column_names() if name not in _RAGGED]
    return Dataset([str(path) for path in data.paths], columns=columns, fields=STACKED)


def options(folder: Path) -> dict[str, Any]:
    """Return how a loader over them is made."""
    return {"batch_size": BATCH_SIZE, "shuffle": True, "cache": folder / "cache"}


def copied(target: torch.Tensor, source: torch.Tensor, device: torch.device, *, num_times: int = 4) -> float:
    """Return GB/s of copies of a large block."""
    marks = Marks(device)
    target.copy_(source, non_blocking=True)
    start = marks.mark()
    for _ in range(num_times):
        target.copy_(source, non_blocking=True)
    return num_times * source.nbytes / marks.seconds(start, marks.mark()) / 1e9
