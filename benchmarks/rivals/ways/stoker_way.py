"""Stoker: shuffled batches from its cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contest import Settings, run

import stoker
from stoker.demo.ranking import COUNTRIES


class Way:
    """One loader for all epochs."""

    def __init__(self, settings: Settings) -> None:
        dataset = stoker.Dataset(
            settings.files,
            fields={
                "dense": stoker.Field("float32", columns="dense_*"),
                "ids": stoker.Field("int64", columns="id_*"),
                "context": stoker.Field("float32", columns="context_*"),
                "country": stoker.Field("int32", vocabulary=COUNTRIES),
            },
        )
        self._loader = self._open(dataset, settings)

    def _open(self, dataset: stoker.Dataset, settings: Settings) -> stoker.Loader:
        return stoker.Loader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=True,
            cache=settings.cache,
            num_threads=settings.num_workers,
        )

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        self._loader.set_epoch(epoch)
        return iter(self._loader)

    def close(self) -> None:
        """End its threads."""
        self._loader.close()


if __name__ == "__main__":
    run("Stoker", Way, versions=["stoker", "numpy", "pyarrow"], note="shuffled in windows")
