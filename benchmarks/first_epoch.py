"""The first epoch, everything included: how near to bare pyarrow decode of the same columns on as many threads?"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
LOOK_EVERY = 32
_LOOK_S = 0.01

_TASKS = "/proc/self/task"
_HAS_TASKS = Path(_TASKS).is_dir()
_ROLES = {"stoker-build": "building chunks", "stoker-batch": "assembling batches", "stoker-window": "opening windows"}
# What the threads that build do; other stages are other threads'.
_BUILD_STAGES = ("fetch", "decode", "transform", "convert", "publish")


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


def run_against_kept(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core, against pyarrow that keeps in memory what it decodes, as the cache does ours."""
    return run(data, folder, num_rounds=num_rounds, num_threads=num_cores(), keeps=True)


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
    keeps: bool = False,
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
        keeps: Whether bare decoding keeps all of what it decodes to its end, rather than throw each row group away.
        rows: What else than the ranking data it is asked of.
    """
    if rows is None:
        promise = None if keeps else 0.75
        rows = Rows(what="all columns", paths=data.paths, dataset=_ranking(data.paths), promise=promise)
    row_bytes, unit = rows.row_bytes, 1e3 if rows.in_thousands else 1e6
    urls = [str(path) for path in rows.paths]
    num_all = sum(int(pq.read_metadata(url).num_rows) for url in urls)
    jobs = [(url, group) for url in urls for group in range(pq.read_metadata(url).num_row_groups)]
    caches = _Caches(folder / "cold")
    remarks: list[str] = []
    rounds: list[str] = []

    def decode() -> float:
        kept: list[pa.Table] = []

        def read(job: tuple[str, int]) -> int:
            url, group = job
            # Its own threads, where there are fewer row groups than cores: they take a column each.
            table = pq.ParquetFile(url).read_row_group(group, use_threads=len(jobs) < num_threads)
            if keeps:
                kept.append(table)
            return int(table.num_rows)

        caches.empty()
        have_pages_at_hand(folder, num_bytes=num_all * row_bytes)
        clock = _Clock.start()
        with ThreadPoolExecutor(num_threads) as threads:
            if sum(threads.map(read, jobs)) != num_all:
                raise AssertionError("rows are missing")
        remarks[:] = [f"processor time of the last round: bare decode {clock.used()}"]
        return num_all / clock.elapsed_s / unit

    def first_epoch() -> float:
        caches.empty()
        have_pages_at_hand(folder, num_bytes=num_all * row_bytes)
        rate, kernel_s = timed_epoch()
        rounds.append(f"{rate:.2f} ({kernel_s:.1f})")
        return rate

    def timed_epoch() -> tuple[float, float]:
        cache = caches.next()
        clock = _Clock.start()
        threads = _Threads()
        num_rows = 0
        with threads.looking():  # some build one chunk and end
            loader = Loader(
                rows.dataset, batch_size=rows.batch_size, shuffle=True, cache=cache, num_threads=num_threads
            )
        with loader:
            for step, batch in enumerate(loader):
                num_rows += len(batch["label"])
                # Not at every step: looking costs as much as gathering.
                if step % LOOK_EVERY == 0 or step == len(loader) - 1:
                    threads.look()
            if num_rows != num_all:
                raise AssertionError(f"{num_rows} rows of {num_all} were delivered")
            stages = {name: total.busy_s for name, total in loader.stats().stages.items()}
        rate = num_all / clock.elapsed_s / unit
        remarks.append(f"processor time of the last round: first epoch {clock.used()}")
        remarks.extend(threads.account(clock, stages))
        return rate, clock.kernel_s

    def told() -> tuple[str, ...]:
        of_rounds = tuple(remarks)
        caches.empty()
        let_pages_go()
        rate, kernel_s = timed_epoch()
        without = f"{rate:.2f} ({kernel_s:.1f})"
        return (
            f"first epochs, seconds of the kernel in brackets: {', '.join(rounds[1:])}; one begun "
            f"{GIVEN_BACK_S:.0f} s after the last page became free, when a system may have given them back: {without}",
            *of_rounds,
        )

    answer = compare(
        f"first epoch, {rows.what}, num_threads={num_threads} / bare pyarrow decode on as many threads"
        + (", all of it kept in memory" if keeps else ""),
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


@dataclass(frozen=True)
class _Clock:
    """Time since it was started, of the wall and of all threads of this process."""

    start_s: float
    at_start: os.times_result

    @classmethod
    def start(cls) -> _Clock:
        return cls(time.perf_counter(), os.times())

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.start_s

    @property
    def cpu_s(self) -> float:
        now = os.times()
        return now.user + now.system - self.at_start.user - self.at_start.system

    @property
    def kernel_s(self) -> float:
        return os.times().system - self.at_start.system

    def used(self) -> str:
        return f"{self.cpu_s:.2f} s, {self.kernel_s:.2f} s of it in the kernel"


class _Threads:
    """Processor seconds of each thread of this process, by what it is for, from `/proc` (Linux; elsewhere nothing)."""

    def __init__(self) -> None:
        self._before = self._seconds()
        self._last: dict[int, tuple[str, float]] = {}

    def look(self) -> None:
        """Note where every thread stands: what one does after the last look is not seen."""
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        for number, seconds in self._seconds().items():
            known = self._last.get(number, ("other threads", 0.0))[0]  # of one that Python has ended already
            self._last[number] = (_role(names.get(number), known), seconds - self._before.get(number, 0.0))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look every few milliseconds in the block."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(_LOOK_S):
                self.look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def account(self, clock: _Clock, stages: dict[str, float]) -> list[str]:
        """Return where the process's seconds went, one line a role; the lines add up to all of them."""
        total = clock.cpu_s
        roles: defaultdict[str, float] = defaultdict(float)
        for role, seconds in self._last.values():
            roles[role] += seconds
        shares = {stage: stages[stage] for stage in _BUILD_STAGES if stages.get(stage, 0.0) > 0}
        lines = []
        for role, seconds in sorted(roles.items(), key=lambda item: -item[1]):
            line = f"  {role} {seconds:.2f} s"
            if role == "building chunks" and shares:
                parts = (f"{stage} {busy / sum(shares.values()):.0%}" for stage, busy in shares.items())
                line += f" (of their time: {', '.join(parts)})"
            lines.append(line)
        return [*lines, f"  threads that ended before the last look, and rounding {total - sum(roles.values()):.2f} s"]

    @staticmethod
    def _seconds() -> dict[int, float]:
        """Return what each thread has used so far, by the number the system gives it."""
        # Not by way of pathlib, which would take several times as long, with the interpreter's lock held.
        seconds = {}
        for task in os.listdir(_TASKS) if _HAS_TASKS else ():  # noqa: PTH208
            try:
                fd = os.open(f"{_TASKS}/{task}/schedstat", os.O_RDONLY)
            except OSError:  # it has just ended
                continue
            try:
                seconds[int(task)] = int(os.read(fd, 64).split()[0]) / 1e9
            except OSError:
                continue
            finally:
                os.close(fd)
        return seconds


def _role(name: str | None, known: str) -> str:
    if name is None:
        return known
    if name == "MainThread":
        return "the training loop"
    return next((role for prefix, role in _ROLES.items() if name.startswith(prefix)), known)
