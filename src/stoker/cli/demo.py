"""`stoker demo`: five ways to feed an accelerator, side by side on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from stoker.cli.arguments import FAILED, OK
from stoker.demo.data import NUM_ROWS
from stoker.demo.run import default_folder, run_demo
from stoker.paint import PAGE_CELLS, make_console, print_json


def run(options: argparse.Namespace, _: Console) -> int:
    """Run the demo and print it."""
    result = run_demo(
        default_folder() if options.folder is None else Path(options.folder).expanduser(),
        num_rows=options.rows or NUM_ROWS,
        html=Path(options.html).expanduser(),
        console=make_console(stderr=options.json, pipe_width=PAGE_CELLS),
    )
    if options.json:
        print_json(result.to_json())
    return OK if result.checks_hold else FAILED
