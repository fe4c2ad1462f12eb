"""Which share a loader takes, by what its arguments and its environment say; ranks as processes: tests/integration."""

from __future__ import annotations

import itertools
import pickle

import pytest
from tests.strategies import write_files

import stoker

NUM_ROWS = 133
SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
VARIABLES = {
    "torchrun": lambda rank, size: {"RANK": rank, "WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": "none"},
    "by hand": lambda rank, size: {"RANK": rank, "WORLD_SIZE": size},
    "srun": lambda rank, size: SLURM | {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_NTASKS": "16"},
    "srun in an older SLURM": lambda rank, size: SLURM | {"SLURM_PROCID": rank, "SLURM_NTASKS": size},
    "Open MPI": lambda rank, size: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size},
    "MVAPICH": lambda rank, size: {"MV2_COMM_WORLD_RANK": rank, "MV2_COMM_WORLD_SIZE": size},
    "PMI": lambda rank, size: {"PMI_RANK": rank, "PMI_SIZE": size},
    "Horovod": lambda rank, size: {"HOROVOD_RANK": rank, "HOROVOD_SIZE": size},
    "Flux": lambda rank, size: {"FLUX_TASK_RANK": rank, "FLUX_JOB_SIZE": size},
    "jsrun": lambda rank, size: {"JSM_NAMESPACE_RANK": rank, "JSM_NAMESPACE_SIZE": size},
    "mpirun in an allocation": lambda rank, size: (
        SLURM | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    ),
    "torchrun on each node": lambda rank, size: (
        SLURM | {"RANK": rank, "WORLD_SIZE": size, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    ),
    "srun where an image has a world of one": lambda rank, size: (
        SLURM | {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "RANK": "0", "WORLD_SIZE": "1"}
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("ranks"), [NUM_ROWS])


@pytest.fixture
def started(monkeypatch):
    """Return what makes this process one that was started so."""

    def start(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return start


def numpy_loader(folder, **options):
    return stoker.Loader(stoker.Dataset(folder), **({"batch_size": 10} | options))


def torch_loader(folder, **options):
    torch_names = pytest.importorskip("stoker.torch")
    return torch_names.TorchLoader(stoker.Dataset(folder), **({"batch_size": 10} | options))


def ids_of(loader):
    with loader:
        return [i for batch in loader for i in batch["id"].tolist()]


# ---------------------------------------------------------------------- what a launcher writes


@pytest.mark.parametrize(
    ("way", "kind"),
    [*((way, numpy_loader) for way in VARIABLES), pytest.param("torchrun", torch_loader, marks=pytest.mark.torch)],
)
def test_every_row_comes_once_whoever_started_the_ranks(folder, started, way, kind):
    seen = []
    for rank in range(3):
        started(**VARIABLES[way](rank, 3))
        seen.append(ids_of(kind(folder)))
        assert stoker.Shard.from_env() == stoker.Shard(rank, 3)
    assert len({len(ids) for ids in seen}) > 1  # 133 are no multiple of 3
    assert sorted(itertools.chain.from_iterable(seen)) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": 2},  # what images and notebooks leave lying about
        {"RANK": 0},
        {"RANK": 0, "WORLD_SIZE": 1},
        {"SLURM_NTASKS": 4},
        {"SLURM_PROCID": 0, "SLURM_JOB_ID": 1},  # a batch script that asked for no tasks
    ],
    ids=str,
)
def test_without_a_launcher_there_is_one_rank(folder, started, variables):
    started(**variables)
    assert ids_of(numpy_loader(folder)) == list(range(NUM_ROWS))
    assert stoker.Shard.from_env() == stoker.Shard(0, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": 3}, "RANK=3 but not WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": 8}, "RANK in the environment must be an integer, not 'x'"),
        ({"RANK": 2, "WORLD_SIZE": 2}, "contradict"),
        ({"SLURM_PROCID": 0, "SLURM_NTASKS": 4, "SLURM_JOB_ID": 1}, "not started by srun"),
        (
            VARIABLES["torchrun"](0, 1) | VARIABLES["srun"](1, 2),
            r"RANK, WORLD_SIZE\) says rank 0 of 1, but .*SLURM_PROCID, .*\) says rank 1 of 2",
        ),
    ],
    ids=["no size", "no number", "outside", "no srun", "torchrun of one in each task"],
)
def test_an_environment_that_would_lose_samples_is_an_error_before_the_first_batch(folder, started, variables, message):
    started(**variables)
    with numpy_loader(folder) as loader:
        for use in (iter, len):
            with pytest.raises(ValueError, match=message):
                use(loader)
    with pytest.raises(ValueError, match=message):
        stoker.Shard.from_env()
    assert len(ids_of(numpy_loader(folder, shard=stoker.Shard(0, 1)))) == NUM_ROWS  # said on purpose


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("way", "options", "message"),
    [
        ("torchrun", {"rank": 0, "world_size": 1}, "rank= and world_size= say rank 0 of 1"),
        ("torchrun", {"rank": 0, "world_size": 4}, "say rank 0 of 4"),
        ("torchrun", {"rank": 1, "world_size": 2}, "say rank 1 of 2"),
        ("torchrun", {"rank": 1, "world_size": 8}, "say rank 1 of 8"),  # as if two were started on each of four
        ("srun", {"rank": 2, "world_size": 5}, "say rank 2 of 5"),
        ("srun", {"shard": stoker.Shard(0, 4)}, "shard= says rank 0 of 4"),
        ("srun", {"shard": stoker.Shard(2, 3)}, "shard= says rank 2 of 3"),
        ("Open MPI", {"shard": stoker.Shard(0, 8)}, "shard= says rank 0 of 8"),
    ],
    ids=str,
)
def test_an_argument_that_contradicts_the_launcher_is_an_error_that_names_both(folder, started, way, options, message):
    started(**VARIABLES[way](2, 4))
    with numpy_loader(folder, **options) as loader:
        with pytest.raises(ValueError, match=rf"{message}, but the environment .* says rank 2 of 4"):
            next(iter(loader))
        with pytest.raises(ValueError, match=message):
            len(loader)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"rank": 2, "world_size": 4}, 20),
        ({"shard": stoker.Shard(2, 4)}, 20),
        ({"shard": stoker.Shard(0, 1)}, 0),  # all of the samples
        ({"shard": stoker.Shard(0, 2)}, 0),  # several ranks that get the same, however they are numbered
        ({"shard": stoker.Shard(1, 2)}, 10),
        ({"rank": 5, "world_size": 8}, 50),  # two processes on each of what the launcher started
        ({"shard": stoker.Shard(2, 3, checked=False)}, 20),
    ],
    ids=str,
)
def test_an_argument_that_can_be_meant_is_taken(folder, started, options, first):
    started(**VARIABLES["srun"](2, 4))
    with numpy_loader(folder, **options) as loader:
        assert next(iter(loader))["id"].tolist()[0] == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "rank 1 of how many"),
        ({"world_size": 2}, "world_size 2, but which rank"),
        ({"rank": 2, "world_size": 2}, "outside"),
        ({"rank": 0, "world_size": 1, "shard": stoker.Shard()}, "either that or these"),
        ({"batch_size": None, "global_batch_size": 10, "lanes": 3}, "3 equal lanes"),
        ({"batch_size": 10, "rank": 0, "world_size": 2, "lanes": 3}, "3 equal lanes"),
        ({"batch_size": 5, "global_batch_size": 12, "rank": 0, "world_size": 2}, "no global batch"),
    ],
    ids=str,
)
def test_what_arguments_alone_say_wrong_is_said_before_anything_is_opened(options, message):
    with pytest.raises(ValueError, match=message):
        numpy_loader("nowhere", **options)


def test_what_the_number_of_ranks_makes_wrong_is_said_when_it_is_known(folder, started):
    with numpy_loader(folder, global_batch_size=20) as uneven, numpy_loader(folder, batch_size=5, lanes=2) as laned:
        started(**VARIABLES["torchrun"](1, 3))
        with pytest.raises(ValueError, match="batch_size 10 on 3 ranks is no global batch of 20"):
            iter(uneven)
        with pytest.raises(ValueError, match="global batch of 15 samples cannot be cut into 2 equal lanes"):
            len(laned)


# ---------------------------------------------------------------------- when it is decided


def test_what_is_known_when_it_is_first_used_counts(folder, started):
    with numpy_loader(folder) as loader:
        repr(loader), loader.stats(), loader.spec, loader.num_samples, loader.state_dict()
        loader.set_epoch(0)
        started(**VARIABLES["torchrun"](1, 2))
        assert next(iter(loader))["id"].tolist() == list(range(10, 20))
        assert len(loader) == 7
        assert "rank 1 of 2" in repr(loader)


def test_a_state_may_be_loaded_before_the_ranks_are_known(folder, started):
    with numpy_loader(folder) as loader:
        batches = iter(loader)
        seen = [i for _ in range(5) for i in next(batches)["id"].tolist()]
        state = loader.state_dict()
    with numpy_loader(folder) as one, numpy_loader(folder) as other:
        for rank, loader in enumerate((one, other)):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            started(**VARIABLES["torchrun"](rank, 2))
            seen += [i for batch in loader for i in batch["id"].tolist()]
            started(RANK=0, WORLD_SIZE=1, TORCHELASTIC_RUN_ID="none")
    assert sorted(seen) == list(range(NUM_ROWS))


@pytest.mark.parametrize("use", [len, lambda loader: next(iter(loader)), lambda loader: loader.explain(0)])
def test_a_guess_that_turns_out_wrong_is_an_error(folder, started, use):
    with numpy_loader(folder) as loader:
        use(loader)
        started(**VARIABLES["torchrun"](1, 2))
        for again in (iter, len):
            with pytest.raises(RuntimeError, match=r"rank 0 of 1 .*nothing told of others.* says rank 1 of 2"):
                again(loader)


def test_a_loader_that_is_sent_to_another_process_says_what_to_send(folder):
    with numpy_loader(folder) as loader, pytest.raises(TypeError, match="another process"):
        pickle.dumps(loader)
