"""torch DataLoader as its best users write it: whole batches gathered from memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from columns import Arrays, write_arrays
from contest import Settings, run
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Batches(Dataset[dict[str, Any]]):
    """A list of indices in, a batch out, as tensors: DataLoader moves those through shared memory."""

    def __init__(self, settings: Settings) -> None:
        self._arrays = Arrays(settings.cache)

    def __len__(self) -> int:
        return self._arrays.num_rows

    def __getitem__(self, index: list[int]) -> dict[str, Any]:
        batch = self._arrays.rows(np.asarray(index))
        return {
            name: tuple(torch.from_numpy(part) for part in value)
            if isinstance(value, tuple)
            else torch.from_numpy(value)
            for name, value in batch.items()
        }


class Way:
    """DataLoader with `batch_size=None` and a sampler of batches."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self) -> None:
        """Write the arrays."""
        write_arrays(self._settings.files, self._settings.cache)
        samples = Batches(self._settings)
        self._loader = DataLoader(
            samples,
            batch_size=None,
            sampler=BatchSampler(RandomSampler(range(len(samples))), self._settings.batch_size, drop_last=False),
            num_workers=self._settings.num_workers,
            persistent_workers=True,
        )

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        torch.manual_seed(epoch)
        return iter(self._loader)


if __name__ == "__main__":
    run("torch DataLoader, batched by hand", Way, versions=["torch", "numpy"], note="over stacked memory-mapped arrays")
