"""The demo from beginning to end."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from stoker.demo.accelerator import accelerator_for
from stoker.demo.contest import PLAIN_BUSY, Contest, check_bytes, check_rows, plain_epochs, plain_rate, run_ways
from stoker.demo.data import find_data, make_data
from stoker.demo.link import MeteredLink
from stoker.demo.report import write_demo_report
from stoker.demo.results import DemoResult
from stoker.demo.screen import Screen
from stoker.demo.settings import DemoSettings
from stoker.demo.ways.way import BATCH_SIZE
from stoker.host.machine import machine, versions
from stoker.storage.find_storage import storage_for

# A row takes 0.17 kB as Parquet, 0.95 kB as Arrow and 1.1 kB as chunks; the caches are there together.
_DISK_BYTES_A_ROW = 2_400


def run_demo(settings: DemoSettings, *, console: Console | None = None) -> DemoResult:
    """Train the same rows in five ways, print what each gives, and return the numbers.

    The data set stays in the folder for the next run; the caches, which must be cold at the start, are removed.

    Args:
        settings: How to run.
        console: Where to print.

    Raises:
        OSError: The folder cannot be written, or its disk has too little room.
        StokerError: Something went wrong on the way; a way that delivers wrong rows is no error but a failed check.
    """
    start = time.perf_counter()
    screen = Screen(console or Console())
    work = settings.folder / "work"
    with ExitStack() as stack:
        stack.enter_context(screen)
        _check_room(settings)
        shutil.rmtree(work, ignore_errors=True)
        stack.callback(shutil.rmtree, work, ignore_errors=True)

        screen.begin_data(settings.num_rows)
        data = make_data(
            settings.folder / "data",
            num_rows=settings.num_rows,
            seed=settings.seed,
            num_threads=settings.num_threads,
            on_rows=screen.advance,
        )
        screen.show_data(data, took_s=time.perf_counter() - start)

        local = storage_for(str(data.folder), storage_options=None)
        link = MeteredLink(local, latency_s=settings.latency_s, bandwidth_bytes_s=settings.bandwidth_bytes_s)
        contest = Contest(
            settings=settings,
            data=data,
            local=local,
            link=link,
            work=work,
            on_start=screen.begin,
            on_batch=screen.on_batch,
            on_epoch=screen.show_epoch,
        )
        link_text = _link_text(settings)
        screen.say("remote store", link_text)

        rate = plain_rate(contest)
        accelerator = accelerator_for(PLAIN_BUSY * BATCH_SIZE / rate)
        calibration = (
            f"an epoch of plain reads alone gave {rate:,.0f} rows/s; steps of {accelerator.step_s * 1e3:.2f} ms for "
            f"{BATCH_SIZE:,} rows each are {accelerator.step_s * rate / BATCH_SIZE:.0%} of that time"
        )
        screen.say("accelerator", accelerator.description)
        screen.say("", calibration)
        num_plain_epochs = plain_epochs(contest, rate)
        if num_plain_epochs < settings.num_epochs:
            contest.notes.append(
                f"Both plain ways were measured over {num_plain_epochs} of {settings.num_epochs} epochs, to keep the "
                "demo short: each of their epochs is the same work."
            )
            screen.say("", contest.notes[-1])

        ways, cold = run_ways(contest, accelerator, num_plain_epochs=num_plain_epochs)
        checks = (check_rows(contest, ways), *check_bytes(contest, cold))
        result = DemoResult(
            ways=tuple(ways),
            checks=checks,
            num_rows=data.num_rows,
            num_files=len(data.files),
            size_bytes=data.size_bytes,
            num_epochs=settings.num_epochs,
            accelerator=accelerator.description,
            step_s=accelerator.step_s,
            calibration=calibration,
            link=link_text,
            machine=machine(),
            versions=versions(),
            command=settings.command,
            wall_s=time.perf_counter() - start,
            when=datetime.now(UTC).date().isoformat(),
            notes=tuple(contest.notes),
        )
    if settings.html is not None:
        write_demo_report(result, settings.html)
    screen.show_result(result, html=settings.html)
    return result


def _check_room(settings: DemoSettings) -> None:
    settings.folder.mkdir(parents=True, exist_ok=True)
    needed = settings.num_rows * _DISK_BYTES_A_ROW
    if find_data(settings.folder / "data", num_rows=settings.num_rows, seed=settings.seed) is None:
        needed += settings.num_rows * 200
    free = shutil.disk_usage(settings.folder).free
    if free < needed:
        raise OSError(
            f"the demo needs {needed / 1e9:.1f} GB in {settings.folder}, where {free / 1e9:.1f} GB are free: "
            "give it another folder or fewer rows"
        )


def _link_text(settings: DemoSettings) -> str:
    return (
        f"simulated: local files behind {settings.latency_s * 1e3:.0f} ms of latency and "
        f"{settings.bandwidth_bytes_s / 1e6:.0f} MB/s"
    )


def default_folder() -> Path:
    """Return where the demo keeps its data unless told otherwise."""
    return Path.home() / ".cache" / "stoker" / "demo"
