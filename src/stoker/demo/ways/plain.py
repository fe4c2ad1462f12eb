"""Plain Parquet reads: the loader that most teams write first, written well."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from stoker.demo.ways.arrays import arrays_of, concatenate, num_rows_of, take
from stoker.demo.ways.channel import Channel
from stoker.demo.ways.remote import RowGroups
from stoker.demo.ways.way import BATCH_SIZE, SHUFFLE_ROW_GROUPS, Batches, Source
from stoker.fields.spec import Arrays

# Batches that wait for their step: more only take memory.
_PREFETCH = 8


class PlainReads:
    """Row groups read ahead in shuffled order, decoded and turned into arrays once each, mixed, cut into batches.

        num_threads   fetch ─► decode ─► arrays ─┐
        one thread         4 row groups ─► permute ─► take 4,096 rows ─► queue ─► the loop

    Args:
        source: The rows.
        num_threads: Threads that read.
    """

    def __init__(self, source: Source, *, num_threads: int) -> None:
        self._source = source
        self._num_threads = num_threads
        self._row_groups = RowGroups(source.urls, source.storage)

    def epoch(self, epoch: int) -> Batches:
        """Yield each row once in shuffled batches."""
        todo = iter(self._row_groups.shuffled(seed=self._source.seed, epoch=epoch))
        lock = threading.Lock()
        rng = np.random.default_rng([self._source.seed, epoch, 1])
        # One row group more than is being read: a reader never waits for the mixer, and memory stays bounded.
        with Channel[Arrays](self._num_threads + 1) as parts, Channel[Arrays](_PREFETCH) as batches:

            def read() -> None:
                while True:
                    with lock:
                        group = next(todo, None)
                    if group is None or not parts.put(arrays_of(group.read(self._source.storage))):
                        return

            def mix() -> None:
                for batch in mixed(iter(parts), rng):
                    if not batches.put(batch):
                        return

            parts.start(read, name="read", num_threads=self._num_threads)
            batches.start(mix, name="mix")
            try:
                yield from batches
            finally:
                # From the back to the front: the mixer may be waiting for a part.
                parts.close()

    def close(self) -> None:
        """Do nothing: no thread outlives its epoch."""


def mixed(parts: Iterator[Arrays], rng: np.random.Generator) -> Iterator[Arrays]:
    """Yield batches of rows drawn at random from `SHUFFLE_ROW_GROUPS` parts at a time; rows left over join the next.

    Only the last batch may be smaller than `BATCH_SIZE`.
    """
    pool: list[Arrays] = []
    num_parts = 0
    for part in parts:
        pool.append(part)
        num_parts += 1
        if num_parts < SHUFFLE_ROW_GROUPS:
            continue
        rows = concatenate(pool)
        order = rng.permutation(num_rows_of(rows))
        num_whole = len(order) // BATCH_SIZE * BATCH_SIZE
        for start in range(0, num_whole, BATCH_SIZE):
            yield take(rows, order[start : start + BATCH_SIZE])
        pool = [take(rows, order[num_whole:])] if num_whole < len(order) else []
        num_parts = 0
    if pool:
        rows = concatenate(pool)
        order = rng.permutation(num_rows_of(rows))
        for start in range(0, len(order), BATCH_SIZE):
            yield take(rows, order[start : start + BATCH_SIZE])
