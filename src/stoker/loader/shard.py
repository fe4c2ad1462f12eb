"""Which share of every global batch this process takes: settled when it must be known, and never alone by accident.

The user says it, or a library that this process has loaded, or the launcher. Nothing is imported to be asked: a library
that nobody has imported has started no ranks.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Self

from stoker.arguments import explain_arguments, flag
from stoker.sampling import steps as order

_log = logging.getLogger("stoker")

# Modules of libraries that may bring ranks together while a loop runs.
_TORCH, _JAX, _ACCELERATE = BRING_TOGETHER = ("torch.distributed", "jax._src.distributed", "accelerate.state")


@explain_arguments({})
@dataclass(frozen=True)
class Shard(order.RankShare):
    """The rank's share of every global batch.

    A loader takes it by itself from whatever started the ranks. Give one where several ranks get the same batches
    (`from_mesh`), or where this process shall have all of them: `Shard(0, 1)`.

    Args:
        rank: Which share, from 0.
        world_size: How many shares a global batch has.
        checked: Whether a loader makes sure that ranks are known to which this share belongs: as many as shares, or a
            multiple of them. Say False where you know better, as with ranks of which some have no data.

    Raises:
        TypeError: One of them is no integer.
        ValueError: `rank` lies outside [0, world_size).

    Examples:
        >>> Shard(1, 4)
        Shard(rank=1, world_size=4)
    """

    _: KW_ONLY
    checked: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "checked", flag(self.checked, "Shard: checked"))

    @classmethod
    def from_env(cls) -> Self:
        """Return the shard that a launcher wrote into the environment; one rank of one where none did.

        A loader does so by itself, at its first batch.

        Known are torchrun, Open MPI, MVAPICH, everything with PMI (MPICH, Intel MPI), Horovod, Flux, IBM's jsrun and
        SLURM's srun, in this order.

        Raises:
            ValueError: The variables contradict each other, or SLURM gave several tasks and only one was started.
        """
        found = [claim.shard for claim in _launched()] or [Shard()]
        return cls(found[0].rank, found[0].world_size)

    @classmethod
    def from_mesh(cls, device_mesh: Any, *, data_dims: Sequence[str | int]) -> Self:
        """Return the shard of this process in a torch `DeviceMesh`: ranks of one model replica get the same batch.

        Ranks are counted along the dimensions that share the data out, in the mesh's order. Eight GPUs, a mesh of
        (dp=2, shard=2, tp=2), `data_dims=("dp", "shard")`:

            GPU      0   1 │ 2   3 │ 4   5 │ 6   7
            dp       0   0 │ 0   0 │ 1   1 │ 1   1
            shard    0   0 │ 1   1 │ 0   0 │ 1   1
            tp       0   1 │ 0   1 │ 0   1 │ 0   1
            Shard    0     │ 1     │ 2     │ 3       of 4: the two of a tensor-parallel pair read the same

        Args:
            device_mesh: As `torch.distributed.device_mesh.init_device_mesh` makes it.
            data_dims: Names (or numbers) of the dimensions along which batches differ: data parallel, sharded data
                parallel. Those left out (tensor, pipeline, expert, context parallel) get the same batch. What a
                context-parallel rank sees of it is `SequenceShard`'s to say.

        Raises:
            ValueError: The mesh has no such dimension, one is named twice, or this process is not in the mesh.
        """
        return cls(*place_in_mesh(device_mesh, data_dims, argument="data_dims"), checked=False)

    @classmethod
    def from_jax(cls, jax: Any = None) -> Self:
        """Return the shard of this process among those that `jax.distributed.initialize` brought together.

        JAX runs one process a host, with all of its devices: the batch of a process is then laid out over them.

        Args:
            jax: The module; imported unless given.

        Raises:
            ImportError: JAX is not installed.
        """
        if jax is None:
            try:
                jax = importlib.import_module("jax")
            except ImportError as error:
                raise ImportError("Shard.from_jax needs JAX: pip install 'stoker[jax]'") from error
        return cls(int(jax.process_index()), int(jax.process_count()))


def place_in_mesh(device_mesh: Any, dims: Sequence[str | int], *, argument: str) -> tuple[int, int]:
    """Return this process's number along some dimensions of a mesh, and how many there are, in the mesh's order.

    Messages call the dimensions what the caller does, which is the `argument`.
    """
    if not hasattr(device_mesh, "mesh_dim_names"):
        raise TypeError(f"device_mesh must be a torch DeviceMesh, not {device_mesh!r}")
    names = tuple(device_mesh.mesh_dim_names or ())
    shape = tuple(int(size) for size in device_mesh.mesh.shape)
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this process is not in the mesh, so it has no share of the data")
    numbers = []
    for dim in (dims,) if isinstance(dims, str | int) else dims:
        number = names.index(str(dim)) if dim in names else dim
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(shape):
            raise ValueError(f"the mesh has no dimension {dim!r}; it has {names or tuple(range(len(shape)))}")
        if number in numbers:
            raise ValueError(f"{argument} names a dimension of the mesh twice: {dim!r}")
        numbers.append(number)
    rank = 0
    for number in sorted(numbers):
        rank = rank * shape[number] + int(coordinate[number])
    return rank, math.prod(shape[number] for number in numbers)


class Ranks:
    """What a loader's arguments say of ranks, and what its environment says at the first time that it matters.

        rank=, world_size=    which rank this process is: as the environment says, where it does
        shard=                which share it takes: perhaps the same as other ranks
        neither               the libraries of this process decide, then the launcher's variables, then it is alone

    Where it `serves_workers` of a torch `DataLoader`, these have copies of it, which take the share of the process that
    owns the DataLoader. Any other loader would deliver everything in each of them.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: One is out of range, or they contradict each other, or one of a pair is missing.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shard: Shard | None = None,
        serves_workers: bool = False,
    ) -> None:
        self._argument = "shard="
        if shard is None and (rank is not None or world_size is not None):
            self._argument = "rank= and world_size="
            if world_size is None and rank:
                raise ValueError(f"rank {rank} of how many? Give world_size too, or leave both out")
            if rank is None and world_size != 1:
                raise ValueError(f"world_size {world_size}, but which rank is this? Give rank too, or leave both out")
            shard = Shard(0 if rank is None else rank, 1 if world_size is None else world_size)
        elif rank is not None or world_size is not None:
            raise ValueError("shard says both rank and world_size; give either that or these")
        if shard is not None and not isinstance(shard, Shard):
            raise TypeError(f"shard must be a stoker.Shard, not {shard!r}")
        self.given = shard  # None where the arguments say nothing
        self._serves_workers = serves_workers
        self._settled: tuple[Shard, str] | None = None
        self._of_owner: tuple[Shard, str] | ValueError | None = None  # in a worker that was not forked
        self._seen: tuple[bool, ...] | None = None  # what `_brought_together` returned last

    def settle(self) -> Shard:
        """Decide, the first time; later, raise a RuntimeError where what was decided turns out wrong by now.

        Raises:
            ValueError: The arguments contradict the environment, or the environment itself.
        """
        if self._settled is None:
            self._settled = shard, why = self._decided()
            if self.given is None:
                _log.info("rank %d of %d: %s", shard.rank, shard.world_size, why)
        else:
            self._check_settled(*self._settled)
        self._seen = _brought_together()
        return self._settled[0]

    def look(self) -> Shard:
        """Return what `settle` would, and raise as it does, without deciding."""
        if self._settled is None:
            return self._decided()[0]
        self._check_settled(*self._settled)
        return self._settled[0]

    def own(self) -> None:
        """Decide anew for this process and its workers: it is no worker of the process that this was copied from."""
        self._of_owner = None

    def prove(self) -> None:
        """Raise as `settle` does where somebody has brought ranks together since. Costs next to nothing."""
        if _brought_together() != self._seen:
            self.settle()

    def guess(self) -> Shard:
        """Return what `settle` would decide now, without deciding; one rank of one where it would raise."""
        try:
            return (self._settled or self._decided())[0]
        except ValueError:
            return self.given or Shard()

    def __getstate__(self) -> dict[str, object]:
        """Return what a worker needs that knows nothing of ranks itself; any other process decides anew."""
        decided: object = self._settled
        if decided is None:
            try:
                decided = self._decided()
            except ValueError as error:
                return self.__dict__ | {"_of_owner": error}
        return self.__dict__ | {"_settled": None, "_seen": None, "_of_owner": decided}

    def _decided(self) -> tuple[Shard, str]:
        worker = _data_loader_worker()
        if worker is not None and self._serves_workers and self._of_owner is not None:
            if isinstance(self._of_owner, ValueError):
                raise self._of_owner
            return self._of_owner
        if self.given is not None:
            self._check_given(self.given)
            return self.given, f"{self._argument} says so"
        if worker is not None and not self._serves_workers:
            raise ValueError(
                f"this loader is used in worker {worker.id} of {worker.num_workers} of a DataLoader, and each of them "
                "would deliver all batches: give the DataLoader a stoker.torch.TorchDataset, or use the loader in its "
                "place"
            )
        claims = _live_claims()
        if not claims or claims[0].shard.world_size == 1:
            claims += _launched()
        if not claims:
            return Shard(), "nothing told of others"
        first = claims[0]
        for claim in claims[1:]:
            if claim.shard != first.shard:
                raise ValueError(f"{first}, but {claim}: {_SAY_WHICH}")
        return first.shard, str(first)

    def _check_given(self, given: Shard) -> None:
        """Raise where what was given cannot be right, whatever was meant."""
        is_share = self._argument == "shard="
        if not given.checked or (is_share and given.world_size == 1):
            return
        if _data_loader_worker() and not self._serves_workers:  # each of them may well have a share of its own
            return
        claims = _live_claims()
        if not claims:
            with contextlib.suppress(ValueError):  # then the environment says nothing that holds
                claims = _launched()
        if claims and not any(claim.allows(given, is_share=is_share) for claim in claims):
            on_purpose = "" if given.world_size == 1 else ", checked=False"
            raise ValueError(
                f"{self._argument} {'says' if is_share else 'say'} rank {given.rank} of {given.world_size}, but "
                f"{claims[0]}. Leave it out and the loader takes that; if you mean it, write "
                f"shard=stoker.Shard({given.rank}, {given.world_size}{on_purpose})"
            )

    def _check_settled(self, shard: Shard, why: str) -> None:
        """Raise where what was decided cannot be right any more. A library that has shut down contradicts nothing."""
        if _data_loader_worker():  # what its owner knew, or knew as it forked
            return
        if self.given is not None:
            self._check_given(self.given)
            return
        claims = _live_claims() or (_launched() if shard.world_size == 1 else [])
        for claim in claims:
            if claim.shard != shard:
                raise RuntimeError(
                    f"this loader took the share of rank {shard.rank} of {shard.world_size} when it was first used "
                    f"({why}), but now {claim}: use it, and ask for its length, only once the ranks are known"
                )


class Claim(NamedTuple):
    """What somebody says of this process."""

    source: str  # who says so, for people
    shard: Shard
    # Whether a library says so that has brought the ranks together. A launcher's variables may count what each starts
    # several ranks, such as nodes.
    is_live: bool = True

    def allows(self, given: Shard, *, is_share: bool) -> bool:
        """Return whether an argument may be right; a share may be that of several ranks."""
        rank, world_size = self.shard.rank, self.shard.world_size
        if given.world_size == world_size:
            return given.rank == rank
        if given.world_size > world_size:  # a launcher may count nodes, each of which starts several ranks
            num_each, rest = divmod(given.world_size, world_size)
            return not self.is_live and not rest and given.rank // num_each == rank
        return is_share and world_size % given.world_size == 0  # several get the same batches

    def __str__(self) -> str:
        return f"{self.source} says rank {self.shard.rank} of {self.shard.world_size}"


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
_STEPS = {"SLURM_STEP_ID", "SLURM_STEPID"}
_SAY_WHICH = "say which share this process takes, such as shard=stoker.Shard(0, 1) for all of the samples"


def _launched() -> list[Claim]:
    """Return what a launcher wrote into the environment: one claim, or none.

    A world of one says nothing, unless torchrun is there itself: images and notebooks leave such variables lying about.

    Raises:
        ValueError: A rank without its world size, a value that is no integer or out of range, or a SLURM batch
            script that starts Python without srun: all tasks but one would not exist, and their samples be missing.
    """
    alone: list[Claim] = []
    for rank_name, size_names in _PAIRS:
        if rank_name not in os.environ or (rank_name != _TORCHRUN and _is_ray_worker()):
            continue  # Ray's workers inherit what started Ray
        size_name = next((name for name in size_names if name in os.environ), None)
        rank = _integer_in(rank_name)
        if size_name is None:
            if rank == 0:  # a notebook's, or a batch script that asked for no tasks: one process
                continue
            raise ValueError(
                f"the environment has {rank_name}={rank} but not {size_names[0]}; set both, or give shard="
            )
        world_size = _integer_in(size_name)
        if not 0 <= rank < world_size:
            raise ValueError(f"{rank_name}={rank} and {size_name}={world_size} contradict each other")
        claim = Claim(f"the environment ({rank_name}, {size_name})", Shard(rank, world_size), is_live=False)
        if world_size > 1:
            if rank_name == _SLURM and "SLURM_JOB_ID" in os.environ and not _STEPS & os.environ.keys():
                raise ValueError(
                    f"SLURM gave this job {world_size} tasks, but this process was not started by srun and is the "
                    "only one; start it with srun, or give shard=stoker.Shard(0, 1)"
                )
            if alone:
                raise ValueError(f"{alone[0]}, but {claim}: {_SAY_WHICH}")
            return [claim]
        if rank_name == _TORCHRUN and "TORCHELASTIC_RUN_ID" in os.environ:
            alone = [claim]
    return alone


def _integer_in(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} in the environment must be an integer, not {os.environ[name]!r}") from None


def _brought_together() -> tuple[bool, bool, bool]:
    """Return whether torch, JAX and Accelerate have brought ranks together: asked before each batch, so it is quick."""
    modules = sys.modules
    by_torch = by_jax = by_accelerate = False
    if (dist := modules.get(_TORCH)) is not None:
        by_torch = bool(getattr(dist, "is_initialized", bool)())
    if (jax := modules.get(_JAX)) is not None:
        # jax.process_count() would make JAX take the devices, and count one process before they are brought together.
        by_jax = getattr(getattr(jax, "global_state", None), "client", None) is not None
    if (accelerate := modules.get(_ACCELERATE)) is not None:
        by_accelerate = bool(getattr(getattr(accelerate, "PartialState", None), "_shared_state", None))
    return by_torch, by_jax, by_accelerate


def _live_claims() -> list[Claim]:
    """Return what libraries say that have brought ranks together in this process."""
    modules, (by_torch, by_jax, by_accelerate) = sys.modules, _brought_together()
    found: list[tuple[str, Any, Any]] = []
    if by_torch:
        dist = modules[_TORCH]
        found.append(("torch.distributed", dist.get_rank(), dist.get_world_size()))
    if by_jax:
        state = modules[_JAX].global_state
        found.append(("jax.distributed", getattr(state, "process_id", None), getattr(state, "num_processes", None)))
    if by_accelerate:
        state = modules[_ACCELERATE].PartialState()  # shares what the process has
        found.append(("Accelerate", state.process_index, state.num_processes))
    get_context = getattr(modules.get("ray.train"), "get_context", None)
    if get_context is not None and _is_ray_worker():
        with contextlib.suppress(Exception):  # of whatever kind: this task is none of Ray Train's
            context = get_context()
            found.append(("Ray Train", context.get_world_rank(), context.get_world_size()))
    mpi = modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() != 1:
        # One of one it is wherever somebody imports mpi4py.
        found.append(("MPI", mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()))
    return [Claim(source, Shard(*place)) for source, *place in found if all(isinstance(one, int) for one in place)]


def _is_ray_worker() -> bool:
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    return worker is not None and getattr(worker, "mode", None) == 1  # WORKER_MODE; a driver's is another


def _data_loader_worker() -> Any:
    """Return what torch knows of the worker of a `DataLoader` that this process is; None where it is none."""
    return getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)()
