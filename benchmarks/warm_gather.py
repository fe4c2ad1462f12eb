"""Warm epochs: how near to the memory's limits, and what a batch costs beyond its bytes?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.against_copy import against_copy
from benchmarks.measure import Answer, compare, sized
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names

BATCH_SIZE = 4096
RAGGED = ("country", "clicked_items", "viewed_categories")
STACKED = {"dense": Field("float32", columns="dense_*"), "ids": Field("int64", columns="id_*")}
# What a batch may cost beyond its bytes, in microseconds, and what more for each field.
BATCH_US, FIELD_US = 60, 1
NUM_SMALL = sized(3_000, small=50)


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
