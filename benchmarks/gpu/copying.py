"""Bytes that come to a device: in one copy a batch, and from chunks that stay there."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import Marks
from benchmarks.measure import Answer, compare
from benchmarks.warm_gather import BATCH_SIZE, STACKED
from stoker import Dataset
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names
from stoker.torch import TorchLoader
from stoker.torch.resident import ResidentRows

COPY_BYTES = 256 << 20
# Of what lies on the device: half of what it copies is a batch of 4,096 rows in 4 microseconds, and there is no loop of
# Python that hands one over in that time. An epoch of few batches is over in milliseconds, so several are made.
LARGE_BATCH_SIZE, NUM_EPOCHS = 65_536, 8
_RAGGED = ("country", "clicked_items", "viewed_categories")


def run_copy(data: DemoData, folder: Path, *, device: torch.device, num_rounds: int) -> Answer:
    """Batches that cross in one copy each, against one large copy from pinned memory."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    with TorchLoader(_dataset(data), device=device, **_options(folder)) as loader:
        return compare(
            "warm epoch to the device / a pinned copy of large blocks",
            ours=lambda: _rate(loader, device),
            ceiling=lambda: _copied(target, source, device),
            unit="GB/s",
            num_rounds=num_rounds,
            promise=0.9,
            remarks=lambda: (
                f"batches of {BATCH_SIZE:,} rows, fixed-width fields, {loader.spec.record_bytes} bytes a row",
            ),
        )


def run_resident(
    data: DemoData, folder: Path, *, device: torch.device, num_rounds: int, make: type[TorchLoader] = TorchLoader
) -> Answer:
    """Batches of chunks that stay on the device, against copies there."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    options = _options(folder) | {"batch_size": min(LARGE_BATCH_SIZE, data.num_rows // 4)}
    with make(_dataset(data), device=device, resident=1 << 40, **options) as loader:
        rows = loader._handover.resident
        assert isinstance(rows, ResidentRows)
        for _ in loader:  # brings all chunks there
            pass
        return compare(
            "warm epochs of chunks that stay on the device / copies there",
            ours=lambda: _rate(loader, device, num_epochs=NUM_EPOCHS),
            ceiling=lambda: _copied(target, source, device),
            unit="GB/s",
            num_rounds=num_rounds,
            promise=0.5,
            remarks=lambda: (
                f"{rows.num_bytes / 1e9:.2f} GB stay there; batches of {options['batch_size']:,} rows, "
                f"{NUM_EPOCHS} epochs a round",
            ),
        )


def _dataset(data: DemoData) -> Dataset:
    columns = [name for name in column_names() if name not in _RAGGED]
    return Dataset([str(path) for path in data.paths], columns=columns, fields=STACKED)


def _options(folder: Path) -> dict[str, Any]:
    return {"batch_size": BATCH_SIZE, "shuffle": True, "cache": folder / "cache"}


def _rate(loader: TorchLoader, device: torch.device, *, num_epochs: int = 1) -> float:
    """Return the GB/s of some epochs, from the first batch to the last one's arrival."""
    marks, num_bytes = Marks(device), 0
    batches = chain.from_iterable(loader for _ in range(num_epochs))
    next(batches)
    start = marks.mark()
    for batch in batches:
        num_bytes += len(batch["label"]) * loader.spec.record_bytes
    return num_bytes / marks.seconds(start, marks.mark()) / 1e9


def _copied(target: torch.Tensor, source: torch.Tensor, device: torch.device, *, num_times: int = 4) -> float:
    marks = Marks(device)
    target.copy_(source, non_blocking=True)
    start = marks.mark()
    for _ in range(num_times):
        target.copy_(source, non_blocking=True)
    return num_times * source.nbytes / marks.seconds(start, marks.mark()) / 1e9
