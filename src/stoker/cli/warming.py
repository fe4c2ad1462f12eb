"""How far `stoker warm` is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from stoker.words import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from stoker.cache.warm import WarmProgress

# Without a terminal: a line when so much more is done, but not before so many seconds, and always after so many.
_LINE_SHARE = 0.1
_MIN_LINE_S = 2.0
_MAX_LINE_S = 30.0
# A narrower terminal shows rows a second, but not bytes.
_WIDE = 96


class Display(Protocol):
    """Shows how far warming is."""

    def __call__(self, progress: WarmProgress) -> None:
        """Show how far it is."""


@contextmanager
def warming(messages: Console, num_samples: int) -> Iterator[Display]:
    """Give what shows progress on `messages`: a bar on a terminal, a line now and then elsewhere."""
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
