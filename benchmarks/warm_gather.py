"""Warm epochs: how near to the memory's limits, and what a batch costs beyond its bytes?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.against_copy import against_copy
from benchmarks.measure import Answer, compare, rate_of
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names

BATCH_SIZE = 4096
RAGGED = ("country", "clicked_items", "viewed_categories")
STACKED = {"dense": Field("float32", columns="dense_*"), "ids": Field("int64", columns="id_*")}
# What a batch may cost beyond its bytes, in microseconds, and what more for each field.
BATCH_US, FIELD_US = 60, 1
NUM_SMALL = 3_000


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """One thread against a bare `np.take` of the same records."""
    with Loader(
        fixed_width(data), batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=1, prefetch=0
    ) as loader:
        records = np.random.default_rng(0).integers(0, 256, (data.num_rows, loader.spec.record_bytes), dtype=np.uint8)
        out = np.empty((BATCH_SIZE, loader.spec.record_bytes), dtype=np.uint8)
        order = np.random.default_rng(1).permutation(data.num_rows)
        item = np.dtype((np.void, loader.spec.record_bytes))

        def take() -> None:
            for start in range(0, data.num_rows - BATCH_SIZE + 1, BATCH_SIZE):
                index = order[start : start + BATCH_SIZE]
                np.take(records.view(item)[:, 0], index, out=out.view(item)[:, 0], mode="clip")

        def epoch() -> None:
            num_rows = sum(len(batch["label"]) for batch in loader)
            if num_rows != data.num_rows:
                raise AssertionError(f"{num_rows} rows of {data.num_rows} were delivered")

        return compare(
            "warm epoch, fixed-width fields, 1 thread / bare np.take of the same records",
            ours=lambda: rate_of(data.num_rows, epoch) / 1e6,
            ceiling=lambda: rate_of(data.num_rows, take) / 1e6,
            unit="million rows/s",
            num_rounds=num_rounds,
            promise=0.7,
            remarks=lambda: (
                f"records of {loader.spec.record_bytes} bytes, batches of {BATCH_SIZE:,} rows, assembled in the "
                "calling thread (prefetch=0)",
            ),
        )


def run_stacked(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Two threads, fixed-width fields as stacked tensors, against two threads that copy."""
    return against_copy(
        "stacked tensors", fixed_width(data), folder, batch_size=BATCH_SIZE, num_rounds=num_rounds, promise=0.80
    )


def run_named(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Two threads, each column a tensor of its own, against two threads that copy."""
    return against_copy(
        "one tensor a column", fixed_width(data, {}), folder, batch_size=BATCH_SIZE, num_rounds=num_rounds, promise=0.65
    )


def run_everything(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Two threads, both ragged histories and the string too, against two threads that copy."""
    dataset = Dataset([str(path) for path in data.paths], fields=STACKED)
    return against_copy(
        "histories and string too", dataset, folder, batch_size=BATCH_SIZE, num_rounds=num_rounds, promise=0.65
    )


def run_batch_cost(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Batches of one row: what a batch costs beyond its bytes."""
    return _cost("stacked tensors", fixed_width(data), folder, num_rounds=num_rounds, budget_us=BATCH_US)


def run_batch_cost_named(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Batches of one row, each column a tensor of its own."""
    dataset = fixed_width(data, {})
    budget_us = BATCH_US + FIELD_US * (len(column_names()) - len(RAGGED))
    return _cost("one tensor a column", dataset, folder, num_rounds=num_rounds, budget_us=budget_us)


def fixed_width(data: DemoData, fields: Mapping[str, Field] = STACKED) -> Dataset:
    """Return the demo's rows without lists and strings, as stacked tensors unless told."""
    columns = [name for name in column_names() if name not in RAGGED]
    return Dataset([str(path) for path in data.paths], columns=columns, fields=fields)


_against_copy = partial(against_copy, batch_size=BATCH_SIZE)


def _cost(words: str, dataset: Dataset, folder: Path, *, num_rounds: int, budget_us: int) -> Answer:
    with Loader(dataset, batch_size=BATCH_SIZE, cache=folder / "cache") as filling:
        for _ in filling:  # or threads would build beside what is measured: three thousand rows are no epoch
            pass
    with _small(dataset, folder, batch_size=1) as loader:
        return compare(
            f"cost of a batch beyond its bytes, {words}: at most {budget_us} microseconds",
            ours=lambda: 1e3 / _us_a_batch(loader),
            ceiling=lambda: 1e3 / budget_us,
            unit="thousand batches/s",
            num_rounds=num_rounds,
            promise=1.0,
            remarks=lambda: (f"batches of one row in the calling thread, {NUM_SMALL:,} of them",),
        )


def _small(dataset: Dataset, folder: Path, *, batch_size: int) -> Loader:
    from stoker.torch import TorchLoader

    return TorchLoader(dataset, batch_size=batch_size, shuffle=True, cache=folder / "cache", num_threads=1, prefetch=0)


def _us_a_batch(loader: Loader) -> float:
    """Return what a batch takes of the calling thread's own time; the first one, which opens a window, is left out."""
    batches = iter(loader)
    next(batches)
    start = time.thread_time()
    num_batches = sum(1 for _ in itertools.islice(batches, NUM_SMALL))
    return (time.thread_time() - start) / num_batches * 1e6
