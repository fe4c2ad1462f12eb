"""Ranks with worker processes of their own, killed in mid-epoch and started again: every sample once."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.strategies import write_files

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

SCRIPT = Path(__file__).with_name("train_workers.py")
NUM_SAMPLES = 451  # no multiple of anything


def torchrun(folder: Path, *, run: str, num_ranks: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", "--standalone",
        "--local-addr=127.0.0.1", str(SCRIPT), str(folder), *arguments,
    ]  # fmt: skip
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "STOKER_TEST_RUN": run,
    }
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)


def steps_of(folder: Path, *, run: str, num_ranks: int) -> list[list[list[int]]]:
    """Return the ids of each step, rank by rank."""
    files = [folder / f"seen-{run}-{rank}" for rank in range(num_ranks)]
    by_rank = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [list(step) for step in zip(*by_rank, strict=True)]


@pytest.mark.parametrize(
    ("kind", "ranks", "num_workers"),
    [
        ("plain", (3, 2), 1),
        pytest.param("plain", (4, 3), 2, marks=pytest.mark.slow),
        pytest.param("plain", (2, 5), 2, marks=pytest.mark.slow),
        pytest.param("stateful", (2, 2), 2, marks=pytest.mark.slow),
        pytest.param("stateful", (3, 3), 1, marks=pytest.mark.slow),
    ],
)
def test_killed_and_restarted_with_workers_on_every_rank_each_sample_is_seen_once(tmp_path, kind, ranks, num_workers):
    if kind == "stateful":
        pytest.importorskip("torchdata")
    write_files(tmp_path / "data", [150, 0, 200, 101], row_group_size=50)
    arguments = ["--kind", kind, "--num-workers", str(num_workers)]
    before, after = ranks
    killed = torchrun(tmp_path, run="first", num_ranks=before, arguments=[*arguments, "--kill-after", "5"])
    assert killed.returncode != 0
    first = steps_of(tmp_path, run="first", num_ranks=before)
    assert len(first) == 5, killed.stderr

    restarted = torchrun(tmp_path, run="second", num_ranks=after, arguments=arguments)
    assert restarted.returncode == 0, restarted.stderr
    second = steps_of(tmp_path, run="second", num_ranks=after)
    seen = list(itertools.chain.from_iterable(ids for step in [*first[:3], *second] for ids in step))
    assert len(seen) == NUM_SAMPLES
    assert sorted(seen) == list(range(NUM_SAMPLES))
    lost = [i for step in first[3:] for ids in step for i in ids]
    assert [i for step in second for ids in step for i in ids][: len(lost)] == lost
