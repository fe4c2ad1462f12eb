"""`stoker demo`: five ways to feed an accelerator, side by side on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from stoker.cli.arguments import FAILED, OK, Commands, add_command, at_least_1, option
from stoker.paint import make_console, print_json

# Width in a pipe: wide enough for the tables, narrow enough for a log.
_LOG_CELLS = 120


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "demo", run)
    option(parser, "--rows N", "rows of the data set (default: about 2 million)", at_least_1)
    option(parser, "--folder DIR", "where the data set is kept from run to run (default: ~/.cache/stoker/demo)")
    option(parser, "--html FILE", "where the page goes", default="stoker-demo.html")


def run(options: argparse.Namespace, _: Console) -> int:
    """See on this machine what Stoker does, in under four minutes.

    Writes a ranking data set, serves it as slowly as a remote store, and trains
    three epochs on it in five ways: plain Parquet, four times the threads, Arrow
    on SSD, Stoker, and everything in RAM. Prints how busy each kept the
    accelerator and where the time went, and writes a page with the picture.

    Examples:
        stoker demo
        stoker demo --rows 500000 --html demo.html
    """
    from stoker.demo.data import NUM_ROWS
    from stoker.demo.run import default_folder, run_demo

    result = run_demo(
        default_folder() if options.folder is None else Path(options.folder).expanduser(),
        num_rows=options.rows or NUM_ROWS,
        html=Path(options.html).expanduser(),
        console=make_console(stderr=options.json, pipe_width=_LOG_CELLS),
    )
    if options.json:
        print_json(result.to_json())
    return OK if result.checks_hold else FAILED
