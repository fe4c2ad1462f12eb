"""Chunks that cannot be made of their own rows, and the chunks whose rows stand in for these.

    chunk    0   1   2   3   4          3: a page is corrupt, or the transform fails on it
    rows of  0   1   2   4   4          as many as chunk 3 would have: those of chunk 4 from the beginning, again and
                                        again where it has fewer

How many samples a chunk has is known beforehand, so no step, rank or resume notices. Which chunk lends its rows follows
from the data set alone: the next in the fixed order, around its end, that can be made itself. The chunk is kept under a
key of its own, so that neither a later repair nor a loader that would raise ever meets it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stoker.cache.store import Store
from stoker.cache.write import MismatchError
from stoker.dataset.catalogue import Catalogue
from stoker.errors import FieldError, SourceCorruptError, TransformError
from stoker.hashing import fingerprint

_log = logging.getLogger("stoker")

# So many chunks that cannot be made, one behind the other, are an error of what makes them, not of their rows.
_MOST_DONORS = 32


def is_replaceable(error: Exception) -> bool:
    """Return whether other rows help: not against a network, credentials, a full disk, or files that are gone."""
    if isinstance(error, TransformError):
        return error.is_of_rows
    return isinstance(error, SourceCorruptError | FieldError | MismatchError)


def cycled(table: pa.Table, num_rows: int) -> pa.Table:
    """Return so many rows of a table that has some: the first ones, or all of them again and again."""
    if num_rows <= table.num_rows:
        return table.slice(0, num_rows)
    return table.take(pa.array(np.arange(num_rows) % table.num_rows))


class Substitutes:
    """Which chunks of a data set are replaced, as far as that is known here.

    Safe to use from several threads.

    Attributes:
        chunks: Those that are replaced.
        bad: Those that cannot be made, and so lend no rows.
    """

    def __init__(self, catalogue: Catalogue, store: Store) -> None:
        self._catalogue = catalogue
        self._store = store
        self._mutex = threading.Lock()
        self._said: set[int] = set()
        self.chunks: set[int] = set()
        self.bad: set[int] = set()

    def key(self, chunk: int) -> str:
        """Return the key of what stands in for a chunk: all of the data set decides whose rows these are."""
        catalogue = self._catalogue
        return fingerprint("substitute", {"dataset": catalogue.fingerprint, "chunk": catalogue.key(chunk)})

    def find(self, chunk: int) -> bool:
        """Return whether what stands in for a chunk is there; it counts as replaced from then on."""
        is_there = self._store.has(self.key(chunk))
        if is_there:
            self.add(chunk, "others stand in for them: they could not be made when the cache was filled")
        return is_there

    def donors(self, chunk: int) -> Iterator[int]:
        """Yield the chunks whose rows may stand in for those of a chunk: the next ones with samples, but not many.

        Where none of these can be made either, the fault is not in the rows of one chunk.
        """
        filled = np.flatnonzero(self._catalogue.num_samples)
        following = np.roll(filled, -int(np.searchsorted(filled, chunk, side="right"))).tolist()
        yield from (donor for donor in following[:_MOST_DONORS] if donor != chunk and donor not in self.bad)

    def add(self, chunk: int, why: str) -> None:
        """Note that a chunk is replaced, and say once why and by what."""
        catalogue = self._catalogue
        with self._mutex:
            self.chunks.add(chunk)
            is_first, is_new = not self._said, chunk not in self._said
            self._said.add(chunk)
        if is_first:  # as long as somebody uses them they stay, as other chunks do
            self._store.register(
                fingerprint("substitutes", catalogue.fingerprint),
                name=f"substitutes for chunks of {catalogue.dataset!r}",
                urls=list(map(str, catalogue.dataset.sources)),
                keys=lambda: list(map(self.key, range(len(catalogue)))),
            )
        if is_new:
            _log.warning(
                "the %s rows of %s are left out, %s",
                f"{int(catalogue.num_samples[chunk]):,}",
                catalogue.fragments[chunk],
                why,
            )
