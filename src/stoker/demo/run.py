"""The demo from beginning to end: the ways one after the other, on the same rows, for the same accelerator."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from rich.console import Console
from rich.text import Text

from stoker.dataset.dataset import Dataset
from stoker.demo.accelerator import SimulatedAccelerator, TimeRange, waited_s
from stoker.demo.data import (
    BANDWIDTH_BYTES_S,
    CHECKED_COLUMN,
    LATENCY_S,
    NUM_ROWS,
    DemoData,
    MeteredLink,
    checksum_of,
    find_data,
    make_data,
    ranking_dataset,
)
from stoker.demo.results import ARROW, PLAIN, RAM, STOKER, THREADS, Check, DemoResult, EpochResult, WayResult
from stoker.demo.story import demo_html, print_demo
from stoker.demo.ways import (
    BATCH_SIZE,
    STACKED,
    ArrowCache,
    Batches,
    PlainReads,
    Way,
    batches_in_ram,
    in_ram,
    stoker_loader,
)
from stoker.doctor.machine import has_cuda
from stoker.doctor.page import check_report, write_page
from stoker.fields.spec import Arrays, Ragged
from stoker.host.machine import free_memory_bytes, machine, num_cores, versions
from stoker.paint import MoveBar, progress
from stoker.storage.find_storage import storage_for
from stoker.words import bar_text

if TYPE_CHECKING:
    from stoker.demo.cuda import CudaAccelerator

# Plain reads should keep the accelerator about this busy: teams that read a lake directly see 10 to 20 %.
_PLAIN_BUSY = 0.17
# Seconds that a plain way may take. Where all its epochs would take longer, it trains fewer: whole ones, for the first
# steps alone would count an epoch's start too much. Two plain ways, the epochs that calibrate and fill caches, and the
# rest stay below four minutes.
_SLOW_WAY_S = 45.0
# Batches compared without a cache: building the chunks of all of them once more would show nothing new.
_UNCACHED_STEPS = 128
# Share of the free memory that the batches in RAM may take.
_RAM_SHARE = 0.5
# A row takes 0.17 kB as Parquet, 0.95 kB as Arrow and 1.1 kB as chunks; the caches are there together.
_DISK_BYTES_A_ROW, _DATA_BYTES_A_ROW = 2_400, 200
_BAR_CELLS = 16


def default_folder() -> Path:
    """Return where the demo keeps its data unless told otherwise."""
    return Path.home() / ".cache" / "stoker" / "demo"


def run_demo(
    folder: Path,
    *,
    num_rows: int = NUM_ROWS,
    num_epochs: int = 3,
    latency_s: float = LATENCY_S,
    bandwidth_bytes_s: float = BANDWIDTH_BYTES_S,
    html: Path | None = None,
    console: Console | None = None,
) -> DemoResult:
    """Train the same rows in five ways, print what each gives, and return the numbers.

    The data set stays in the folder for the next run; the caches, which must be cold at the start, are removed.

    Args:
        folder: Where the data set is kept from run to run, and the caches while it runs.
        num_rows: Rows of the data set.
        num_epochs: Epochs that each way trains; first and later ones are compared.
        latency_s: Latency of the simulated remote store.
        bandwidth_bytes_s: Its bandwidth.
        html: Where the page is written; None writes none.
        console: Where to print.

    Raises:
        ValueError: `html` is a folder, or `num_rows` is too small to spread over files.
        OSError: The folder cannot be written, or its disk has too little room.
        StokerError: Something else failed; a way that delivers wrong rows is no error but a failed check.
    """
    start, console, work = time.perf_counter(), console or Console(), folder / "work"
    if html is not None:
        check_report(html)
    console.print(Text.assemble("\n", ("stoker demo", "bold"), "  five ways to feed an accelerator\n"))
    _check_room(folder, num_rows)
    shutil.rmtree(work, ignore_errors=True)
    with console.status("writing the data set …"):
        data = make_data(folder / "data", num_rows=num_rows)
    link = MeteredLink(data.folder, latency_s=latency_s, bandwidth_bytes_s=bandwidth_bytes_s)
    try:
        with progress(console) as bar:
            contest = _Contest(data=data, link=link, work=work, console=console, bar=bar, num_epochs=num_epochs)
            result = contest.run(start)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if html is not None:
        write_page(demo_html(result), html)
    print_demo(result, console, html=html)
    return result


@dataclass(kw_only=True)
class _Contest:
    """What all ways are given, and what a reader should know of how it went."""

    data: DemoData
    link: MeteredLink
    work: Path
    console: Console
    bar: MoveBar
    num_epochs: int
    num_threads: int = field(default_factory=num_cores)
    accelerator: SimulatedAccelerator | CudaAccelerator = field(init=False)
    setting: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.remote = ranking_dataset(self.data.paths, storage=self.link)
        self.local = ranking_dataset(self.data.paths, storage=storage_for(str(self.data.folder)))

    def run(self, start: float) -> DemoResult:
        """Train all ways, and return what they gave; `start` is when everything began."""
        self.say("data set", self.data.told)
        self.say("", f"{'found' if self.data.was_there else 'written'} in {self.data.folder}")
        self.say("remote store", f"simulated: local files behind {self.link.told}")
        cold: list[str] = []
        ways = self.run_ways(self.calibrate(), cold)
        return DemoResult(
            ways=tuple(ways),
            checks=(_check_rows(self.data, ways), *self.check_bytes(cold)),
            num_rows=self.data.num_rows,
            num_epochs=self.num_epochs,
            setting=self.setting,
            machine=machine() | {"versions": ", ".join(map(" ".join, versions().items()))},
            wall_s=time.perf_counter() - start,
            when=datetime.now(UTC).date().isoformat(),
            notes=tuple(self.notes),
        )

    def say(self, name: str, text: str) -> None:
        """Print something of the setting, and keep it where it has a name."""
        self.setting |= {name: text} if name else {}
        self.line((f"{name:<18}", "bold"), (text, "" if name else "dim"))

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print a line of styled parts."""
        self.console.print(Text.assemble("  " * bool(parts), *parts), soft_wrap=True)

    def counted(self, batches: Iterable[Arrays], what: str) -> Iterator[Arrays]:
        """Yield batches, and show how many there were."""
        total = -(-self.data.num_rows // BATCH_SIZE)
        for number, batch in enumerate(batches, 1):
            yield batch
            self.bar(number, total, f"{what}: {number:,}/{total:,}")

    def calibrate(self) -> int:
        """Make an accelerator, a CUDA device where there is one, as fast as plain reads alone ask for.

        Return how many epochs a plain way may train.
        """
        start = time.perf_counter()
        with closing(PlainReads(self.remote, num_threads=self.num_threads).epoch(0)) as batches:
            for _ in self.counted(batches, "plain reads alone"):
                pass
        rate = self.data.num_rows / (time.perf_counter() - start)
        step_s = _PLAIN_BUSY * BATCH_SIZE / rate
        if has_cuda():
            from stoker.demo.cuda import CudaAccelerator

            self.accelerator = CudaAccelerator(step_s)
        else:
            self.accelerator = SimulatedAccelerator(step_s)
        step_s = self.accelerator.step_s
        self.say("accelerator", self.accelerator.description)
        alone = f"an epoch of plain reads alone gave {rate:,.0f} rows/s"
        steps = f"steps of {step_s * 1e3:.2f} ms for {BATCH_SIZE:,} rows each"
        self.say("length of a step", f"{alone}; {steps} are {step_s * rate / BATCH_SIZE:.0%} of that time")
        num_epochs = min(self.num_epochs, int(_SLOW_WAY_S * rate / self.data.num_rows) or 1)
        if num_epochs < self.num_epochs:
            self.notes.append(
                f"Both plain ways were measured over {num_epochs} of {self.num_epochs} epochs, to keep the demo "
                "short: each of their epochs is the same work."
            )
            self.say("", self.notes[-1])
        return num_epochs

    def run_ways(self, num_plain: int, cold: list[str]) -> list[WayResult]:
        """Return each way's result; `cold` is given the digests of the batches of Stoker's first epoch."""
        num, remote, num_epochs = self.num_threads, self.remote, self.num_epochs
        threads = "1 thread" if num == 1 else f"{num} threads"
        mixed = "each becomes arrays once; rows of four row groups are mixed"
        drawn = f"{threads} draw the rows of each batch in Arrow, which become arrays when the batch is dequeued"
        how = f"{threads} read row groups ahead and decode them; {mixed}"
        plain, more = (PlainReads(remote, num_threads=times * num).epoch for times in (1, 4))
        results = [self._train(plain, PLAIN, "plain Parquet reads", how, num_plain)]
        results.append(self._train(more, THREADS, "4 × the threads", f"the same with {4 * num} threads", num_plain))
        arrow = ArrowCache(remote, folder=self.work / "arrow", num_threads=num).epoch
        how = f"decoded tables are kept as Arrow files and mapped; {drawn}"
        results.append(self._train(arrow, ARROW, "Arrow on SSD", how, num_epochs))
        with stoker_loader(remote, folder=self.work / "stoker", num_threads=num) as stoker:
            how = f"stoker.Loader with {threads}: finished arrays are kept on SSD, a batch is one gather"
            results.append(self._train(stoker, STOKER, "Stoker", how, num_epochs, cold))
        limit_bytes = int(free_memory_bytes() * _RAM_SHARE)
        kept, is_whole = batches_in_ram(self.local, num_threads=num, limit_bytes=limit_bytes)
        if not is_whole:
            self.notes.append("Not all batches fit into the free memory: the ceiling was measured with those that do.")
        ram = self._train(
            partial(in_ram, kept), RAM, "batches in RAM", "all batches lie in memory already: the ceiling", num_epochs
        )
        return [*results, replace(ram, has_all_rows=is_whole)]

    def _train(
        self, way: Way, key: str, name: str, how: str, num_epochs: int, first: list[str] | None = None
    ) -> WayResult:
        """Train epochs of one way and return what it gave; `first` is given the digests of the first's batches."""
        results = []
        self.line()
        for epoch in range(num_epochs):
            one = self._measure(way(epoch), f"{name}, epoch {epoch + 1}", first if epoch == 0 else None)
            results.append(one)
            self.line(
                (f"{'' if epoch else name:<22}", "bold"),
                (f"epoch {epoch + 1}  ", "dim"),
                (bar_text(one.busy, _BAR_CELLS, rest="░"), "red" if one.waited > one.busy else "green"),
                f" {one.busy:>6.1%} busy  {one.rows_per_s:>11,.0f} rows/s  {one.wall_s:>5.1f} s",
            )
        return WayResult(key=key, name=name, how=how, epochs=tuple(results))

    def _measure(self, epoch: Batches, what: str, digests: list[str] | None) -> EpochResult:
        fetches: list[TimeRange] = []
        num_rows = checksum = 0
        remote_before, cpu_before = self.link.bytes_read, time.process_time()
        start = asked = time.perf_counter()
        with closing(epoch) as batches:
            for batch in self.counted(batches, what):
                fetches.append((asked, time.perf_counter()))
                self.accelerator.step(batch)
                checked = np.asarray(batch["dense"])[:, STACKED["dense"][0].index(CHECKED_COLUMN)]
                num_rows += len(checked)
                checksum += checksum_of(checked)
                if digests is not None:
                    digests.append(digest_of(batch))
                asked = time.perf_counter()
            steps = self.accelerator.finish()
            cpu_s = time.process_time() - cpu_before
        return EpochResult(
            num_rows=num_rows,
            checksum=checksum % 2**64,
            wall_s=max(ended for _, ended in steps) - start,
            busy_s=sum(ended - began for began, ended in steps),
            waited_s=waited_s(fetches, steps, start=start),
            cpu_s=cpu_s,
            remote_bytes=self.link.bytes_read - remote_before,
        )

    def check_bytes(self, cold: list[str]) -> list[Check]:
        """Return whether Stoker delivers the same bytes warm and without a cache, and reads nothing when warm."""
        before = self.link.bytes_read
        warm = self._digests("warm", self.remote, self.work / "stoker", num_steps=len(cold))
        num_read = self.link.bytes_read - before
        uncached = self._digests("no cache", self.local, None, num_steps=min(len(cold), _UNCACHED_STEPS))
        equal = warm == cold and uncached == cold[:_UNCACHED_STEPS]
        seen = f"cold and warm: all {len(cold):,} batches of an epoch; without a cache: the first {len(uncached):,}"
        text = "cold, warm and uncached Stoker runs deliver byte-equal batches"
        no_read = "a run that starts on a warm cache reads no data from the remote store"
        return [
            Check(text=text, holds=equal, detail=seen),
            Check(text=no_read, holds=num_read == 0, detail=f"{num_read:,} bytes came over the link"),
        ]

    def _digests(self, name: str, dataset: Dataset, folder: Path | None, *, num_steps: int) -> list[str]:
        with (
            stoker_loader(dataset, folder=folder, num_threads=self.num_threads) as way,
            closing(way(0)) as batches,
        ):
            return [digest_of(one) for one in self.counted(islice(batches, num_steps), f"{name}, byte by byte")]


def _check_rows(data: DemoData, ways: list[WayResult]) -> Check:
    """Return whether every epoch delivered each row exactly once."""
    whole = [(way, epoch) for way in ways if way.has_all_rows for epoch in way.epochs]
    expected = (data.num_rows, data.checksum)
    wrong = [f"{way.name}: {e.num_rows:,} rows" for way, e in whole if (e.num_rows, e.checksum) != expected]
    right = f"{len(whole)} epochs of {data.num_rows:,} rows, each with the checksum of the rows as made"
    text = "every way delivered every row exactly once an epoch"
    return Check(text=text, holds=not wrong, detail="; ".join(wrong) or right)


def digest_of(batch: Arrays) -> str:
    """Return 32 hex digits of a batch: names, order, dtypes, shapes and every byte of every value."""
    digest = xxhash.xxh3_128()
    for name, field_ in batch.items():
        digest.update(name.encode())
        for array in field_.arrays if isinstance(field_, Ragged) else [field_]:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.size else b"")
    return digest.hexdigest()


def _check_room(folder: Path, num_rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    is_there = find_data(folder / "data", num_rows=num_rows) is not None
    needed = num_rows * (_DISK_BYTES_A_ROW + (0 if is_there else _DATA_BYTES_A_ROW))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"the demo needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "give it another folder (--folder) or fewer rows (--rows)"
        )
