"""`python -m benchmarks`: ours against the machine's ceilings. `--write` keeps the result in benchmarks/results.

`--against COMMIT` asks for the same rates of an older commit, in turn, instead of the ceilings.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import (
    chunk_counts,
    cold_disk,
    compact,
    doctor,
    first_epoch,
    interpreter_lock,
    memory,
    mixed,
    new_process,
    order,
    sharing,
    tracing,
    warm_gather,
    watch,
    workloads,
)
from benchmarks.against import compare_with, print_compared
from benchmarks.answers import print_answers, write_answer
from benchmarks.measure import Answer
from benchmarks.planted import CASES, SHARING
from stoker.demo.data import make_data

QUESTIONS: dict[str, Callable[..., Answer]] = {
    "doctor": doctor.run,
    "warm-stacked": warm_gather.run_stacked,
    "warm-named": warm_gather.run_named,
    "warm-everything": warm_gather.run_everything,
    "warm-images": workloads.run_images,
    "warm-tokens": workloads.run_tokens,
    "warm-packed": workloads.run_packed,
    "warm-wide": workloads.run_wide,
    "warm-mixture": mixed.run_mixture,
    "warm-lanes": mixed.run_lanes,
    "batch-cost": warm_gather.run_batch_cost,
    "batch-cost-named": warm_gather.run_batch_cost_named,
    "lock": interpreter_lock.run,
    "lock-16": interpreter_lock.run_many,
    "launches": interpreter_lock.run_launches,
    "chunk-counts": chunk_counts.run,
    "first-batch": new_process.run_first_batch,
    "memory": memory.run,
    "cold-disk": cold_disk.run,
    "first-epoch": first_epoch.run,
    "first-epoch-all-cores": first_epoch.run_on_all,
    "first-epoch-small-files": first_epoch.run_on_small_files,
    "first-epoch-clicks": first_epoch.run_on_clicks,
    "first-epoch-one-group": first_epoch.run_on_one_group,
    "first-epoch-wide": first_epoch.run_on_wide,
    "first-epoch-images": first_epoch.run_on_images,
    "first-epoch-tokens": first_epoch.run_on_tokens,
    "order-index": order.index,
    "order-resume": order.resume,
    "order-explain": order.explain,
    "sharing-ssd": sharing.run_ssd,
    "sharing-carried": sharing.run_carried,
    "sharing-unique": sharing.run_unique,
    "sharing-expand": sharing.run_expand,
    "compact-speed": compact.run,
    "tracing": tracing.run,
    "watch": watch.run,
}


def main() -> int:
    """Ask the questions and print the answers; 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}; all unless told")
    parser.add_argument("--rows", type=int, default=2_097_152, help="rows of the data set")
    parser.add_argument("--rounds", type=int, default=5, help="times each is measured")
    names = [case.name for case in (*CASES, *SHARING)]
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        choices=[*names, "the demo"],
        metavar="NAME",
        help="of the question doctor, only this planted case; may be given several times",
    )
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="of the question doctor, which takes an hour: where findings are kept, for a later run to go on from",
    )
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument(
        "--against", metavar="COMMIT", help="measure an older commit, too, in turn, and print the ratio of the rates"
    )
    options = parser.parse_args()
    if options.against and options.write:
        parser.error("a comparison with a commit is no result to keep: --against and --write do not go together")
    if options.case and options.write:
        parser.error("some cases of a question are no result of it: --case and --write do not go together")
    questions: dict[str, Callable[..., Answer]] = {
        **QUESTIONS,
        "doctor": partial(doctor.run, names=options.case, kept=options.kept),
    }
    chosen: list[str] = []
    for asked in options.questions or QUESTIONS:
        # "order" asks all whose names begin with it; a whole name asks that one alone.
        found = [asked] if asked in QUESTIONS else [name for name in QUESTIONS if name.startswith(f"{asked}-")]
        if not found:
            parser.error(f"there is no question {asked!r}; there are {', '.join(QUESTIONS)}")
        chosen += found
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the folder goes then, too
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    try:
        if options.against:
            sizes = {"num_rows": options.rows, "num_rounds": options.rounds}
            compared = compare_with(options.against, chosen, folder, **sizes, console=console)
            print_compared(console, compared, commit=options.against)
            return int(not all(one.is_kept for one in compared))
        # No spinner: it is a thread of its own, which wants the interpreter's lock ten times a second.
        console.print("writing the demo's data", style="dim")
        data = make_data(folder / "data", num_rows=options.rows)
        answers = {}
        for name in chosen:
            console.print(f"measuring {name}", style="dim")
            answers[name] = questions[name](data, folder, num_rounds=options.rounds)
            if options.write:  # at once: a question that fails loses none of those before it
                console.print(f"written to {write_answer(name, answers[name], num_rows=options.rows)}")
    finally:
        shutil.rmtree(folder)
    print_answers(console, answers)
    return int(any(answer.promise is not None and answer.ratio < answer.promise for answer in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
