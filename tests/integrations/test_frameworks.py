"""Each row once and in order, in the loop of each framework, on one rank and two, left and made anew in mid-epoch.

Where a framework cannot be right, an error says before the first batch which way works. `docs/how-to/frameworks.md`
says of each what is run here.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

import stoker
from tests.integrations.loops import KINDS, NUM_EPOCHS, OPTIONS, WAYS
from tests.processes import started, torchrun

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "frameworks.md"
MODULES = {"plain": "torchdata", "lightning": "lightning", "transformers": "transformers", "accelerate": "accelerate"}
NAMES = {
    "plain": "a loop of your own, DDP",
    "lightning": "Lightning",
    "transformers": "transformers.Trainer",
    "accelerate": "Accelerate",
    "ray": "Ray Train",
}
NUM_ROWS = 200


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(2):
        ids = range(number * NUM_ROWS // 2, (number + 1) * NUM_ROWS // 2)
        dense = pa.array([[i / NUM_ROWS, 1.0] for i in ids], pa.list_(pa.float32(), 2))
        table = pa.table({"id": pa.array(ids), "dense": dense, "history": [[i] * (i % 4) for i in ids]})
        pq.write_table(table, tmp_path / "data" / f"part-{number}.parquet", row_group_size=25)
    return tmp_path


def ended(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return what a process said, and how it ended."""
    said, _ = process.communicate(timeout=900)
    return said, process.returncode


def start(place: Path, framework: str, world_size: int) -> list[dict]:
    """Return what each rank's steps got."""
    ranks = torchrun(world_size) if world_size > 1 and framework != "ray" else []
    shared = ["--world-size", world_size] if framework == "ray" else []
    said, code = ended(started(*ranks, "-m", "tests.integrations.loops", framework, place, *shared))
    assert code == 0, said[-9000:]
    return [json.loads((place / f"{framework}-{world_size}-{rank}.json").read_text()) for rank in range(world_size)]


def steps_of(place: Path, rank: int, world_size: int) -> list[list]:
    """Return epoch and ids of every step of a rank, as a loader that is never left gives them."""
    shard = stoker.Shard(rank, world_size, checked=False)
    with stoker.Loader(stoker.Dataset(place / "data", chunk_size=2000), shard=shard, **OPTIONS) as loader:
        return [[epoch, batch["id"].tolist()] for epoch in range(NUM_EPOCHS) for batch in loader]


def check(place: Path, framework: str, world_size: int) -> None:
    """Run a framework, and compare what its steps got with what they should have."""
    found = start(place, framework, world_size)
    expected = [steps_of(place, rank, world_size) for rank in range(world_size)]
    orders = []
    for epoch in range(NUM_EPOCHS):
        orders.append([i for steps in expected for number, ids in steps if number == epoch for i in ids])
        assert sorted(orders[-1]) == list(range(NUM_ROWS))
    assert len({tuple(order) for order in orders}) == NUM_EPOCHS
    for rank in range(world_size):
        names = set()
        for kind, ways in WAYS[framework].items():
            for way in (way for way in ways if world_size in way.only):
                own = {
                    name: came for name, came in found[rank].items() if name.rpartition(" ")[0] == f"{kind} {way.words}"
                }
                assert own
                names |= own.keys()
                for name, came in own.items():
                    if way.fails is None:
                        assert came == {"steps": expected[rank]}, (name, rank, came.get("error"))
                    else:
                        assert way.fails in came["error"], (name, rank, came["error"])
                        assert came["steps"] == expected[rank][: len(came["steps"])]
        assert names == found[rank].keys()


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("framework", sorted(WAYS))
def test_each_framework_has_each_row_once_and_goes_on_in_mid_epoch_or_says_how(place, framework, world_size):
    module = MODULES.get(framework, "ray")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: make test-integrations")
    check(place, framework, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_ranks_gather_of_padded_batches_is_each_row_once_and_in_order(place, world_size):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers: make test-integrations")
    for found in start(place, "evaluate", world_size):
        assert set(found) == {"TorchLoader", "DataLoader", "predict"}
        assert all(ids == list(range(NUM_ROWS)) for ids in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("example", "module", "told"),
    [
        ("train_lightning.py", "lightning", ("32 steps in all", "16 steps in all")),
        ("train_transformers.py", "transformers", ("32 steps in all", "16 steps in all")),
        ("train_accelerate.py", "accelerate", ("1000 in two epochs", "500 in two epochs")),
    ],
)
def test_each_example_runs_alone_and_under_torchrun(tmp_path, example, module, told, world_size):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: make test-integrations")
    ranks = torchrun(2) if world_size == 2 else []
    said, code = ended(started(*ranks, ROOT / "examples" / example, tmp_path / "folder"))
    assert told[world_size - 1] in said, said[-4000:]
    assert code == 0


def test_the_page_says_of_each_framework_what_is_run():
    assert table() in PAGE.read_text()


def table() -> str:
    """Return the page's table."""
    lines = [f"| | {' | '.join(f'`{kind}`' for kind in KINDS)} |", "| --- | --- | --- | --- |"]
    for framework, name in NAMES.items():
        right = [
            " or ".join(way.words for way in WAYS[framework][kind] if way.fails is None and way.only == (1, 2))
            for kind in KINDS
        ]
        lines.append(f"| {name} | {' | '.join(right)} |")
    return "\n".join(lines)
