"""Data sets opened to plan with them, not to load from them: their samples, their orders, and what a cache has of them.

No row is read: what is known is in footers, in the cache, and in the columns that decide the sampling units.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from stoker.cache.folder import is_cache
from stoker.cache.mirror import Mirror
from stoker.cache.store import Store
from stoker.cache.substitute import Substitutes
from stoker.columns import plan_spec
from stoker.dataset.catalogue import OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture, naming
from stoker.dataset.units.count import open_index
from stoker.dataset.units.kinds import SamplingUnit
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.loader.opened import makes_tokens
from stoker.loader.orders import CountedSet, CountedSets, Orders

# That read footers, and columns: they wait for the store most of the time.
NUM_THREADS = 8
# Chunks that are missing are counted; so many of them are named.
_MOST_NAMED = 100


def open_known(
    dataset: Dataset | Mixture,
    *,
    cache: Path | None,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> CountedSets:
    """Open a data set or all of a mixture, with the help of a cache that may know them; none is made.

    Args:
        dataset: What to open.
        cache: The folder, or None.
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
            catalogue = one.open(folder, num_threads=NUM_THREADS, runs=rule, on_count=on_count)
            index = None
            if unit is not None:
                index = open_index(
                    unit,
                    catalogue,
                    folder=folder,
                    num_threads=NUM_THREADS,
                    on_progress=on_count,
                    token_counts=partial(_refuse, unit) if makes_tokens(unit, one) else None,
                )
            # Only the first keys are asked for: of 100,000 chunks, all of them take most of a second.
            spec = None if store is None else store.spec_of(map(catalogue.key, range(len(catalogue))))
            opened.append(CountedSet(catalogue, spec=spec, unit=unit, index=index))
    return CountedSets(opened, mixture=None if isinstance(dataset, Dataset) else dataset, unit=unit)


def _refuse(unit: SamplingUnit) -> NoReturn:
    raise ValueError(
        f"only the transform's result says how many {unit.told()} there are: name the cache of a loader that has run, "
        "which knows"
    )


def spec_known(one: CountedSet) -> Spec | None:
    """Return what a sample is: as columns say, or the cache; None where only a transform that never ran knows.

    Raises:
        FieldError: A column cannot become a tensor, so that no loader can be made.
    """
    dataset = one.catalogue.dataset
    return (
        plan_spec(one.catalogue.schema, dataset.fields, dataset.deduplicate) if dataset.transform is None else one.spec
    )


def common_spec(known: CountedSets) -> Spec | None:
    """Return the one spec of all data sets; None where only a transform that never ran knows.

    Raises:
        FieldError: A column cannot become a tensor, or the data sets of a mixture have different specs.
        ValueError: The mixture's source field is the name of a field.
    """
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
    """Return the orders that a loader with these arguments has.

    Raises:
        ValueError: The size of a sample, which decides the default window, is not known: the transform never ran; or
            a data set of a mixture has too few samples for its share.
        FieldError: A column cannot become a tensor, or the data sets of a mixture have different specs: no loader can
            be made.
    """
    needs_spec = window is None and shuffle
    spec = common_spec(known) if needs_spec or known.mixture is not None else None
    if needs_spec and spec is None:
        raise ValueError(
            "the default window depends on the size of a sample, which only the transform's result tells: give a "
            "window, or the cache of a loader that has run"
        )
    return Orders(
        known, shuffle=shuffle, seed=seed, window=known.window(window, spec if needs_spec else None), lanes=lanes
    )


# ---------------------------------------------------------------------- what a cache has


def look_for(
    known: CountedSets, needed: Sequence[Int64], *, cache: Path, mirror: str | None, substitutes: bool
) -> dict[str, Any]:
    """Return what of the needed chunks a cache has, as `stoker ready --json` has it.

    Args:
        known: The data sets.
        needed: Chunks of each, as `needed_chunks` returns them.
        cache: The folder; it may not be there yet.
        mirror: The cache's mirror.
        substitutes: Whether a chunk's substitute will do.
    """
    mirrored = Mirror(mirror).sizes() if mirror else {}
    missing: list[dict[str, object]] = []
    num_needed = num_mirrored = missing_bytes = 0
    with Store(cache) if is_cache(cache) else nullcontext() as store:
        for one, chunks in zip(known.datasets, needed, strict=True):
            # A loader makes sure of its first chunk with samples when it is made, unless that is a part of a fragment.
            first = [i for i in np.flatnonzero(one.num_samples)[:1].tolist() if len(one.catalogue.unit(i)) == 1]
            filled = dict.fromkeys([*first, *chunks[one.num_samples[chunks] > 0].tolist()])
            present = _sizes(store, one.catalogue.key, filled)
            if store is not None and substitutes:
                present |= _sizes(store, Substitutes(one.catalogue, store).key, filled.keys() - present)
            absent = [chunk for chunk in filled if chunk not in present]
            num_needed += len(filled)
            missing += [{"chunk": chunk, "fragment": str(one.catalogue.fragments[chunk])} for chunk in absent]
            built = [chunk for chunk in absent if one.catalogue.key(chunk) not in mirrored]
            num_mirrored += len(absent) - len(built)
            if built:
                missing_bytes += round(int(one.num_samples[built].sum()) * _sample_bytes(one, store))
    there = cache if cache.exists() else next(parent for parent in cache.absolute().parents if parent.exists())
    return {
        "is_ready": not missing,
        "num_chunks": num_needed,
        "num_missing": len(missing),
        "num_mirrored": num_mirrored,
        "missing": missing[:_MOST_NAMED],
        "missing_bytes": missing_bytes,
        "free_bytes": shutil.disk_usage(there).free,
    }


def _sizes(store: Store | None, key: Callable[[int], str], chunks: Iterable[int]) -> dict[int, int]:
    """Return the bytes of those chunks that a cache has, by the keys they have there."""
    sizes = {} if store is None else {chunk: store.size_of(key(chunk)) for chunk in chunks}
    return {chunk: size for chunk, size in sizes.items() if size is not None}


def _sample_bytes(known: CountedSet, store: Store | None) -> float:
    """Return about how much a sample takes in the cache: as in the chunks that are there, or as its columns say."""
    sizes = _sizes(store, known.catalogue.key, np.flatnonzero(known.num_samples).tolist())
    if sizes:
        return sum(sizes.values()) / int(known.num_samples[[*sizes]].sum())
    spec = spec_known(known)
    return 0.0 if spec is None else float(spec.record_bytes)
