"""Ranks as real processes, started by torchrun, killed, and started again in another number."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.strategies import write_files

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

SCRIPT = Path(__file__).with_name("train_ranks.py")
NUM_SAMPLES = 601  # no multiple of anything


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


def test_killed_in_mid_epoch_and_restarted_with_fewer_ranks_each_sample_is_seen_once(tmp_path):
    write_files(tmp_path / "data", [200, 0, 300, 101], row_group_size=50)
    killed = torchrun(tmp_path, run="first", num_ranks=4, arguments=["--kill-after", "5"])
    assert killed.returncode != 0
    saved = torch.load(tmp_path / "checkpoint.pt")
    assert saved["num_steps"] == 3

    restarted = torchrun(tmp_path, run="second", num_ranks=3, arguments=[])
    assert restarted.returncode == 0, restarted.stderr
    before = steps_of(tmp_path, run="first", num_ranks=4)
    after = steps_of(tmp_path, run="second", num_ranks=3)
    assert len(before) == 5
    kept = before[: saved["num_steps"]]
    seen = list(itertools.chain.from_iterable(ids for step in [*kept, *after] for ids in step))
    assert len(seen) == NUM_SAMPLES
    assert sorted(seen) == list(range(NUM_SAMPLES))
    # What was done after the checkpoint is done again, in the same order.
    lost = [i for step in before[3:] for ids in step for i in ids]
    again = [i for step in after for ids in step for i in ids]
    assert again[: len(lost)] == lost


def test_groups_stay_whole_over_a_kill_and_a_restart_with_more_ranks(tmp_path):
    folder = write_files(tmp_path / "data", [200, 301], row_group_size=50)
    groups = []
    for file in sorted(folder.iterdir()):
        table = pq.read_table(file)
        query = pc.divide(table["id"], 4)
        groups += [list(run) for _, run in itertools.groupby(table["id"].to_pylist(), key=lambda i: i // 4)]
        pq.write_table(table.append_column("query", query), file, row_group_size=50)
    killed = torchrun(tmp_path, run="first", num_ranks=2, arguments=["--kill-after", "3", "--group-by", "query"])
    assert killed.returncode != 0
    saved = torch.load(tmp_path / "checkpoint.pt")
    assert saved["num_steps"] == 3
    restarted = torchrun(tmp_path, run="second", num_ranks=3, arguments=["--group-by", "query"])
    assert restarted.returncode == 0, restarted.stderr
    before, after = (steps_of(tmp_path, run=run, num_ranks=n) for run, n in (("first", 2), ("second", 3)))
    seen = [group for step in [*before, *after] for ids in step for group in ids]
    assert sorted(seen) == groups
    assert seen != groups
