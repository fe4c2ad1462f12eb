"""Stoker: the same rows through `stoker.Loader`, with nothing but its public arguments."""

from __future__ import annotations

from pathlib import Path

from stoker.dataset.dataset import Dataset
from stoker.demo.ranking import COUNTRIES
from stoker.demo.ways.way import BATCH_SIZE, SHUFFLE_ROW_GROUPS, Batches, Source
from stoker.fields.spec import Field
from stoker.loader.loader import Loader
from stoker.loader.shard import Shard


class StokerLoader:
    """A `stoker.Loader` over the rows.

    Args:
        source: The rows.
        cache: Folder for the chunks; None keeps them in memory, for this loader alone.
        num_threads: Threads that build, and as many that assemble.
    """

    def __init__(self, source: Source, *, cache: Path | None, num_threads: int) -> None:
        self._source = source
        self._cache = cache
        self._num_threads = num_threads
        self._loader: Loader | None = None

    def epoch(self, epoch: int) -> Batches:
        """Yield the epoch's batches."""
        if self._loader is None:
            # Here, so that listing the files and reading their footers counts as in the other ways.
            self._loader = self._make_loader()
        self._loader.set_epoch(epoch)
        yield from self._loader

    def close(self) -> None:
        """Close the loader."""
        if self._loader is not None:
            self._loader.close()

    def _make_loader(self) -> Loader:
        dataset = Dataset(
            self._source.urls,
            fields={
                "dense": Field("float32", columns="dense_*"),
                "context": Field("float32", columns="context_*"),
                "ids": Field("int64", columns="id_*"),
                "country": Field("int32", vocabulary=COUNTRIES),
            },
            storage=self._source.storage,
        )
        return Loader(
            dataset,
            shard=Shard(0, 1),  # whatever started this process
            batch_size=BATCH_SIZE,
            shuffle=True,
            seed=self._source.seed,
            # A chunk of this data is a row group: rows are mixed as widely as in the other ways.
            window=SHUFFLE_ROW_GROUPS,
            cache=self._cache,
            num_threads=self._num_threads,
        )
