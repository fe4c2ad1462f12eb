"""The demo on the screen: what is going on, each epoch as it ends, the table, the conclusion."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from stoker.demo.results import STOKER, DemoResult, EpochResult, TimeShares
from stoker.paint import table
from stoker.words import bar_text

_BAR_CELLS, _SHORT_BAR_CELLS = 16, 10
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

    def __enter__(self) -> Self:
        self.line("\n", ("stoker demo", "bold"), "  five ways to feed an accelerator\n", indent="")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def line(self, *parts: str | tuple[str, str], indent: str = "  ") -> None:
        """Print a line of styled parts."""
        self._console.print(Text.assemble(indent * bool(parts), *parts), soft_wrap=True)

    def begin(self, what: str, num: int) -> None:
        """Show that something begins that has so many steps."""
        self._progress.reset(self._task, description=what, total=num or None, visible=True)

    def advance(self, num: int = 1) -> None:
        """Count `num` of what is being counted."""
        self._progress.advance(self._task, num)

    def show_epoch(self, name: str, number: int, epoch: EpochResult) -> None:
        """Print an epoch that has ended, its way's name before the first."""
        if number == 0:
            self.line()
        shares = TimeShares.of([epoch])
        self.line(
            (f"{'' if number else name:<22}", "bold"),
            (f"epoch {number + 1}  ", "dim"),
            *_bar(shares, _BAR_CELLS),
            f" {shares.busy:>6.1%} busy  {shares.rows_per_s:>11,.0f} rows/s  {epoch.wall_s:>5.1f} s",
        )

    def show_result(self, result: DemoResult, *, html: Path | None) -> None:
        """Print the table, the checks and the conclusion."""
        is_wide = self._console.width >= _WIDE_CELLS
        heads = [head for head in result.figures(result.ways[0]) if is_wide or head not in _WIDE_HEADS]
        made = table("", *heads, numbers=[head for head in heads if head != _BAR_HEAD])
        for way in result.ways:
            figures: dict[str, str | Text] = {**result.figures(way)}
            bar = _bar(way.later, _BAR_CELLS if is_wide else _SHORT_BAR_CELLS)
            figures[_BAR_HEAD] = Text.assemble(*bar, f" {figures[_BAR_HEAD]:>6}")
            made.add_row(way.name, *(figures[head] for head in heads), style="bold" if way.key == STOKER else "")
        self.line()
        self._console.print(Padding(made, (0, 0, 0, 2)))
        for note in result.notes:
            self.line((note, "dim"))
        self.line()
        for check in result.checks:
            self.line(("✓ ", "bold green") if check.holds else ("✗ ", "bold red"), check.text)
            self.line((f"  {check.detail}", "dim"))
        self.line()
        busy, cores = result.conclusion.split("\n")
        self.line((busy, "bold"))
        self.line(cores)
        self.line((f"{result.wall_s:.0f} s in all.", "dim"))
        if html is not None:
            self.line(("The picture: ", "dim"), str(html))
        self.line()


def _bar(shares: TimeShares, num_cells: int) -> list[tuple[str, str]]:
    """Return a bar in styled parts: what was computed, and the rest."""
    full = bar_text(shares.busy, num_cells)
    return [(full, "green"), ("░" * (num_cells - len(full)), "red" if shares.waited > _STARVED else "dim")]
