"""What every way does around its own loop: the folder, the clock, the count. Imports nothing but NumPy.

Each way is a script that runs in the rival's own environment and prints one line of JSON. It has

    prepare()     what must be done once before training (converting to the rival's own format); part of the cold epoch
    batches(i)    epoch i: an iterator of dicts, column -> array with the batch as first dimension

A batch is counted when it is handed over, by the length of every one of its columns.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Its bits are as good as random: their sum misses no lost, doubled or changed row.
CHECKED_COLUMN = "dense_00"
DENSE = [f"dense_{i:02}" for i in range(40)]
IDS = [f"id_{i:02}" for i in range(20)]
CONTEXT = [f"context_{i}" for i in range(6)]
SCALARS = ["query_id", *CONTEXT, *DENSE, *IDS, "label"]
HISTORIES = ["clicked_items", "viewed_categories"]
# More epochs are measured than were asked for, until the warm ones took so long, or there are so many.
_WARM_S, _MOST_EPOCHS = 2.0, 15

COLUMNS = [*SCALARS, "query_embedding", *HISTORIES, "country"]


@dataclass(frozen=True)
class Settings:
    """What the driver asks for.

    Attributes:
        data: Folder of Parquet files.
        cache: Empty folder on the local disk.
        batch_size: Rows a batch.
        num_workers: Cores the way may use.
        seconds: An epoch is left after so long; what was delivered until then counts.
    """

    data: Path
    cache: Path
    batch_size: int
    num_workers: int
    seconds: float

    @property
    def files(self) -> list[str]:
        """The Parquet files, by name."""
        return sorted(str(path) for path in self.data.glob("*.parquet"))


@dataclass
class Epoch:
    """What one epoch delivered."""

    num_rows: int = 0
    seconds: float = 0.0
    first_batch_s: float = 0.0
    checksum: int = 0
    is_whole: bool = False
    columns: set[str] = field(default_factory=set)
    size_bytes: int = 0


Batch = Mapping[str, Any]


def run(name: str, make: Callable[[Settings], Any], *, versions: list[str], note: str = "") -> None:
    """Run a way as the driver asks for it, and print what it delivered.

    Args:
        name: What the table calls it.
        make: Makes the way from the settings: an object with `batches(epoch)` and, where needed, `prepare()`.
        versions: Packages whose versions are told.
        note: What the reader should know about how it is used.
    """
    parser = argparse.ArgumentParser(description=name)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    settings = Settings(options.data, options.cache, options.batch_size, options.num_workers, options.seconds)

    start = time.perf_counter()
    way = make(settings)
    getattr(way, "prepare", lambda: None)()
    prepare_s = time.perf_counter() - start
    epochs = [_count(way.batches(i), limit_s=settings.seconds) for i in range(options.epochs)]
    # Of a quick one more: what comes and goes on a machine would else hit all of its epochs, or none.
    while sum(epoch.seconds for epoch in epochs[1:]) < _WARM_S and len(epochs) < _MOST_EPOCHS:
        epochs.append(_count(way.batches(len(epochs)), limit_s=settings.seconds))
    getattr(way, "close", lambda: None)()
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    result = {
        "name": name,
        "versions": {package: _version(package) for package in versions},
        "note": note,
        "prepare_s": prepare_s,
        "epochs": [
            {
                "num_rows": epoch.num_rows,
                "seconds": epoch.seconds,
                "first_batch_s": epoch.first_batch_s,
                "checksum": epoch.checksum,
                "is_whole": epoch.is_whole,
                "size_bytes": epoch.size_bytes,
            }
            for epoch in epochs
        ],
        "missing": [column for column in COLUMNS if column not in set().union(*(e.columns for e in epochs))],
        "refused": getattr(way, "refused", {}),
        "peak_bytes": (own.ru_maxrss + children.ru_maxrss) * 1024,
    }
    sys.stdout.write("\n" + json.dumps(result) + "\n")


def split_stacks(columns: Mapping[str, str]) -> list[str]:
    """Return the columns that stacked fields hold: {"dense": "dense_*"} counts as forty."""
    return [column for column in COLUMNS for pattern in columns.values() if column.startswith(pattern.rstrip("*"))]


def _count(batches: Iterator[Batch], *, limit_s: float) -> Epoch:
    epoch = Epoch()
    start = time.perf_counter()
    for batch in batches:
        if not epoch.num_rows:
            epoch.first_batch_s = time.perf_counter() - start
            epoch.columns = _columns(batch)
        lengths = {_length(value) for value in batch.values()}
        if len(lengths) != 1:
            raise AssertionError(f"columns of {sorted(lengths)} rows in one batch")
        epoch.num_rows += lengths.pop()
        epoch.size_bytes += sum(_bytes(value) for value in batch.values())
        epoch.checksum = (epoch.checksum + _checksum(batch)) % 2**64
        epoch.seconds = time.perf_counter() - start
        if epoch.seconds > limit_s:
            break
    else:
        epoch.is_whole = True
    epoch.seconds = time.perf_counter() - start
    return epoch


def _columns(batch: Batch) -> set[str]:
    stacks = {"dense": DENSE, "ids": IDS, "context": CONTEXT}
    return {column for name in batch for column in stacks.get(name, [name])}


def _length(value: Any) -> int:
    # Ragged: (values, offsets) in one form or another; torch's DataLoader turns tuples into lists.
    offsets = value[1] if _is_pair(value) else getattr(value, "offsets", None)
    if offsets is not None and not callable(offsets):
        return len(offsets) - 1
    return len(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(hasattr(part, "dtype") for part in value)


def _bytes(value: Any) -> int:
    if _is_pair(value):
        return sum(_bytes(part) for part in value)
    if hasattr(value, "values") and hasattr(value, "offsets") and not callable(value.values):
        return _bytes(value.values) + _bytes(value.offsets)
    return int(getattr(value, "nbytes", 0))


def _checksum(batch: Batch) -> int:
    column = batch.get(CHECKED_COLUMN)
    if column is None and "dense" in batch:
        column = batch["dense"][:, 0]
    if column is None:
        return 0
    bits = np.ascontiguousarray(np.asarray(column), dtype=np.float32).view(np.uint32)
    return int(bits.sum(dtype=np.uint64))


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
