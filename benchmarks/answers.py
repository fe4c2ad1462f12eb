"""Answers as people read them: a table on the screen, a file in benchmarks/results."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Answer
from stoker.host.machine import machine, versions

RESULTS = Path(__file__).parent / "results"


def print_answers(console: Console, answers: Mapping[str, Answer]) -> None:
    """Print answers as a table, with what else a reader should know below it."""
    table = Table(box=None, pad_edge=False)
    for heading in ("question", "ours", "ceiling", "ratio", "from", "to", "promised"):
        table.add_column(heading, justify="left" if heading == "question" else "right")
    for answer in answers.values():
        promise = "" if answer.promise is None else f"{answer.promise:.2f}"
        is_kept = answer.promise is None or answer.ratio >= answer.promise
        table.add_row(
            answer.question,
            f"{answer.ours:.2f}",
            f"{answer.ceiling:.2f}",
            f"[bold {'green' if is_kept else 'red'}]{answer.ratio:.2f}[/]",
            f"{min(answer.ratios):.2f}",
            f"{max(answer.ratios):.2f}",
            promise,
        )
    console.print(table)
    for answer in answers.values():
        console.print(f"  {answer.question}: {answer.unit}", style="dim")
        for remark in answer.remarks:
            console.print(f"  {remark}", style="dim")
    console.print(
        "  rates are medians, in the unit of their question; ratios are taken a round each, their median is printed",
        style="dim",
    )


def write_answer(name: str, answer: Answer, *, num_rows: int, command: str = "benchmarks", gpu: str = "") -> Path:
    """Write an answer to the file of its question and this machine in `RESULTS`, and return which.

    Args:
        name: Of the question.
        answer: To it.
        num_rows: Of the demo's data.
        command: Module that asks it.
        gpu: Name of the GPU that it was measured on; "" for none.
    """
    where = {"date": str(dt.datetime.now(tz=dt.UTC).date())} | machine() | ({"gpu": gpu} if gpu else {})
    short = re.sub(r"[^a-z0-9]+", "-", f"{gpu or where['processor']} {where['cores']} cores".lower()).strip("-")
    path = RESULTS / f"{name}_{short}.md"
    demo = f"the demo's ranking rows, {num_rows:,}"
    lines = [
        f"# {answer.question}",
        "",
        f"| ours | ceiling | ratio, median | from | to | promised |\n|---|---|---|---|---|---|\n"
        f"| {answer.ours:.2f} | {answer.ceiling:.2f} | **{answer.ratio:.2f}** | {min(answer.ratios):.2f} "
        f"| {max(answer.ratios):.2f} | {'nothing' if answer.promise is None else answer.promise} |",
        "",
        f"Rates in {answer.unit}; {len(answer.ratios)} rounds, ours and ceiling in turn in one process.",
        *(f"{remark[0].upper()}{remark[1:]}." for remark in answer.remarks),
        "",
        f"Data: {answer.data or demo}. Again: `python -m {command} {name} --write`.",
        "",
        *(f"- {key}: {value}" for key, value in (where | versions()).items()),
        "",
    ]
    RESULTS.mkdir(exist_ok=True)
    path.write_text("\n".join(lines))
    return path
