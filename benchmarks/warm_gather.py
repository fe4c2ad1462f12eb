"""Warm epochs, fixed-width fields, one thread: how near to a bare `np.take` of the same records?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.measure import Answer, compare, rate_of
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names

BATCH_SIZE = 4096
RAGGED = ("country", "clicked_items", "viewed_categories")


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it."""
    dataset = Dataset(
        [str(path) for path in data.paths],
        columns=[name for name in column_names() if name not in RAGGED],
        fields={"dense": Field("float32", columns="dense_*"), "ids": Field("int64", columns="id_*")},
    )
    with Loader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=1, prefetch=0
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
