"""The order at a billion samples: what an index costs, what a resume, and what it costs to explain a step.

The ceilings here are promises: 50 ns an index, one second to go on from a saved position, one second to explain.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Answer, sized
from stoker import Dataset, Loader
from stoker._native import permute
from stoker.cli import main as stoker_command
from stoker.demo.data import DemoData
from stoker.sampling import Order
from stoker.sampling.mixture import MixtureOrder

BATCH_SIZE = 4096
PROMISED_NS = 50
NUM_SAMPLES, NUM_CHUNKS = sized(10**9, small=10**6), sized(100_000, small=100)
NUM_FILES = sized(100, small=10)
SIZES = (65_536, 10**6, 10**7, 10**9)


def index(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask what an index costs: 50 ns are 20 million a second."""
    del data, folder
    order = Order(np.full(NUM_CHUNKS, NUM_SAMPLES // NUM_CHUNKS), shuffle=True, seed=1, window=None).epoch(3)
    windowed = Order(np.full(NUM_CHUNKS, NUM_SAMPLES // NUM_CHUNKS), shuffle=True, seed=1, window=500).epoch(3)
    mixture = MixtureOrder(
        [np.full(NUM_CHUNKS // 2, 10_000)] * 2,
        names=("web", "code"), weights=(0.7, 0.3), shuffle=True, seed=1, window=None,
    ).epoch(3)  # fmt: skip
    tables = order.tables(0)

    def locate(at: npt.NDArray[np.int64]) -> None:
        tables.locate(at, np.empty_like(at), np.empty_like(at))

    whole = [_ns_an_index(locate, NUM_SAMPLES) for _ in range(num_rounds + 1)][1:]
    others = {
        **{f"permute, size {size:,}": _ns_an_index(_permuting(size), size) for size in SIZES},
        f"permute, size {2**30 + 1:,}, the worst": _ns_an_index(_permuting(2**30 + 1), 2**30 + 1),
        "locate, windows of 500 chunks": _ns_an_index(windowed.locate, NUM_SAMPLES),
        "whose, of a mixture of two": _ns_an_index(
            lambda at: mixture.components(int(at[0]), int(at[-1]) + 1), mixture.num_samples
        ),
    }
    return Answer(
        question=f"an index of {NUM_SAMPLES:.0e} samples in {NUM_CHUNKS:.0e} chunks, one window / 50 ns",
        ours=1e3 / statistics.median(whole),
        ceiling=1e3 / PROMISED_NS,
        unit="million indices/s",
        ratios=tuple(PROMISED_NS / ns for ns in whole),
        promise=1.0,
        remarks=(
            f"an index: {statistics.median(whole):.1f} ns, batches of {BATCH_SIZE:,} consecutive positions, 1 thread",
            *(f"{what}: {ns:.1f} ns" for what, ns in others.items()),
        ),
    )


def resume(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask what it takes to go on in mid-epoch at a billion samples: one second is the promise."""
    del data
    dataset = _billion(folder)
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "window": "all", "cache": folder / "cache"}
    with Loader(dataset, **options) as loader:
        state = loader.state_dict() | {"epoch": 3, "num_consumed": BATCH_SIZE * _middle()}
    tracemalloc.start()
    Order(np.full(NUM_CHUNKS, NUM_SAMPLES // NUM_CHUNKS), shuffle=True, seed=1, window=None).epoch(3).locate([0])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    def go_on() -> None:
        with Loader(dataset, **options) as loader:
            loader.load_state_dict(state)
            loader.explain(_middle())

    seconds = [_seconds(go_on) for _ in range(num_rounds + 1)][1:]
    return _against_a_second(
        f"making a loader and going on, {NUM_SAMPLES:.0e} samples in {NUM_CHUNKS:.0e} chunks / 1 s",
        seconds,
        f"state: {len(json.dumps(state))} bytes; memory for the order: {peak_bytes / 1e6:.0f} MB",
    )


def explain(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask how long it takes to say where a step's samples come from: one second is the promise."""
    del data
    dataset = _billion(folder)
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "window": "all", "cache": folder / "cache"}
    with Loader(dataset, **options) as loader:
        by_library = [_seconds(lambda: list(loader.explain(_middle()))) for _ in range(num_rounds + 1)][1:]
        found = [_seconds(lambda: loader.find("f01.parquet", 1, 17)) for _ in range(num_rounds + 1)][1:]
    arguments = [
        "explain", str(dataset.sources[0]), "--step", str(_middle()), "--batch-size", str(BATCH_SIZE), "--shuffle",
        "--window", "all", "--chunk-size", str(NUM_SAMPLES // NUM_CHUNKS), "--cache", str(folder / "cache"),
    ]  # fmt: skip

    def command() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if stoker_command(arguments):
                raise AssertionError("stoker explain failed")

    by_command = [_seconds(command) for _ in range(num_rounds + 1)][1:]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def process() -> None:
        run = [sys.executable, "-m", "stoker.cli", *arguments]
        subprocess.run(run, check=True, capture_output=True, env=environ)

    return _against_a_second(
        f"`stoker explain` of a step of {BATCH_SIZE:,} of {NUM_SAMPLES:.0e} samples, imports aside / 1 s",
        by_command,
        f"Loader.explain: {statistics.median(by_library):.2f} s; Loader.find: {statistics.median(found):.2f} s; "
        f"the command with the start of Python and all imports: {_seconds(process):.2f} s",
    )


def _ns_an_index(locate: Callable[[np.ndarray], object], size: int) -> float:
    """Return the CPU time of an index, the median of batches all over the data set."""
    starts = np.linspace(0, size - BATCH_SIZE, 200).astype(np.int64)
    times = []
    for start in starts.tolist():
        positions = np.arange(start, start + BATCH_SIZE)
        begin = time.thread_time_ns()
        locate(positions)
        times.append(time.thread_time_ns() - begin)
    return statistics.median(times) / BATCH_SIZE


def _permuting(size: int) -> Callable[[np.ndarray], object]:
    return lambda at: permute(at, 0, size, 7, np.empty_like(at))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _against_a_second(question: str, seconds: list[float], *remarks: str) -> Answer:
    return Answer(
        question=question,
        ours=1 / statistics.median(seconds),
        ceiling=1.0,
        unit="times a second",
        ratios=tuple(1 / one for one in seconds),
        promise=1.0,
        remarks=(f"{statistics.median(seconds):.3f} s", *remarks),
    )


def _middle() -> int:
    """Return a step in mid-epoch."""
    return NUM_SAMPLES // BATCH_SIZE // 2


def _billion(folder: Path) -> Dataset:
    """Return 1e9 samples in 1e5 row groups, which take 200 kB: one file of one value, linked 100 times."""
    where = folder / "billion"
    if not where.exists():
        where.mkdir(parents=True)
        table = pa.table({"x": np.zeros(NUM_SAMPLES // NUM_CHUNKS, dtype=np.int8)})
        first = where / "f00.parquet"
        with pq.ParquetWriter(first, table.schema) as writer:
            for _ in range(NUM_CHUNKS // NUM_FILES):
                writer.write_table(table)
        for i in range(1, NUM_FILES):
            os.link(first, where / f"f{i:02}.parquet")
    return Dataset(str(where), chunk_size=NUM_SAMPLES // NUM_CHUNKS)
