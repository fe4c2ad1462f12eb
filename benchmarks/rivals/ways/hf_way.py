"""Hugging Face datasets: its Arrow cache, shuffled through an index, batches in NumPy format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from contest import Settings, run


class Way:
    """`load_dataset("parquet")` and `.iter(batch_size)`."""

    def __init__(self, settings: Settings) -> None:
        os.environ["HF_HOME"] = str(settings.cache)
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._settings = settings

    def prepare(self) -> None:
        """Convert to its Arrow files."""
        from datasets import disable_progress_bars, load_dataset

        disable_progress_bars()
        self._rows = load_dataset(
            "parquet", data_files=self._settings.files, split="train", cache_dir=str(self._settings.cache)
        )

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        return self._rows.shuffle(seed=epoch).with_format("numpy").iter(batch_size=self._settings.batch_size)


if __name__ == "__main__":
    run("HF datasets", Way, versions=["datasets", "pyarrow", "numpy"], note="Arrow cache, shuffle(), iter()")
