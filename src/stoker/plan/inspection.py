"""What a loader would make of a data set, without making it: for `stoker inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stoker.cache.builder import empty_arrays
from stoker.cache.format import PAGE_BYTES
from stoker.cache.write import prepare_chunk
from stoker.columns import ColumnAnswer, plan_spec, plan_table
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.kinds import SamplingUnit
from stoker.errors import FieldError
from stoker.fields.spec import Spec
from stoker.loader.opened import check_known_nulls
from stoker.loader.orders import UnitsReport, order_fingerprint, report_on, window_chunks
from stoker.plan.known import KnownSet, check_specs, default_window, open_known
from stoker.plan.overview import SourceOverview, overview
from stoker.sampling.mixture import mixture_counts


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What is known of a data set before any row is read. K is the number of chunks.

    Attributes:
        catalogue: The opened data set.
        source: What its footers say.
        columns: What becomes of each column; with a transform, what it would be without one.
        spec: What a sample is; None where columns are refused, or only a transform that has not run yet knows.
        problems: Why a loader would refuse it, each with the way out; none if it would not.
        num_samples: Samples: rows that pass the filter.
        sample_bytes: Mean bytes of a sample, None where that is not known. What neighbours share counts for each.
        is_exact: Whether every sample has so many bytes.
        size_bytes: Size of all chunks on disk if nothing is shared, None where that is not known.
        window: Chunks that are mixed together where nobody says otherwise, None where that is not known; K at most.
        num_present: Chunks in the cache that was looked into, None without one.
        units: What the order counts, None for rows.
    """

    catalogue: Catalogue
    source: SourceOverview
    columns: tuple[ColumnAnswer, ...]
    spec: Spec | None
    problems: tuple[str, ...]
    num_samples: int
    sample_bytes: float | None
    is_exact: bool
    size_bytes: int | None
    window: int | None
    num_present: int | None
    units: UnitsReport | None = None


@dataclass(frozen=True, kw_only=True)
class MixtureInspection:
    """What is known of a mixture before any row is read.

    Attributes:
        mixture: What the user wrote.
        fingerprint: Of all of it.
        parts: Each data set by its name.
        counts: Name -> samples that it gives to an epoch, or units, where the order counts these; None where a loader
            would refuse the mixture.
        num_samples: Name -> samples, or units, that it has.
        window: Chunks of each data set that are mixed together where nobody says otherwise, None where not known.
        problems: Why a loader would refuse the mixture, those of its data sets included.
    """

    mixture: Mixture
    fingerprint: str
    parts: Mapping[str, Inspection]
    counts: Mapping[str, int] | None
    num_samples: Mapping[str, int]
    window: int | None
    problems: tuple[str, ...]


def inspect(
    dataset: Dataset,
    *,
    cache: Path | None = None,
    num_threads: int = 8,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> Inspection:
    """Return what a loader would make of a data set; only footers are read, and a filter's columns.

    Args:
        dataset: What to look at.
        cache: A cache to look into; one that is not there yet is not made.
        num_threads: Threads that read footers.
        unit: What the order counts, if not rows: then the columns that decide it are read, too.
        on_count: Told how far reading these is.

    Raises:
        ValueError: What the order counts is made by a transform, and the cache does not know it.
        SourceError: The data set cannot be listed or a footer cannot be read.
        FieldError: A column that was asked for is not there, or files contradict each other.
        CacheError: The cache cannot be used.
    """
    known = open_known(dataset, cache=cache, num_threads=num_threads, counts_present=True, unit=unit, on_count=on_count)
    return _inspect_set(known.datasets[0], unit, num_threads=num_threads)


def inspect_mixture(
    mixture: Mixture,
    *,
    cache: Path | None = None,
    num_threads: int = 8,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> MixtureInspection:
    """Return what a loader would make of a mixture; see `inspect`."""
    known = open_known(mixture, cache=cache, num_threads=num_threads, counts_present=True, unit=unit, on_count=on_count)
    parts = {name: _inspect_set(one, unit, num_threads=num_threads) for name, one in known.named.items()}
    problems = [f"{name}: {problem}" for name, part in parts.items() for problem in part.problems]
    num_samples = {
        name: part.num_samples if part.units is None else part.units.num_units for name, part in parts.items()
    }
    counts, window = None, None
    if not problems:
        try:
            spec = check_specs(known)
            weights = None if mixture.weights is None else [mixture.weights[name] for name in mixture.names]
            sizes = list(num_samples.values())
            found = mixture_counts(sizes, weights=weights, until=mixture.until, names=mixture.names)
            counts = dict(zip(mixture.names, found, strict=True))
        except (FieldError, ValueError) as error:
            problems.append(str(error))
        else:
            window = None if spec is None else default_window(known, spec)
    return MixtureInspection(
        mixture=mixture,
        fingerprint=order_fingerprint(known, known.unit),
        parts=parts,
        counts=counts,
        num_samples=num_samples,
        window=window,
        problems=tuple(problems),
    )


def _inspect_set(known: KnownSet, unit: SamplingUnit | None, *, num_threads: int) -> Inspection:
    catalogue, dataset = known.catalogue, known.catalogue.dataset
    source = overview(catalogue, num_threads=num_threads)
    columns = tuple(plan_table(catalogue.schema, dataset.fields, values_per_sample=source.values_a_row))
    spec = known.spec
    problems: tuple[str, ...] = ()
    if dataset.transform is None:
        spec, problems = _planned(catalogue, columns)
    if unit is not None and spec is not None:
        unit.check(spec)
    num_samples = int(catalogue.num_samples.sum())
    sample_bytes, is_exact = _sample_bytes(spec, columns)
    return Inspection(
        catalogue=catalogue,
        source=source,
        columns=columns,
        spec=spec,
        problems=problems,
        num_samples=num_samples,
        sample_bytes=sample_bytes,
        is_exact=is_exact,
        size_bytes=None if spec is None or sample_bytes is None else _size_bytes(catalogue, spec, sample_bytes),
        window=None if spec is None else _window(catalogue, spec),
        num_present=known.num_present,
        units=None if unit is None else report_on(unit, known.index, num_samples=catalogue.num_samples),
    )


def _planned(catalogue: Catalogue, columns: tuple[ColumnAnswer, ...]) -> tuple[Spec | None, tuple[str, ...]]:
    """Return what a sample is without a transform, and why a loader would refuse it."""
    refused = tuple(answer.problem for answer in columns if answer.problem is not None)
    if refused:
        return None, refused
    try:
        spec = plan_spec(catalogue.schema, catalogue.dataset.fields, catalogue.dataset.deduplicate)
        if catalogue.dataset.filter is None:
            check_known_nulls(catalogue)
    except FieldError as error:
        return None, (str(error),)
    return spec, ()


def _sample_bytes(spec: Spec | None, columns: tuple[ColumnAnswer, ...]) -> tuple[float | None, bool]:
    """Return the mean bytes of a sample's record and lists, and whether they are the same for all."""
    if spec is None:
        return None, False
    if not spec.ragged:
        return float(spec.unshared_bytes), not spec.keys
    ragged = {entry.name for entry in spec.ragged}
    lists = [answer.sample_bytes for answer in columns if answer.field in ragged]
    known = {answer.field for answer in columns if answer.sample_bytes is not None}
    if not ragged <= known:
        return None, False
    return spec.unshared_bytes + sum(size for size in lists if size is not None), False


def _size_bytes(catalogue: Catalogue, spec: Spec, sample_bytes: float) -> int:
    """Return what the chunks take on disk: the header, whole pages of records, and the lists."""
    counts = catalogue.num_samples
    records = -(-(counts * spec.unshared_bytes) // PAGE_BYTES) * PAGE_BYTES
    lists = counts.sum() * (sample_bytes - spec.unshared_bytes)
    return int(records.sum() + lists) + (_header_bytes(catalogue, spec) * len(counts) if len(counts) else 0)


def _header_bytes(catalogue: Catalogue, spec: Spec) -> int:
    """Return the header of a chunk: whole pages, so that what differs between chunks seldom counts."""
    about = {"url": catalogue.fragments[0].url, "row_groups": [0, 0], "rows": None, "key": catalogue.key(0)}
    return len(prepare_chunk(empty_arrays(spec), spec, num_samples=0, about=about).header)


def _window(catalogue: Catalogue, spec: Spec) -> int:
    window = window_chunks(None, num_samples=catalogue.num_samples, record_bytes=spec.plain_bytes)
    num_filled = int(np.count_nonzero(catalogue.num_samples))
    return num_filled if window is None else min(window, num_filled)
