"""Data sets opened to plan with them, not to load from them: their orders, and the chunks that steps need."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np

from stoker.cache.folder import is_cache
from stoker.cache.store import Store
from stoker.columns import plan_spec
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.kept import Index
from stoker.dataset.mixture import Mixture, naming
from stoker.dataset.units.count import open_index
from stoker.dataset.units.kinds import SamplingUnit
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.loader.opened import makes_tokens
from stoker.loader.orders import CountedSet, CountedSets, Orders, window_chunks
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.steps import RankShare, Steps


@dataclass(frozen=True, kw_only=True)
class KnownSet(CountedSet):
    """One data set as it can be known without reading rows.

    Attributes:
        catalogue: The opened data set.
        spec: What a sample is, as the cache knows it from loading; None where it does not.
        num_present: Chunks in the cache, None where none was named or nobody asked.
        index: Where its units are; None for rows.
    """

    catalogue: Catalogue
    spec: Spec | None
    num_present: int | None
    index: Index | None = None

    def planned_spec(self) -> Spec | None:
        """Return what a sample is: as columns say, or the cache; None where only a transform that never ran knows.

        Raises:
            FieldError: A column cannot become a tensor, so that no loader can be made.
        """
        dataset = self.catalogue.dataset
        if dataset.transform is not None:
            return self.spec
        return plan_spec(self.catalogue.schema, dataset.fields, dataset.deduplicate)


@dataclass(frozen=True, kw_only=True)
class Known(CountedSets):
    """A data set, or all of a mixture, as they can be known without reading rows.

    Attributes:
        datasets: Each data set.
        mixture: What the user wrote, where it is one.
        unit: What the order counts; None for rows.
    """

    datasets: tuple[KnownSet, ...]
    mixture: Mixture | None = None
    unit: SamplingUnit | None = None

    @property
    def named(self) -> dict[str, KnownSet]:
        """The data sets of a mixture by their names; one that stands alone under an empty one."""
        names = ("",) if self.mixture is None else self.mixture.names
        return dict(zip(names, self.datasets, strict=True))

    def planned_spec(self) -> Spec | None:
        """Return the one spec of all data sets; None where only a transform that never ran knows.

        Raises:
            FieldError: A column cannot become a tensor, or the data sets of a mixture have different specs.
            ValueError: The mixture's source field is the name of a field.
        """
        specs = {}
        for name, one in self.named.items():
            with naming(name):
                specs[name] = one.planned_spec()
        found = {name: spec for name, spec in specs.items() if spec is not None}
        if len(found) < len(specs):
            return None
        return next(iter(found.values())) if self.mixture is None else self.mixture.check_specs(found)

    def window(self, window: int | Literal["all"] | None, spec: Spec | None) -> int | None:
        """Return how many chunks of each data set are mixed together where a loader is told this; None for all."""
        return window_chunks(
            window,
            num_samples=self.num_samples,
            record_bytes=0 if spec is None else spec.plain_bytes,
            num_sets=len(self.datasets),
        )


def open_known(
    dataset: Dataset | Mixture,
    *,
    cache: Path | None,
    num_threads: int = 8,
    counts_present: bool = False,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> Known:
    """Open a data set or all of a mixture, with the help of a cache that may know them; none is made.

    Args:
        dataset: What to open.
        cache: The folder, or None.
        num_threads: Threads that read footers.
        counts_present: Whether to look for every chunk: 100,000 of them take seconds.
        unit: What the order counts, if not rows: then the columns that decide it are read, unless the cache knows.
        on_count: Told how far reading these is.

    Raises:
        ValueError: What the order counts is made by a transform, and the cache does not know it.
        SourceError: The data set cannot be listed or a footer cannot be read.
        FieldError: A column that was asked for is not there, or files contradict each other; or the data sets of a
            mixture have different specs.
        CacheError: The folder is no cache, or cannot be used.
    """
    is_there = cache is not None and is_cache(cache)
    if cache is not None and cache.exists() and not is_there and (not cache.is_dir() or any(cache.iterdir())):
        Store(cache).close()  # says what is wrong with it
    opened = []
    for name, one in {"": dataset}.items() if isinstance(dataset, Dataset) else dataset.datasets.items():
        with naming(name), Store(cache) if cache is not None and is_there else nullcontext() as store:
            folder = None if store is None else store.path
            rule = None if unit is None else unit.rule
            catalogue = one.open(folder, num_threads=num_threads, runs=rule, on_count=on_count)
            numbers = range(len(catalogue))
            index = None
            if unit is not None:
                index = open_index(
                    unit,
                    catalogue,
                    folder=folder,
                    num_threads=num_threads,
                    on_progress=on_count,
                    token_counts=partial(_refuse, unit) if makes_tokens(unit, one) else None,
                )
            num_present = None
            if cache is not None and counts_present:
                num_present = 0 if store is None else sum(store.has(catalogue.key(i)) for i in numbers)
            # Only the first keys are asked for: of 100,000 chunks, all of them take most of a second.
            spec = None if store is None else store.spec_of(map(catalogue.key, numbers))
            opened.append(KnownSet(catalogue=catalogue, spec=spec, num_present=num_present, index=index))
    return Known(datasets=tuple(opened), mixture=None if isinstance(dataset, Dataset) else dataset, unit=unit)


def _refuse(unit: SamplingUnit) -> NoReturn:
    raise ValueError(
        f"only the transform's result says how many {unit.told()} there are: name the cache of a loader that has run, "
        "which knows"
    )


def plan_orders(
    known: Known,
    *,
    shuffle: bool,
    seed: int = 0,
    window: int | Literal["all"] | None = None,
    lanes: int = 1,
) -> Orders:
    """Return the orders that a loader with these arguments has.

    Raises:
        ValueError: The size of a sample, which decides the default window, is not known: the transform never ran; or
            a data set of a mixture has too few samples for its share.
        FieldError: A column cannot become a tensor, or the data sets of a mixture have different specs: no loader can
            be made.
    """
    needs_spec = window is None and shuffle
    spec = known.planned_spec() if needs_spec or known.mixture is not None else None
    if needs_spec and spec is None:
        raise ValueError(
            "the default window depends on the size of a sample, which only the transform's result tells: give a "
            "window, or the cache of a loader that has run"
        )
    return Orders(
        known,
        unit=known.unit,
        shuffle=shuffle,
        seed=seed,
        window=known.window(window, spec if needs_spec else None),
        lanes=lanes,
    )


def needed_chunks(
    orders: Orders, steps: Steps, which: range, shards: Iterable[RankShare], *, epoch: int
) -> list[Int64]:
    """Return the chunks of the windows that some ranks open for some steps, of each data set, in order of use.

    Args:
        orders: The orders of the data sets.
        steps: The epoch's steps.
        which: Numbers of the steps.
        shards: The ranks.
        epoch: Which epoch.
    """
    lanes = orders.lanes_of_epoch(epoch)
    windows: dict[tuple[int, int, int, int], EpochOrder] = {}  # lane, data set, its own epoch and window
    for shard in shards:
        for piece in (piece for step in which for piece in steps.slices(step, shard)):
            for part, own, start, stop in lanes[piece.lane].component_ranges(piece.start, piece.stop):
                order = lanes[piece.lane].component_epoch(part, own)
                first, last = order.windows_of([start, stop - 1]).tolist()
                windows |= {(piece.lane, part, own, window): order for window in range(first, last + 1)}
    found: list[dict[int, None]] = [{} for _ in orders.opened.datasets]
    for (_, part, _, window), order in windows.items():
        found[part].update(dict.fromkeys(order.window_chunks(window).tolist()))
    return [np.array(list(chunks), dtype=np.int64) for chunks in found]
