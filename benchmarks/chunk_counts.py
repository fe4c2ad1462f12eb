"""Warm epochs of small rows: does a batch cost the same from one chunk and from thousands?"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Answer, compare, sized
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData

NUM_ROWS = sized(1 << 20, small=1 << 15)
NUM_CHUNKS = sized(1_024, small=32)
ROW_BYTES = 64
BATCH_SIZE = 256


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """The same rows in one chunk and in a thousand."""
    del data
    num_chunks = NUM_CHUNKS
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
        in_chunks(folder, num_chunks),
        batch_size=BATCH_SIZE,
        shuffle=True,
        cache=folder / "cache",
        num_threads=1,
        prefetch=0,
    )


def in_chunks(folder: Path, num_chunks: int) -> Dataset:
    """Return a million rows of 64 bytes in so many chunks, written where they are not there yet."""
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
