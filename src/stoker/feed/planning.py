"""Opening a data set to plan with it, not to load from it: footers, and what a cache already knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.cache.folder import is_cache
from stoker.cache.store import Store
from stoker.feed.mixing import window_chunks
from stoker.feed.units.expand import Units, units_of
from stoker.feed.units.open import makes_tokens
from stoker.order.epoch import Order
from stoker.order.plain import Int64
from stoker.source.catalogue import Catalogue
from stoker.source.columns import plan_spec
from stoker.source.dataset import Dataset
from stoker.source.units.asked import Asked
from stoker.source.units.count import open_index
from stoker.source.units.index import Index
from stoker.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set as it can be known without reading rows.

    Attributes:
        catalogue: The opened data set.
        spec: What a sample is, as the cache knows it from loading; None where it does not.
        num_present: Chunks in the cache, None where none was named or nobody asked.
        asked: What the order counts; None for rows.
        index: Where its units are; None for rows.
    """

    catalogue: Catalogue
    spec: Spec | None
    num_present: int | None
    asked: Asked | None = None
    index: Index | None = None

    def units(self, *, seed: int, epoch: int) -> Units | None:
        """Return what the order counts in an epoch; None for rows."""
        if self.asked is None or self.index is None:
            return None
        return units_of(self.asked, self.index, seed=seed, epoch=epoch)


def open_known(
    dataset: Dataset,
    *,
    cache: Path | None,
    num_threads: int = 8,
    counts_present: bool = False,
    asked: Asked | None = None,
) -> Known:
    """Open a data set, with the help of a cache that may know it; a cache that is not there is not made.

    Args:
        dataset: What to open.
        cache: The folder, or None.
        num_threads: Threads that read footers.
        counts_present: Whether to look for every chunk: 100,000 of them take seconds.
        asked: What the order counts, if not rows: then the columns that decide it are read, unless the cache knows.

    Raises:
        ValueError: What the order counts is made by a transform, and the cache does not know it.
        SourceError: The data set cannot be listed or a footer cannot be read.
        FieldError: A column that was asked for is not there, or files contradict each other.
        CacheError: The folder is no cache, or cannot be used.
    """
    if cache is None or not is_cache(cache):
        if cache is not None and cache.exists() and (not cache.is_dir() or any(cache.iterdir())):
            Store(cache).close()  # says what is wrong with it
        catalogue = dataset.open(None, num_threads=num_threads, runs=None if asked is None else asked.rule)
        return Known(
            catalogue=catalogue,
            spec=None,
            num_present=0 if counts_present and cache is not None else None,
            asked=asked,
            index=None if asked is None else _index(asked, catalogue, None, num_threads),
        )
    with Store(cache) as store:
        catalogue = dataset.open(store.path, num_threads=num_threads, runs=None if asked is None else asked.rule)
        return Known(
            catalogue=catalogue,
            spec=store.spec_of(catalogue.fingerprint),
            num_present=sum(store.has(catalogue.key(i)) for i in range(len(catalogue))) if counts_present else None,
            asked=asked,
            index=None if asked is None else _index(asked, catalogue, store.path, num_threads),
        )


def _index(asked: Asked, catalogue: Catalogue, folder: Path | None, num_threads: int) -> Index:
    def refused() -> Int64:
        raise ValueError(
            f"only the transform's result says how many {asked.told()} there are: name the cache of a loader that has "
            "run, which knows"
        )

    is_made = makes_tokens(asked, catalogue.dataset)
    token_counts = refused if is_made else None
    return open_index(asked, catalogue, folder=folder, num_threads=num_threads, token_counts=token_counts)


def plan_order(
    known: Known,
    *,
    shuffle: bool,
    seed: int = 0,
    window: int | Literal["all"] | None = None,
    lanes: int = 1,
    units: Units | None = None,
) -> Order:
    """Return the order that a loader with these arguments has, in the epoch of `units`, where it counts these.

    Raises:
        ValueError: The size of a sample, which decides the default window, is not known: the transform never ran.
        FieldError: A column cannot become a tensor, so that no loader can be made.
    """
    record_bytes = 0
    if window is None and shuffle:
        record_bytes = _spec(known).unshared_bytes
    return Order(
        known.catalogue.num_samples if units is None else units.num_units,
        shuffle=shuffle,
        seed=seed,
        window=window_chunks(window, num_samples=known.catalogue.num_samples, record_bytes=record_bytes),
        lanes=lanes,
    )


def _spec(known: Known) -> Spec:
    dataset = known.catalogue.dataset
    if dataset.transform is None:
        return plan_spec(known.catalogue.schema, dataset.fields, dataset.share)
    if known.spec is None:
        raise ValueError(
            "the default window depends on the size of a sample, which only the transform's result tells: give a "
            "window, or the cache of a loader that has run"
        )
    return known.spec
