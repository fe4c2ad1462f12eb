"""What a loader would make of a data set, without making it: for `stoker inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.arrow import is_text
from stoker.cache.builder import empty_arrays
from stoker.cache.folder import is_cache
from stoker.cache.format import PAGE_BYTES
from stoker.cache.store import Store
from stoker.cache.write import prepare_chunk
from stoker.columns import ColumnAnswer, plan_table
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.kinds import SamplingUnit
from stoker.errors import FieldError
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.loader.opened import check_known_nulls
from stoker.loader.orders import CountedSet, UnitsReport, window_chunks
from stoker.parquet.footers import Footer
from stoker.plan.known import NUM_THREADS, common_spec, open_known, spec_known
from stoker.sampling.mixture import mixture_counts
from stoker.storage.each import for_each

# In front of each value where strings lie plainly in a page.
_LENGTH_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class DatasetInspection:
    """What is known of one data set before any row is read.

    Attributes:
        groups: Rows of every row group, and its bytes before compression, all columns; whatever is filtered out. int64,
            shape [G, 2].
        nulls: Column -> nulls in it, None where the footers do not say. Only those of row groups that are read, and
            without columns that lie in the paths.
        columns: What becomes of each column; with a transform, what it would be without one.
        spec: What a sample is; None where columns are refused, or only a transform that has not run yet knows.
        problems: Why a loader would refuse it, each with the way out.
        num_present: Chunks in the cache that was looked into, None without one.
        units: What the order counts, None for rows.
    """

    catalogue: Catalogue
    groups: Int64
    nulls: Mapping[str, int | None]
    columns: tuple[ColumnAnswer, ...]
    spec: Spec | None
    problems: tuple[str, ...]
    num_present: int | None
    units: UnitsReport | None = None

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return int(self.groups[:, 0].sum())

    @property
    def spreads(self) -> list[list[int]]:
        """Minimum, median and maximum of the rows of row groups, and of their bytes; zeros where there are none."""
        some = self.groups if len(self.groups) else np.zeros((1, 2), np.int64)
        found: list[list[int]] = np.quantile(some, (0, 0.5, 1), axis=0).astype(int).T.tolist()
        return found

    @property
    def num_samples(self) -> int:
        """Rows that pass the filter."""
        return int(self.catalogue.num_samples.sum())

    @property
    def is_exact(self) -> bool:
        """Whether every sample has `sample_bytes`."""
        return self.spec is not None and not self.spec.ragged and not self.spec.keys

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a sample's record and lists, None where not known. What neighbours share counts for each."""
        ragged = set() if self.spec is None else {entry.name for entry in self.spec.ragged}
        lists = [one for one in self.columns if one.field in ragged and one.sample_bytes is not None]
        if self.spec is None or not ragged <= {one.field for one in lists}:
            return None
        return self.spec.unshared_bytes + float(sum(one.sample_bytes or 0 for one in lists))

    @property
    def size_bytes(self) -> int | None:
        """Size of all chunks on disk if nothing is shared: headers, whole pages of records, lists; None if unknown."""
        spec, sample_bytes, catalogue = self.spec, self.sample_bytes, self.catalogue
        if spec is None or sample_bytes is None:
            return None
        if not len(counts := catalogue.num_samples):
            return 0
        records = -(-(counts * spec.unshared_bytes) // PAGE_BYTES) * PAGE_BYTES
        lists = counts.sum() * (sample_bytes - spec.unshared_bytes)
        # Whole pages, so that what differs between the headers of chunks seldom counts.
        about = {"url": catalogue.fragments[0].url, "row_groups": [0, 0], "rows": None, "key": catalogue.key(0)}
        empty_bytes, _ = prepare_chunk(empty_arrays(spec), spec, num_samples=0, about=about)
        return int(records.sum() + lists) + empty_bytes * len(counts)

    @property
    def window(self) -> int | None:
        """Chunks that are mixed together where nobody says otherwise, None where that is not known."""
        if self.spec is None:
            return None
        counts = self.catalogue.num_samples
        window, num_filled = window_chunks(None, counts, self.spec.plain_bytes), int(np.count_nonzero(counts))
        return num_filled if window is None else min(window, num_filled)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What is known of a data set, or of all of a mixture, before any row is read.

    Attributes:
        parts: Each data set by its name; one that stands alone under an empty one.
        counts: Name -> samples that it gives to an epoch, or units, where the order counts these; None where a loader
            would refuse the mixture.
        num_samples: Name -> samples, or units, that it has.
        window: Chunks of each data set that are mixed together where nobody says otherwise, None where not known.
        problems: Why a loader would refuse it, those of its data sets included.
    """

    mixture: Mixture | None
    fingerprint: str
    parts: Mapping[str, DatasetInspection]
    counts: Mapping[str, int] | None
    num_samples: Mapping[str, int]
    window: int | None
    problems: tuple[str, ...]


def inspect(
    dataset: Dataset | Mixture,
    *,
    cache: Path | None = None,
    unit: SamplingUnit | None = None,
    on_count: OnCount | None = None,
) -> Inspection:
    """Return what a loader would make of a data set or mixture; only footers are read, and a filter's columns.

    A cache is looked into; one that is not there yet is not made. Where the order counts other units than rows, the
    columns that decide them are read, too. Errors are those of `open_known`.
    """
    known = open_known(dataset, cache=cache, unit=unit, on_count=on_count)
    parts = {name: _inspect_set(one, cache) for name, one in known.named.items()}
    problems = [f"{name}: {one}" if name else one for name, part in parts.items() for one in part.problems]
    num_samples = {
        name: part.num_samples if part.units is None else part.units.num_units for name, part in parts.items()
    }
    counts, window, mixture = None, None, known.mixture
    if not problems:
        try:
            spec = common_spec(known)
            counts, window = num_samples, None if spec is None else known.window(None, spec)
            if mixture is not None:
                weights = None if mixture.weights is None else [mixture.weights[name] for name in mixture.names]
                sizes = list(num_samples.values())
                found = mixture_counts(sizes, weights=weights, until=mixture.until, names=mixture.names)
                counts = dict(zip(mixture.names, found, strict=True))
        except (FieldError, ValueError) as error:
            problems.append(str(error))
            counts = window = None
    return Inspection(
        mixture=mixture,
        fingerprint=known.fingerprint,
        parts=parts,
        counts=counts,
        num_samples=num_samples,
        window=window,
        problems=tuple(problems),
    )


def _inspect_set(known: CountedSet, cache: Path | None) -> DatasetInspection:
    catalogue, dataset, unit = known.catalogue, known.catalogue.dataset, known.unit
    groups, values_a_row = _overview(catalogue)
    columns = tuple(plan_table(catalogue.schema, dataset.fields, values_per_sample=values_a_row))
    spec, problems = (known.spec, ()) if dataset.transform is not None else _planned(known, columns)
    if unit is not None and spec is not None:
        unit.check(spec)
    num_present = None if cache is None else 0
    if cache is not None and is_cache(cache):
        with Store(cache) as store:  # of 100,000 chunks, this takes seconds
            num_present = sum(store.has(catalogue.key(i)) for i in range(len(catalogue)))
    return DatasetInspection(
        catalogue=catalogue,
        groups=groups,
        nulls={
            name: None if (counts < 0).any() else int(counts.sum()) for name, counts in catalogue.null_counts.items()
        },
        columns=columns,
        spec=spec,
        problems=problems,
        num_present=num_present,
        units=None if unit is None else known.report,
    )


def _planned(known: CountedSet, columns: tuple[ColumnAnswer, ...]) -> tuple[Spec | None, tuple[str, ...]]:
    """Return what a sample is without a transform, and why a loader would refuse it."""
    refused = tuple(answer.problem for answer in columns if answer.problem is not None)
    if refused:
        return None, refused
    try:
        spec = spec_known(known)
        if known.catalogue.dataset.filter is None:
            check_known_nulls(known.catalogue)
    except FieldError as error:
        return None, (str(error),)
    return spec, ()


def _overview(catalogue: Catalogue) -> tuple[Int64, dict[str, float]]:
    """Return rows and bytes of every row group, and how many innermost values a row of lists or strings has on average.

    The latter are estimates, of which strings count bytes; columns whose footers say too little are missing. Footers
    are read from the source only where opening did not keep them.
    """
    groups: list[Int64] = [np.empty((0, 2), np.int64)] * len(catalogue.files)
    long = {
        field.name: _is_bytes(field.type)
        for field in catalogue.schema
        if pa.types.is_nested(field.type) or _is_bytes(field.type)
    }
    # Of each file and column, values and the rows that have them.
    sums = np.zeros((len(catalogue.files), len(long), 2))

    def work(i: int) -> None:
        footer = catalogue.footer(i)
        rows, num_bytes = footer.groups["num_rows"], footer.groups["total_bytes"]
        groups[i] = np.stack([rows, num_bytes], axis=1)
        for k, (name, is_bytes) in enumerate(long.items()):
            value = dict(catalogue.listed[i].partition).get(name)
            if value is not None:
                sums[i, k] = len(value.encode("utf-8", "surrogateescape")) * rows.sum(), rows.sum()
            for leaf in footer.layout.leaves_of(name):
                values = _num_values(footer, leaf, is_bytes=is_bytes)
                sums[i, k] += values[values >= 0].sum(), rows[values >= 0].sum()

    for_each(len(groups), work, num_threads=NUM_THREADS)
    values = zip(long, sums.sum(axis=0).tolist(), strict=True)
    values_a_row = {name: num / num_rows for name, (num, num_rows) in values if num_rows}
    return np.concatenate([np.empty((0, 2), np.int64), *groups]), values_a_row


def _num_values(footer: Footer, leaf: int, *, is_bytes: bool) -> npt.NDArray[np.float64]:
    """Return about how many innermost values a leaf has in each row group, bytes of text; -1 where nobody knows."""
    chunks = footer.chunks[:, leaf]
    values = chunks["num_values"].astype(np.float64)
    if not is_bytes:
        return values
    plain = np.maximum(chunks["uncompressed_bytes"] - _LENGTH_BYTES * values, 0)
    # A dictionary has each word once, so its size says nothing; the first and the last word are two samples.
    ends = np.where(chunks["min_bytes"] >= 0, (chunks["min_bytes"] + chunks["max_bytes"]) / 2 * values, -1)
    told = np.where(chunks["dictionary_offset"] < 0, plain, ends)
    return np.where(chunks["unencoded_bytes"] >= 0, chunks["unencoded_bytes"], told)


def _is_bytes(kind: pa.DataType) -> bool:
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    return is_text(kind) or any(is_so(kind) for is_so in (types.is_binary, types.is_large_binary, types.is_binary_view))
