"""The share of a rank, as its user says it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

from stoker.arguments import explain_arguments, flag
from stoker.loader.claims import launched_claim
from stoker.sampling import steps as order


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
        found = launched_claim()
        return cls() if found is None else cls(found.rank, found.world_size)

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

    Args:
        device_mesh: A torch `DeviceMesh`.
        dims: Names or numbers of dimensions.
        argument: What the caller calls them, for messages.

    Raises:
        TypeError: It is no mesh.
        ValueError: The mesh has no such dimension, one is named twice, or this process is not in the mesh.
    """
    if not hasattr(device_mesh, "mesh_dim_names"):
        raise TypeError(f"device_mesh must be a torch DeviceMesh, not {device_mesh!r}")
    names = tuple(device_mesh.mesh_dim_names or ())
    shape = tuple(int(size) for size in device_mesh.mesh.shape)
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this process is not in the mesh, so it has no share of the data")
    if isinstance(dims, str | int):
        dims = (dims,)
    numbers = [_dim(dim, names, len(shape)) for dim in dims]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{argument} names a dimension of the mesh twice: {tuple(dims)}")
    rank = 0
    for number in sorted(numbers):
        rank = rank * shape[number] + int(coordinate[number])
    return rank, math.prod(shape[number] for number in numbers)


def _dim(dim: str | int, names: tuple[str, ...], num_dims: int) -> int:
    if dim in names:
        return names.index(str(dim))
    if isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim < num_dims:
        return dim
    raise ValueError(f"the mesh has no dimension {dim!r}; it has {names or tuple(range(num_dims))}")
