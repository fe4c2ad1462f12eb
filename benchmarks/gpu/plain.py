"""The same data as most people feed them: pyarrow's batches in workers of a torch DataLoader, in the files' order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.measure import IS_SMALL
from stoker.demo.ranking import COUNTRIES
from stoker.fields.spec import Ragged
from stoker.host.machine import num_cores

Batch = dict[str, Any]
_LISTS = ("clicked_items", "viewed_categories")


class PlainRanking(IterableDataset[Batch]):
    """Batches of the ranking data, a worker's files one after the other, for ever.

    Args:
        paths: The files.
        batch_size: Rows of a batch.
    """

    def __init__(self, paths: Sequence[Path], batch_size: int) -> None:
        self._paths, self._batch_size = paths, batch_size

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches."""
        for rows in _batches(self._paths, self._batch_size):
            names = rows.schema.names
            embedding = rows.column("query_embedding").flatten().to_numpy()
            batch: Batch = {
                "dense": _stacked(rows, [n for n in names if fnmatch(n, "dense_*") or fnmatch(n, "context_*")], "f4"),
                "ids": _stacked(rows, [name for name in names if fnmatch(name, "id_*")], "i8"),
                "query_embedding": torch.tensor(embedding.reshape(len(rows), -1)),
                "country": torch.tensor(pa.compute.index_in(rows.column("country"), pa.array(COUNTRIES)).to_numpy()),
                "label": torch.tensor(rows.column("label").to_numpy(zero_copy_only=False)),
            }
            for name in _LISTS:
                lists = rows.column(name)
                offsets = lists.offsets.to_numpy()
                batch[name] = (torch.tensor(lists.flatten().to_numpy()), torch.tensor(offsets - offsets[0]).long())
            yield batch


class PlainTokens(IterableDataset[Batch]):
    """Rows of tokens, texts behind each other without regard to where one ends, for ever.

    Args:
        paths: The files.
        batch_size: Rows of a batch.
        length: Tokens of a row.
    """

    def __init__(self, paths: Sequence[Path], batch_size: int, length: int) -> None:
        self._paths, self._shape = paths, (batch_size, length)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches."""
        num = self._shape[0] * self._shape[1]
        left = np.empty(0, dtype=np.int32)
        for rows in _batches(self._paths, 64):
            left = np.concatenate([left, rows.column("tokens").flatten().to_numpy()])
            while len(left) >= num:
                yield {"tokens": torch.tensor(left[:num].reshape(self._shape))}
                left = left[num:]


def on_device(
    dataset: IterableDataset[Batch], device: torch.device, *, num_workers: int | None = None
) -> Generator[Batch, None, None]:
    """Yield the batches of a DataLoader on a device, by its own means: workers, pinned memory, copies that do not wait.

    Args:
        dataset: Yields batches.
        device: Where they are wanted.
        num_workers: Processes; as many as there are cores unless told.
    """
    num = (0 if IS_SMALL else num_cores()) if num_workers is None else num_workers
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=num,
        pin_memory=device.type == "cuda",
        multiprocessing_context="spawn" if num else None,
        prefetch_factor=2 if num else None,
    )
    batches = iter(loader)
    try:
        for batch in batches:
            yield {name: _moved(field, device) for name, field in batch.items()}
    finally:
        if num:  # they would go on for ever, and one that dies of being stopped shall not end what was measured
            with suppress(RuntimeError):
                batches._shutdown_workers()  # type: ignore[attr-defined]


def _moved(field: Any, device: torch.device) -> Any:
    if isinstance(field, torch.Tensor):
        return field.to(device, non_blocking=True)
    values, offsets = (_moved(one, device) for one in field)
    return Ragged(values, offsets)


def _batches(paths: Sequence[Path], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of this worker's files, again and again."""
    worker = get_worker_info()
    mine = paths if worker is None else paths[worker.id % len(paths) :: worker.num_workers]
    while True:
        for path in mine:
            yield from pq.ParquetFile(path).iter_batches(batch_size, use_threads=worker is None)


def _stacked(rows: pa.RecordBatch, names: Sequence[str], dtype: str) -> torch.Tensor:
    return torch.tensor(np.column_stack([rows.column(name).to_numpy().astype(dtype) for name in names]))
