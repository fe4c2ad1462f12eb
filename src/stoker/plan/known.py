"""Data sets opened to plan with them, not to load from them: what is known without reading rows, and their orders."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from stoker.cache.builder import plan_sample
from stoker.cache.folder import is_cache
from stoker.cache.store import Store
from stoker.dataset.catalogue import OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.count import open_index
from stoker.dataset.units.kinds import SamplingUnit
from stoker.fields.spec import Spec
from stoker.loader.opened import makes_tokens, naming
from stoker.loader.orders import CountedSet, CountedSets, Orders

# That read footers, and columns: they wait for the store most of the time.
NUM_THREADS = 8


def open_known(
    dataset: Dataset | Mixture,
    *,
    cache: Path | None,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> CountedSets:
    """Open a data set or all of a mixture, with the help of a cache that may know them; none is made.

    Where the order counts other units than rows, the columns that decide them are read, unless the cache knows.
    Errors are those of opening a data set and a cache; and a ValueError where a transform makes what the order counts,
    and the cache does not know it.
    """
    is_there = cache is not None and is_cache(cache)
    if cache is not None and cache.exists() and not is_there and (not cache.is_dir() or any(cache.iterdir())):
        Store(cache).close()  # says what is wrong with it
    opened = []
    for name, one in {"": dataset}.items() if isinstance(dataset, Dataset) else dataset.datasets.items():
        with naming(name), Store(cache) if cache is not None and is_there else nullcontext() as store:
            folder = None if store is None else store.path
            rule = None if unit is None else unit.rule
            catalogue = one.open(folder, num_threads=NUM_THREADS, runs=rule, on_count=on_count)
            index = None
            if unit is not None:
                counts = partial(_refuse, unit) if makes_tokens(unit, one) else None
                index = open_index(
                    unit, catalogue, folder=folder, num_threads=NUM_THREADS, on_progress=on_count, token_counts=counts
                )
            # Only the first keys are asked for: of 100,000 chunks, all of them take most of a second.
            spec = None if store is None else store.spec_of(map(catalogue.key, range(len(catalogue))))
            opened.append(CountedSet(catalogue, spec=spec, unit=unit, index=index))
    return CountedSets(opened, None if isinstance(dataset, Dataset) else dataset)


def _refuse(unit: SamplingUnit) -> NoReturn:
    raise ValueError(
        f"only the transform's result says how many {unit.told()} there are: name the cache of a loader that has run, "
        "which knows"
    )


def spec_known(one: CountedSet) -> Spec | None:
    """Return what a sample is: as columns say, or the cache; None where only a transform that never ran knows."""
    dataset = one.catalogue.dataset
    return plan_sample(one.catalogue.schema, dataset) if dataset.transform is None else one.spec


def common_spec(known: CountedSets) -> Spec | None:
    """Return the one spec of all data sets; None where only a transform that never ran knows."""
    found: dict[str, Spec] = {}
    for name, one in known.named.items():
        with naming(name):
            if (spec := spec_known(one)) is None:
                return None
            found[name] = spec
    return next(iter(found.values())) if known.mixture is None else known.mixture.check_specs(found)


def plan_orders(
    known: CountedSets,
    *,
    shuffle: bool,
    seed: int = 0,
    window: int | Literal["all"] | None = None,
    lanes: int = 1,
) -> Orders:
    """Return the orders that a loader with these arguments has, or the errors of making one."""
    needs_spec = window is None and shuffle
    spec = common_spec(known) if needs_spec or known.mixture is not None else None
    if needs_spec and spec is None:
        raise ValueError(
            "the default window depends on the size of a sample, which only the transform's result tells: give a "
            "window, or the cache of a loader that has run"
        )
    chunks = known.window(window, spec if needs_spec else None)
    return Orders(known, shuffle=shuffle, seed=seed, window=chunks, lanes=lanes)
