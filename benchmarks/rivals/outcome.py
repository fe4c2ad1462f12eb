"""What a contestant delivered, beside what it should have."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rivals.contestants import Contestant

_WAYS = Path(__file__).parent / "ways"
_LIMIT_S = 900


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the data set holds, known from making it.

    Attributes:
        num_rows: Its rows.
        checksum: Sum of the bits of one column, modulo 2^64.
    """

    num_rows: int
    checksum: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one contestant.

    Attributes:
        key: The contestant.
        name: What the table calls it.
        versions: Of what did the work.
        note: How it is used.
        num_rows: Rows of its data set.
        cold_rows_per_s: Over preparing and the first epoch.
        warm_rows_per_s: Median of the later epochs.
        first_batch_s: From the beginning of a later epoch to its first batch.
        missing: Columns it did not deliver.
        refused: Why, where that is known.
        has_lost_rows: Whether a whole epoch had other rows than the data set.
        is_cut: Whether its epochs were left early, for lack of patience.
        peak_bytes: Memory at its largest, over all its processes.
        error: What went wrong, or nothing.
    """

    key: str
    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    num_rows: int = 0
    cold_rows_per_s: float = 0.0
    warm_rows_per_s: float = 0.0
    first_batch_s: float = 0.0
    missing: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    has_lost_rows: bool = False
    is_cut: bool = False
    peak_bytes: int = 0
    error: str = ""

    def line(self) -> str:
        """Return the outcome in one line."""
        if self.error:
            return f"{self.name}: {self.error.splitlines()[-1][:150]}"
        rows = "rows are missing or doubled" if self.has_lost_rows else "every row counted"
        return f"{self.name}: {self.warm_rows_per_s:,.0f} rows/s warm, {self.cold_rows_per_s:,.0f} cold; {rows}"


def measure(contestant: Contestant, python: Path, truth: Truth, *, arguments: Mapping[str, object]) -> Outcome:
    """Run a contestant's script in its environment, and check what it says it delivered."""
    script = _WAYS / f"{contestant.key}_way.py"
    command = [str(python), str(script), *(str(part) for pair in arguments.items() for part in pair)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(key=contestant.key, name=contestant.key, error=f"not done after {_LIMIT_S} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return Outcome(key=contestant.key, name=contestant.key, error=lines[-1] if lines else "failed without a word")
    return judge(contestant, json.loads(done.stdout.splitlines()[-1]), truth)


def judge(contestant: Contestant, told: Mapping[str, Any], truth: Truth) -> Outcome:
    """Return what a contestant's own count comes to.

    Args:
        contestant: Who.
        told: The line its script printed.
        truth: What its data set holds.
    """
    first, *later = told["epochs"]
    counted = later or [first]
    has_checksum = "dense_00" not in told["missing"]
    return Outcome(
        key=contestant.key,
        name=told["name"],
        versions=told["versions"],
        note=told["note"],
        num_rows=truth.num_rows,
        cold_rows_per_s=first["num_rows"] / (told["prepare_s"] + first["seconds"]) if first["is_whole"] else 0.0,
        warm_rows_per_s=statistics.median(epoch["num_rows"] / epoch["seconds"] for epoch in counted),
        first_batch_s=statistics.median(epoch["first_batch_s"] for epoch in counted),
        missing=tuple(told["missing"]),
        refused=told["refused"],
        has_lost_rows=any(
            epoch["num_rows"] != truth.num_rows or (has_checksum and epoch["checksum"] != truth.checksum)
            for epoch in told["epochs"]
            if epoch["is_whole"]
        ),
        is_cut=not all(epoch["is_whole"] for epoch in told["epochs"]),
        peak_bytes=told["peak_bytes"],
    )
