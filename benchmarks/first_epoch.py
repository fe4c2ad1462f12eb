"""The first epoch, everything included: how near to bare pyarrow decode of the same columns on as many threads?"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.clicks import CARDINALITIES, FIELDS, NUM_COUNTS, write_clicks
from benchmarks.free_pages import GIVEN_BACK_S, have_pages_at_hand, let_pages_go
from benchmarks.measure import Answer, compare
from benchmarks.workloads import (
    IMAGE_FILE_BYTES,
    NUM_BYTES,
    TOKENS,
    WIDE,
    WIDE_BYTES,
    image_files,
    token_rows,
    wide_rows,
)
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.ranking import COUNTRIES, column_names
from stoker.host.machine import num_cores

BATCH_SIZE = 4096
RANKING = {
    "dense": Field("float32", columns="dense_*"),
    "ids": Field("int64", columns="id_*"),
    "country": Field("int32", vocabulary=COUNTRIES),
}
_FILE_ROWS = 4096
_ONE_GROUP_ROWS = 1 << 19
# A row takes so much in the cache, or less.
_ROW_BYTES = 1_200


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a first epoch goes through.

    Attributes:
        what: Is decoded, in words.
        paths: Its files.
        dataset: Of them.
        data: What they hold, in words; None for the ranking data as it is.
        row_bytes: What a row takes in the cache, or less.
        batch_size: Samples of a batch.
        in_thousands: Whether rates are in thousands of rows, not in millions.
        promise: The least ratio.
    """

    what: str
    paths: Sequence[Path]
    dataset: Dataset
    data: str | None = None
    row_bytes: int = _ROW_BYTES
    batch_size: int = BATCH_SIZE
    in_thousands: bool = False
    promise: float | None = 0.75


def run_on_all(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core: then whatever is done beside decoding takes from decoding."""
    return run(data, folder, num_rounds=num_rounds, num_threads=num_cores())


def run_on_small_files(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of the same rows in files of 4,096, as a stream is often written."""
    small = folder / "small"
    if not small.exists():
        small.mkdir()
        for path in data.paths:
            rows = pq.read_table(path)
            for begin in range(0, len(rows), _FILE_ROWS):
                name = f"{path.stem}-{begin:08d}.parquet"
                pq.write_table(rows.slice(begin, _FILE_ROWS), small / name, compression="zstd")
    paths = sorted(small.iterdir())
    rows = Rows(
        what="all columns, small files",
        paths=paths,
        dataset=_ranking(paths),
        data=f"the demo's ranking rows, {data.num_rows:,}, in {len(paths):,} files",
        promise=None,
    )
    return _run_of(rows, data, folder, num_rounds)


def run_on_clicks(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of click logs: words to be hashed, and numbers that are often missing."""
    path = write_clicks(folder / "clicks", num_rows=data.num_rows)
    shape = f"{NUM_COUNTS} counts and {len(CARDINALITIES)} columns of words of up to {max(CARDINALITIES):,}"
    rows = Rows(
        what="click logs, words hashed",
        paths=[path],
        dataset=Dataset(str(path), fields=FIELDS),
        data=f"rows as click logs have them, {data.num_rows:,}, {shape}, a tenth of them missing",
    )
    return _run_of(rows, data, folder, num_rounds)


def run_on_one_group(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of rows that lie in one row group, as those of a table of half a million do."""
    path = folder / "one-group.parquet"
    if not path.exists():
        table = pa.concat_tables(map(pq.read_table, data.paths)).slice(0, _ONE_GROUP_ROWS)
        pq.write_table(table, path, compression="zstd")
    rows = Rows(
        what="all columns, one row group",
        paths=[path],
        dataset=_ranking([path]),
        data=f"the demo's ranking rows, {pq.read_metadata(path).num_rows:,}, in one row group",
        promise=None,
    )
    return _run_of(rows, data, folder, num_rounds)


def run_on_wide(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of rows of 2,000 columns: what is done for each column counts."""
    rows = _in_folder(
        wide_rows(folder),
        fields=WIDE,
        what="2,000 columns",
        data=f"rows of {WIDE_BYTES // 4:,} columns of float32",
        row_bytes=WIDE_BYTES,
    )
    return _run_of(rows, data, folder, num_rounds)


def run_on_images(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of images as files of theirs: bytes of any length, which nothing makes fewer."""
    rows = _in_folder(
        image_files(folder),
        what="images as files",
        data=f"binary of {IMAGE_FILE_BYTES[0]:,} to {IMAGE_FILE_BYTES[1]:,} bytes, {NUM_BYTES >> 20:,} MiB",
        row_bytes=sum(IMAGE_FILE_BYTES) // 2,
        batch_size=256,
        in_thousands=True,
    )
    return _run_of(rows, data, folder, num_rounds)


def run_on_tokens(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core of texts as tokens."""
    rows = _in_folder(
        token_rows(folder),
        what="tokens",
        data=f"lists of {TOKENS[0]:,} to {TOKENS[1]:,} int32, {NUM_BYTES >> 20:,} MiB",
        row_bytes=2 * sum(TOKENS),
        batch_size=512,
        in_thousands=True,
    )
    return _run_of(rows, data, folder, num_rounds)


def _run_of(rows: Rows, data: DemoData, folder: Path, num_rounds: int) -> Answer:
    return run(data, folder, num_rounds=num_rounds, num_threads=num_cores(), rows=rows)


def _in_folder(folder: str, *, fields: Mapping[str, Field] | None = None, **about: Any) -> Rows:
    """Return the rows of all files in a folder."""
    return Rows(paths=sorted(Path(folder).iterdir()), dataset=Dataset(folder, fields=fields), **about)


def _ranking(paths: Sequence[Path]) -> Dataset:
    return Dataset([str(path) for path in paths], columns=column_names(), fields=RANKING)


def run(
    data: DemoData,
    folder: Path,
    *,
    num_rounds: int,
    num_threads: int = 1,
    rows: Rows | None = None,
) -> Answer:
    """Ask it with one thread that decodes.

    Right before either is timed, the system has free pages at hand (`free_pages`). One more first epoch shows what it
    takes where it has none; the kernel's share of the processor time tells them apart.

    Args:
        data: The ranking data.
        folder: Where the cache may be.
        num_rounds: How often both are measured.
        num_threads: Threads that decode.
        rows: What else than the ranking data it is asked of.
    """
    if rows is None:
        rows = Rows(what="all columns", paths=data.paths, dataset=_ranking(data.paths))
    row_bytes, unit = rows.row_bytes, 1e3 if rows.in_thousands else 1e6
    urls = [str(path) for path in rows.paths]
    num_all = sum(int(pq.read_metadata(url).num_rows) for url in urls)
    jobs = [(url, group) for url in urls for group in range(pq.read_metadata(url).num_row_groups)]
    caches = _Caches(folder / "cold")
    rounds: list[str] = []

    def decode() -> float:
        def read(job: tuple[str, int]) -> int:
            url, group = job
            # Its own threads, where there are fewer row groups than cores: they take a column each.
            return int(pq.ParquetFile(url).read_row_group(group, use_threads=len(jobs) < num_threads).num_rows)

        caches.empty()
        have_pages_at_hand(folder, num_bytes=num_all * row_bytes)
        start = time.perf_counter()
        with ThreadPoolExecutor(num_threads) as threads:
            if sum(threads.map(read, jobs)) != num_all:
                raise AssertionError("rows are missing")
        return num_all / (time.perf_counter() - start) / unit

    def first_epoch() -> float:
        caches.empty()
        have_pages_at_hand(folder, num_bytes=num_all * row_bytes)
        return timed_epoch()

    def timed_epoch() -> float:
        cache = caches.next()
        start, kernel_s = time.perf_counter(), os.times().system
        options: dict[str, Any] = {"batch_size": rows.batch_size, "shuffle": True, "num_threads": num_threads}
        with Loader(rows.dataset, cache=cache, **options) as loader:
            num_rows = sum(len(batch["label"]) for batch in loader)
        if num_rows != num_all:
            raise AssertionError(f"{num_rows} rows of {num_all} were delivered")
        rate = num_all / (time.perf_counter() - start) / unit
        rounds.append(f"{rate:.2f} ({os.times().system - kernel_s:.1f})")
        return rate

    def told() -> tuple[str, ...]:
        caches.empty()
        let_pages_go()
        timed_epoch()
        return (
            f"first epochs, seconds of the kernel in brackets: {', '.join(rounds[1:-1])}; one begun "
            f"{GIVEN_BACK_S:.0f} s after the last page became free, when a system may have given them back: "
            f"{rounds[-1]}",
        )

    answer = compare(
        f"first epoch, {rows.what}, num_threads={num_threads} / bare pyarrow decode on as many threads",
        ours=first_epoch,
        ceiling=decode,
        unit=f"{'thousand' if rows.in_thousands else 'million'} rows/s",
        num_rounds=num_rounds,
        promise=rows.promise,
        remarks=told,
    )
    shutil.rmtree(caches.folder)
    return answer if rows.data is None else replace(answer, data=rows.data)


class _Caches:
    """A folder of its own for the cache of each round.

    What earlier ones held is emptied, not removed: ext4 looks past every file that was removed in the last minutes
    whenever it makes one (fs/ext4/ialloc.c, recently_deleted), which of 500 chunks took as long as to build them.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num = 0

    def next(self) -> Path:
        """Return a folder that is not there yet."""
        self._num += 1
        return self.folder / str(self._num)

    def empty(self) -> None:
        """Free what all of them hold."""
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)
