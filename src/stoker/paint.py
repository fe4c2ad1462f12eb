"""How everything looks on a terminal: one kind of table, of list of facts, of bar; one place that opens consoles."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stoker.errors import printable, without_secrets

MoveBar: TypeAlias = Callable[[float, float | None, str], object]
"""Told how much is done, of how much (None where nobody knows), and words beside the bar."""

# In a file or a pipe nothing is cut or folded: who reads it is a program, or a person with a wide screen.
_PIPE_WIDTH = 4000
PAGE_CELLS = 120
"""Width in a pipe of what is read as a page: wide enough for its tables."""


def make_console(*, stderr: bool = False, pipe_width: int = _PIPE_WIDTH) -> Console:
    """Return a console on stdout or stderr, as wide as the terminal, or `pipe_width` in a pipe."""
    stream: TextIO = sys.stderr if stderr else sys.stdout
    is_narrow = stream.isatty() or "COLUMNS" in os.environ
    return PrintingConsole(
        file=stream, highlight=False, width=None if is_narrow else pipe_width, soft_wrap=False, emoji=False
    )


class PrintingConsole(Console):
    """A console on which no name of a file or a column can steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is shown; see `printable`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        """Print nowhere from now on, since the reader has gone (`| head`): what was found still decides the exit code.

        Where that was the reader of messages, exit with 1: they are of work that is not done yet, which ends there.
        """
        if self.file is sys.stderr:
            super().on_broken_pipe()
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on stdout, indented, never coloured or folded."""
    print_lines([without_secrets(json.dumps(content, indent=2)).replace("\x7f", "\\u007f")])


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout as they are, however many and however long."""
    console = make_console()
    try:
        console.file.writelines(f"{line}\n" for line in lines)
        console.file.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


def table(
    *heads: str, rows: Iterable[Sequence[str | Text]] = (), numbers: Sequence[str] = (), folds: Sequence[str] = ()
) -> Table:
    """Return a table with these heads; `numbers` name columns to align right, `folds` those to fold on a narrow screen.

    Cells are shown as they are, square brackets included.
    """
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for head in heads:
        justify: Literal["left", "right"] = "right" if head in numbers else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if head in folds else "ellipsis"
        made.add_column(head, justify=justify, no_wrap=head not in folds, overflow=overflow)
    for row in rows:
        made.add_row(*cells(*row))
    return made


def cells(*values: str | Text) -> list[Text]:
    """Return cells that are shown as they are, square brackets included."""
    return [value if isinstance(value, Text) else Text(printable(value, is_line=True)) for value in values]


def print_facts(console: Console, pairs: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values under each other; without a value there is no line."""
    console.print(facts(pairs))


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values under each other; without a value there is no line."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            made.add_row(*cells(name, value))
    return made


def print_error(console: Console, message: str, *, notes: Iterable[str] = ()) -> None:
    """Print an error and what is known beside it; the terminal folds it, so that a path can be copied whole."""
    console.print(Text.assemble(("error ", "bold red"), message), soft_wrap=True)
    for note in notes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print text that may hold square brackets: folded between words on a terminal, one line in a pipe."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


@contextmanager
def progress(messages: Console, *, line_s: float | None = None) -> Iterator[MoveBar]:
    """Give what moves a bar with words behind it; without a terminal they are a line once in `line_s` seconds."""
    if not messages.is_terminal:
        said_s = time.monotonic()

        def write(_done: float, _total: float | None, text: str) -> None:
            nonlocal said_s
            if line_s is not None and time.monotonic() - said_s >= line_s:
                said_s = time.monotonic()
                print_line(messages, text)

        yield write
        return
    words = TextColumn("{task.description}", style="dim", markup=False)
    # Often enough to be alive, rarely enough to take no time from what is measured.
    with Progress(BarColumn(bar_width=24), words, console=messages, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)
