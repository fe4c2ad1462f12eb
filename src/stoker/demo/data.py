"""The demo's files: written once into a folder, found again by a marker that is written last; and the link to them."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq

from stoker.dataset.dataset import Dataset
from stoker.demo.ranking import COUNTRIES, column_names, ranking_table
from stoker.errors import SourceError
from stoker.fields.spec import Field
from stoker.host.machine import num_cores
from stoker.storage.find_storage import storage_for
from stoker.storage.storage import Storage
from stoker.testing import SlowStorage
from stoker.words import bytes_text

NUM_ROWS = 2_097_152
SEED = 7
# What a host often gets of a lake that a whole fleet reads: 320 Mbit/s, and the first byte after 30 ms, as from an
# object store of the same region.
LATENCY_S = 0.030
BANDWIDTH_BYTES_S = 40e6

# 65,536 rows of these columns are about 12 MB of zstd and 64 MB of Arrow: row groups as data teams write them.
_ROW_GROUP_ROWS = 65_536
_MIN_FILES = 16
_MARKER = "complete.json"
# Another number makes every kept data set be written anew: raise it when the rows change.
_VERSION = 2
# A row's float: its bits are as good as random, so a sum of them misses no lost, doubled or changed row.
CHECKED_COLUMN = "dense_00"

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class DemoData:
    """A complete data set on disk."""

    folder: Path
    num_rows: int
    sizes: dict[str, int]  # bytes of each file, by its name
    checksum: int  # `checksum_of` all rows, computed from what was generated and not from what is read
    was_there: bool = False  # found rather than written

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(self.sizes.values())

    @property
    def told(self) -> str:
        """What it is, for people."""
        return (
            f"a generated ranking log: {self.num_rows:,} rows in {len(self.sizes)} Parquet files, "
            f"{bytes_text(self.size_bytes)} with zstd; 40 dense floats, 20 ids, a 64-float embedding, two histories up "
            "to 50 long, country, label"
        )

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.folder / name for name in self.sizes]


def ranking_dataset(paths: Iterable[str | Path], *, storage: Storage | None = None) -> Dataset:
    """Return files of the demo as a data set whose columns of one kind are a field each."""
    fields = {
        "dense": Field("float32", columns="dense_*"),
        "context": Field("float32", columns="context_*"),
        "ids": Field("int64", columns="id_*"),
        "country": Field("int32", vocabulary=COUNTRIES),
    }
    return Dataset([str(path) for path in paths], fields=fields, storage=storage)


class MeteredLink(SlowStorage):
    """The demo's remote store: the files of a folder behind a latency and a bandwidth, and a meter of what is read."""

    def __init__(
        self, folder: Path, *, latency_s: float = LATENCY_S, bandwidth_bytes_s: float = BANDWIDTH_BYTES_S
    ) -> None:
        super().__init__(storage_for(str(folder)), latency_s=latency_s, bandwidth_bytes_s=bandwidth_bytes_s)
        self._meter = threading.Lock()
        self.bytes_read = 0
        self.told = f"{latency_s * 1e3:.0f} ms of latency and {bandwidth_bytes_s / 1e6:.0f} MB/s"

    def _ask(self, call: Callable[[], Item], *, url: str, doing: str) -> Item:
        found: Any = super()._ask(call, url=url, doing=doing)
        if doing == "reading":
            with self._meter:
                self.bytes_read += memoryview(found).nbytes
        return found  # type: ignore[no-any-return]


def checksum_of(values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
    """Return the sum of the bits of `CHECKED_COLUMN` modulo 2^64: the same in any order of the same rows alone."""
    return int(np.ascontiguousarray(values).view(np.uint32).sum(dtype=np.uint64))


def make_data(folder: Path, *, num_rows: int = NUM_ROWS) -> DemoData:
    """Return the data set in `folder`, written there unless a complete one of the same size is found.

    A `SourceError` says that the folder holds something that is not the demo's, which nobody asked to remove.
    """
    if num_rows < _MIN_FILES * 2:
        raise ValueError(f"the demo needs at least {_MIN_FILES * 2} rows, not {num_rows}")
    if (found := find_data(folder, num_rows=num_rows)) is not None:
        return found
    _clear(folder)
    num_files = max(_MIN_FILES, -(-num_rows // (2 * _ROW_GROUP_ROWS)))
    borders = [num_rows * i // num_files for i in range(num_files + 1)]
    row_group_rows = min(_ROW_GROUP_ROWS, -(-num_rows // (2 * num_files)))

    def write(part: int) -> tuple[str, int, int]:
        path = folder / f"part-{part:05}.parquet"
        table = ranking_table(num_rows=borders[part + 1] - borders[part], seed=SEED, part=part)
        pq.write_table(
            table,
            path,
            row_group_size=row_group_rows,
            compression="zstd",
            compression_level=1,
            use_dictionary=list(filter(_repeats, column_names())),
        )
        return path.name, path.stat().st_size, checksum_of(table[CHECKED_COLUMN].to_numpy())

    with ThreadPoolExecutor(num_cores(), thread_name_prefix="stoker-demo-write") as pool:
        names, sizes, checksums = zip(*pool.map(write, range(num_files)), strict=True)
    told: dict[str, Any] = {"num_rows": num_rows, "sizes": dict(zip(names, sizes, strict=True))}
    told["checksum"] = sum(checksums) % 2**64
    aside = folder / f".{_MARKER}.{os.getpid()}"
    aside.write_text(json.dumps({"version": _VERSION} | told, indent=1))
    # Last of all: an interrupted run leaves files without a marker, which the next one writes anew.
    aside.replace(folder / _MARKER)
    return DemoData(folder=folder, **told)


def find_data(folder: Path, *, num_rows: int) -> DemoData | None:
    """Return the data set in `folder` if it is complete and the one that was asked for, else None."""
    try:
        told = json.loads((folder / _MARKER).read_text())
        is_same = (told.pop("version"), told["num_rows"]) == (_VERSION, num_rows)
        if is_same and all((folder / name).stat().st_size == size for name, size in told["sizes"].items()):
            return DemoData(folder=folder, was_there=True, **told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _repeats(name: str) -> bool:
    """Return whether a column's values repeat: for scores, embeddings and histories a dictionary is thrown away."""
    if name.startswith("dense_"):
        return int(name[-2:]) % 4 in (1, 2)
    return name.startswith(("query_id", "country", "label", "context_", "id_"))


def _clear(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ours = ("part-", _MARKER, f".{_MARKER}")
    for path in folder.iterdir():
        if not path.name.startswith(ours) or path.is_dir():
            raise SourceError(
                f"{folder} holds {path.name}, which is not the demo's: give it a folder of its own", url=str(path)
            )
    shutil.rmtree(folder)
    folder.mkdir()
