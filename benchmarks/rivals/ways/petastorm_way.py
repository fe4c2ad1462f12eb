"""Petastorm: make_batch_reader with its NumPy disk cache, shuffled by its own queue."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from contest import HISTORIES, SCALARS, Settings, run

warnings.simplefilter("ignore")

from petastorm import make_batch_reader  # noqa: E402
from petastorm.pytorch import BatchedDataLoader  # noqa: E402


class Way:
    """A reader and a BatchedDataLoader in each epoch, over one cache."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.refused = {
            **dict.fromkeys(HISTORIES, "lists of different lengths do not collate"),
            "country": "strings do not become tensors",
            "query_embedding": "asked for; lists of a fixed size are left out without a word",
        }

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        reader = make_batch_reader(
            [f"file://{path}" for path in self._settings.files],
            schema_fields=[f"^{name}$" for name in (*SCALARS, "query_embedding")],
            reader_pool_type="thread",
            workers_count=self._settings.num_workers,
            seed=epoch,
            cache_type="local-disk",
            cache_location=str(self._settings.cache),
            cache_size_limit=64 * 2**30,
            cache_row_size_estimate=1024,
            convert_early_to_numpy=True,
            num_epochs=1,
        )
        with BatchedDataLoader(
            reader, batch_size=self._settings.batch_size, shuffling_queue_capacity=16 * self._settings.batch_size
        ) as loader:
            yield from loader


if __name__ == "__main__":
    run(
        "Petastorm",
        Way,
        versions=["petastorm", "pyarrow", "torch", "numpy"],
        note="NumPy disk cache, queue of 16 batches",
    )
