"""Arrow tables kept on the SSD after the first read: the cache that is tried first, for Parquet is gone from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.demo.ways.arrays import arrays_of
from stoker.demo.ways.channel import Channel
from stoker.demo.ways.remote import RemoteRowGroup, RowGroups
from stoker.demo.ways.way import BATCH_SIZE, SHUFFLE_ROW_GROUPS, Batches, Source

_PREFETCH = 16


class ArrowCache:
    """Row groups as Arrow files on SSD, mapped into memory; rows are drawn in Arrow and become arrays when dequeued.

        first epoch   fetch ─► decode ─► Arrow file on SSD ─┐
        later                      map the Arrow file ──────┤
        num_threads   4 row groups ─► permute ─► take 4,096 rows, all in Arrow ─► queue ─► arrays ─► the loop
                                                                                            └ here, at each dequeue

    Args:
        source: The rows.
        folder: Where the Arrow files are kept.
        num_threads: Threads that read, map and draw rows.
    """

    def __init__(self, source: Source, *, folder: Path, num_threads: int) -> None:
        self._source = source
        self._folder = folder
        self._num_threads = num_threads
        self._row_groups = RowGroups(source.urls, source.storage)
        folder.mkdir(parents=True, exist_ok=True)

    def epoch(self, epoch: int) -> Batches:
        """Yield each row once in shuffled batches."""
        groups = self._row_groups.shuffled(seed=self._source.seed, epoch=epoch)
        pools = [groups[i : i + SHUFFLE_ROW_GROUPS] for i in range(0, len(groups), SHUFFLE_ROW_GROUPS)]
        todo = iter(enumerate(pools))
        lock = threading.Lock()
        left_over: list[pa.Table] = []
        with Channel[pa.Table](_PREFETCH) as batches:

            def draw() -> None:
                while True:
                    with lock:
                        number, pool = next(todo, (-1, []))
                    if not pool:
                        return
                    table = pa.concat_tables([self._table(group) for group in pool])
                    for batch in _drawn(table, np.random.default_rng([self._source.seed, epoch, number])):
                        if len(batch) < BATCH_SIZE:
                            left_over.append(batch)
                        elif not batches.put(batch):
                            return

            batches.start(draw, name="arrow", num_threads=self._num_threads)
            for batch in batches:
                yield arrays_of(batch)
        if left_over:
            for batch in _drawn(pa.concat_tables(left_over), np.random.default_rng([self._source.seed, epoch])):
                yield arrays_of(batch)

    def close(self) -> None:
        """Do nothing: no thread outlives its epoch."""

    def _table(self, group: RemoteRowGroup) -> pa.Table:
        path = self._folder / f"{Path(group.url).stem}-{group.number:03}.arrow"
        if not path.exists():
            table = group.read(self._source.storage)
            aside = path.with_suffix(".part")
            with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            aside.rename(path)
            return table
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()


def _drawn(table: pa.Table, rng: np.random.Generator) -> Iterator[pa.Table]:
    """Yield the rows of the table in random order, `BATCH_SIZE` at a time."""
    # Arrow draws from one chunk far faster than from several.
    table = table.combine_chunks()
    order = rng.permutation(len(table))
    for start in range(0, len(order), BATCH_SIZE):
        yield table.take(pa.array(order[start : start + BATCH_SIZE]))
