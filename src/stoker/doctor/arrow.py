"""The path that teams try first: decoded tables kept as Arrow on SSD, made arrays again at every dequeue.

    files ─► map ─► a window of tables ─► permute ─► take each batch's rows, all in Arrow ─► arrays ─► the step
                    └─────── num_threads, a window or two ahead ─────────────────────────┘   └ in the loop's thread

Nothing of it is a part of Stoker's loader: it is here to be measured.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.columns import to_arrays
from stoker.dataset.dataset import Dataset
from stoker.fields.spec import Arrays


def write_tables(tables: Sequence[pa.Table], folder: Path) -> list[Path]:
    """Write each table as an Arrow file and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, table in enumerate(tables):
        paths.append(folder / f"{i:05}.arrow")
        with pa.OSFile(str(paths[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return paths


def converter(dataset: Dataset) -> Callable[[pa.Table], Arrays]:
    """Return what turns a batch of rows into arrays, the transform included."""

    def convert(table: pa.Table) -> Arrays:
        columns = table if dataset.transform is None else dataset.transform(table)
        return to_arrays(columns, dataset.fields, where="a batch of Arrow rows")

    return convert


@contextmanager
def arrow_batches(
    paths: Sequence[Path],
    *,
    convert: Callable[[pa.Table], Arrays],
    batch_size: int,
    window: int,
    num_threads: int,
) -> Iterator[tuple[Iterator[Arrays], dict[str, float]]]:
    """Give batches from Arrow files, drawn by threads, for ever; the threads end with the block.

    Args:
        paths: The files.
        convert: Turns a batch's rows into arrays, in the caller's thread.
        batch_size: Rows of a batch.
        window: Files whose rows are mixed.
        num_threads: Threads that draw, a window each.

    Yields:
        The batches; and what was spent on them so far: seconds that threads have drawn, together ("draw"), and that
        the loop's thread has converted ("dequeue"), and how many rows that were ("rows").
    """
    spent = {"draw": 0.0, "dequeue": 0.0, "rows": 0.0}

    def draw(number: int) -> tuple[list[pa.Table], float]:
        start_s = time.perf_counter()
        chosen = (paths[(number * window + i) % len(paths)] for i in range(window))
        return _draw(chosen, number, batch_size=batch_size), time.perf_counter() - start_s

    def batches() -> Iterator[Arrays]:
        ahead = deque(pool.submit(draw, number) for number in range(num_threads + 1))
        for number in itertools.count(len(ahead)):
            tables, took_s = ahead.popleft().result()
            ahead.append(pool.submit(draw, number))
            spent["draw"] += took_s
            for table in tables:
                start_s = time.perf_counter()
                batch = convert(table)
                spent["dequeue"] += time.perf_counter() - start_s
                spent["rows"] += len(table)
                yield batch
                del batch

    with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-doctor-arrow") as pool:
        try:
            yield batches(), spent
        finally:
            pool.shutdown(cancel_futures=True)


def _draw(paths: Iterator[Path], seed: int, *, batch_size: int) -> list[pa.Table]:
    """Return the rows of some files in random order, a batch at a time; a rest is left out."""
    tables = []
    for path in paths:
        with pa.memory_map(str(path)) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    # Arrow draws from one chunk far faster than from several.
    table = pa.concat_tables(tables).combine_chunks()
    order = np.random.default_rng(seed).permutation(len(table))
    size = min(batch_size, len(order))
    return [table.take(pa.array(order[start : start + size])) for start in range(0, len(order) - size + 1, size)]
