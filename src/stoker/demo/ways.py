"""The ways a training loop can get its batches, each written as a good engineer would.

    PlainReads       Parquet from the remote store, decoded again in each epoch
    ArrowCache       Arrow tables kept on SSD, turned into arrays at each dequeue
    stoker_loader    `stoker.Loader`
    in_ram           batches that lie in memory already: the ceiling

The first two read row groups ahead in shuffled order, mix the rows of four at a time, and cut them into batches:

    threads   fetch ─► decode ─┐                                    PlainReads: ─► arrays ─► take rows ─► the loop
    thread                     4 row groups ─► permutation ─► cut ─┤
    threads   map Arrow file ──┘                                    ArrowCache: ─► take rows ─► arrays, in the loop

The batches of an epoch are a generator; closing it early ends whatever works for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.dataset.dataset import Dataset
from stoker.demo.data import SEED
from stoker.demo.ranking import COUNTRIES, EMBEDDING_SIZE, ID_CARDINALITIES, NUM_CONTEXT, NUM_DENSE
from stoker.fields.offsets import Int64
from stoker.fields.spec import Array, Arrays, Ragged
from stoker.host.forks import cached_property
from stoker.loader.loader import Loader
from stoker.loader.shard import Shard
from stoker.storage.fetch import Ranges, RangesFile
from stoker.storage.storage import ObjectInfo

BATCH_SIZE = 4_096
# Rows that are mixed with each other: four row groups, 64 batches.
SHUFFLE_ROW_GROUPS = 4

_MAX_FOOTERS = 16
# Batches that wait for their step: more only take memory.
_PLAIN_AHEAD, _ARROW_AHEAD = 8, 16

# Fields that are several columns side by side, with their dtype.
STACKED: dict[str, tuple[list[str], str]] = {
    "context": ([f"context_{i}" for i in range(NUM_CONTEXT)], "float32"),
    "dense": ([f"dense_{i:02}" for i in range(NUM_DENSE)], "float32"),
    "ids": ([f"id_{i:02}" for i in range(len(ID_CARDINALITIES))], "int64"),
}
_RAGGED = ("clicked_items", "viewed_categories")
# Rows stacked at a time: what 40 columns of them take stays in the second-level cache, four times faster than whole
# columns one after the other.
_BLOCK_ROWS = 4_096

Batches: TypeAlias = Generator[Arrays, None, None]
Pools: TypeAlias = Generator[tuple[pa.Table, list[Int64]], None, None]
"""Rows that are mixed with each other, and which of them each batch has."""
Way: TypeAlias = Callable[[int], Batches]
"""Gives each row once, in batches of `BATCH_SIZE` (the last may be smaller), in an order that differs by epoch."""
_RowGroup: TypeAlias = tuple[ObjectInfo, pq.FileMetaData, int]
"""File, footer and number."""
Item = TypeVar("Item")
Made = TypeVar("Made")


class PlainReads:
    """Row groups read ahead, decoded, turned into arrays once each, mixed, and cut into batches by one more thread."""

    def __init__(self, dataset: Dataset, *, num_threads: int) -> None:
        self._urls, self._storage = dataset.sources, dataset.find_storage()
        self._num_threads = num_threads

    def epoch(self, epoch: int) -> Batches:
        """Yield each row once in shuffled batches."""

        def batches() -> Batches:
            # One row group more than is being read: a reader never waits for the mixer, and memory stays bounded.
            with closing(self._mixed(epoch, num_ahead=self._num_threads + 1)) as pools:
                for pool, orders in pools:
                    arrays = arrays_of(pool)
                    yield from (take(arrays, rows) for rows in orders)

        yield from _in_background(batches(), num_ahead=_PLAIN_AHEAD)

    def _mixed(self, epoch: int, *, num_ahead: int) -> Pools:
        """Yield the rows of `SHUFFLE_ROW_GROUPS` row groups at a time, in random order.

        Batches are whole but for the epoch's last: rows left over join the next pool.
        """
        rng = np.random.default_rng([SEED, epoch])
        groups = [self._row_groups[i] for i in rng.permutation(len(self._row_groups))]
        pool: list[pa.Table] = []
        tables = _ahead(self._table, groups, num_threads=self._num_threads, num_ahead=num_ahead)
        with closing(tables):
            for number, table in enumerate(tables, 1):
                pool.append(table)
                if number % SHUFFLE_ROW_GROUPS == 0 and number < len(groups):
                    rows = pa.concat_tables(pool)
                    *whole, rest = _cut(rng.permutation(len(rows)))
                    yield rows, whole
                    pool = [rows.take(pa.array(rest))]
        rows = pa.concat_tables(pool)
        yield rows, _cut(rng.permutation(len(rows)))

    def _table(self, group: _RowGroup) -> pa.Table:
        """Fetch a row group and decode it on this thread, for the caller brings the threads."""
        info, footer, number = group
        with pq.ParquetFile(self._file(info), metadata=footer, pre_buffer=True) as file:
            return file.read_row_group(number, use_threads=False)

    @cached_property
    def _row_groups(self) -> list[_RowGroup]:
        """All row groups; the footers are read once, at the first use, and all at the same time."""

        def footer(url: str | Path) -> tuple[ObjectInfo, pq.FileMetaData]:
            info = self._storage.stat(str(url))
            return info, pq.read_metadata(self._file(info))

        with ThreadPoolExecutor(_MAX_FOOTERS, thread_name_prefix="stoker-demo") as pool:
            footers = list(pool.map(footer, self._urls))
        return [(info, footer, number) for info, footer in footers for number in range(footer.num_row_groups)]

    def _file(self, info: ObjectInfo) -> pa.PythonFile:
        """Return a file as pyarrow reads it: a request for each range that it asks for."""
        return pa.PythonFile(RangesFile(Ranges(info, self._storage)), mode="r")


class ArrowCache(PlainReads):
    """Row groups kept as Arrow files on SSD, and mapped into memory: the cache that is tried first.

    Parquet is gone from it. As many threads as read and map draw rows in Arrow, which become arrays when their batch is
    dequeued.
    """

    def __init__(self, dataset: Dataset, *, folder: Path, num_threads: int) -> None:
        super().__init__(dataset, num_threads=num_threads)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def epoch(self, epoch: int) -> Batches:
        """Yield each row once in shuffled batches."""

        def parts() -> Generator[tuple[pa.Table, Int64], None, None]:
            with closing(self._mixed(epoch, num_ahead=SHUFFLE_ROW_GROUPS)) as pools:
                for pool, orders in pools:
                    whole = pool.combine_chunks()  # Arrow draws from one chunk far faster than from several
                    yield from ((whole, rows) for rows in orders)

        def draw(part: tuple[pa.Table, Int64]) -> pa.Table:
            return part[0].take(pa.array(part[1]))

        with (
            closing(_in_background(parts(), num_ahead=_ARROW_AHEAD)) as whole,
            closing(_ahead(draw, whole, num_threads=self._num_threads, num_ahead=_ARROW_AHEAD)) as tables,
        ):
            yield from map(arrays_of, tables)

    def _table(self, group: _RowGroup) -> pa.Table:
        path = self._folder / f"{Path(group[0].url).stem}-{group[2]:03}.arrow"
        if not path.exists():
            table = super()._table(group)
            aside = path.with_suffix(".part")
            with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            aside.rename(path)
            return table
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()


@contextmanager
def stoker_loader(dataset: Dataset, *, folder: Path | None, num_threads: int) -> Iterator[Way]:
    """Give the epochs of a `stoker.Loader` with nothing but its public arguments; None for a folder keeps no cache.

    The first epoch makes it, which lists the files and reads their footers, as the first of the other ways does.
    """
    with ExitStack() as stack:

        @cache
        def loader() -> Loader:
            made = Loader(
                dataset,
                shard=Shard(0, 1),  # whatever started this process
                batch_size=BATCH_SIZE,
                shuffle=True,
                seed=SEED,
                # A chunk of this data is a row group: rows are mixed as widely as in the other ways.
                window=SHUFFLE_ROW_GROUPS,
                cache=folder,
                num_threads=num_threads,
            )
            return stack.enter_context(made)

        def epoch(epoch: int) -> Batches:
            loader().set_epoch(epoch)
            yield from loader()

        yield epoch


def batches_in_ram(dataset: Dataset, *, num_threads: int, limit_bytes: int) -> tuple[list[Arrays], bool]:
    """Return batches of the rows, as many as fit into so much memory, and whether those are all."""
    kept: list[Arrays] = []
    with closing(PlainReads(dataset, num_threads=num_threads).epoch(0)) as batches:
        for batch in batches:
            limit_bytes -= sum(array.nbytes for array in batch.values())
            if limit_bytes < 0 and kept:
                return kept, False
            kept.append(batch)
    return kept, True


def in_ram(batches: Sequence[Arrays], epoch: int) -> Batches:
    """Yield batches that are there in an order of the epoch's own, and do nothing else."""
    for i in np.random.default_rng([SEED, epoch]).permutation(len(batches)):
        yield batches[i]


def arrays_of(table: pa.Table) -> Arrays:
    """Return the arrays of a table of the demo's columns: whole columns at a time, no Python for each row.

    dense [N, 40]   ids [N, 20]   context [N, 6]   query_embedding [N, 64]   country, query_id, label [N]
    clicked_items, viewed_categories: ragged
    """
    columns = {name: _one_chunk(table[name]) for name in table.column_names}
    arrays: Arrays = {
        "query_id": columns["query_id"].to_numpy(),
        "country": pc.index_in(columns["country"], value_set=pa.array(COUNTRIES)).to_numpy(),
        "query_embedding": columns["query_embedding"].flatten().to_numpy().reshape(-1, EMBEDDING_SIZE),
        "label": columns["label"].to_numpy(),
    }
    for field, (names, dtype) in STACKED.items():
        arrays[field] = _stacked([columns[name].to_numpy() for name in names], dtype)
    for field in _RAGGED:
        # Behind a slice the offsets do not begin at zero; flatten() gives exactly the values between them.
        offsets = columns[field].offsets.to_numpy().astype(np.int64)
        arrays[field] = Ragged(columns[field].flatten().to_numpy(), offsets - offsets[0])
    return arrays


def take(arrays: Arrays, rows: Int64) -> Arrays:
    """Return copies of the rows, in the order of `rows`. Shape [B]."""
    return {
        name: array[rows] if isinstance(array, Ragged) else array.take(rows, axis=0) for name, array in arrays.items()
    }


def _one_chunk(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _stacked(columns: Sequence[Array], dtype: str) -> Array:
    stacked = np.empty((len(columns[0]), len(columns)), dtype=dtype)
    for start in range(0, len(stacked), _BLOCK_ROWS):
        block = stacked[start : start + _BLOCK_ROWS]
        for i, column in enumerate(columns):
            block[:, i] = column[start : start + _BLOCK_ROWS]
    return stacked


def _cut(order: Int64) -> list[Int64]:
    """Return rows of whole batches, and what is left over."""
    return np.split(order, range(BATCH_SIZE, len(order), BATCH_SIZE))


def _ahead(
    work: Callable[[Item], Made], items: Iterable[Item], *, num_threads: int, num_ahead: int
) -> Generator[Made, None, None]:
    """Yield `work` of each item, in their order; threads of its own are up to `num_ahead` items ahead of who asks."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-demo") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > num_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _in_background(items: Generator[Made, None, None], *, num_ahead: int) -> Generator[Made, None, None]:
    """Yield what a generator yields, run by a thread of its own, up to `num_ahead` items ahead of who asks."""
    with (
        closing(items),
        closing(_ahead(lambda _: next(items, None), count(), num_threads=1, num_ahead=num_ahead)) as it,
    ):
        for item in it:
            if item is None:
                return
            yield item
