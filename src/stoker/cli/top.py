"""`stoker top`: the loaders that run on this host, as they are doing right now."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live

from stoker.cli.arguments import OK, Commands, add_command, add_json
from stoker.cli.paint import print_json

if TYPE_CHECKING:
    from stoker.metrics.status import RunningLoader


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "top",
        summary="watch the loaders that run on this host: stall, stages, cache, time left",
        text="""
Shows every loader of this user on this host: how much of the time its
training loop steps and how much it waits for batches, what the threads that
make them are busy with, how often the cache helps, and how long the epoch
still takes. Rates are those of the last five seconds.

A loader writes these figures to a small file once a second; with
STOKER_STATUS=off in its environment it does not.""",
        examples="""
stoker top
stoker top --once
stoker top --json | jq '.loaders[].recent.stall_share'""",
    )
    parser.add_argument("--once", action="store_true", help="print once and exit; so it does in a pipe")
    parser.add_argument("--interval", metavar="S", type=_seconds, default=1.0, help="seconds between two looks (1)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the loaders, once or until Ctrl-C."""
    from stoker.cli.top_screen import screen
    from stoker.metrics.status import running

    def look() -> RenderableType:
        return screen(running(), width=console.width, height=console.height if is_live else None, time_s=time.time())

    is_live = console.is_terminal and not options.once
    if options.json:
        print_json({"time": time.time(), "loaders": _as_json(running())})
    elif not is_live:
        if not console.is_terminal:
            console.width = min(console.width, 120)  # a file is read on a screen some day
        console.print(look())
    else:
        _watch(console, look, interval_s=options.interval)
    return OK


def _watch(console: Console, look: Callable[[], RenderableType], *, interval_s: float) -> None:
    tick = threading.Event()
    try:
        with Live(look(), console=console, screen=True, auto_refresh=False) as live:
            while not tick.wait(interval_s):
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        pass  # that is how one leaves


def _as_json(loaders: Sequence[RunningLoader]) -> list[dict[str, object]]:
    found = []
    for loader in loaders:
        flat = asdict(loader)
        found.append({**{key: value for key, value in flat.items() if key != "about"}, **flat["about"]})
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} s is not between 0.1 and 3600")
    return seconds
