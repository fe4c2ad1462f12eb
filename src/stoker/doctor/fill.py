"""A cache that is filled before anything is measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.cache.threads import AdaptivePool
from stoker.dataset.dataset import Dataset
from stoker.loader.config import make_config
from stoker.loader.open_dataset import open_dataset


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What filling a cache showed.

    Attributes:
        tensor_bytes: Bytes a sample in the cache.
        pool: Threads that a loader of the data set would build with.
        builders_worth: As many as it would at most, with any number of threads; None for any number.
    """

    tensor_bytes: float
    pool: AdaptivePool
    builders_worth: int | None


def fill_cache(dataset: Dataset, folder: Path, *, num_threads: int) -> Filled:
    """Build every chunk of a data set that is not in the cache yet.

    Args:
        dataset: Whose chunks.
        folder: Of the cache.
        num_threads: Threads that compute.

    Raises:
        StokerError: A chunk cannot be built.
    """
    chunks = open_dataset(dataset, make_config({"batch_size": 1, "cache": folder, "num_threads": num_threads}))
    try:
        progress = chunks.warm(num_threads=num_threads)
        num_bytes = progress.size_bytes + progress.found_bytes
        return Filled(
            tensor_bytes=num_bytes / max(1, int(chunks.num_samples.sum())),
            pool=chunks.pool(num_threads),
            builders_worth=chunks.builders_worth,
        )
    finally:
        chunks.close()
