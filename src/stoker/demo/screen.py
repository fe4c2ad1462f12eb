"""The demo on the screen: what is going on, each epoch as it ends, the table, the conclusion."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from stoker.demo.data import DemoData
from stoker.demo.measure import EpochResult
from stoker.demo.results import ARROW, GOAL, RAM, STOKER, DemoResult, WayResult, share_of
from stoker.doctor.words import size_text
from stoker.fields.spec import Arrays
from stoker.words import bar_text

_BAR_CELLS = 16
_SHORT_BAR_CELLS = 10
_LABEL_CELLS = 22
# Waiting for data this much of the time is the case that the bar should make plain.
_STARVED = 0.5
# Below this width the table leaves out what it can do without.
_WIDE_CELLS = 110


class Screen:
    """Prints the demo's course. Where nobody watches, whole lines and no bars that move.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("  [dim]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            # Often enough to be alive, rarely enough to take no time from what is measured.
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", visible=False)
        self._last_name = ""

    def __enter__(self) -> Self:
        self._console.print()
        self._console.print(Text.assemble(("stoker demo", "bold"), "  five ways to feed an accelerator"))
        self._console.print()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin_data(self, num_rows: int) -> None:
        """Show that the data set is being written."""
        self._progress.reset(self._task, description="writing the data set", total=num_rows, visible=True)

    def show_data(self, data: DemoData, *, took_s: float) -> None:
        """Print what the data set is, and how long it took to have it."""
        how = "found" if data.was_there else f"written in {took_s:.0f} s"
        self.say("data set", f"{data.num_rows:,} rows in {len(data.files)} files, {size_text(data.size_bytes)}, {how}")
        self.say("", str(data.folder))

    def say(self, label: str, text: str) -> None:
        """Print a labelled line."""
        line = Text.assemble("  ", (f"{label:<14}", "bold"), (text, "" if label else "dim"))
        self._console.print(line, soft_wrap=True)

    def begin(self, name: str, epoch: int, num_steps: int) -> None:
        """Show that a way begins an epoch (-1: something beside the epochs)."""
        description = name if epoch < 0 else f"{name}, epoch {epoch + 1}"
        self._progress.reset(self._task, description=description, total=num_steps or None, visible=True)

    def on_batch(self, _: Arrays, /) -> None:
        """Count a step."""
        self._progress.advance(self._task)

    def advance(self, num: int) -> None:
        """Count `num` of what is being counted."""
        self._progress.advance(self._task, num)

    def show_epoch(self, name: str, epoch: EpochResult) -> None:
        """Print an epoch that has ended."""
        if name != self._last_name:
            self._console.print()
        share = share_of([epoch])
        line = Text.assemble(
            "  ",
            (f"{'' if name == self._last_name else name:<{_LABEL_CELLS}}", "bold"),
            (f"epoch {epoch.epoch + 1}  ", "dim"),
            *_bar(share.busy, waited=share.waited),
            f" {share.busy:>6.1%} busy  {share.rows_per_s:>11,.0f} rows/s  {epoch.wall_s:>5.1f} s",
        )
        self._console.print(line, soft_wrap=True)
        self._last_name = name

    def show_result(self, result: DemoResult, *, html: Path | None) -> None:
        """Print the table, the checks and the conclusion."""
        console = self._console
        console.print()
        table = _table(result, is_wide=console.width >= _WIDE_CELLS)
        console.print(Padding(table, (0, 0, 0, 2)))
        for note in result.notes:
            console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
        console.print()
        for check in result.checks:
            mark = ("  ✓ ", "bold green") if check.holds else ("  ✗ ", "bold red")
            console.print(Text.assemble(mark, check.text), soft_wrap=True)
            console.print(Text(f"    {check.detail}", style="dim"), soft_wrap=True)
        console.print()
        console.print(Text.assemble("  ", (conclusion(result), "bold")), soft_wrap=True)
        console.print(Text(f"  {comparison(result)}"), soft_wrap=True)
        console.print(Text(f"  {result.wall_s:.0f} s in all.", style="dim"), soft_wrap=True)
        if html is not None:
            console.print(Text.assemble("  ", ("The picture: ", "dim"), str(html)), soft_wrap=True)
        console.print()


def conclusion(result: DemoResult) -> str:
    """Return what the numbers say, in a sentence."""
    stoker = result.way(STOKER).later
    says = (
        f"Stoker's later epochs keep the accelerator {stoker.busy:.0%} busy: {result.of_ceiling:.0%} of what batches "
        f"in RAM do, and {result.times_plain:.1f} times the rows of plain Parquet reads."
    )
    if result.of_ceiling < GOAL:
        says += f" That is below the {GOAL:.0%} it should be; was the machine busy with something else?"
    return says


def comparison(result: DemoResult) -> str:
    """Return what busy alone does not show: the processor time that the two caches take for it."""
    stoker, arrow = result.way(STOKER).later, result.way(ARROW).later
    return (
        f"For that it used {stoker.cores:.1f} cores on average. The cache of Arrow tables used {arrow.cores:.1f} "
        f"for {arrow.busy:.0%} busy."
    )


def _table(result: DemoResult, *, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("busy,\nfirst", justify="right", no_wrap=True)
    table.add_column("busy,\nlater epochs", no_wrap=True)
    table.add_column("\nwaits", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("other\nidle", justify="right", no_wrap=True)
    table.add_column("\nrows/s", justify="right", no_wrap=True)
    table.add_column("times\nplain", justify="right", no_wrap=True)
    table.add_column("cores\nused", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("from remote,\nan epoch", justify="right", no_wrap=True)
    plain = result.ways[0].later.rows_per_s
    for way in result.ways:
        table.add_row(*_row(way, plain=plain, is_wide=is_wide), style="bold" if way.key == STOKER else "")
    return table


def _row(way: WayResult, *, plain: float, is_wide: bool) -> list[str | Text]:
    later = way.later
    bar = _bar(later.busy, waited=later.waited, num_cells=_BAR_CELLS if is_wide else _SHORT_BAR_CELLS)
    # What lies in RAM has no first epoch: it was loaded before.
    first = "" if way.key == RAM else f"{way.first.busy:.0%}"
    cells: list[str | Text] = [way.name, first, Text.assemble(*bar, f" {later.busy:>6.1%}"), f"{later.waited:.0%}"]
    if is_wide:
        cells.append(f"{later.other:.0%}")
    cells += [f"{later.rows_per_s:,.0f}", f"{later.rows_per_s / plain:.1f}", f"{later.cores:.1f}"]
    if is_wide:
        cells.append(size_text(later.remote_bytes) if later.remote_bytes else "none")
    return cells


def _bar(busy: float, *, waited: float, num_cells: int = _BAR_CELLS) -> list[tuple[str, str]]:
    """Return a bar in styled parts: what was computed, and the rest."""
    full = bar_text(busy, num_cells)
    return [(full, "green"), ("░" * (num_cells - len(full)), "red" if waited > _STARVED else "dim")]
