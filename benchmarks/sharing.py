"""Repeated features: what keeping and carrying them once saves, against what the bytes allow.

Of a row's bytes the share s belongs to its query, and a query has f rows: at best 1 / (s / f + 1 - s) times less is
kept and carried. Rows that belong to a query come together (`group_by="query_id"`).
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.measure import Answer, compare
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData

KEY = "query_id"
QUERY_IDS = tuple(f"id_{i:02}" for i in (0, 1, 13, 19))
FIELDS = {
    "context": Field("float32", columns="context_*"),
    "query_ids": Field("int64", columns=QUERY_IDS),
    "dense": Field("float32", columns="dense_*"),
    "ids": Field("int64", columns=[f"id_{i:02}" for i in range(20) if f"id_{i:02}" not in QUERY_IDS]),
}
SHARE = {KEY: ["country", "context", "query_*", "clicked_items", "viewed_categories"]}
# Groups of 20 rows on average: batches of about 4,096 rows.
NUM_GROUPS = 205
NUM_THREADS = 2


def run_ssd(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Bytes of all chunks, without sharing and with it, against the bound."""
    del num_rounds  # nothing is timed
    sizes = {}
    for name, dataset in _datasets(data).items():
        with _loader(dataset, folder, name) as loader:
            for _ in loader:
                pass
        sizes[name] = _chunk_bytes(folder / f"sharing-{name}")
    bound, told = _bound(data, folder)
    return _bytes_answer("bytes on SSD", sizes["plain"] / sizes["shared"], bound, told)


def run_carried(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Bytes gathered into batches, and so copied to a device, without sharing and with it, against the bound."""
    del num_rounds
    sizes = {}
    for name, dataset in _datasets(data).items():
        with _loader(dataset, folder, name, deduplicated="unique" if name == "shared" else "expand") as loader:
            for _ in loader:
                pass
            sizes[name] = loader.stats().stages["gather"].num_bytes
    bound, told = _bound(data, folder)
    return _bytes_answer("bytes a batch carries", sizes["plain"] / sizes["shared"], bound, told)


def run_unique(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """A warm epoch with each value of a batch once, against the same without sharing."""
    return _speed(data, folder, num_rounds=num_rounds, deduplicated="unique", promise=1.5)


def run_expand(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """A warm epoch with shared fields expanded on the host, against the same without sharing."""
    return _speed(data, folder, num_rounds=num_rounds, deduplicated="expand", promise=None)


def _datasets(data: DemoData) -> dict[str, Dataset]:
    paths = [str(path) for path in data.paths]
    return {"plain": Dataset(paths, fields=FIELDS), "shared": Dataset(paths, fields=FIELDS, deduplicate=SHARE)}


def _loader(
    dataset: Dataset, folder: Path, name: str, *, deduplicated: Literal["expand", "unique"] = "expand"
) -> Loader:
    return Loader(
        dataset,
        batch_size=NUM_GROUPS,
        shuffle=True,
        group_by=KEY,
        cache=folder / f"sharing-{name}",
        num_threads=NUM_THREADS,
        deduplicated=deduplicated,
    )


def _speed(
    data: DemoData, folder: Path, *, num_rounds: int, deduplicated: Literal["expand", "unique"], promise: float | None
) -> Answer:
    datasets = _datasets(data)
    with (
        _loader(datasets["plain"], folder, "plain") as plain,
        _loader(datasets["shared"], folder, "shared", deduplicated=deduplicated) as ours,
    ):
        busy_us: dict[Loader, list[float]] = {plain: [], ours: []}
        for loader in (plain, ours):
            _epoch(loader, data.num_rows, [])
        return compare(
            f"warm epoch, all columns, grouped, {NUM_THREADS} threads, shared={deduplicated!r} / without sharing",
            ours=lambda: _epoch(ours, data.num_rows, busy_us[ours]),
            ceiling=lambda: _epoch(plain, data.num_rows, busy_us[plain]),
            unit="million rows/s",
            num_rounds=num_rounds,
            promise=promise,
            remarks=lambda: (
                f"batches of {NUM_GROUPS} queries; processor time of all threads, microseconds a batch, median: "
                f"{statistics.median(busy_us[ours]):.0f}, without sharing {statistics.median(busy_us[plain]):.0f}",
            ),
        )


def _epoch(loader: Loader, num_rows: int, busy_us: list[float]) -> float:
    """Return million rows a second, and note the processor time of all threads a batch."""
    start, busy = time.perf_counter(), time.process_time()
    found = sum(len(batch["label"]) for batch in loader)
    spent = time.perf_counter() - start
    busy_us.append((time.process_time() - busy) / len(loader) * 1e6)
    if found != num_rows:
        raise AssertionError(f"{found} rows of {num_rows} were delivered")
    return found / spent / 1e6


def _chunk_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.glob("chunks/*.safetensors"))


def _bound(data: DemoData, folder: Path) -> tuple[float, str]:
    """Return how many times less there is to keep at best, and why: of what the fields hold, without any padding."""
    num_queries = shared = 0
    with _loader(_datasets(data)["shared"], folder, "shared", deduplicated="unique") as loader:
        fixed = {item.name: item.value_bytes for item in loader.spec.fixed}
        keys = {item.name for item in loader.spec if item.deduplicated_by is not None}
        for batch in loader:
            num_queries += len(batch[KEY].values)
            for item in loader.spec.ragged:
                values, index = batch[item.name].values, batch[item.name].index
                held = np.diff(values.offsets)[index].sum()  # each sample's own, if nothing were shared
                shared += int(held) * item.value_bytes + 8 * len(index)
    own = data.num_rows * sum(size for name, size in fixed.items() if name not in keys)
    shared += data.num_rows * sum(size for name, size in fixed.items() if name in keys)
    share, rows = shared / (own + shared), data.num_rows / num_queries
    told = f"{share:.1%} of the bytes of a row are its query's, {rows:.1f} rows a query"
    return 1 / (share / rows + 1 - share), told


def _bytes_answer(question: str, ours: float, bound: float, told: str) -> Answer:
    return Answer(
        question=f"{question}, without sharing / with it, against 1 / (s / f + 1 - s)",
        ours=ours,
        ceiling=bound,
        unit="times less",
        ratios=(ours / bound,),
        promise=0.9,
        remarks=(told,),
    )
