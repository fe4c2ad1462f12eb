"""Ranks as real processes, killed in mid-epoch, and started again in another number."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.processes import ends_of, started, torchrun
from tests.strategies import write_files

torch = pytest.importorskip("torch")
from tests.integration.train_ranks import train_one

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

SCRIPT = Path(__file__).with_name("train_ranks.py")
NUM_SAMPLES = 451  # no multiple of anything
SAVE_AT, KILL_AFTER = 3, 5


def by_torchrun(num_ranks: int, *words: str) -> set[int]:
    """Let torchrun start the ranks; return how it ended."""
    process = started(*torchrun(num_ranks), SCRIPT, *words)
    process.communicate(timeout=200)
    return {process.returncode}


def served(num_ranks: int, *words: str) -> set[int | None]:
    """Start the ranks as processes of this one; return how they ended."""
    return ends_of(train_one, num_ranks, *words)


def steps_of(folder: Path, run: str, num_ranks: int) -> list[list[list[int]]]:
    """Return the ids of each step, rank by rank."""
    files = [folder / f"seen-{run}-{rank}" for rank in range(num_ranks)]
    by_rank = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [list(step) for step in zip(*by_rank, strict=True)]


def killed_and_restarted(start, folder: Path, ranks: tuple[int, int], *words: str) -> tuple[list[int], list[int]]:
    """Return what each step that counts had, and what those had that were done behind the checkpoint and lost."""
    before, after = ranks
    assert 0 not in start(before, str(folder), "first", f"--save-at={SAVE_AT}", f"--kill-after={KILL_AFTER}", *words)
    first = steps_of(folder, "first", before)
    assert len(first) == KILL_AFTER
    assert start(after, str(folder), "second", *words) == {0}
    second = steps_of(folder, "second", after)
    flat = itertools.chain.from_iterable
    # What was done behind the checkpoint is done again, in the same order.
    lost = list(flat(flat(first[SAVE_AT:])))
    assert list(flat(flat(second)))[: len(lost)] == lost
    return list(flat(flat(first[:SAVE_AT]))), list(flat(flat(second)))


@pytest.mark.parametrize(
    ("start", "kind", "num_workers", "ranks"),
    [
        (served, "loader", 0, (2, 1)),
        *(
            pytest.param(by_torchrun, kind, num_workers, ranks, marks=pytest.mark.slow)
            for kind, num_workers, ranks in (
                ("loader", 0, (4, 3)),
                ("plain", 1, (2, 1)),
                ("plain", 2, (4, 3)),
                ("plain", 2, (2, 5)),
                ("stateful", 2, (2, 2)),
                ("stateful", 1, (3, 3)),
            )
        ),
    ],
)
def test_killed_and_restarted_with_other_ranks_each_sample_is_seen_once(tmp_path, start, kind, num_workers, ranks):
    if kind == "stateful":
        pytest.importorskip("torchdata")
    write_files(tmp_path / "data", [150, 0, 200, 101], row_group_size=50)
    kept, again = killed_and_restarted(start, tmp_path, ranks, f"--kind={kind}", f"--num-workers={num_workers}")
    assert len(kept + again) == NUM_SAMPLES
    assert sorted(kept + again) == list(range(NUM_SAMPLES))


@pytest.mark.slow
def test_groups_stay_whole_over_a_kill_and_a_restart_with_more_ranks(tmp_path):
    folder = write_files(tmp_path / "data", [400, 501], row_group_size=50)
    groups = []
    for file in sorted(folder.iterdir()):
        table = pq.read_table(file)
        query = pc.divide(table["id"], 4)
        groups += [list(run) for _, run in itertools.groupby(table["id"].to_pylist(), key=lambda i: i // 4)]
        pq.write_table(table.append_column("query", query), file, row_group_size=50)
    kept, again = killed_and_restarted(by_torchrun, tmp_path, (2, 3), "--group-by=query")
    assert sorted(kept + again) == groups
    assert kept + again != groups
