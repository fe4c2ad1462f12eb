"""Which rank of how many: the only thing about a process that the order needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """The rank's share of every global batch.

    Args:
        rank: This process, from 0.
        world_size: How many processes share a global batch.

    Raises:
        TypeError: One of them is no integer.
        ValueError: `rank` lies outside [0, world_size), or there are no ranks.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Shard: {name} must be an integer, not {type(value).__name__}")
        if self.world_size < 1:
            raise ValueError(f"Shard: world_size must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"Shard: rank {self.rank} lies outside [0, {self.world_size}): {self.world_size} ranks count from 0"
            )


# The first pair that is there decides. SLURM comes last: mpirun and torchrun in an allocation see its variables too.
_PAIRS = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


def shard_from_env(environ: Mapping[str, str]) -> Shard:
    """Return the shard that a launcher wrote into the environment; one rank of one where none did.

    Known are torchrun, Open MPI, MVAPICH, everything with PMI (MPICH, Intel MPI) and SLURM's srun, in this order.

    Raises:
        ValueError: A rank without its world size, a value that is no integer or out of range, or a SLURM batch
            script that starts Python without srun: all tasks but one would not exist, and their samples be missing.
    """
    for rank_name, size_names in _PAIRS:
        if rank_name not in environ:
            continue
        size_name = next((name for name in size_names if name in environ), None)
        if size_name is None:
            if rank_name == "SLURM_PROCID":  # a batch script that asked for no tasks: one process
                continue
            raise ValueError(f"the environment has {rank_name} but not {size_names[0]}; set both, or give shard=")
        rank, world_size = _integer(environ, rank_name), _integer(environ, size_name)
        if rank_name == "SLURM_PROCID" and world_size > 1 and _is_outside_srun(environ):
            raise ValueError(
                f"SLURM gave this job {world_size} tasks, but this process was not started by srun and is the "
                "only one; start it with srun, or give shard=Shard(0, 1)"
            )
        try:
            return Shard(rank, world_size)
        except ValueError as error:
            raise ValueError(f"{rank_name}={rank} and {size_name}={world_size} contradict each other") from error
    return Shard()


def _is_outside_srun(environ: Mapping[str, str]) -> bool:
    """Return whether SLURM runs the job and yet this process is no task of one of its steps."""
    return "SLURM_JOB_ID" in environ and not {"SLURM_STEP_ID", "SLURM_STEPID"} & environ.keys()


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} in the environment must be an integer, not {environ[name]!r}") from None
