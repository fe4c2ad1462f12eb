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
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.columns import to_arrays
from stoker.dataset.dataset import Dataset
from stoker.fields.spec import Arrays

_QUEUE = 16
# How long a thread whose batch nobody takes waits before it looks whether all is over.
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


class ArrowBatches:
    """Batches from Arrow files, drawn by threads, for ever.

    Args:
        paths: The files.
        convert: Turns a batch's rows into arrays, in the caller's thread.
        batch_size: Rows of a batch.
        window: Files whose rows are mixed.
        num_threads: Threads that draw.

    Attributes:
        drawn_s: Seconds that the threads have drawn, together.
        converted_s: Seconds that the loop's thread has converted.
        num_samples: That it has converted.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        convert: Callable[[pa.Table], Arrays],
        batch_size: int,
        window: int,
        num_threads: int,
    ) -> None:
        self._paths = paths
        self._convert = convert
        self.drawn_s = self.converted_s = 0.0
        self.num_samples = 0
        self._batch_size = batch_size
        self._window = window
        self._numbers = itertools.count()
        self._ready: queue.Queue[pa.Table | BaseException] = queue.Queue(_QUEUE)
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"stoker-doctor-arrow-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Arrays]:
        """Yield batches until closed."""
        while not self._is_closed:
            table = self._ready.get()
            if isinstance(table, BaseException):
                raise table
            start_s = time.perf_counter()
            batch = self._convert(table)
            self.converted_s += time.perf_counter() - start_s
            self.num_samples += len(table)
            yield batch
            del batch

    def close(self) -> None:
        """End the threads.

        Blocks: until what they are drawing is drawn.
        """
        self._is_closed = True
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self._is_closed:
                start_s = time.perf_counter()
                for batch in self._draw(next(self._numbers)):
                    self.drawn_s += time.perf_counter() - start_s
                    if not self._put(batch):
                        return
                    start_s = time.perf_counter()
        except BaseException as error:  # it belongs to the loop
            self._put(error)

    def _put(self, ready: pa.Table | BaseException) -> bool:
        """Put it in the queue once there is room; False where nobody wants it any more."""
        while not self._is_closed:
            try:
                self._ready.put(ready, timeout=_LOOKS_S)
            except queue.Full:
                continue
            return True
        return False

    def _draw(self, number: int) -> Iterator[pa.Table]:
        """Yield the rows of one window of files in random order, a batch at a time; a rest is left out."""
        tables = []
        for i in range(self._window):
            with pa.memory_map(str(self._paths[(number * self._window + i) % len(self._paths)])) as source:
                tables.append(pa.ipc.open_file(source).read_all())
        # Arrow draws from one chunk far faster than from several.
        table = pa.concat_tables(tables).combine_chunks()
        order = np.random.default_rng(number).permutation(len(table))
        size = min(self._batch_size, len(order))
        for start in range(0, len(order) - size + 1, size):
            yield table.take(pa.array(order[start : start + size]))
