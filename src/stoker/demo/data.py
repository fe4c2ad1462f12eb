"""The demo's files: written once into a folder, found again by a marker that is written last."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.demo.ranking import NUM_DENSE, column_names, ranking_table
from stoker.errors import SourceError

NUM_ROWS = 2_097_152
SEED = 7

# 65,536 rows of these columns are about 12 MB of zstd and 64 MB of Arrow: row groups as data teams write them.
_ROW_GROUP_ROWS = 65_536
_MIN_FILES = 16
_MARKER = "complete.json"
# Another number makes every kept data set be written anew: raise it when the rows change.
_VERSION = 1
# A row's float: its bits are as good as random, so a sum of them misses no lost, doubled or changed row.
CHECKED_COLUMN = "dense_00"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One Parquet file of the data set.

    Attributes:
        name: Name inside the folder.
        num_rows: Its rows.
        size_bytes: Its size.
        checksum: `checksum_of` its rows.
    """

    name: str
    num_rows: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, kw_only=True)
class DemoData:
    """A complete data set on disk.

    Attributes:
        folder: Where its files are.
        files: The files, by name.
        row_group_rows: Rows of all row groups but the last of each file.
        seed: Seed of the rows.
        was_there: Whether it was found rather than written.
    """

    folder: Path
    files: tuple[DataFile, ...]
    row_group_rows: int
    seed: int
    was_there: bool

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(file.num_rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def checksum(self) -> int:
        """`checksum_of` all rows, computed from what was generated and not from what is read."""
        return sum(file.checksum for file in self.files) % 2**64

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.folder / file.name for file in self.files]


def checksum_of(values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
    """Return the sum of the bits of `values` modulo 2^64: the same in any order, another if any row is lost or doubled.

    Args:
        values: The rows' `CHECKED_COLUMN`. Shape [B].
    """
    return int(np.ascontiguousarray(values).view(np.uint32).sum(dtype=np.uint64))


def make_data(
    folder: Path,
    *,
    num_rows: int = NUM_ROWS,
    seed: int = SEED,
    num_threads: int = 2,
    on_rows: Callable[[int], None] = lambda _: None,
) -> DemoData:
    """Return the data set in `folder`, written there unless a complete one of the same size and seed is found.

    Args:
        folder: The data set's own folder: whatever else is in it is removed before writing.
        num_rows: Rows of all files.
        seed: Seed of the rows.
        num_threads: Files written at a time.
        on_rows: Told of rows as they are written.

    Raises:
        ValueError: `num_rows` is too small to spread over the files.
        SourceError: The folder holds something that is no data set of the demo, which nobody asked to remove.
    """
    if num_rows < _MIN_FILES * 2:
        raise ValueError(f"the demo needs at least {_MIN_FILES * 2} rows, not {num_rows}")
    found = find_data(folder, num_rows=num_rows, seed=seed)
    if found is not None:
        return found
    _clear(folder)
    num_files = max(_MIN_FILES, -(-num_rows // (2 * _ROW_GROUP_ROWS)))
    borders = [num_rows * i // num_files for i in range(num_files + 1)]
    row_group_rows = min(_ROW_GROUP_ROWS, -(-num_rows // (2 * num_files)))

    def write(part: int) -> DataFile:
        name = f"part-{part:05}.parquet"
        table = ranking_table(num_rows=borders[part + 1] - borders[part], seed=seed, part=part)
        file = _write_file(folder / name, table, row_group_rows=row_group_rows)
        on_rows(file.num_rows)
        return file

    with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-demo-write") as pool:
        files = tuple(pool.map(write, range(num_files)))
    data = DemoData(folder=folder, files=files, row_group_rows=row_group_rows, seed=seed, was_there=False)
    _write_marker(data)
    return data


def find_data(folder: Path, *, num_rows: int, seed: int) -> DemoData | None:
    """Return the data set in `folder` if it is complete and the one that was asked for, else None."""
    try:
        marker = json.loads((folder / _MARKER).read_text())
        if marker["version"] != _VERSION or marker["seed"] != seed:
            return None
        files = tuple(DataFile(**file) for file in marker["files"])
        data = DemoData(folder=folder, files=files, row_group_rows=marker["row_group_rows"], seed=seed, was_there=True)
        is_complete = all(path.stat().st_size == f.size_bytes for path, f in zip(data.paths, files, strict=True))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return data if is_complete and data.num_rows == num_rows else None


def _write_file(path: Path, table: pa.Table, *, row_group_rows: int) -> DataFile:
    # A dictionary pays where values repeat; for scores, embeddings and histories it is built and thrown away.
    with_dictionary = [
        name
        for name in column_names()
        if name.startswith(("query_id", "country", "label", "context_", "id_")) or _is_repetitive_dense(name)
    ]
    pq.write_table(
        table,
        path,
        row_group_size=row_group_rows,
        compression="zstd",
        compression_level=1,
        use_dictionary=with_dictionary,
    )
    checksum = checksum_of(table[CHECKED_COLUMN].to_numpy())
    return DataFile(name=path.name, num_rows=len(table), size_bytes=path.stat().st_size, checksum=checksum)


def _is_repetitive_dense(name: str) -> bool:
    return name in {f"dense_{i:02}" for i in range(NUM_DENSE) if i % 4 in (1, 2)}


def _write_marker(data: DemoData) -> None:
    marker = {
        "version": _VERSION,
        "seed": data.seed,
        "row_group_rows": data.row_group_rows,
        "files": [asdict(file) for file in data.files],
    }
    aside = data.folder / f".{_MARKER}.{os.getpid()}"
    aside.write_text(json.dumps(marker, indent=1))
    # Last of all: an interrupted run leaves files without a marker, which the next one writes anew.
    aside.replace(data.folder / _MARKER)


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
