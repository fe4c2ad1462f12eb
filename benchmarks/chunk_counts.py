"""Warm epochs of small rows: does a batch cost the same from one chunk and from thousands, early and late?"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Answer, compare
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData

NUM_ROWS = 1 << 20
NUM_SOME, NUM_MANY = 1_024, 10_000
ROW_BYTES = 64
BATCH_SIZE = 256
# Of what an epoch is compared with at its beginning and after many.
NUM_EPOCHS = 100
# In seconds, of the first batch of a loader whose chunks lie in the page cache.
FIRST_BATCH_S = 0.1
# Rows of a chunk of 512 KiB, so that a window of all of them has some hundred.
FIRST_BATCH_CHUNKS = 128


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """The same rows in one chunk and in a thousand."""
    del data
    return _compare(folder, num_chunks=NUM_SOME, num_rounds=num_rounds)


def run_many(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """The same rows in one chunk and in ten thousand."""
    del data
    return _compare(folder, num_chunks=NUM_MANY, num_rounds=num_rounds)


def run_epochs(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Epochs of a loader that has made a hundred, against its first ones."""
    del data
    with _loader(folder, num_chunks=64) as loader:
        _epoch_s(loader)  # builds what is missing, and has the loops compiled
        early = [_thread_s(loader) for _ in range(num_rounds + 1)]
        for _ in range(NUM_EPOCHS - 2 * num_rounds):
            _epoch_s(loader)
        late = [_thread_s(loader) for _ in range(num_rounds + 1)]
        num_batches = len(loader)
    before, after = iter(early), iter(late)
    return compare(
        f"a batch of epoch {NUM_EPOCHS} / one of the first epochs",
        ours=lambda: num_batches / next(after) / 1e3,
        ceiling=lambda: num_batches / next(before) / 1e3,
        unit="thousand batches/s",
        num_rounds=num_rounds,
        promise=0.9,
        remarks=lambda: (
            f"{num_batches:,} batches of {BATCH_SIZE} rows an epoch, 64 chunks; processor time of the calling thread, "
            "which assembles them",
        ),
    )


def run_first_batch(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """From making a loader to its first batch in a new process, cache and page cache warm, for several windows."""
    del data
    windows = (1, 16, None, "all")
    _first_batch_s(folder, "all")  # builds what is missing
    found: dict[str, list[float]] = {str(window): [] for window in windows}

    def slowest() -> float:
        for window in windows:
            found[str(window)].append(_in_a_new_process(_first_batch_s, folder, window))
        return 1 / max(times[-1] for times in found.values())

    return compare(
        f"first warm batch, the slowest of windows {', '.join(found)}: at most {FIRST_BATCH_S} s",
        ours=slowest,
        ceiling=lambda: 1 / FIRST_BATCH_S,
        unit="first batches/s",
        num_rounds=num_rounds,
        promise=1.0,
        remarks=lambda: (
            "each in a process that has imported stoker and done nothing yet",
            *(
                f"window {window} of {FIRST_BATCH_CHUNKS} chunks: {statistics.median(times) * 1e3:.0f} ms"
                for window, times in found.items()
            ),
        ),
    )


def _compare(folder: Path, *, num_chunks: int, num_rounds: int) -> Answer:
    wall: list[tuple[float, float]] = []
    with _loader(folder, num_chunks=1) as one, _loader(folder, num_chunks=num_chunks) as many:
        for loader, num in ((one, 1), (many, num_chunks)):
            _epoch_s(loader)
            stats = loader.stats()
            if abs(stats.num_built + stats.num_reused - num) > num // 4:  # one may be looked for twice
                raise AssertionError(f"there are {stats.num_built + stats.num_reused} chunks instead of {num}")

        def rate(loader: Loader) -> float:
            start_s = time.thread_time()
            wall_s = _epoch_s(loader)
            wall.append((wall_s, len(loader)))
            return len(loader) / (time.thread_time() - start_s) / 1e3

        def remarks() -> tuple[str, ...]:
            micros = [seconds / num * 1e6 for seconds, num in wall[2:]]
            return (
                f"{many!r}",
                f"whole epochs of {len(many):,} batches of {BATCH_SIZE} rows of {ROW_BYTES} bytes, assembled in the "
                "calling thread, whose processor time it is",
                f"microseconds a batch, all waiting included: {statistics.median(micros[::2]):.0f} from one chunk, "
                f"{statistics.median(micros[1::2]):.0f} from {num_chunks:,}",
            )

        return compare(
            f"a batch from {num_chunks:,} chunks / the same from one",
            ours=lambda: rate(many),
            ceiling=lambda: rate(one),
            unit="thousand batches/s",
            num_rounds=num_rounds,
            promise=0.8,
            remarks=remarks,
        )


def _loader(folder: Path, *, num_chunks: int) -> Loader:
    return Loader(
        _dataset(folder, num_chunks),
        batch_size=BATCH_SIZE,
        shuffle=True,
        cache=folder / "cache",
        num_threads=1,
        prefetch=0,
    )


def _dataset(folder: Path, num_chunks: int) -> Dataset:
    path = folder / f"{num_chunks}-chunks.parquet"
    if not path.exists():
        columns = ROW_BYTES // 4
        table = pa.table({f"x_{i}": np.arange(NUM_ROWS, dtype=np.float32) + i for i in range(columns)})
        pq.write_table(table, path, row_group_size=-(-NUM_ROWS // num_chunks), compression="none", use_dictionary=False)
    fields = {"x": Field("float32", columns="x_*")}
    return Dataset(path, fields=fields, chunk_size=max(1, NUM_ROWS // num_chunks) * ROW_BYTES)


def _epoch_s(loader: Loader) -> float:
    start = time.perf_counter()
    num_rows = sum(len(batch["x"]) for batch in loader)
    if num_rows != NUM_ROWS:
        raise AssertionError(f"{num_rows} rows of {NUM_ROWS} were delivered")
    return time.perf_counter() - start


def _thread_s(loader: Loader) -> float:
    start = time.thread_time()
    _epoch_s(loader)
    return time.thread_time() - start


def _in_a_new_process(work: Callable[..., float], *arguments: object) -> float:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _first_batch_s(folder: Path, window: object) -> float:
    dataset = _dataset(folder, FIRST_BATCH_CHUNKS)
    start = time.perf_counter()
    with Loader(dataset, batch_size=4096, shuffle=True, cache=folder / "cache", window=window) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        return time.perf_counter() - start
