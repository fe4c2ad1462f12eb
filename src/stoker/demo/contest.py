"""The ways, one after the other, on the same rows, for the same accelerator."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from stoker.demo.accelerator import Accelerator
from stoker.demo.data import DemoData
from stoker.demo.digests import digest_of
from stoker.demo.link import MeteredLink
from stoker.demo.measure import EpochResult, measure_epoch
from stoker.demo.results import ARROW, PLAIN, RAM, STOKER, THREADS, Check, WayResult
from stoker.demo.settings import DemoSettings
from stoker.demo.ways.arrow import ArrowCache
from stoker.demo.ways.loader import StokerLoader
from stoker.demo.ways.plain import PlainReads
from stoker.demo.ways.ram import RamBatches
from stoker.demo.ways.way import BATCH_SIZE, Source, Way
from stoker.fields.spec import Arrays
from stoker.host.machine import free_memory_bytes
from stoker.storage.storage import Storage

# Plain reads shall keep the accelerator about this busy: 10-20 % is what teams see who read a lake directly.
PLAIN_BUSY = 0.17

# Seconds that a plain way may take. Where all its epochs would take longer, it trains fewer: whole ones, for the first
# steps alone would count an epoch's start too much. Two plain ways, the epochs that calibrate and fill caches, and the
# rest stay below four minutes.
_SLOW_WAY_S = 45.0

# Batches compared without a cache: building the chunks of all of them once more would show nothing new.
UNCACHED_STEPS = 128

# Of the free memory that the ceiling may take.
_RAM_SHARE = 0.5


@dataclass(kw_only=True)
class Contest:
    """What all ways are given.

    Attributes:
        settings: How the demo runs.
        data: The rows.
        local: The files without the link.
        link: The files behind it.
        work: Folder for caches.
        on_epoch: Told of each epoch as it ends.
        on_start: Told of each way and epoch as it starts, with the steps it will take.
        on_batch: Told of each batch.
        notes: What a reader should know.
    """

    settings: DemoSettings
    data: DemoData
    local: Storage
    link: MeteredLink
    work: Path
    on_start: Callable[[str, int, int], None]
    on_batch: Callable[[Arrays], None]
    on_epoch: Callable[[str, EpochResult], None]
    notes: list[str] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch."""
        return -(-self.data.num_rows // BATCH_SIZE)

    def source(self, storage: Storage) -> Source:
        """Return the rows as read through `storage`."""
        return Source(urls=tuple(map(str, self.data.paths)), storage=storage, seed=self.settings.seed)

    def run(
        self,
        way: Way,
        *,
        key: str,
        name: str,
        how: str,
        accelerator: Accelerator,
        num_epochs: int | None = None,
        has_all_rows: bool = True,
        on_first: Callable[[Arrays], None] = lambda _: None,
    ) -> WayResult:
        """Train all epochs of one way, close it, and return what it gave."""

        def on_batch(batch: Arrays) -> None:
            if epoch == 0:
                on_first(batch)
            self.on_batch(batch)

        results = []
        with closing(way):
            for epoch in range(num_epochs or self.settings.num_epochs):
                self.on_start(name, epoch, self.num_steps)
                result = measure_epoch(way, epoch=epoch, accelerator=accelerator, link=self.link, on_batch=on_batch)
                results.append(result)
                self.on_epoch(name, result)
        return WayResult(key=key, name=name, how=how, epochs=tuple(results), has_all_rows=has_all_rows)


def plain_rate(contest: Contest) -> float:
    """Return the rows a second of a whole epoch of plain reads through the link, with no accelerator behind them."""
    way = PlainReads(contest.source(contest.link), num_threads=contest.settings.num_threads)
    contest.on_start("plain reads alone", -1, contest.num_steps)
    start = time.perf_counter()
    with closing(way), closing(way.epoch(0)) as batches:
        for batch in batches:
            contest.on_batch(batch)
    return contest.data.num_rows / (time.perf_counter() - start)


def plain_epochs(contest: Contest, rate: float) -> int:
    """Return how many epochs the plain ways train: all of them, unless that would take too long."""
    epoch_s = contest.data.num_rows / rate
    return max(1, min(contest.settings.num_epochs, int(_SLOW_WAY_S / epoch_s)))


def run_ways(contest: Contest, accelerator: Accelerator, *, num_plain_epochs: int) -> tuple[list[WayResult], list[str]]:
    """Return each way's result, and the digests of all batches of Stoker's first epoch."""
    num_threads = contest.settings.num_threads
    remote = contest.source(contest.link)
    digests: list[str] = []
    ways = [
        contest.run(
            PlainReads(remote, num_threads=num_threads),
            key=PLAIN,
            name="plain Parquet reads",
            how=f"{_threads(num_threads)} read row groups ahead, decode them and turn each into arrays once; "
            "rows of four row groups are mixed",
            accelerator=accelerator,
            num_epochs=num_plain_epochs,
        ),
        contest.run(
            PlainReads(remote, num_threads=4 * num_threads),
            key=THREADS,
            name="4 × the threads",
            how=f"the same with {4 * num_threads} threads",
            accelerator=accelerator,
            num_epochs=num_plain_epochs,
        ),
        contest.run(
            ArrowCache(remote, folder=contest.work / "arrow", num_threads=num_threads),
            key=ARROW,
            name="Arrow on SSD",
            how=f"decoded tables are kept as Arrow files and mapped; {_threads(num_threads)} draw the rows of each "
            "batch in Arrow, which become arrays when the batch is dequeued",
            accelerator=accelerator,
        ),
        contest.run(
            StokerLoader(remote, cache=contest.work / "stoker", num_threads=num_threads),
            key=STOKER,
            name="Stoker",
            how=f"stoker.Loader with {_threads(num_threads)}: finished arrays are kept on SSD, a batch is one gather",
            accelerator=accelerator,
            on_first=lambda batch: digests.append(digest_of(batch)),
        ),
    ]
    contest.on_start("batches into RAM", -1, contest.num_steps)
    in_ram = RamBatches(
        contest.source(contest.local), num_threads=num_threads, limit_bytes=int(free_memory_bytes() * _RAM_SHARE)
    )
    if not in_ram.is_whole:
        contest.notes.append("Not all batches fit into the free memory: the ceiling was measured with those that do.")
    ceiling = contest.run(
        in_ram,
        key=RAM,
        name="batches in RAM",
        how="all batches lie in memory already: the ceiling",
        accelerator=accelerator,
        has_all_rows=in_ram.is_whole,
    )
    return [*ways, ceiling], digests


def check_rows(contest: Contest, ways: list[WayResult]) -> Check:
    """Return whether every epoch delivered each row exactly once."""
    whole = [(way, epoch) for way in ways if way.has_all_rows for epoch in way.epochs]
    wrong = [
        f"{way.name}, epoch {e.epoch + 1}: {e.num_rows:,} rows"
        for way, e in whole
        if (e.num_rows, e.checksum) != (contest.data.num_rows, contest.data.checksum)
    ]
    return Check(
        text="every way delivered every row exactly once an epoch",
        holds=not wrong,
        detail="; ".join(wrong)
        or f"{len(whole)} epochs of {contest.data.num_rows:,} rows, each with the checksum of the rows as made",
    )


def check_bytes(contest: Contest, cold: list[str]) -> list[Check]:
    """Return whether Stoker delivers the same bytes from a warm cache and without one, and reads nothing when warm."""
    num_threads = contest.settings.num_threads
    before = contest.link.bytes_read
    warm = _digests(
        contest,
        StokerLoader(contest.source(contest.link), cache=contest.work / "stoker", num_threads=num_threads),
        name="warm, byte by byte",
        num_steps=len(cold),
    )
    num_read = contest.link.bytes_read - before
    uncached = _digests(
        contest,
        StokerLoader(contest.source(contest.local), cache=None, num_threads=num_threads),
        name="no cache, byte by byte",
        num_steps=min(len(cold), UNCACHED_STEPS),
    )
    different = [i for i, (a, b) in enumerate(zip(cold, warm, strict=False)) if a != b]
    different += [i for i, (a, b) in enumerate(zip(cold, uncached, strict=False)) if a != b]
    return [
        Check(
            text="cold, warm and uncached Stoker runs deliver byte-equal batches",
            holds=not different and len(warm) == len(cold) and len(uncached) == min(len(cold), UNCACHED_STEPS),
            detail=f"batch {min(different)} differs"
            if different
            else f"cold and warm: all {len(cold):,} batches of an epoch; without a cache: the first {len(uncached):,}",
        ),
        Check(
            text="a run that starts on a warm cache reads no data from the remote store",
            holds=num_read == 0,
            detail=f"{num_read:,} bytes came over the link",
        ),
    ]


def _digests(contest: Contest, way: Way, *, name: str, num_steps: int) -> list[str]:
    digests: list[str] = []
    contest.on_start(name, -1, num_steps)
    with closing(way), closing(way.epoch(0)) as batches:
        for batch in batches:
            digests.append(digest_of(batch))
            contest.on_batch(batch)
            if len(digests) == num_steps:
                break
    return digests


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
