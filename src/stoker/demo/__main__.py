"""`python -m stoker.demo`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from stoker.demo.run import default_folder, run_demo
from stoker.demo.settings import DemoSettings


def main() -> int:
    """Run the demo and return an exit code."""
    defaults = DemoSettings(folder=default_folder())
    parser = argparse.ArgumentParser(prog="python -m stoker.demo", description="Five ways to feed an accelerator.")
    parser.add_argument("--folder", type=Path, default=defaults.folder)
    parser.add_argument("--rows", type=int, default=defaults.num_rows)
    parser.add_argument("--epochs", type=int, default=defaults.num_epochs)
    parser.add_argument("--threads", type=int, default=defaults.num_threads)
    parser.add_argument("--bandwidth", type=float, default=defaults.bandwidth_bytes_s, help="bytes a second")
    parser.add_argument("--html", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = run_demo(
        DemoSettings(
            folder=options.folder,
            num_rows=options.rows,
            num_epochs=options.epochs,
            num_threads=options.threads,
            bandwidth_bytes_s=options.bandwidth,
            html=options.html,
        ),
        console=Console(highlight=False),
    )
    if options.json:
        options.json.write_text(json.dumps(result.to_json(), indent=1))
    return 0 if result.checks_hold else 1


if __name__ == "__main__":
    sys.exit(main())
