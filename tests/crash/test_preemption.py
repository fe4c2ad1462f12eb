"""Ranks that are terminated at any step, and go on in another number with the same batches, as if nothing had been."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.crash import preempted_rank
from tests.strategies import write_files

import stoker

SCRIPT = Path(preempted_rank.__file__)
ROOT = SCRIPT.parent.parent.parent


def start(folder: Path, run: str, num_ranks: int, *arguments: str) -> list[subprocess.Popen[bytes]]:
    """Start the ranks, each in a session of its own."""
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "WORLD_SIZE": str(num_ranks),
        "STOKER_STATUS": str(folder / "status"),
    }
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), run, *arguments],
            env=environ | {"RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(num_ranks)
    ]


def lines_of(folder: Path, run: str, num_ranks: int) -> list[list[list[int]]]:
    files = [folder / f"seen-{run}-{rank}" for rank in range(num_ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines() if line] for file in files if file.exists()]


def session(leader: int) -> list[str]:
    """Return the processes of a session that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of_session) == leader and state != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
    return found


def run_until(
    folder: Path, run: str, num_ranks: int, stop_at: int | None, *arguments: str
) -> tuple[int, list[list[int]]]:
    """Return how the ranks ended, and the ids of each step; SIGTERM is sent to all of their processes behind a step."""
    ranks = start(folder, run, num_ranks, *arguments)
    try:
        deadline = time.monotonic() + 120
        while stop_at is not None:
            lines = lines_of(folder, run, num_ranks)
            if len(lines) == num_ranks and len(lines[0]) >= stop_at:  # none is there before its rank listens
                break
            assert time.monotonic() < deadline
            if any(one.poll() is not None for one in ranks):
                break
            time.sleep(0.005)
        for one in ranks if stop_at is not None else []:
            os.killpg(one.pid, signal.SIGTERM)  # as a scheduler does: those that transform hear it, too
        codes = {one.wait(120) for one in ranks}
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert codes in ({0}, {143})
    deadline = time.monotonic() + 30
    while left := [pid for one in ranks for pid in session(one.pid)]:  # whoever waits for a pipe to close sees it soon
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    by_rank = lines_of(folder, run, num_ranks)
    assert len({len(steps) for steps in by_rank}) == 1
    return codes.pop(), [list(itertools.chain.from_iterable(parts)) for parts in zip(*by_rank, strict=True)]


@pytest.mark.parametrize(
    ("transform_in", "num_stops", "most_ranks"),
    [("processes", 1, 2), *(pytest.param(where, 8, 4, marks=pytest.mark.slow) for where in ("threads", "processes"))],
)
def test_ranks_that_are_terminated_at_any_step_go_on_with_the_same_batches(
    tmp_path, transform_in, num_stops, most_ranks
):
    write_files(tmp_path / "data", [150, 0, 200, 101], row_group_size=25)
    draws = random.Random(f"{transform_in} {num_stops}")
    options = ["--transform-in", transform_in, "--num-threads", str(most_ranks // 2)]
    with stoker.Loader(preempted_rank.data(tmp_path), **preempted_rank.OPTIONS) as loader:
        uncut = [batch["id"].tolist() for batch in loader]
    seen: list[list[int]] = []
    num_ranks, run = most_ranks, 0
    while True:
        left = len(uncut) - len(seen)
        stop_at = draws.randint(1, max(1, left // 2)) if run < num_stops and left > 2 else None
        waits = [] if stop_at is None else ["--waits-at", str(left - 2)]
        code, steps = run_until(tmp_path, str(run), num_ranks, stop_at, *options, *waits)
        assert code == (0 if stop_at is None else 143)
        seen += steps
        assert seen == uncut[: len(seen)]
        assert list((tmp_path / "cache" / "tmp").iterdir()) + list((tmp_path / "status").glob("*")) == []
        if code == 0:
            break
        num_ranks, run = draws.randint(1, most_ranks), run + 1
    assert seen == uncut
    assert run >= min(num_stops, 1)
