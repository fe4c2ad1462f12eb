"""What the order needs of the data sets it is of: those of a loader, or those that are only planned with."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from stoker.identity import fingerprint
from stoker.order.plain import Int64
from stoker.source.catalogue import Catalogue
from stoker.source.mixture import Mixture
from stoker.source.units.index import Index


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
    def chunks(self) -> Sequence[Set]:
        """Each data set."""

    @property
    def mixture(self) -> Mixture | None:
        """What the user wrote, where it is one."""

    @property
    def num_samples(self) -> Int64:
        """Rows of each chunk, of all data sets. Shape [K]."""


def fingerprint_of(sets: Sets) -> str:
    """Return what tells these data sets, mixed in this way, from all others."""
    fingerprints = [one.catalogue.fingerprint for one in sets.chunks]
    mixture, weights = sets.mixture, None
    if mixture is None:
        return fingerprints[0]
    if mixture.weights is not None:
        shares = [Fraction(str(mixture.weights[name])) for name in mixture.names]
        weights = [str(share / sum(shares)) for share in shares]  # their scale means nothing
    parts = [[name, one] for name, one in zip(mixture.names, fingerprints, strict=True)]
    until = mixture.until if weights is not None else None
    return fingerprint("mixture", {"parts": parts, "weights": weights, "until": until})
