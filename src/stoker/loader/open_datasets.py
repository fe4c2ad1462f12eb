"""The data sets of a loader, opened: one, or those of a mixture; their chunks are numbered through all of them.

data set    web                     code
its chunks  0   1   2   3   4       0   1   2
here        0   1   2   3   4       5   6   7
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from itertools import accumulate

import numpy as np

from stoker.cache.store import StoreCounts
from stoker.cache.threads import AdaptivePool
from stoker.dataset.catalogue import OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture, naming
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.loader.config import LoaderConfig
from stoker.loader.fill import Filling
from stoker.loader.open_dataset import OpenDataset, open_dataset
from stoker.loader.temporary import TemporaryFolder
from stoker.loader.windows.window import Window
from stoker.metrics.stages import OnStage, ignore_stage
from stoker.words import some_of


class _Shifted:
    """A part of a filler, in which a data set's chunks have their own numbers."""

    def __init__(self, filler: Filling, first: int) -> None:
        self._filler, self._first = filler, first

    def request(self, chunks: Iterable[int]) -> None:
        self._filler.request([self._first + chunk for chunk in chunks])

    def wait(self, chunk: int) -> None:
        self._filler.wait(self._first + chunk)


class OpenDatasets:
    """One or several data sets with one spec.

    Args:
        datasets: Closed with this.
        spec: What a sample of any of them is.
        mixture: What the user wrote, where it is one.
        temporary: Folder to remove at the end, where the cache is this loader's alone.

    Attributes:
        datasets: Those.
        spec: What a sample is.
        mixture: What the user wrote, where it is one.
        num_samples: Rows of each chunk, of all data sets. Shape [K].
    """

    def __init__(
        self,
        datasets: Sequence[OpenDataset],
        *,
        spec: Spec,
        mixture: Mixture | None = None,
        temporary: TemporaryFolder | None = None,
    ) -> None:
        self.datasets = tuple(datasets)
        self.spec = spec
        self.mixture = mixture
        self.num_samples: Int64 = np.concatenate([one.num_samples for one in datasets])
        self._firsts = list(accumulate((len(one.num_samples) for one in datasets[:-1]), initial=0))
        self._temporary = temporary

    def fragments(self, which: int) -> Sequence[object]:
        """Return what names the chunks of a data set, for errors."""
        return self.datasets[which].catalogue.fragments

    @property
    def sample_bytes(self) -> float:
        """About how much a sample takes, lists included as far as that is known."""
        return sum(one.expected_bytes for one in self.datasets) / max(1, int(self.num_samples.sum()))

    @property
    def is_tight(self) -> bool:
        """Whether chunks may have to leave the cache again: then none is built long before it is used."""
        return any(one.is_tight for one in self.datasets)

    def pool(self, num_threads: int) -> AdaptivePool:
        """Return the threads that should build, for `num_threads` cores."""
        pools = [one.pool(num_threads) for one in self.datasets]
        return AdaptivePool(
            max(pool.size for pool in pools),
            most=max(pool.most for pool in pools),
            # One tight cache holds up all: none of them builds long before it is used.
            permits=[] if self.is_tight else [permit for one in self.datasets for permit in one.permits],
        )

    def is_there(self, number: int) -> bool:
        """Return whether a chunk is in the cache."""
        which = self._which(number)
        return self.datasets[which].is_there(number - self._firsts[which])

    def build(self, number: int) -> bool:
        """Build a chunk; False where another process is at it."""
        which = self._which(number)
        return self.datasets[which].build(number - self._firsts[which])

    def to_ask_for(self, which: int, chunks: Int64) -> list[int]:
        """Return the numbers here of those chunks of a data set that may have to be built."""
        return self.numbers(which, self.datasets[which].to_ask_for(chunks))

    def numbers(self, which: int, chunks: Int64) -> list[int]:
        """Return the numbers that chunks of one data set have here."""
        numbers: list[int] = (chunks + self._firsts[which]).tolist()
        return numbers

    def stand(self, window: int | None) -> None:
        """Map each chunk once from now on, where they are few or small enough; see `WindowOpener.stand`."""
        for one in self.datasets:
            one.stand(window)

    def open_window(self, which: int, chunks: Int64, filler: Filling) -> Window:
        """Return a window of chunks of one data set, in this order.

        Blocks: until all of them are there.

        Args:
            which: Number of the data set.
            chunks: Chunks, as that data set numbers them. Shape [K].
            filler: Has been or will be asked for them, by their numbers here.
        """
        first = self._firsts[which]
        return self.datasets[which].open_window(chunks, _Shifted(filler, first) if first else filler)

    def count_uses(self, which: int, chunks: Int64) -> None:
        """Count one use of each of these chunks of a data set; see `OpenDataset.count_uses`."""
        self.datasets[which].count_uses(chunks)

    def is_substituted(self, which: int, chunk: int) -> bool:
        """Return whether other rows stand in for those of a chunk of a data set; see `OpenDataset.is_substituted`."""
        return self.datasets[which].is_substituted(chunk)

    def counts(self) -> StoreCounts:
        """Return what became of the chunks so far."""
        counts = [one.counts() for one in self.datasets]
        names = [field.name for field in fields(StoreCounts)]
        return StoreCounts(**{name: sum(getattr(one, name) for one in counts) for name in names})

    def close(self) -> None:
        """Give locks and temporary folders back. Harmless when called again."""
        with ExitStack() as stack:
            if self._temporary is not None:
                stack.callback(self._temporary.close)
            for one in self.datasets:
                stack.callback(one.close)

    def _which(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1


def open_datasets(
    dataset: Dataset | Mixture,
    config: LoaderConfig,
    *,
    on_stage: OnStage = ignore_stage,
    on_count: OnCount | None = None,
) -> OpenDatasets:
    """Open a data set, or all of a mixture, in one cache.

    Args:
        dataset: What to open.
        config: Arguments of the loader. Without a `cache`, one in memory is made, which lives as long as this.
        on_stage: Told of the work that building does.
        on_count: Told how far counting what the order counts is.

    Raises:
        FieldError: The data sets of a mixture have different specs.
        StokerError: As `Loader` says; a note names the data set of a mixture.
    """
    mixture = None if isinstance(dataset, Dataset) else dataset
    named = {"": dataset} if isinstance(dataset, Dataset) else dataset.datasets
    with ExitStack() as stack:
        temporary = None
        if (cache := config.cache).path is None:
            temporary = TemporaryFolder()
            stack.callback(temporary.close)
            temporary.make()
            limit = cache.limit_bytes or temporary.limit_bytes
            config = replace(config, cache=replace(cache, folder=temporary.cache, limit=limit))
        opened = {}
        for name, one in named.items():
            with naming(name):
                opened[name] = open_dataset(
                    one,
                    config,
                    is_temporary=temporary is not None,
                    is_mixed=mixture is not None,
                    on_stage=on_stage,
                    on_count=on_count,
                )
            stack.callback(opened[name].close)
        specs = {name: one.spec for name, one in opened.items()}
        spec = next(iter(specs.values())) if mixture is None else mixture.check_specs(specs)
        stack.pop_all()
        return OpenDatasets([*opened.values()], spec=spec, mixture=mixture, temporary=temporary)


def title_of(dataset: Dataset | Mixture) -> str:
    """Return what people call a data set, in a line."""
    if isinstance(dataset, Mixture):
        return f"a mixture of {', '.join(dataset.names)}"
    sources = list(map(str, dataset.sources))
    if len(sources) == 1:
        return sources[0]
    shared = os.path.commonprefix(sources).rpartition("/")[0]  # noqa: RUF071  cut at a slash right after
    return f"{shared}/ ({len(sources):,} sources)" if shared else some_of(sources, 1)
