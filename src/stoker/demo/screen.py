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
from stoker.demo.results import STOKER, DemoResult, EpochResult, TimeShares
from stoker.words import bar_text, bytes_text

_BAR_CELLS = 16
_SHORT_BAR_CELLS = 10
_LABEL_CELLS = 22
# Waiting for data this much of the time is the case that the bar should make plain.
_STARVED = 0.5
# Below this width the table leaves out what it can do without.
_WIDE_CELLS = 110
_WIDE_HEADS = ("other\nidle", "from remote,\nan epoch")
_BAR_HEAD = "busy,\nlater epochs"


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

    def show_data(self, data: DemoData, *, took_s: float) -> None:
        """Print what the data set is, and how long it took to have it."""
        how = "found" if data.was_there else f"written in {took_s:.0f} s"
        self.say("data set", f"{data.num_rows:,} rows in {len(data.paths)} files, {bytes_text(data.size_bytes)}, {how}")
        self.say("", str(data.folder))

    def say(self, label: str, text: str) -> None:
        """Print a labelled line."""
        line = Text.assemble("  ", (f"{label:<14}", "bold"), (text, "" if label else "dim"))
        self._console.print(line, soft_wrap=True)

    def begin(self, what: str, num: int) -> None:
        """Show that something begins that has so many steps."""
        self._progress.reset(self._task, description=what, total=num or None, visible=True)

    def advance(self, num: int = 1) -> None:
        """Count `num` of what is being counted."""
        self._progress.advance(self._task, num)

    def show_epoch(self, name: str, epoch: EpochResult) -> None:
        """Print an epoch that has ended."""
        if name != self._last_name:
            self._console.print()
        shares = TimeShares.of([epoch])
        line = Text.assemble(
            "  ",
            (f"{'' if name == self._last_name else name:<{_LABEL_CELLS}}", "bold"),
            (f"epoch {epoch.epoch + 1}  ", "dim"),
            *_bar(shares),
            f" {shares.busy:>6.1%} busy  {shares.rows_per_s:>11,.0f} rows/s  {epoch.wall_s:>5.1f} s",
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
        console.print(Text.assemble("  ", (result.conclusion, "bold")), soft_wrap=True)
        console.print(Text(f"  {result.comparison}"), soft_wrap=True)
        console.print(Text(f"  {result.wall_s:.0f} s in all.", style="dim"), soft_wrap=True)
        if html is not None:
            console.print(Text.assemble("  ", ("The picture: ", "dim"), str(html)), soft_wrap=True)
        console.print()


def _table(result: DemoResult, *, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    heads = [head for head in result.figures(result.ways[0]) if is_wide or head not in _WIDE_HEADS]
    for head in heads:
        table.add_column(head, justify="left" if head == _BAR_HEAD else "right", no_wrap=True)
    for way in result.ways:
        figures: dict[str, str | Text] = {**result.figures(way)}
        bar = _bar(way.later, num_cells=_BAR_CELLS if is_wide else _SHORT_BAR_CELLS)
        figures[_BAR_HEAD] = Text.assemble(*bar, f" {figures[_BAR_HEAD]:>6}")
        table.add_row(way.name, *(figures[head] for head in heads), style="bold" if way.key == STOKER else "")
    return table


def _bar(shares: TimeShares, *, num_cells: int = _BAR_CELLS) -> list[tuple[str, str]]:
    """Return a bar in styled parts: what was computed, and the rest."""
    full = bar_text(shares.busy, num_cells)
    return [(full, "green"), ("░" * (num_cells - len(full)), "red" if shares.waited > _STARVED else "dim")]
