"""Every row once, or an error before it is too late, however ranks are started and whichever loader they use."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from tests.processes import ends_of, started, torchrun
from tests.strategies import write_files

torch = pytest.importorskip("torch")
from tests.integration.start_ranks import send, with_torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

SCRIPT = Path(__file__).with_name("start_ranks.py")
NUM_ROWS = 101  # no multiple of anything
NUM_RANKS = 2
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(NUM_RANKS), "SLURM_NTASKS": "16"}


def ended(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said


def found_in(folder: Path) -> dict[str, list[list[int] | str]]:
    """Return what each kind of loader gave, rank by rank."""
    by_rank = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    return {name: [found[name] for found in by_rank] for name in by_rank[0]}


def check_each_row_once(found: dict[str, list[list[int] | str]]) -> None:
    assert found
    for name, by_rank in found.items():
        assert not any(isinstance(told, str) for told in by_rank), (name, by_rank)
        assert sorted(row for told in by_rank for row in told) == list(range(NUM_ROWS)), name
        assert all(by_rank), name


def check_brought_together(folder: Path) -> None:
    """Check those made before and after the ranks were; those that were used before are an error on each."""
    found = found_in(folder)
    early = {name: found.pop(name) for name in list(found) if "used before" in name}
    check_each_row_once(found)
    assert len(early) == 2
    for told in (told for by_rank in early.values() for told in by_rank):
        assert isinstance(told, str)
        assert told.startswith("RuntimeError: this loader took the share of rank 0 of 1")
        assert "now torch.distributed says rank" in told


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path / "data", [60, NUM_ROWS - 60], row_group_size=20)
    return tmp_path


QUICK = ("Loader", "TorchLoader", "DataLoader", "DataLoader, forked worker")


def test_ranks_that_meet_before_or_after_their_loaders_are_made(folder):
    assert ends_of(with_torch, NUM_RANKS, folder, QUICK) == {0}
    check_brought_together(folder)


@pytest.mark.slow
def test_spawned_ranks_that_meet_before_or_after_their_loaders_are_made(folder):
    ended(started(SCRIPT, "spawn", folder))
    check_brought_together(folder)


def start_ranks(_, __, folder, method):
    send(NUM_RANKS, folder, method)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_that_were_given_a_data_loader_count_their_epochs_each_for_itself(folder, method):
    assert ends_of(start_ranks, 1, folder, method) == {0}
    for num_workers in (0, 1):
        found = found_in(folder / str(num_workers))
        check_each_row_once(found)
        assert found["sent, epoch 0"] != found["sent, epoch 1"]


@pytest.mark.parametrize("kinds", [QUICK, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_ranks_of_torchrun(folder, kinds):
    ended(started(*torchrun(NUM_RANKS), SCRIPT, "torchrun", folder, *(["--kinds", *kinds] if kinds else [])))
    found = found_in(folder)
    # What was used before the process group was made took its share from torchrun's variables, which are right.
    check_each_row_once(found)
    assert any("used before" in name for name in found)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["SLURM", "Open MPI", "PMI", "torchrun's variables"])
def test_ranks_that_only_variables_tell_of(folder, way):
    def variables(rank: str) -> dict[str, str]:
        size = str(NUM_RANKS)
        return {
            "SLURM": SLURM | {"SLURM_PROCID": rank},
            "Open MPI": {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size},
            "PMI": {"PMI_RANK": rank, "PMI_SIZE": size},
            "torchrun's variables": {"RANK": rank, "WORLD_SIZE": size},
        }[way]

    ranks = [str(rank) for rank in range(NUM_RANKS)]
    ended(*(started(SCRIPT, "variables", folder, "--rank", rank, **variables(rank)) for rank in ranks))
    check_each_row_once(found_in(folder))


def needs(module: str) -> None:
    """Skip where a framework is not installed: `make test-integrations` has them."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_ranks_of_accelerate(folder):
    needs("accelerate")
    ended(started(*torchrun(NUM_RANKS), SCRIPT, "accelerate", folder, ACCELERATE_USE_CPU="true"))
    check_each_row_once(found_in(folder))


def test_srun_without_accelerates_launcher_is_an_error_before_the_first_batch(folder):
    needs("accelerate")
    variables = {"SLURM_PROCID": "0", "ACCELERATE_USE_CPU": "true"}
    ended(started(SCRIPT, "accelerate", folder, **SLURM, **variables))
    found = json.loads((folder / "rank-0.json").read_text())
    for told in found.values():
        assert "Accelerate says rank 0 of 1, but the environment (SLURM_PROCID" in told


def test_ranks_of_ray_train(folder):
    needs("ray.train") if importlib.util.find_spec("ray") else needs("ray")
    ended(started(SCRIPT, "ray", folder))
    for kind in ("TorchTrainer", "DataParallelTrainer"):
        check_each_row_once(found_in(folder / kind))
