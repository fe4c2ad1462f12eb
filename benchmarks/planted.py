"""Data sets and storages with one thing wrong, or two: what the doctor is tried on."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker import Dataset
from stoker.source.storage import Storage
from stoker.testing import MemoryStorage, SlowStorage

NUM_FLOATS = 24
CHUNK_ROWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing wrong, or two.

    Attributes:
        name: What is wrong.
        stages: Stages that the verdict must name.
        dataset: Makes the data set, in a folder.
        step_s: Seconds a step.
        batch_size: Samples a step.
        is_warm: Whether training uses a warm cache.
    """

    name: str
    stages: frozenset[str]
    dataset: Callable[[Path], Dataset]
    step_s: float = 1e-3
    batch_size: int = 2_048
    is_warm: bool = False


def table(num_rows: int, *, seed: int, num_floats: int = NUM_FLOATS) -> pa.Table:
    """Rows of floats, an id and a short list."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(0, 4 * num_rows + 1, 4, dtype=np.int32)
    columns = {f"x_{i:02}": rng.standard_normal(num_rows, dtype=np.float32) for i in range(num_floats)}
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 1000, 4 * num_rows)))
    return pa.table({"id": rng.integers(0, 1 << 40, num_rows), **columns, "history": lists})


def parquet(rows: pa.Table, *, compression: str = "none", level: int | None = None) -> bytes:
    """The table as one Parquet file of one row group."""
    sink = io.BytesIO()
    pq.write_table(
        rows, sink, row_group_size=len(rows), compression=compression, compression_level=level, use_dictionary=False
    )
    return sink.getvalue()


def lake(*, num_chunks: int = 24, num_floats: int = NUM_FLOATS) -> MemoryStorage:
    """A lake in memory, a row group a file."""
    same = [parquet(table(CHUNK_ROWS, seed=seed, num_floats=num_floats)) for seed in range(3)]
    return MemoryStorage({f"lake/{i:03}.parquet": same[i % 3] for i in range(num_chunks)})


def local(folder: Path, *, num_chunks: int = 24, num_floats: int = NUM_FLOATS, compression: str = "none") -> str:
    """The same as files of this machine."""
    where = folder / "lake"
    if not where.exists():
        where.mkdir(parents=True)
        same = [
            parquet(table(CHUNK_ROWS, seed=seed, num_floats=num_floats), compression=compression) for seed in (0, 1)
        ]
        for i in range(num_chunks):
            (where / f"{i:03}.parquet").write_bytes(same[i % 2])
    return str(where)


def behind(bandwidth_bytes_s: float | None = None, latency_s: float = 0.0) -> Storage:
    """The lake behind a link."""
    return SlowStorage(lake(), latency_s=latency_s, bandwidth_bytes_s=bandwidth_bytes_s)


def python_loop(rows: pa.Table) -> pa.Table:
    """Hold the GIL: about 2 microseconds a row."""
    total = 0
    for value in range(len(rows) * 40):
        total += value & 1
    return rows


def sorts(rows: pa.Table) -> pa.Table:
    """Compute without the GIL: about 5 microseconds a row."""
    values = np.resize(rows["x_00"].to_numpy(), len(rows) * 32)
    for shift in range(2):
        np.sort(np.roll(values, shift), kind="heapsort")
    return rows


def skewed() -> Storage:
    """A lake of small files, and a huge row group now and then, which one thread has to read."""
    small, huge = parquet(table(4_000, seed=1)), parquet(table(400_000, seed=2))
    files = {f"lake/{i:03}.parquet": huge if i % 16 == 15 else small for i in range(48)}
    return SlowStorage(MemoryStorage(files), bandwidth_bytes_s=None, latency_s=0.001)


CASES = (
    Case(
        name="throttled network",
        stages=frozenset({"fetch"}),
        dataset=lambda _: Dataset("lake", storage=behind(12e6)),
        step_s=4e-3,
    ),
    Case(
        name="high latency",
        stages=frozenset({"fetch"}),
        dataset=lambda _: Dataset("lake", storage=behind(None, 0.4)),
        step_s=4e-3,
    ),
    Case(
        name="throttled network with latency",
        stages=frozenset({"fetch"}),
        dataset=lambda _: Dataset("lake", storage=behind(20e6, 0.1)),
        step_s=4e-3,
    ),
    Case(
        name="slow decode",
        stages=frozenset({"decode"}),
        dataset=lambda folder: Dataset(local(folder, compression="gzip")),
        step_s=0.4e-3,
    ),
    Case(
        name="transform with the GIL",
        stages=frozenset({"transform"}),
        dataset=lambda folder: Dataset(local(folder), transform=python_loop, version="1"),
        step_s=1e-3,
    ),
    Case(
        name="transform without the GIL",
        stages=frozenset({"transform"}),
        dataset=lambda folder: Dataset(local(folder), transform=sorts, version="1"),
        step_s=0.5e-3,
    ),
    Case(
        name="slow step",
        stages=frozenset({"step"}),
        dataset=lambda folder: Dataset(local(folder)),
        step_s=0.05,
    ),
    Case(
        name="slow step behind a slow link",
        stages=frozenset({"step"}),
        dataset=lambda _: Dataset("lake", storage=behind(60e6, 0.02)),
        step_s=0.02,
    ),
    Case(
        name="small batches",
        stages=frozenset({"batch"}),
        dataset=lambda folder: Dataset(local(folder)),
        batch_size=4,
        step_s=1e-6,
        is_warm=True,
    ),
    Case(
        name="slow gather",
        stages=frozenset({"gather"}),
        dataset=lambda folder: Dataset(local(folder, num_chunks=8, num_floats=400)),
        batch_size=8_192,
        step_s=10e-6,
        is_warm=True,
    ),
    Case(
        name="throttled network and transform with the GIL",
        stages=frozenset({"fetch", "transform"}),
        dataset=lambda _: Dataset("lake", storage=behind(15e6), transform=python_loop, version="1"),
        step_s=1e-3,
    ),
)
