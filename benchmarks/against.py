"""`python -m benchmarks --against COMMIT`: the working tree's rates over those of an older commit, on one machine.

    environment of COMMIT   round 1        round 2        round 3 ...
    this environment               round 1        round 2

Each side is a process of its own, with its own code, dependencies and benchmarks, that lives for the whole run and
answers one question at a time, so neither is measured beside the other. A ratio is taken a round each: machines are
noisy, and two rounds that follow each other are slowed alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENTS = Path(__file__).parent / ".environments"

# What is promised of a change: the median of the ratios, and the least of them.
MEDIAN, LEAST = 0.97, 0.85

# Run by the interpreter of either side, at the root of its sources. What it prints beside its answers goes to stderr.
_SIDE = """
import json, os, sys
from pathlib import Path
answers = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
from benchmarks.__main__ import QUESTIONS
from stoker.demo.data import make_data
folder = Path(sys.argv[1])
data = make_data(folder / "data", num_rows=int(sys.argv[2]))
for line in sys.stdin:
    answer = QUESTIONS[line.strip()](data, folder, num_rounds=1)
    print(json.dumps({"rate": answer.ours, "unit": answer.unit, "question": answer.question}), file=answers, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What a question's rates were on both sides.

    Attributes:
        question: What was asked.
        unit: Of the rates; more is better.
        now: Rates of the working tree. Shape [rounds].
        before: Rates of the older commit. Shape [rounds].
    """

    question: str
    unit: str
    now: tuple[float, ...]
    before: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Now over before, a round each."""
        return tuple(now / before for now, before in zip(self.now, self.before, strict=True))

    @property
    def is_kept(self) -> bool:
        """Whether nothing that counts was lost."""
        return statistics.median(self.ratios) >= MEDIAN and min(self.ratios) >= LEAST


class Side:
    """One side's process, which answers a question when it is asked.

    Args:
        python: Interpreter of its environment.
        sources: Root of its code.
        folder: Where it keeps its data.
        num_rows: Rows of the demo's data.
    """

    def __init__(self, python: Path, sources: Path, folder: Path, *, num_rows: int) -> None:
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            [str(python), "-c", _SIDE, str(folder), str(num_rows)],
            cwd=sources,
            env=os.environ | {"PYTHONPATH": str(sources / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rate(self, question: str) -> dict[str, str | float]:
        """Return what one round of a question gave: `rate`, `unit` and the `question` in words.

        Raises:
            RuntimeError: The process has ended; its error is on stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended while it was asked {question}")
        found: dict[str, str | float] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def compare_with(
    commit: str, questions: Sequence[str], folder: Path, *, num_rows: int, num_rounds: int, console: Console
) -> list[Compared]:
    """Ask both sides each question in turn.

    Args:
        commit: The older one, as Git names it.
        questions: Names that both sides know.
        folder: For data and caches.
        num_rows: Rows of the demo's data.
        num_rounds: Times each is asked; one more before is not counted.
        console: Told how far it is.
    """
    console.print(f"installing {commit}", style="dim")
    python, sources = environment_of(commit)
    with (
        Side(python, sources, folder / "before", num_rows=num_rows) as before,
        Side(Path(sys.executable), REPOSITORY, folder / "now", num_rows=num_rows) as now,
    ):
        compared = []
        for question in questions:
            console.print(f"measuring {question}", style="dim")
            one = in_turn(question, now.rate, before.rate, num_rounds=num_rounds)
            # At once: a question that never ends loses none of those before it.
            median, least, most = statistics.median(one.ratios), min(one.ratios), max(one.ratios)
            console.print(f"  {median:.2f}, from {least:.2f} to {most:.2f}", style="dim")
            compared.append(one)
        return compared


def in_turn(
    question: str,
    now: Callable[[str], dict[str, str | float]],
    before: Callable[[str], dict[str, str | float]],
    *,
    num_rounds: int,
) -> Compared:
    """Ask both sides in turn, and count all rounds but the first."""
    rounds = [(before(question), now(question)) for _ in range(num_rounds + 1)][1:]
    return Compared(
        question=str(rounds[0][1]["question"]),
        unit=str(rounds[0][1]["unit"]),
        now=tuple(float(new["rate"]) for _, new in rounds),
        before=tuple(float(old["rate"]) for old, _ in rounds),
    )


def print_compared(console: Console, compared: Sequence[Compared], *, commit: str) -> None:
    """Print the ratios as a table."""
    table = Table(box=None, pad_edge=False)
    for heading in ("question", commit[:9], "now", "now / before", "from", "to"):
        table.add_column(heading, justify="left" if heading == "question" else "right")
    for one in compared:
        table.add_row(
            one.question,
            f"{statistics.median(one.before):.2f}",
            f"{statistics.median(one.now):.2f}",
            f"[bold {'green' if one.is_kept else 'red'}]{statistics.median(one.ratios):.2f}[/]",
            f"{min(one.ratios):.2f}",
            f"{max(one.ratios):.2f}",
        )
    console.print(table)
    console.print(f"  kept: a median of {MEDIAN} or more, and no round below {LEAST}", style="dim")


def environment_of(commit: str) -> tuple[Path, Path]:
    """Return the interpreter of a commit's environment and the root of its sources, installed the first time."""
    full = _git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    place = ENVIRONMENTS / full[:12]
    python, sources = place / "venv" / "bin" / "python", place / "sources"
    if (place / "complete").exists():
        return python, sources
    sources.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", full], cwd=REPOSITORY, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(sources)], input=archive, check=True)
    venv.create(place / "venv", with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", "-e", ".[torch]"], cwd=sources, check=True)
    if (sources / "src" / "stoker" / "compiling.py").exists():
        subprocess.run([str(python), "-m", "stoker.compiling"], cwd=sources / "src", check=True)
    (place / "complete").touch()
    return python, sources


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
