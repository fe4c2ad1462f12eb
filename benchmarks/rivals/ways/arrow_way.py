"""Plain pyarrow: batches in file order, no shuffle, no cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from columns import arrays_of
from contest import Settings, run


class Way:
    """Reads and decodes anew each epoch, with as many threads as there are cores."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        pa.set_cpu_count(settings.num_workers)

    def batches(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002 (all are alike)
        """Give one epoch."""
        for batch in ds.dataset(self._settings.files).to_batches(batch_size=self._settings.batch_size):
            yield arrays_of(pa.Table.from_batches([batch]))


if __name__ == "__main__":
    run("pyarrow, not shuffled", Way, versions=["pyarrow", "numpy"], note="decodes in every epoch, file order")
