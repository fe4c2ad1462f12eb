"""Batches that lie in memory already: what no data path can beat."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from stoker.demo.ways.plain import PlainReads
from stoker.demo.ways.way import Batches, Source
from stoker.fields.spec import Array, Arrays, Ragged


class RamBatches:
    """All batches kept in memory; each epoch hands them over in another order, and does nothing else.

    Args:
        source: The rows. They are read once, here, without the slow link if the source has none.
        num_threads: Threads that read.
        limit_bytes: Memory to use at most; batches that do not fit are left out.

    Attributes:
        is_whole: Whether all batches fit.
    """

    def __init__(self, source: Source, *, num_threads: int, limit_bytes: int) -> None:
        self._seed = source.seed
        self._batches: list[Arrays] = []
        self.is_whole = True
        num_bytes = 0
        with closing(PlainReads(source, num_threads=num_threads).epoch(0)) as batches:
            for batch in batches:
                num_bytes += num_bytes_of(batch)
                if num_bytes > limit_bytes and self._batches:
                    self.is_whole = False
                    break
                self._batches.append(batch)

    def epoch(self, epoch: int) -> Batches:
        """Yield the batches in an order of the epoch's own."""
        for i in np.random.default_rng([self._seed, epoch]).permutation(len(self._batches)):
            yield self._batches[i]

    def close(self) -> None:
        """Give the memory back."""
        self._batches.clear()


def num_bytes_of(batch: Arrays) -> int:
    """Return the memory that a batch's values take."""
    return sum(_num_bytes(array) for array in batch.values())


def _num_bytes(array: Array | Ragged) -> int:
    if isinstance(array, Ragged):
        return _num_bytes(array.values) + _num_bytes(array.offsets)
    return array.nbytes
