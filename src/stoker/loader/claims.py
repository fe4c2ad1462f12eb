"""Who says which rank of how many this process is: libraries that it has loaded, and whoever started it.

Nothing is imported to be asked: a library that nobody has imported has started no ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """What one of them says.

    Attributes:
        source: Who says so, for people.
        rank: This process, from 0.
        world_size: How many there are.
        is_live: Whether a library says so that has brought the ranks together. A launcher's variables may count what
            each starts several ranks, such as nodes.
    """

    source: str
    rank: int
    world_size: int
    is_live: bool

    def agrees(self, rank: int, world_size: int) -> bool:
        """Return whether it is the same place."""
        return (self.rank, self.world_size) == (rank, world_size)

    def __str__(self) -> str:
        return f"{self.source} says rank {self.rank} of {self.world_size}"


# The first pair that is there decides. SLURM comes last: mpirun and torchrun in an allocation see its variables too.
_TORCHRUN, _SLURM = "RANK", "SLURM_PROCID"
_PAIRS = (
    (_TORCHRUN, ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("HOROVOD_RANK", ("HOROVOD_SIZE",)),
    ("FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    ("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",)),
    (_SLURM, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


def live_claims() -> list[Claim]:
    """Return what libraries say that have brought ranks together in this process."""
    found = [ask() for ask in (_of_torch, _of_jax, _of_accelerate, _of_ray, _of_mpi)]
    return [claim for claim in found if claim is not None]


def launched_claim(environ: Mapping[str, str] = os.environ) -> Claim | None:
    """Return what a launcher wrote into the environment; None where none did.

    Known are torchrun, Open MPI, MVAPICH, everything with PMI (MPICH, Intel MPI), Horovod, Flux, IBM's jsrun and
    SLURM's srun, in this order. A world of one says nothing, unless torchrun is there itself: images and notebooks
    leave such variables lying about.

    Raises:
        ValueError: A rank without its world size, a value that is no integer or out of range, or a SLURM batch
            script that starts Python without srun: all tasks but one would not exist, and their samples be missing.
    """
    alone = None
    for rank_name, size_names in _PAIRS:
        if rank_name not in environ or (rank_name != _TORCHRUN and _is_ray_worker()):
            continue  # Ray's workers inherit what started Ray
        size_name = next((name for name in size_names if name in environ), None)
        rank = _integer(environ, rank_name)
        if size_name is None:
            if rank == 0:  # a notebook's, or a batch script that asked for no tasks: one process
                continue
            raise ValueError(
                f"the environment has {rank_name}={rank} but not {size_names[0]}; set both, or give shard="
            )
        world_size = _integer(environ, size_name)
        if not 0 <= rank < world_size:
            raise ValueError(f"{rank_name}={rank} and {size_name}={world_size} contradict each other")
        claim = Claim(f"the environment ({rank_name}, {size_name})", rank, world_size, is_live=False)
        if world_size > 1:
            if rank_name == _SLURM and "SLURM_JOB_ID" in environ and not _STEPS & environ.keys():
                raise ValueError(
                    f"SLURM gave this job {world_size} tasks, but this process was not started by srun and is the "
                    "only one; start it with srun, or give shard=stoker.Shard(0, 1)"
                )
            if alone is not None:
                raise ValueError(f"{alone}, but {claim}: {SAY_WHICH}")
            return claim
        if rank_name == _TORCHRUN and "TORCHELASTIC_RUN_ID" in environ:
            alone = claim
    return alone


SAY_WHICH = "say which share this process takes, such as shard=stoker.Shard(0, 1) for all of the samples"
_STEPS = {"SLURM_STEP_ID", "SLURM_STEPID"}


def brought_together() -> tuple[bool, bool, bool]:
    """Return whether torch, JAX and Accelerate have brought ranks together: asked before each batch, so it is quick."""
    modules = sys.modules
    by_torch = by_jax = by_accelerate = False
    if (dist := modules.get("torch.distributed")) is not None:
        by_torch = bool(getattr(dist, "is_initialized", bool)())
    if (jax := modules.get("jax._src.distributed")) is not None:
        # jax.process_count() would make JAX take the devices, and count one process before they are brought together.
        by_jax = getattr(getattr(jax, "global_state", None), "client", None) is not None
    if (accelerate := modules.get("accelerate.state")) is not None:
        by_accelerate = bool(getattr(getattr(accelerate, "PartialState", None), "_shared_state", None))
    return by_torch, by_jax, by_accelerate


def data_loader_worker() -> tuple[int, int] | None:
    """Return which worker of how many of a torch `DataLoader` this process is; None where it is none."""
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)()
    return None if worker is None else (worker.id, worker.num_workers)


def _of_torch() -> Claim | None:
    if not brought_together()[0]:
        return None
    dist = sys.modules["torch.distributed"]
    return Claim("torch.distributed", dist.get_rank(), dist.get_world_size(), is_live=True)


def _of_jax() -> Claim | None:
    if not brought_together()[1]:
        return None
    state = sys.modules["jax._src.distributed"].global_state
    return _claim("jax.distributed", getattr(state, "process_id", None), getattr(state, "num_processes", None))


def _of_accelerate() -> Claim | None:
    if not brought_together()[2]:
        return None
    state = sys.modules["accelerate.state"].PartialState()  # shares what the process has
    return _claim("Accelerate", state.process_index, state.num_processes)


def _of_ray() -> Claim | None:
    get_context = getattr(sys.modules.get("ray.train"), "get_context", None)
    if get_context is None or not _is_ray_worker():
        return None
    try:
        context = get_context()
        return _claim("Ray Train", context.get_world_rank(), context.get_world_size())
    except Exception:  # of whatever kind: this task is none of Ray Train's
        return None


def _is_ray_worker() -> bool:
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    return worker is not None and getattr(worker, "mode", None) == 1  # WORKER_MODE; a driver's is another


def _of_mpi() -> Claim | None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    claim = _claim("MPI", mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())
    return None if claim is None or claim.world_size == 1 else claim  # so it is wherever somebody imports mpi4py


def _claim(source: str, rank: object, world_size: object) -> Claim | None:
    if not isinstance(rank, int) or not isinstance(world_size, int):
        return None
    return Claim(source, rank, world_size, is_live=True)


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} in the environment must be an integer, not {environ[name]!r}") from None
