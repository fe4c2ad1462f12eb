"""How far a counting pass is, while it is under way: on a terminal in place, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from stoker.cli.paint import make_console
from stoker.words import count_text

if TYPE_CHECKING:
    from rich.status import Status

    from stoker.dataset.catalogue import CountProgress

Show: TypeAlias = "Callable[[CountProgress], None]"

# Where there is no terminal: how long until the first line, and from one to the next.
_LINE_S = 5.0


@contextmanager
def counting(text: str) -> Iterator[tuple[Status, Show]]:
    """Show on stderr what is under way, and give what changes the text and what is told of counting."""
    messages = make_console(stderr=True)
    said_s = time.monotonic()
    with messages.status(text) as status:

        def show(progress: CountProgress) -> None:
            nonlocal said_s
            done = f"{count_text(progress.num_done)} of {count_text(progress.num_fragments, 'fragment')}"
            told = f"counting: {done}, {count_text(progress.num_rows, 'row')}"
            if messages.is_terminal:
                status.update(f"{told} …")
            elif time.monotonic() - said_s >= _LINE_S:
                said_s = time.monotonic()
                messages.print(told)

        yield status, show
