"""The path that teams try first: decoded tables kept as Arrow on SSD, made arrays again at every dequeue.

    files ─► map ─► a window of tables ─► permute ─► take a batch's rows, all in Arrow ─► queue ─► arrays ─► the step
                    └─────── num_threads ───────────────────────────────────────┘        └ in the loop's thread

Nothing of it is a part of Stoker's loader: it is here to be measured.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.columns import to_arrays
from stoker.dataset.dataset import Dataset
from stoker.fields.spec import Arrays

_QUEUE = 16
# How long the loop waits for a thread to end before it looks again.
_LOOKS_S = 0.05


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
        num_threads: Threads that draw.

    Yields:
        The batches; and what was spent on them so far: seconds that threads have drawn, together ("draw"), and that
        the loop's thread has converted ("dequeue"), and how many rows that were ("rows").
    """
    numbers, is_over = itertools.count(), threading.Event()
    ready: queue.Queue[pa.Table | BaseException] = queue.Queue(_QUEUE)
    spent = {"draw": 0.0, "dequeue": 0.0, "rows": 0.0}

    def work() -> None:
        try:
            while not is_over.is_set():
                start_s = time.perf_counter()
                for table in _draw(paths, next(numbers), window=window, batch_size=batch_size):
                    spent["draw"] += time.perf_counter() - start_s
                    ready.put(table)
                    if is_over.is_set():
                        return
                    start_s = time.perf_counter()
        except BaseException as error:  # it belongs to the loop
            ready.put(error)

    def batches() -> Iterator[Arrays]:
        while True:
            table = ready.get()
            if isinstance(table, BaseException):
                raise table
            start_s = time.perf_counter()
            batch = convert(table)
            spent["dequeue"] += time.perf_counter() - start_s
            spent["rows"] += len(table)
            yield batch
            del batch

    threads = [threading.Thread(target=work, name=f"stoker-doctor-arrow-{i}", daemon=True) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield batches(), spent
    finally:
        is_over.set()
        while any(thread.is_alive() for thread in threads):
            with suppress(queue.Empty):  # room for what one of them is about to put there
                ready.get(timeout=_LOOKS_S)


def _draw(paths: Sequence[Path], number: int, *, window: int, batch_size: int) -> Iterator[pa.Table]:
    """Yield the rows of one window of files in random order, a batch at a time; a rest is left out."""
    tables = []
    for i in range(window):
        with pa.memory_map(str(paths[(number * window + i) % len(paths)])) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    # Arrow draws from one chunk far faster than from several.
    table = pa.concat_tables(tables).combine_chunks()
    order = np.random.default_rng(number).permutation(len(table))
    size = min(batch_size, len(order))
    for start in range(0, len(order) - size + 1, size):
        yield table.take(pa.array(order[start : start + size]))
