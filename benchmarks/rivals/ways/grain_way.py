"""Grain: a random-access source over memory-mapped arrays, shuffled, batched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grain.python as grain
from columns import Arrays, collate, write_arrays
from contest import Settings, run


class Way:
    """`MapDataset.source(...).shuffle().batch()` with worker processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self) -> None:
        """Write the arrays."""
        write_arrays(self._settings.files, self._settings.cache)

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        rows = grain.MapDataset.source(Source(self._settings)).shuffle(seed=epoch)
        batches = rows.batch(self._settings.batch_size, batch_fn=_collate).to_iter_dataset()
        workers = grain.MultiprocessingOptions(num_workers=self._settings.num_workers)
        return (_ragged(batch) for batch in batches.mp_prefetch(workers))


class Source:
    """One row at a time."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.cache
        self._arrays = Arrays(settings.cache)

    def __len__(self) -> int:
        return self._arrays.num_rows

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._arrays.row(i)

    def __getstate__(self) -> Any:
        return self._folder

    def __setstate__(self, folder: Any) -> None:
        self._folder, self._arrays = folder, Arrays(folder)


def _collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    batch = collate(list(samples))
    # Its worker processes carry trees of arrays: a ragged column leaves as two.
    return {
        **{name: value for name, value in batch.items() if not isinstance(value, tuple)},
        **{name: list(value) for name, value in batch.items() if isinstance(value, tuple)},
    }


def _ragged(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in batch.items()}


if __name__ == "__main__":
    run("Grain", Way, versions=["grain", "numpy"], note="over memory-mapped arrays")
