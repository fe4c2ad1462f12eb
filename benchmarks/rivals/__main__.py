"""`python -m benchmarks.rivals`: the same data through every loader, each in an environment of its own.

Installs what is missing below benchmarks/rivals/.environments (a few GB), counts every row that is delivered, and
prints one table. `--write` keeps it in benchmarks/results, with a chart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.free_pages import have_pages_at_hand
from benchmarks.rivals.contestants import CONTESTANTS, OURS, Contestant
from benchmarks.rivals.environments import python_of
from benchmarks.rivals.outcome import Outcome, Truth, measure
from benchmarks.rivals.table import print_table, write_result
from stoker.demo.data import DemoData, make_data

# At hand for each: what its cache and its batches take, or more.
_FREE_BYTES = 4 << 30
# Threads of numerical libraries beside the loaders' own workers would make all of them slower.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> int:
    """Measure and print; 1 where a contestant failed or lost rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keys = [contestant.key for contestant in CONTESTANTS]
    parser.add_argument("contestants", nargs="*", metavar="NAME", help=f"of {', '.join(keys)}; all unless told")
    parser.add_argument("--rows", type=int, default=2_097_152, help="rows of the data set")
    parser.add_argument("--slow-rows", type=int, default=131_072, help="rows for those that go sample by sample")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3, help="one cold, the others warm")
    parser.add_argument("--seconds", type=float, default=30.0, help="an epoch is left after so long")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes each may use")
    parser.add_argument("--environments", type=Path, default=Path(__file__).parent / ".environments")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    unknown = set(options.contestants) - set(keys)
    if unknown:
        parser.error(f"there is no {sorted(unknown)[0]!r}; there are {', '.join(keys)}")
    # Ours always takes part: what is asked for is the ratio.
    chosen = [c for c in CONTESTANTS if not options.contestants or c.key in {*options.contestants, *OURS}]

    # A file or a pipe has no width of its own: the table gets the one it needs.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    os.environ.update(_ENVIRONMENT)
    folder = Path(tempfile.mkdtemp(prefix="stoker-rivals-"))
    outcomes: list[Outcome] = []
    try:
        with console.status("writing the data"):
            whole = make_data(folder / "data", num_rows=options.rows)
            small = make_data(folder / "small", num_rows=min(options.slow_rows, options.rows))
        for contestant in chosen:
            with console.status(f"installing {contestant.key}"):
                python = python_of(contestant, options.environments)
            with console.status(f"measuring {contestant.key}"):
                outcomes.append(_measure(contestant, python, small if contestant.is_slow else whole, folder, options))
            console.print(outcomes[-1].line(), style="dim")
    finally:
        shutil.rmtree(folder)
    print_table(console, outcomes)
    if options.write:
        console.print(f"written to {write_result(outcomes, options)}")
    return int(any(outcome.error or outcome.has_lost_rows for outcome in outcomes))


def _measure(
    contestant: Contestant, python: Path, data: DemoData, folder: Path, options: argparse.Namespace
) -> Outcome:
    truth = Truth(num_rows=data.num_rows, checksum=data.checksum)
    cache = folder / "cache"
    cache.mkdir()
    have_pages_at_hand(folder, num_bytes=_FREE_BYTES)
    try:
        return measure(
            contestant,
            python,
            truth,
            arguments={
                "--data": data.folder,
                "--cache": cache,
                "--batch-size": options.batch_size,
                "--epochs": options.epochs,
                "--seconds": options.seconds,
                "--num-workers": options.workers,
            },
        )
    finally:
        shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
