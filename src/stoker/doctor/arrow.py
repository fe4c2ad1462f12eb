"""The path that teams try first: decoded tables kept as Arrow on SSD, made arrays again at every dequeue.

    files ─► map ─► a window of tables ─► permute ─► take a batch's rows, all in Arrow ─► queue ─► arrays ─► the step
                    └─────── num_threads ───────────────────────────────────────┘        └ in the loop's thread

Nothing of it is a part of Stoker's loader: it is here to be measured.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stoker.columns import to_arrays
from stoker.dataset.dataset import Dataset
from stoker.doctor.gilwatch import NOISE, GilWatch
from stoker.fields.spec import Arrays

_QUEUE = 16
# Rows that a round is made of at least, however long they take.
_MIN_ROWS = 1_024
# Of the time: for one thread alone.
_ALONE_SHARE = 0.4
_NUM_PIECES = 5


@dataclass(frozen=True, kw_only=True)
class ArrowCost:
    """What a sample takes on the way from Arrow on SSD.

    Attributes:
        draw_s: Processor seconds of drawing rows, in threads.
        draw_gil_s: Of these, with the GIL held.
        dequeue_s: Processor seconds of transforming and converting, in the loop's thread.
        dequeue_gil_s: Of these, with the GIL held.
        loop_s: Seconds of transforming and converting in the loop's thread while the others draw.
        rate_s: Samples/s with all of them at work and no step behind.
        spread: Of the rounds, as a share.
    """

    draw_s: float
    draw_gil_s: float
    dequeue_s: float
    dequeue_gil_s: float
    loop_s: float
    rate_s: float
    spread: float


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


@dataclass
class Converted:
    """What the loop's thread has converted so far.

    Attributes:
        num_rows: Rows.
        wall_s: Seconds.
        cpu_s: Processor seconds.
    """

    num_rows: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def copy(self) -> Converted:
        """Return it as it is now."""
        return replace(self)


class ArrowBatches:
    """Batches from Arrow files, drawn by threads, for ever.

    Args:
        paths: The files.
        convert: Turns a batch's rows into arrays, in the caller's thread.
        batch_size: Rows of a batch.
        window: Files whose rows are mixed.
        num_threads: Threads that draw.

    Attributes:
        converted: What has been converted.
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
        self.converted = Converted()
        self._batch_size = batch_size
        self._window = window
        self._number = 0
        self._ready: deque[pa.Table] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"stoker-doctor-arrow-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Arrays]:
        """Yield batches until closed."""
        while True:
            with self._changed:
                while not self._ready and self._error is None and not self._is_closed:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                if self._is_closed:
                    return
                table = self._ready.popleft()
                self._changed.notify_all()
            start_s, cpu_s = time.perf_counter(), time.thread_time()
            batch = self._convert(table)
            self.converted.num_rows += len(table)
            self.converted.wall_s += time.perf_counter() - start_s
            self.converted.cpu_s += time.thread_time() - cpu_s
            yield batch
            del batch

    def close(self) -> None:
        """End the threads.

        Blocks: until what they are drawing is drawn.
        """
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self._is_closed:
                with self._changed:
                    number, self._number = self._number, self._number + 1
                for batch in draw(self._paths, number, window=self._window, batch_size=self._batch_size):
                    with self._changed:
                        while len(self._ready) >= _QUEUE and not self._is_closed:
                            self._changed.wait()
                        self._ready.append(batch)
                        self._changed.notify_all()
        except BaseException as error:  # it belongs to the loop
            with self._changed:
                self._error = error
                self._changed.notify_all()


def draw(paths: Sequence[Path], number: int, *, window: int, batch_size: int) -> Generator[pa.Table, None, None]:
    """Yield the rows of one window of files in random order, `batch_size` at a time; a rest is left out."""
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


def probe_arrow(
    paths: Sequence[Path],
    *,
    convert: Callable[[pa.Table], Arrays],
    batch_size: int,
    window: int,
    num_threads: int,
    seconds: float,
) -> ArrowCost:
    """Return what drawing and converting take: one after the other in this thread, then at the same time in several.

    The first tells who holds the GIL, the second what they lose by working side by side.

    Args:
        paths: Arrow files, in the page cache.
        convert: See `ArrowBatches`.
        batch_size: Rows of a batch.
        window: Files whose rows are mixed.
        num_threads: Threads that draw.
        seconds: Time for it; two windows are drawn at least.
    """
    start = time.perf_counter()
    alone_s = seconds * _ALONE_SHARE
    rounds: list[tuple[float, float]] = []
    draws: list[tuple[int, int]] = []
    converts: list[tuple[int, int]] = []
    watch = GilWatch()
    with watch:
        number = 0
        while number < 2 or (time.perf_counter() - start < alone_s and number < 12):
            rounds.append(
                _one_window(paths, number, convert, batch_size, window, draws, converts, until=start + alone_s)
            )
            number += 1
    counted = rounds[1:]
    draw_s = sum(d for d, _ in counted) / len(counted)
    dequeue_s = sum(c for _, c in counted) / len(counted)
    with closing(
        ArrowBatches(paths, convert=convert, batch_size=batch_size, window=window, num_threads=num_threads)
    ) as source:
        together = _together(source, seconds=seconds - alone_s)
    return ArrowCost(
        draw_s=together.draw_s,
        draw_gil_s=min(_held(watch, draws) * draw_s, together.draw_s),
        dequeue_s=together.dequeue_s,
        dequeue_gil_s=min(_held(watch, converts) * dequeue_s, together.dequeue_s),
        loop_s=together.loop_s,
        rate_s=together.rate_s,
        spread=together.spread,
    )


class _Together(NamedTuple):
    draw_s: float
    dequeue_s: float
    loop_s: float
    rate_s: float
    spread: float


def _together(source: ArrowBatches, *, seconds: float) -> _Together:
    """Take batches for some time, as fast as they come, and return what a sample took of whom."""
    batches = iter(source)
    for _ in range(_QUEUE):  # what was drawn before anyone converted
        next(batches)
    converted = source.converted
    start_s, cpu_s, before = time.perf_counter(), time.process_time(), converted.copy()
    rates: list[float] = []
    last_s, last_rows = start_s, converted.num_rows
    while time.perf_counter() - start_s < seconds or not rates or converted.num_rows - before.num_rows < _MIN_ROWS:
        next(batches)
        now = time.perf_counter()
        if now - last_s >= seconds / _NUM_PIECES:
            rates.append((converted.num_rows - last_rows) / (now - last_s))
            last_s, last_rows = now, converted.num_rows
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    num_rows = converted.num_rows - before.num_rows
    dequeue_s = (converted.cpu_s - before.cpu_s) / num_rows
    return _Together(
        draw_s=max(0.0, cpu_s / num_rows - dequeue_s),
        dequeue_s=dequeue_s,
        loop_s=(converted.wall_s - before.wall_s) / num_rows,
        rate_s=num_rows / wall_s,
        spread=(max(rates) - min(rates)) / (2 * statistics.median(rates)),
    )


def _held(watch: GilWatch, spans: list[tuple[int, int]]) -> float:
    share = watch.held_share(spans) or 0.0
    return share if share > NOISE else 0.0


def _one_window(
    paths: Sequence[Path],
    number: int,
    convert: Callable[[pa.Table], Any],
    batch_size: int,
    window: int,
    draws: list[tuple[int, int]],
    converts: list[tuple[int, int]],
    *,
    until: float,
) -> tuple[float, float]:
    """Return the processor seconds a sample of drawing and of converting one window, or of some of its batches."""
    draw_s = dequeue_s = 0.0
    num_rows = 0
    with closing(draw(paths, number, window=window, batch_size=batch_size)) as batches:
        while True:
            begin, begin_ns = time.thread_time(), time.perf_counter_ns()
            batch = next(batches, None)
            drawn, drawn_ns = time.thread_time(), time.perf_counter_ns()
            draw_s += drawn - begin
            draws.append((begin_ns, drawn_ns))
            if batch is None or (time.perf_counter() > until and num_rows >= _MIN_ROWS):
                return draw_s / max(1, num_rows), dequeue_s / max(1, num_rows)
            num_rows += len(batch)
            convert(batch)
            dequeue_s += time.thread_time() - drawn
            converts.append((drawn_ns, time.perf_counter_ns()))
