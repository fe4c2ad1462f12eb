"""What the demo says of its result, on the terminal and on a page: drawn by what draws the doctor's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from stoker.demo.results import ARROW, GOAL, PLAIN, RAM, STOKER, DemoResult, EpochResult, WayResult
from stoker.doctor.page import page_html
from stoker.doctor.screen import print_sections
from stoker.doctor.story import Bar, Section, Share
from stoker.paint import print_line
from stoker.words import bytes_text

# Ways whose first epoch differs from the later ones, for it fills a cache.
_CACHING = (ARROW, STOKER)
# Waiting for data this much of the time is the case that a bar should make plain.
_STARVED = 0.5
_METHOD = {
    "busy": "time in which a step runs, over all time from asking for the first batch to the end of the last step; "
    "while a step runs, the loop may fetch the next batch",
    "the same work": "each way delivers all columns of each row, in shuffled batches of 4,096, as arrays ready for "
    "tensors",
    "local disk": "the caches lie on this machine's disk; what still is in the page cache is read from memory, in "
    "every way",
}
_HEAD = (
    *("way", ">busy,\nfirst", ">busy,\nlater epochs", ">\nwaits", "~>other\nidle", ">\nrows/s", ">times\nplain"),
    *(">cores\nused", "~>remote,\nan epoch"),
)


def print_demo(result: DemoResult, console: Console, *, html: Path | None) -> None:
    """Print the table, the checks and the conclusion."""
    print_sections(sections(result), console)
    console.print()
    for style, line in zip(("bold", ""), conclusion(result), strict=True):
        print_line(console, f" {line}", style)
    if html is not None:
        print_line(console, f" The picture: {html}", "dim")


def demo_html(result: DemoResult) -> str:
    """Return the page."""
    plain, stoker = result.later(PLAIN), result.later(STOKER)
    is_simulated = "simulated" in result.setting["accelerator"]
    simulated = "remote store and the accelerator are simulated" if is_simulated else "remote store is simulated"
    real = "reading, decoding and the loop" if is_simulated else "the GPU, reading, decoding and the loop"
    return page_html(
        sections(result),
        command="demo",
        about=(result.when, f"{result.num_rows:,} rows, {result.num_epochs} epochs"),
        status=("is-fine", "✓", "All checks hold") if result.checks_hold else ("is-starved", "✗", "A check fails"),
        headline=f"Read as plain Parquet, the accelerator waits for data {plain.waited:.0%} of the time. It need not.",
        says=(f"The {simulated}; {real} are real", " ".join(conclusion(result))),
        tiles=(
            (f"{plain.busy:.0%}", "busy with plain Parquet reads", False),
            (f"{stoker.busy:.0%}", "busy with Stoker, from the second epoch on", True),
            (f"{result.times_plain:.1f}×", "the rows a second", False),
            (f"{result.of_ceiling:.0%}", "of what batches in RAM give", False),
        ),
    )


def conclusion(result: DemoResult) -> tuple[str, str]:
    """Return how busy Stoker keeps the accelerator, and the cores that Stoker and the Arrow cache use."""
    stoker, arrow = result.later(STOKER), result.later(ARROW)
    says = (
        f"Stoker's later epochs keep the accelerator {stoker.busy:.0%} busy: {result.of_ceiling:.0%} "
        f"of what batches in RAM do, and {result.times_plain:.1f} times the rows of plain Parquet reads."
    )
    if result.of_ceiling < GOAL:
        says += f" That is below the {GOAL:.0%} it should be; was the machine busy with something else?"
    cores = (
        f"For that it used {stoker.cores:.1f} cores on average. The cache of Arrow tables used "
        f"{arrow.cores:.1f} to keep the accelerator {arrow.busy:.0%} busy."
    )
    return says, cores


def sections(result: DemoResult) -> Iterator[Section]:
    """Yield the parts in the order in which they are read."""
    lead = "Five ways to feed the same steps with the same rows: later epochs, and the first where it fills a cache"
    yield Section(
        title="How busy the accelerator is", lead=lead, bars=[bar for way in result.ways for bar in _busy(way)]
    )
    longest_s = max(way.wall_s for way in result.ways)
    bars = [
        Bar(
            name=way.name if len(way.epochs) == result.num_epochs else f"{way.name}, {len(way.epochs)} of them",
            value=f"{way.wall_s:.1f} s",
            share=way.wall_s / longest_s,
            kind="ours" if way.key == STOKER else "plain",
        )
        for way in result.ways
    ]
    yield Section(title=f"{result.num_epochs} epochs from beginning to end", bars=bars)
    took = f"Took {result.wall_s:.0f} s in all; what else ran on the machine shows in the numbers"
    rows = [_row(way, result.later(PLAIN)) for way in result.ways]
    marked = [way.key for way in result.ways].index(STOKER)
    yield Section(title="The numbers", head=_HEAD, rows=rows, marked=[marked], lines=[*result.notes, took])
    checks = [f"{'✓' if check.holds else '✗'} {check.text}: {check.detail}" for check in result.checks]
    yield Section(title="What the demo made sure of", lines=checks)
    pairs = result.setting | _METHOD | {way.name: way.how for way in result.ways}
    yield Section(title="How it was measured", pairs=[*pairs.items()])
    yield Section(title="The machine", pairs=[*result.machine.items()])
    yield Section(title="Do it again", code="stoker demo")


def _busy(way: WayResult) -> Iterator[Bar]:
    first = [(f"{way.name}, first epoch", way.epochs[0])] if way.key in _CACHING else []
    about = f"{way.name}: the ceiling" if way.key == RAM else way.name
    for name, one in [*first, (about, way.later)]:
        parts = {"computing": one.busy, "waiting for data": one.waited, "idle for another reason": one.other}
        told = [(what, f"{share:.0%}", share, what != "computing") for what, share in parts.items() if share >= 0.005]
        yield Bar(name=name, value=f"{one.busy:.0%} busy, {one.rows_per_s:,.0f} rows/s", parts=told)


def _row(way: WayResult, plain: EpochResult) -> list[str | Share]:
    later = way.later
    return [
        way.name,
        # What lies in RAM has no first epoch: it was loaded before.
        "" if way.key == RAM else f"{way.epochs[0].busy:.0%}",
        Share(f"{later.busy:.1%}", later.busy, later.waited <= _STARVED),
        f"{later.waited:.0%}",
        f"{later.other:.0%}",
        f"{later.rows_per_s:,.0f}",
        f"{later.rows_per_s / plain.rows_per_s:.1f}",
        f"{later.cores:.1f}",
        bytes_text(later.remote_bytes) if later.remote_bytes else "none",
    ]
