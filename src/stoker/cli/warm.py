"""`stoker warm`: fill a cache before training; stopped at any time, it goes on where it was."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from stoker.cli.arguments import Commands, add_command, add_json, at_least_1
from stoker.cli.codes import INTERRUPTED, OK
from stoker.cli.paint import make_console, print_json, print_line
from stoker.cli.target import add_target, dataset_of
from stoker.cli.units import add_units, asked_of
from stoker.cli.words import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from stoker.cache.warm import WarmProgress
    from stoker.source.units.reading import CountProgress

# Without a terminal: a line when so much more is done, but not before so many seconds, and always after so many.
_LINE_SHARE = 0.1
_MIN_LINE_S = 2.0
_MAX_LINE_S = 30.0
# A narrower terminal shows rows a second, but not bytes.
_WIDE = 96


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "warm",
        summary="fill a cache before training, so that the first epoch is as fast as the others",
        text="""
Builds every chunk of TARGET that the cache does not have yet: the same chunks
that a Loader with the same Dataset uses. Can be stopped with Ctrl-C at any
time, and goes on where it was when it is run again. Several at once, in as
many terminals, share the work.

A Loader finds these chunks only if its Dataset is the same: for one with a
filter, fields or a transform, name the Dataset itself, as train.py:dataset;
and for one with --shuffle-by or an NGram, which cut chunks between runs of rows,
give these too.""",
        examples="""
stoker warm s3://lake/ranking/2026-11/ --cache /nvme/stoker
stoker warm train.py:dataset --cache /nvme/stoker --cache-limit 500GB
stoker warm train.py:dataset --cache /nvme/stoker --processes""",
    )
    add_target(parser)
    parser.add_argument("--cache", metavar="DIR", required=True, help="folder of the cache, on a fast local disk")
    parser.add_argument("--cache-limit", metavar="SIZE", help="size of that folder, such as 500GB (default: the disk)")
    parser.add_argument(
        "--threads", metavar="N", type=at_least_1, help="threads that build (default: the cores this process may use)"
    )
    parser.add_argument(
        "--processes",
        action="store_true",
        help="run the transform in processes, as many as --threads: for one that holds the GIL",
    )
    add_units(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Fill the cache, and print how that goes and what came of it."""
    from stoker.feed.chunks import open_chunks
    from stoker.feed.loader import default_num_threads
    from stoker.feed.units.report import report_on
    from stoker.spec import parse_size
    from stoker.trace.stages import ignore_stage

    dataset, asked = dataset_of(options), asked_of(options)
    limit_bytes = None if options.cache_limit is None else parse_size(options.cache_limit, name="--cache-limit")
    num_threads = options.threads or default_num_threads()
    messages = make_console(stderr=True)
    started = time.monotonic()
    with messages.status("opening the data set …") as status:

        def show(progress: CountProgress) -> None:
            done = f"{count_text(progress.num_done)} of {count_text(progress.num_fragments, 'fragment')}"
            status.update(f"counting: {done}, {count_text(progress.num_rows, 'row')} …")

        chunks = open_chunks(
            dataset,
            cache=Path(options.cache).expanduser(),
            limit_bytes=limit_bytes,
            num_threads=num_threads,
            transform_in="processes" if options.processes else "threads",
            on_stage=ignore_stage,
            asked=asked,
            on_count=show,
        )
    counted = None if asked is None else report_on(asked, chunks.index, num_samples=chunks.num_samples)
    try:
        num_samples = int(chunks.num_samples.sum())
        with _stoppable(messages) as stop_event, _display(messages, num_samples) as display:
            progress = chunks.warm(num_threads=num_threads, on_progress=display, stop_event=stop_event)
            was_stopped = stop_event.is_set() and not progress.is_complete
        counts, size_bytes = chunks.counts(), progress.found_bytes + progress.size_bytes
    finally:
        chunks.close()
    seconds = time.monotonic() - started
    if options.json:
        print_json(
            {
                "cache": str(Path(options.cache).expanduser().absolute()),
                "fingerprint": chunks.fingerprint,
                "num_chunks": progress.num_chunks,
                "num_present": progress.num_done,
                "num_built": counts.num_built,
                "num_samples": num_samples,
                "size_bytes": size_bytes,
                "seconds": round(seconds, 3),
                "is_complete": progress.is_complete,
                "is_full": progress.is_full,
                "was_stopped": was_stopped,
                "units": None if counted is None else dataclasses.asdict(counted),
            }
        )
    else:
        if counted is not None:
            print_line(console, f"{counted}.")
        _print_end(console, options.cache, progress, counts.num_built, size_bytes, seconds, was_stopped=was_stopped)
    return INTERRUPTED if was_stopped else OK


def _print_end(
    console: Console,
    cache: str,
    progress: WarmProgress,
    num_built: int,
    size_bytes: int,
    seconds: float,
    *,
    was_stopped: bool,
) -> None:
    num_reused = progress.num_done - num_built
    built = f"{count_text(num_built, 'chunk')} built, {count_text(num_reused)} already there"
    held = f"{count_text(progress.num_done)} of {count_text(progress.num_chunks)} chunks"
    if was_stopped:
        print_line(console, f"Stopped with {held} in the cache ({bytes_text(size_bytes)}): {built}.", "yellow")
        print_line(console, "The same command goes on from there.")
    elif progress.is_full:
        print_line(console, f"{cache} is full: it holds {held} ({bytes_text(size_bytes)}). {built}.", "yellow")
        print_line(
            console, "Training works; the others are built each time they are needed, unless the limit is raised."
        )
    elif num_built == 0:
        print_line(console, f"{cache} was warm already: {held}, {bytes_text(size_bytes)}.", "green")
    else:
        print_line(console, f"{cache} is warm: {held}, {bytes_text(size_bytes)}.", "green")
        print_line(console, f"{built}, in {duration_text(seconds)}.")


@contextmanager
def _stoppable(messages: Console) -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C sets; the second one interrupts."""
    stop_event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_event
        return

    def stop(*_: object) -> None:
        if stop_event.is_set():
            raise KeyboardInterrupt
        stop_event.set()
        messages.print("stopping: the chunks in the making are finished first (Ctrl-C again leaves them)")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stop_event
    finally:
        signal.signal(signal.SIGINT, before)


class _Display(Protocol):
    def __call__(self, progress: WarmProgress) -> None:
        """Show how far it is."""


@contextmanager
def _display(messages: Console, num_samples: int) -> Iterator[_Display]:
    if messages.is_terminal:
        with _bar(messages) as bar:
            yield _Bar(bar, num_samples)
    else:
        yield _Lines(messages, num_samples)


def _bar(messages: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
        TextColumn("{task.fields[chunks]} chunks", table_column=Column(no_wrap=True)),
        TextColumn("[green]{task.fields[size]}", table_column=Column(no_wrap=True)),
        _Rate(is_short=messages.width < _WIDE, table_column=Column(no_wrap=True)),
        _Left(table_column=Column(no_wrap=True)),
        console=messages,
        transient=True,
        expand=True,
    )


class _Bar:
    """A bar on a terminal."""

    def __init__(self, bar: Progress, num_samples: int) -> None:
        self._bar = bar
        self._rates = _Rates(num_samples)
        self._task = bar.add_task("", total=None, chunks="", size="", rates=self._rates)

    def __call__(self, progress: WarmProgress) -> None:
        self._rates.update(progress)
        self._bar.update(
            self._task,
            total=progress.num_chunks,
            completed=progress.num_done,
            chunks=f"{count_text(progress.num_done)}/{count_text(progress.num_chunks)}",
            size=bytes_text(progress.size_bytes),
        )


class _Lines:
    """A line now and then, where there is no terminal."""

    def __init__(self, messages: Console, num_samples: int) -> None:
        self._messages = messages
        self._rates = _Rates(num_samples)
        self._share: float | None = None
        self._said_s = time.monotonic()

    def __call__(self, progress: WarmProgress) -> None:
        self._rates.update(progress)
        share = progress.num_done / max(1, progress.num_chunks)
        if self._share is None:
            self._share = share
            if not progress.is_complete:
                there = f"{count_text(progress.num_done)} of {count_text(progress.num_chunks, 'chunk')} are there"
                self._messages.print(f"{there}, the others are built now")
            return
        waited_s = time.monotonic() - self._said_s
        if waited_s < _MIN_LINE_S or (share < self._share + _LINE_SHARE and waited_s < _MAX_LINE_S):
            return
        self._share, self._said_s = share, time.monotonic()
        words = [
            f"{count_text(progress.num_done)}/{count_text(progress.num_chunks)} chunks",
            bytes_text(progress.size_bytes),
            self._rates.rate_text(),
            self._rates.left_text(),
        ]
        self._messages.print(" · ".join(word for word in words if word))


class _Rates:
    """How fast it goes, from the first chunk that was built on."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._started = time.monotonic()
        self._progress: WarmProgress | None = None

    def update(self, progress: WarmProgress) -> None:
        self._progress = progress

    def rate_text(self) -> str:
        """Return rows and bytes a second: "812,000 rows/s · 410.2 MB/s"."""
        progress, seconds = self._progress, time.monotonic() - self._started
        if progress is None or not progress.num_samples or seconds <= 0:
            return ""
        return f"{count_text(progress.num_samples / seconds)} rows/s · {bytes_text(progress.size_bytes / seconds)}/s"

    def left_text(self) -> str:
        """Return the time that is left: "3 min 20 s left"."""
        progress, seconds = self._progress, time.monotonic() - self._started
        if progress is None or progress.num_done >= progress.num_chunks:
            return ""
        num_built = progress.num_done - progress.num_found
        if not num_built:
            return ""
        return f"{duration_text(seconds * (progress.num_chunks - progress.num_done) / num_built)} left"


class _Rate(ProgressColumn):
    def __init__(self, *, is_short: bool, table_column: Column) -> None:
        super().__init__(table_column=table_column)
        self._is_short = is_short

    def render(self, task: Task) -> Text:
        text: str = task.fields["rates"].rate_text()
        return Text(text.partition(" · ")[0] if self._is_short else text, style="cyan")


class _Left(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["rates"].left_text(), style="dim")
