"""Data sets and storages with one thing wrong, or two: what the doctor is tried on."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker import Dataset, Field
from stoker.doctor.step import FunctionStep, Step, TimedStep
from stoker.storage.storage import BytesLike, Storage
from stoker.testing import MemoryStorage, SlowStorage

Transform: TypeAlias = Callable[[pa.Table], pa.Table]

NUM_FLOATS = 24
CHUNK_ROWS = 20_000


@dataclass(frozen=True)
class Case:
    """One thing wrong, or two.

    Attributes:
        name: What is wrong.
        stages: Stages that the verdict must name.
        dataset: Makes the data set, in a folder.
        step_s: Seconds a step.
        batch_size: Samples a step.
        is_warm: Whether training uses a warm cache.
        disk_bytes_s: What the disk under the cache reads, where memory is too small to keep what was read; None for
            this machine's disk and memory.
        num_cores: Processors that the examination may use; None for all of them.
        function: What trains in place of a wait of `step_s`.
        has_neighbour: Whether somebody else takes half a core meanwhile.
    """

    name: str
    stages: AbstractSet[str]
    dataset: Callable[[Path], Dataset]
    _: KW_ONLY
    step_s: float = 1e-3
    batch_size: int = 2_048
    is_warm: bool = False
    disk_bytes_s: float | None = None
    num_cores: int | None = None
    function: Callable[[Any], object] | None = None
    has_neighbour: bool = False

    def step(self) -> Step:
        """Return what trains."""
        return TimedStep(self.step_s) if self.function is None else FunctionStep(self.function, name=self.name)


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


def lake(*, num_chunks: int = 24, num_floats: int = NUM_FLOATS, chunk_rows: int = CHUNK_ROWS) -> MemoryStorage:
    """A lake in memory, a row group a file."""
    same = [parquet(table(chunk_rows, seed=seed, num_floats=num_floats)) for seed in range(3)]
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


def repeated(folder: Path) -> Dataset:
    """Rows of which sixteen in turn have the same wide features."""
    where = folder / "repeated"
    if not where.exists():
        where.mkdir(parents=True)
        rng = np.random.default_rng(0)
        columns = {f"x_{i}": rng.standard_normal(CHUNK_ROWS, dtype=np.float32) for i in range(8)}
        same = {f"q_{i}": np.repeat(rng.standard_normal(CHUNK_ROWS // 16), 16).astype(np.float32) for i in range(192)}
        query = np.repeat(np.arange(CHUNK_ROWS // 16), 16)
        for i in range(8):
            rows = pa.table({"query": query + i * CHUNK_ROWS, **columns, **same})
            (where / f"{i:03}.parquet").write_bytes(parquet(rows))
    fields = {"x": Field("float32", columns="x_*"), "q": Field("float32", columns="q_*")}
    return Dataset(str(where), fields=fields)


def with_words(folder: Path) -> Dataset:
    """Rows of long words, each of which becomes a number."""
    where = folder / "words"
    where.mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = pa.array([f"word-{i:032}" for i in range(5_000)])
    columns = {f"word_{i}": words.take(pa.array(rng.integers(0, 5_000, CHUNK_ROWS))) for i in range(8)}
    for i in range(24):
        (where / f"{i:03}.parquet").write_bytes(parquet(pa.table(columns)))
    fields = {f"word_{i}": Field("int32", hash_buckets=1 << 20) for i in range(8)}
    return Dataset(str(where), fields=fields)


def zipped() -> MemoryStorage:
    """A lake in memory, its files compressed."""
    same = [parquet(table(CHUNK_ROWS, seed=seed), compression="gzip") for seed in range(3)]
    return MemoryStorage({f"lake/{i:03}.parquet": same[i % 3] for i in range(24)})


def small_lake() -> MemoryStorage:
    """A lake of many small files: however many are fetched at once, waiting for each counts."""
    return lake(num_chunks=96, chunk_rows=5_000)


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
    for shift in range(24):
        np.sort(np.roll(values, shift), kind="heapsort")
    return rows


def python_objects(rows: pa.Table) -> pa.Table:
    """Make a Python object of every value of a few columns: all of it with the GIL."""
    sums = [sum(row.values()) for row in rows.select([f"x_{i:02}" for i in range(8)]).to_pylist()]
    return rows.append_column("sum", pa.array(sums, pa.float32()))


def asks_a_service(rows: pa.Table) -> pa.Table:
    """Wait for somebody else: 30 microseconds a row, neither core nor GIL in use."""
    time.sleep(len(rows) * 30e-6)
    return rows


class NarrowConnections:
    """A lake, each connection of which carries little, however many there are.

    Args:
        inner: The lake.
        bytes_s: Of each.
    """

    def __init__(self, inner: Storage, bytes_s: float) -> None:
        self._inner = inner
        self._bytes_s = bytes_s
        self.list = inner.list
        self.stat = inner.stat

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return what the lake has, as slowly as one connection carries it."""
        time.sleep(num_bytes / self._bytes_s)
        return self._inner.read(url, offset, num_bytes)


def skewed() -> Storage:
    """A lake of small files, and a huge row group now and then, which comes over one connection."""
    small, huge = parquet(table(2_000, seed=1)), parquet(table(100_000, seed=2))
    files = {f"lake/{i:03}.parquet": huge if i % 48 == 47 else small for i in range(96)}
    return NarrowConnections(MemoryStorage(files), 2e6)


def files(*, transform: Transform | None = None, **options: Any) -> Callable[[Path], Dataset]:
    """Return what makes a data set of `local` files, with a transform or without."""
    return lambda folder: Dataset(local(folder, **options), **_transformed(transform))


def far(storage: Callable[[], Storage], *, transform: Transform | None = None) -> Callable[[Path], Dataset]:
    """Return what makes a data set of the lake in a storage, with a transform or without."""
    return lambda _: Dataset("lake", storage=storage(), **_transformed(transform))


def _transformed(transform: Transform | None) -> dict[str, Any]:
    return {} if transform is None else {"transform": transform, "transform_version": "1"}


CASES = (
    Case("throttled network", {"fetch"}, far(lambda: behind(12e6)), step_s=4e-3),
    Case("high latency", {"fetch"}, far(lambda: SlowStorage(small_lake(), latency_s=0.4)), step_s=1e-3),
    Case("throttled network with latency", {"fetch"}, far(lambda: behind(20e6, 0.1)), step_s=4e-3),
    Case("slow decode", {"decode"}, files(compression="gzip"), step_s=0.4e-3),
    Case("transform with the GIL", {"transform"}, files(num_chunks=96, transform=python_loop), step_s=1e-3),
    Case("transform without the GIL", {"transform"}, files(transform=sorts), step_s=0.5e-3),
    Case("slow step", {"step"}, files(), step_s=0.05),
    Case("slow step behind a slow link", {"step"}, far(lambda: behind(60e6, 0.02)), step_s=0.02),
    Case("small batches", {"batch"}, files(), batch_size=4, step_s=1e-6, is_warm=True),
    Case("slow gather", {"gather"}, files(num_chunks=8, num_floats=400), batch_size=8_192, step_s=10e-6, is_warm=True),
    Case("slow gather of repeated features", {"gather"}, repeated, batch_size=8_192, step_s=10e-6, is_warm=True),
    Case(
        "throttled network and transform with the GIL",
        {"fetch", "transform"},
        far(lambda: behind(15e6), transform=python_loop),
        step_s=1e-3,
    ),
    Case(
        "narrow connections",
        {"fetch"},
        # 64 of them, as many as are worth it, bring a third of what two cores decode: wider ones would limit nothing.
        far(lambda: NarrowConnections(small_lake(), 0.5e6)),
        step_s=2e-3,
    ),
    Case("transform that waits for a service", {"transform"}, files(transform=asks_a_service), step_s=2e-3),
    Case("skewed file sizes", {"skew"}, far(skewed), step_s=0.2e-3),
    Case("slow disk under the cache", {"open"}, files(num_chunks=8), step_s=1e-3, is_warm=True, disk_bytes_s=20e6),
    Case(
        "one step after the other in Python",
        {"transform", "decode"},
        files(num_chunks=96, compression="gzip", transform=python_loop),
        step_s=0.4e-3,
    ),
    Case(
        "high latency and transform with the GIL",
        {"fetch", "transform"},
        far(lambda: SlowStorage(small_lake(), latency_s=0.6), transform=python_loop),
        step_s=1e-3,
    ),
    Case(
        "throttled network and transform that waits",
        {"fetch", "transform"},
        far(lambda: behind(15e6), transform=asks_a_service),
        step_s=1e-3,
    ),
    Case("words that become numbers", {"convert"}, with_words, step_s=0.2e-3),
    Case(
        "transform that makes Python objects",
        {"transform"},
        files(num_chunks=96, transform=python_objects),
        step_s=2e-3,
    ),
    Case(
        "narrow connections and transform with the GIL",
        {"fetch", "transform"},
        far(lambda: NarrowConnections(small_lake(), 0.7e6), transform=python_loop),
        step_s=1e-3,
    ),
    Case(
        "throttled network and slow decode",
        {"fetch", "decode"},
        far(lambda: SlowStorage(zipped(), bandwidth_bytes_s=40e6)),
        step_s=0.4e-3,
    ),
    Case("slow step on a warm cache", {"step"}, files(), step_s=0.01, is_warm=True),
    Case("slow disk under the source", {"fetch"}, files(), step_s=1e-3, disk_bytes_s=20e6),
    Case("slow decode on one processor", {"decode"}, files(compression="gzip"), step_s=0.4e-3, num_cores=1),
    Case(
        "transform without the GIL on one processor", {"transform"}, files(transform=sorts), step_s=0.5e-3, num_cores=1
    ),
    Case(
        "slow gather on one processor",
        {"gather"},
        files(num_chunks=8, num_floats=400),
        batch_size=8_192,
        step_s=10e-6,
        is_warm=True,
        num_cores=1,
    ),
)


def launches(_: Any) -> None:
    """A step that is all launches: about 3 ms of Python, with the interpreter's lock."""
    total = 0
    for value in range(60_000):
        total += value & 1


def computes(batch: Any) -> None:
    """A step that computes on the cores without the lock: about 4 ms for 2,048 rows."""
    values = np.resize(np.asarray(batch["x_00"]), 32_768)
    for shift in range(2):
        np.sort(np.roll(values, shift), kind="heapsort")


@cache
def _model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(NUM_FLOATS, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def trains(batch: Any) -> None:
    """A small model of torch on the CPU: forward, backward."""
    import torch

    model = _model()
    rows = torch.stack([torch.as_tensor(np.asarray(batch[f"x_{i:02}"])) for i in range(NUM_FLOATS)], dim=1)
    model.zero_grad()
    model(rows).square().mean().backward()


SHARING = (
    Case("a step that computes on the cores, on a warm cache", {"step"}, files(), function=computes, is_warm=True),
    Case("a step that is all launches, on a warm cache", {"step"}, files(), function=launches, is_warm=True),
    Case("a step that is all launches, behind a slow link", {"fetch"}, far(lambda: behind(10e6)), function=launches),
    Case(
        "a step that is all launches, and a transform with the GIL",
        {"transform"},
        files(num_chunks=96, transform=python_objects),
        function=launches,
    ),
    Case(
        "a step that computes, and a transform that computes", {"transform"}, files(transform=sorts), function=computes
    ),
    Case("a step of torch on the CPU, on a warm cache", {"step"}, files(), function=trains, is_warm=True),
    Case("a step of torch on the CPU, behind a slow link", {"fetch"}, far(lambda: behind(6e6)), function=trains),
    Case("batches of one sample", {"batch"}, files(), batch_size=1, step_s=1e-6, is_warm=True),
    Case(
        "huge batches, gathered slowly",
        {"gather"},
        files(num_chunks=8, num_floats=400),
        batch_size=65_536,
        step_s=10e-6,
        is_warm=True,
    ),
    Case("huge batches behind a slow link", {"fetch"}, far(lambda: behind(20e6)), batch_size=65_536, step_s=20e-3),
    Case("a slow step beside a neighbour", {"step"}, files(), step_s=0.02, is_warm=True, has_neighbour=True),
    Case(
        "a throttled network beside a neighbour", {"fetch"}, far(lambda: behind(12e6)), step_s=4e-3, has_neighbour=True
    ),
    Case("slow decode beside a neighbour", {"decode"}, files(compression="gzip"), step_s=0.4e-3, has_neighbour=True),
)
"""Steps that want the loader's cores, batches of any size, and neighbours."""


RANKS = tuple(
    Case(
        f"rank {rank}, whose link is a third of the others'" if is_slow else f"rank {rank}",
        {"fetch"},
        far(partial(behind, 8e6 if is_slow else 24e6)),
        step_s=4e-3,
    )
    for rank, is_slow in enumerate((False, True, False))
)
SLOW_RANK = 1
"""Which of `RANKS` holds the others up."""
