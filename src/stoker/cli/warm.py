"""`stoker warm`: fill a cache before training; stopped at any time, it goes on where it was."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from stoker.cli.arguments import FAILED, INTERRUPTED, OK, Commands, add_command, add_json, at_least_1, folder, part
from stoker.cli.interrupts import stoppable
from stoker.cli.paint import make_console, print_json, print_line
from stoker.cli.target import add_target, add_units, counting, target_of, unit_of
from stoker.words import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from stoker.dataset.units.kinds import SamplingUnit
    from stoker.loader.config import LoaderOptions
    from stoker.loader.fill import WarmProgress
    from stoker.loader.opened import OpenDataset
    from stoker.loader.orders import UnitsReport

# Without a terminal: a line when so much more is done, but not before so many seconds, and always after so many.
_LINE_SHARE, _MIN_LINE_S, _MAX_LINE_S = 0.1, 2.0, 30.0


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

With --mirror, chunks that other hosts have left there are fetched, and what is
built here is put there. Any number of hosts share the work by --part 0/8 to
7/8: each builds its part, and puts it there; what is there already, it leaves.
--engine ray has the nodes of a Ray cluster build all parts.

A Loader finds these chunks only if its Dataset is the same: for one with a
filter, fields or a transform, name the Dataset itself, as train.py:dataset;
and for one with --group-by or an NGram, which cut chunks between runs of rows,
give these too.""",
        examples="""
stoker warm s3://lake/ranking/2026-11/ --cache /nvme/stoker
stoker warm train.py:dataset --cache /nvme/stoker --cache-limit 500GB
stoker warm train.py:dataset --cache /nvme/stoker --processes
stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker
stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker --part $JOB_COMPLETION_INDEX/64
stoker warm train.py:dataset --cache /nvme/stoker --mirror s3://bucket/stoker --engine ray""",
    )
    add_target(parser, takes_mixture=True)
    parser.add_argument(
        "--cache", metavar="DIR", type=folder, required=True, help="folder of the cache, on a fast local disk"
    )
    parser.add_argument("--cache-limit", metavar="SIZE", help="size of that folder, such as 500GB (default: the disk)")
    parser.add_argument("--mirror", metavar="URL", help="where hosts leave chunks for each other: a store or a folder")
    parser.add_argument("--part", metavar="I/N", type=part, help="only this part: 0/8 is the first one of eight")
    parser.add_argument(
        "--engine", choices=("here", "ray"), default="here", help="who builds: this process, or a Ray cluster"
    )
    parser.add_argument("--parts", metavar="N", type=at_least_1, help="parts for Ray (default: eight for each node)")
    parser.add_argument("--shared", action="store_true", help="share that folder with the users of its group")
    parser.add_argument(
        "--threads", metavar="N", type=at_least_1, help="threads that build (default: the cores this process may use)"
    )
    parser.add_argument(
        "--processes",
        action="store_true",
        help="run the transform in processes, as many as --threads: for one that holds the GIL",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "substitute"),
        default="raise",
        help="what becomes of chunks that cannot be made of their rows, as your Loader has it (default: raise)",
    )
    add_units(parser)
    add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, kw_only=True)
class _Warmed:
    """What came of one data set."""

    fingerprint: str
    progress: WarmProgress
    num_built: int
    num_fetched: int
    num_samples: int
    counted: UnitsReport | None
    was_stopped: bool

    def to_json(self) -> dict[str, object]:
        progress = self.progress
        return {
            "fingerprint": self.fingerprint,
            "num_chunks": progress.num_chunks,
            "num_present": progress.num_done,
            "num_built": self.num_built,
            "num_samples": self.num_samples,
            "size_bytes": progress.found_bytes + progress.size_bytes,
            "is_complete": progress.is_complete,
            "is_full": progress.is_full,
            "num_fetched": self.num_fetched,
            "num_not_uploaded": progress.num_not_uploaded,
            "was_stopped": self.was_stopped,
            "units": None if self.counted is None else dataclasses.asdict(self.counted),
        }


def run(options: argparse.Namespace, console: Console) -> int:
    """Fill the cache, and print how that goes and what came of it."""
    from stoker.cache.store import Cache
    from stoker.loader.config import make_config
    from stoker.loader.fill import warm
    from stoker.loader.opened import open_datasets

    if options.engine == "ray":
        return _run_on_ray(options, console)
    target, unit = target_of(options), unit_of(options)
    arguments: LoaderOptions = {
        "batch_size": 1,  # which decides nothing about chunks
        "cache": Cache(
            Path(options.cache).expanduser(), limit=options.cache_limit, is_shared=options.shared, mirror=options.mirror
        ),
        "num_threads": options.threads,
        "transform_in": "processes" if options.processes else "threads",
        "on_error": options.on_error,
    }
    config = dataclasses.replace(make_config(arguments), unit=unit)
    messages = make_console(stderr=True)
    started = time.monotonic()
    with counting("opening the data set …") as (_, show):
        opened = open_datasets(target, config, part=options.part, on_count=show)
    names = ("",) if opened.mixture is None else opened.mixture.names
    done: dict[str, _Warmed] = {}
    try:
        with stoppable(messages) as stop_event:
            for name, chunks in zip(names, opened.datasets, strict=True):
                if stop_event.is_set():
                    break
                if name:
                    print_line(messages, name, "bold cyan")
                pool, counted = chunks.pool(config.num_threads), None if options.part else unit
                fill = partial(warm, chunks.builder, pool=pool, part=options.part, stop_event=stop_event)
                done[name] = _warm(chunks, counted, messages, fill)
    finally:
        opened.close()
    was_stopped = any(one.was_stopped for one in done.values()) or len(done) < len(names)
    seconds = time.monotonic() - started
    is_left = any(one.progress.num_not_uploaded for one in done.values())
    code = INTERRUPTED if was_stopped else FAILED if is_left else OK
    if options.json:
        print_json(_as_json(options.cache, done, num_sets=len(names), seconds=seconds, was_stopped=was_stopped))
        return code
    for name, one in done.items():
        if name:
            print_line(console, name, "bold cyan")
        if one.counted is not None:
            print_line(console, f"{one.counted}.")
        _print_end(console, options.cache, one, seconds)
    if len(done) < len(names):
        print_line(console, f"Not begun: {', '.join(names[len(done) :])}.", "yellow")
    return code


def _run_on_ray(options: argparse.Namespace, console: Console) -> int:
    from stoker.cli.warm_ray import warm_on_ray

    messages = make_console(stderr=True)
    # Ray's own lines are none of ours.
    with stoppable(messages) as stop_event, redirect_stdout(sys.stderr):
        told = warm_on_ray(options, messages, stop_event)
    if options.json:
        print_json(told)
    else:
        chunks = count_text(cast(int, told["num_present"]), "chunk")
        built = count_text(cast(int, told["num_built"]))
        print_line(console, f"{options.mirror} has {chunks} of this data set; {built} were built now.", "green")
    return OK if told["is_complete"] else INTERRUPTED if told["was_stopped"] else FAILED


def _warm(
    chunks: OpenDataset, unit: SamplingUnit | None, messages: Console, warm: Callable[..., WarmProgress]
) -> _Warmed:
    from stoker.loader.orders import report_on

    num_samples = int(chunks.num_samples.sum())
    with _showing(messages) as display:
        progress = warm(on_progress=display)
    counts = chunks.counts()
    return _Warmed(
        fingerprint=chunks.catalogue.fingerprint,
        progress=progress,
        num_built=counts.num_built,
        num_fetched=counts.num_fetched,
        num_samples=num_samples,
        counted=None if unit is None else report_on(unit, chunks.index, num_samples=chunks.num_samples),
        was_stopped=not (progress.is_complete or progress.is_full),
    )


@contextmanager
def _showing(messages: Console) -> Iterator[Callable[[WarmProgress], None]]:
    """Give what shows how far warming is: a bar on a terminal, a line now and then elsewhere."""
    started_s = time.monotonic()
    if messages.is_terminal:
        text = TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True))
        with Progress(BarColumn(bar_width=None), text, console=messages, transient=True, expand=True) as bar:
            task = bar.add_task("", total=None, text="")

            def update(progress: WarmProgress) -> None:
                told = _told(progress, time.monotonic() - started_s)
                bar.update(task, total=progress.num_chunks, completed=progress.num_done, text=told)

            yield update
        return
    said: tuple[float, float] | None = None  # when a line was last written, and how much was done then

    def write(progress: WarmProgress) -> None:
        nonlocal said
        now, share = time.monotonic(), progress.num_done / max(1, progress.num_chunks)
        if said is None:
            said = now, share
            if not progress.is_complete:
                there = f"{count_text(progress.num_done)} of {count_text(progress.num_chunks, 'chunk')} are there"
                messages.print(f"{there}, the others are built now")
            return
        waited_s = now - said[0]
        if waited_s >= _MAX_LINE_S or (waited_s >= _MIN_LINE_S and share >= said[1] + _LINE_SHARE):
            said = now, share
            messages.print(_told(progress, now - started_s))

    yield write


def _told(progress: WarmProgress, seconds: float) -> str:
    """Return chunks, bytes, rates and the time that is left: "3/8 chunks · 96 MB · 812,000 rows/s · 20 s left"."""
    words = [
        f"{count_text(progress.num_done)}/{count_text(progress.num_chunks)} chunks",
        bytes_text(progress.size_bytes),
    ]
    num_built, num_left = progress.num_done - progress.num_found, progress.num_chunks - progress.num_done
    if num_built and seconds > 0:
        words += [
            f"{count_text(progress.num_samples / seconds)} rows/s",
            f"{bytes_text(progress.size_bytes / seconds)}/s",
        ]
    if num_built and num_left:
        words.append(f"{duration_text(seconds * num_left / num_built)} left")
    return " · ".join(words)


def _as_json(
    cache: str, done: dict[str, _Warmed], *, num_sets: int, seconds: float, was_stopped: bool
) -> dict[str, object]:
    """Return what came of it; of a mixture, sums and each data set."""
    about = {"cache": str(Path(cache).expanduser().absolute())}
    parts = {name: one.to_json() for name, one in done.items()}
    if "" in parts:
        return {**about, **parts[""], "seconds": round(seconds, 3)}
    sums = ("num_chunks", "num_present", "num_built", "num_fetched", "num_samples", "size_bytes", "num_not_uploaded")
    is_complete = len(done) == num_sets and all(one.progress.is_complete for one in done.values())
    return {
        **about,
        **{name: sum(cast(int, part[name]) for part in parts.values()) for name in sums},
        "seconds": round(seconds, 3),
        "is_complete": is_complete,
        "is_full": any(one.progress.is_full for one in done.values()),
        "was_stopped": was_stopped,
        "datasets": parts,
    }


def _print_end(console: Console, cache: str, warmed: _Warmed, seconds: float) -> None:
    progress, num_built = warmed.progress, warmed.num_built
    size_bytes = progress.found_bytes + progress.size_bytes
    num_reused = max(0, progress.num_done - num_built - warmed.num_fetched)
    fetched = f"{count_text(warmed.num_fetched)} fetched from the mirror, " * bool(warmed.num_fetched)
    built = f"{count_text(num_built, 'chunk')} built, {fetched}{count_text(num_reused)} already there"
    if progress.num_not_uploaded:
        left = count_text(progress.num_not_uploaded, "chunk")
        print_line(console, f"{left} could not be put into the mirror: the same command tries again.", "yellow")
    held = f"{count_text(progress.num_done)} of {count_text(progress.num_chunks)} chunks"
    if warmed.was_stopped:
        print_line(console, f"Stopped with {held} in the cache ({bytes_text(size_bytes)}): {built}.", "yellow")
        print_line(console, "The same command goes on from there.")
    elif progress.is_full:
        print_line(console, f"{cache} is full: it holds {held} ({bytes_text(size_bytes)}). {built}.", "yellow")
        print_line(
            console, "Training works; the others are built each time they are needed, unless the limit is raised."
        )
    elif num_built + warmed.num_fetched == 0:
        print_line(console, f"{cache} was warm already: {held}, {bytes_text(size_bytes)}.", "green")
    else:
        print_line(console, f"{cache} is warm: {held}, {bytes_text(size_bytes)}.", "green")
        print_line(console, f"{built}, in {duration_text(seconds)}.")
