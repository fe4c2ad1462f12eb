"""The story on a terminal: the sentence, the paths that were run, what would help, why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stoker.doctor.story import Section, Share, sections, status
from stoker.doctor.verdict import DoctorResult
from stoker.words import bar_text

_WIDE = 100
_MARKS = {"fed": "bold green", "starved": "bold red"}


def print_result(result: DoctorResult, console: Console) -> None:
    """Print what was found, short."""
    _print(_beginning(result), console)
    print_sections(sections(result), console)
    _print([Text(), *(Text(f"note: {note}", style="yellow") for note in result.notes)], console)


def print_sections(parts: Iterable[Section], console: Console) -> None:
    """Print the tables and the lines of a story."""
    for section in parts:
        _print(_section(section, is_wide=console.width >= _WIDE), console)


def _print(parts: Iterable[RenderableType], console: Console) -> None:
    for part in parts:
        console.print(Padding(part, (0, 1, 0, 1)))


def _beginning(result: DoctorResult) -> Iterator[RenderableType]:
    numbers = result.numbers
    data = numbers.data
    what = f"{data.num_samples:,} samples in {data.num_files:,} files"
    demand = f"step: {numbers.step}, batches of {numbers.batch_size:,}" if numbers.step else "no step was given"
    yield Text()
    yield Text.assemble(("stoker doctor", "bold"), "  ", (data.text, "cyan"), (f"\n{what} · {demand}", "dim"))
    yield Text()
    style = _MARKS.get(result.kind, "bold cyan")
    yield Text.assemble((f"{status(result)[0]} ", style), (result.sentence, "bold"))
    if result.then:
        yield Text(result.then)


def _section(section: Section, *, is_wide: bool) -> Iterator[RenderableType]:
    if not section.rows and not section.lines:
        return
    yield Text()
    yield Text(section.title, style="dim bold")
    if section.rows:
        yield _table(section, is_wide=is_wide)
    for line in section.lines:
        yield Text(line, style="dim")


def _table(table: Section, *, is_wide: bool) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    shown = [i for i, head in enumerate(table.head) if is_wide or not head.startswith("~")]
    for i in shown:
        head = table.head[i].lstrip("~")
        has_bar = any(isinstance(row[i], Share) for row in table.rows)
        is_number = head.startswith(">") and not has_bar
        # Where the terminal is too narrow, columns of words give way, so that no number is cut off.
        made.add_column(
            head.lstrip(">"),
            justify="right" if is_number else "left",
            no_wrap=is_number or has_bar,
            overflow="ellipsis" if is_number or has_bar else "fold",
        )
    for number, row in enumerate(table.rows):
        style = "bold" if number in table.marked else ""
        made.add_row(*(_cell(row[i], num_cells=16 if is_wide else 8) for i in shown), style=style)
    return made


def _cell(cell: str | Share, *, num_cells: int) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    full = bar_text(cell.share, num_cells)
    style = "green" if cell.is_good else "yellow"
    return Text.assemble((full, style), ("░" * (num_cells - len(full)), "dim"), f" {cell.text:>5}")
