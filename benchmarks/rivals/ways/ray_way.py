"""Ray Data: the table materialised in its object store, blocks and a local buffer shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray
from contest import Settings, run


class Way:
    """`read_parquet().materialize()` once, `iter_batches` in each epoch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        ray.init(
            num_cpus=settings.num_workers,
            object_store_memory=8 * 2**30,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=str(settings.cache),
        )
        ray.data.DataContext.get_current().enable_progress_bars = False

    def prepare(self) -> None:
        """Read everything into the object store."""
        self._rows = ray.data.read_parquet(self._settings.files).materialize()

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        return iter(
            self._rows.randomize_block_order(seed=epoch).iter_batches(
                batch_size=self._settings.batch_size,
                batch_format="numpy",
                local_shuffle_buffer_size=16 * self._settings.batch_size,
                local_shuffle_seed=epoch,
            )
        )

    def close(self) -> None:
        """End its processes."""
        ray.shutdown()


if __name__ == "__main__":
    run("Ray Data", Way, versions=["ray", "pyarrow", "numpy"], note="materialised, local shuffle of 16 batches")
