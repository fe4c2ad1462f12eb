"""`python -m benchmarks.gpu`: what needs a GPU. `--write` keeps the result in benchmarks/results."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.answers import print_answers, write_answer
from benchmarks.gpu import copying, steps
from benchmarks.measure import Answer
from stoker.demo.data import make_data


def _device_gather(*args: Any, **options: Any) -> Answer:
    from benchmarks.gpu.device_gather import run_device_gather  # needs cupy

    return run_device_gather(*args, **options)


QUESTIONS = {
    "gpu-copy": copying.run_copy,
    "gpu-resident": copying.run_resident,
    "gpu-gather": _device_gather,
    "gpu-ranking": steps.run_ranking,
    "gpu-ranking-small": steps.run_small_ranking,
    "gpu-language": steps.run_language,
}


def main(arguments: list[str] | None = None) -> int:
    """Ask the questions and print the answers; 1 where a promise is not kept, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}; all unless told")
    parser.add_argument("--rows", type=int, default=2_097_152, help="rows of the data set")
    parser.add_argument("--rounds", type=int, default=5, help="times each is measured")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument(
        "--device",
        type=torch.device,
        default=torch.device("cuda", 0),
        help="another than the first GPU (default: cuda:0)",
    )
    options = parser.parse_args(arguments)
    if wrong := [name for name in options.questions if name not in QUESTIONS]:
        parser.error(f"there is no question {wrong[0]!r}; there are {', '.join(QUESTIONS)}")
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here that torch can use: these questions are about one.", file=sys.stderr)
        return 2
    device = options.device
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    try:
        console.print("writing the demo's data", style="dim")
        data = make_data(folder / "data", num_rows=options.rows)
        answers = {}
        for name in options.questions or QUESTIONS:
            console.print(f"measuring {name}", style="dim")
            answers[name] = QUESTIONS[name](data, folder, device=device, num_rounds=options.rounds)
    finally:
        shutil.rmtree(folder)
    print_answers(console, answers)
    if options.write:
        gpu = torch.cuda.get_device_name(device)
        for name, answer in answers.items():
            path = write_answer(name, answer, num_rows=options.rows, command="benchmarks.gpu", gpu=gpu)
            console.print(f"written to {path}")
    return int(any(answer.promise is not None and answer.ratio < answer.promise for answer in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
