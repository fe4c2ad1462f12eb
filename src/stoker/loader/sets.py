"""What the order needs of the data sets it is of: those of a loader, or those that are only planned with."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset, dataset_of
from stoker.dataset.listing import names_below
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.index import Index
from stoker.dataset.units.kinds import SamplingUnit, Weighted
from stoker.fields.offsets import Int64
from stoker.hashing import fingerprint
from stoker.loader.units.expand import units_of
from stoker.sampling import position
from stoker.sampling.contents import Contents, OpenFiles, describe, layouts_of
from stoker.sampling.position import Mixing

# A filter goes into saved positions, which stay small.
_MAX_SHOWN = 200


class Set(Protocol):
    """One opened data set."""

    @property
    def catalogue(self) -> Catalogue:
        """Its files and fragments."""

    @property
    def num_samples(self) -> Int64:
        """Rows of each of its chunks. Shape [K]."""

    @property
    def index(self) -> Index | None:
        """What the order counts of it; None for rows."""


class Sets(Protocol):
    """One opened data set, or all of a mixture."""

    @property
    def datasets(self) -> Sequence[Set]:
        """Each data set."""

    @property
    def mixture(self) -> Mixture | None:
        """What the user wrote, where it is one."""

    @property
    def num_samples(self) -> Int64:
        """Rows of each chunk, of all data sets. Shape [K]."""


def as_opened(sets: Sets) -> Dataset | Mixture:
    """Return what was opened, each table of it at the version that was found: other processes open that one."""
    datasets = [dataset_of(one.catalogue) for one in sets.datasets]
    if sets.mixture is None:
        return datasets[0]
    other = copy.copy(sets.mixture)
    other.datasets = dict(zip(other.names, datasets, strict=True))
    return other


def files_of(one: Set, unit: SamplingUnit | None) -> OpenFiles:
    """Return the files of a data set as the order knows them: by their names, and what each of its chunks has.

    Args:
        one: The data set.
        unit: What the order counts; None for rows.
    """
    counts, num_units = one.num_samples, _num_units(one, unit)
    if num_units is not counts:
        counts = np.stack([counts, num_units], axis=1)
    file = one.catalogue.file_of_chunk[one.num_samples > 0]
    counts = counts[one.num_samples > 0]
    held, begins = np.unique(file, return_index=True)
    listed = [one.catalogue.listed[i] for i in held.tolist()]
    samples = np.split(counts, begins[1:]) if held.size else []
    # Of as many rows, others may be deleted.
    samples = [
        np.append(some, np.frombuffer(file.deleted, "<i8")) if file.deleted else some
        for some, file in zip(samples, listed, strict=True)
    ]
    root, names = names_below(listed)
    return OpenFiles(root, names, layouts_of(samples))


def contents_of(one: Set, unit: SamplingUnit | None, files: OpenFiles) -> Contents:
    """Return what the order of a data set is made of.

    Args:
        one: The data set.
        unit: What the order counts; None for rows.
        files: Its files, as `files_of` returned them.
    """
    draws = None
    if isinstance(unit, Weighted) and one.index is not None:
        cumulated = one.index.arrays["cumulated"][one.index.row_starts]
        draws = hashlib.blake2b(cumulated.astype("<i8").tobytes(), digest_size=8).hexdigest()
    chosen = one.catalogue.dataset.filter
    return describe(
        files,
        filter=None if chosen is None else f"{_shortened(str(chosen))} [{fingerprint('filter', chosen.to_json())[:8]}]",
        draws=draws,
        num_samples=int(_num_units(one, unit).sum()),
    )


def _num_units(one: Set, unit: SamplingUnit | None) -> Int64:
    """Return what the order counts of each chunk; of draws, its rows: how many there are, other files decide too."""
    if unit is None or one.index is None or isinstance(unit, Weighted):
        return one.num_samples
    return units_of(unit, one.index, seed=0, epoch=0).num_units


def segments_of(one: Set, contents: Contents) -> Int64 | None:
    """Return the number of the segment that each chunk came with to the epoch under way; None for one segment.

    Args:
        one: The data set.
        contents: The same, as a position tells it.
    """
    if contents.segments is None:
        return None
    filled = one.num_samples > 0
    _, file = np.unique(one.catalogue.file_of_chunk[filled], return_inverse=True)
    segments = np.zeros(len(one.num_samples), np.int64)
    segments[filled] = contents.file_segments[file]
    return segments


def mixing_of(mixture: Mixture | None) -> Mixing | None:
    """Return how data sets are mixed."""
    if mixture is None:
        return None
    weights = None
    if mixture.weights is not None:
        shares = [Fraction(str(mixture.weights[name])) for name in mixture.names]
        weights = tuple(str(share / sum(shares)) for share in shares)  # their scale means nothing
    return Mixing(names=mixture.names, weights=weights, until=None if weights is None else mixture.until)


def order_fingerprint(sets: Sets, unit: SamplingUnit | None) -> str:
    """Return what tells the order of these data sets, mixed in this way, from all others."""
    contents = [contents_of(one, unit, files_of(one, unit)) for one in sets.datasets]
    return position.fingerprint_of(contents, mixing_of(sets.mixture))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
