"""torch DataLoader as most people write it: a map-style Dataset that gives one sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from columns import Arrays, collate, write_arrays
from contest import Settings, run
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[dict[str, Any]]):
    """One row at a time, from memory-mapped arrays."""

    def __init__(self, settings: Settings) -> None:
        self._arrays = Arrays(settings.cache)

    def __len__(self) -> int:
        return self._arrays.num_rows

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._arrays.row(i)


class Way:
    """DataLoader with worker processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self) -> None:
        """Write the arrays."""
        write_arrays(self._settings.files, self._settings.cache)
        self._loader = DataLoader(
            Samples(self._settings),
            batch_size=self._settings.batch_size,
            shuffle=True,
            num_workers=self._settings.num_workers,
            collate_fn=collate,
            persistent_workers=True,
        )

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        torch.manual_seed(epoch)
        return iter(self._loader)


if __name__ == "__main__":
    run("torch DataLoader, per sample", Way, versions=["torch", "numpy"], note="over memory-mapped arrays")
