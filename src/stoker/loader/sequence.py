"""Which part of each sequence a context-parallel rank gets of the batch it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np

from stoker.arguments import explain_arguments, integer, names
from stoker.fields.offsets import Int64
from stoker.fields.spec import Entry
from stoker.loader.shard import place_in_mesh

Layout = Literal["contiguous", "zigzag"]


@explain_arguments({})
@dataclass(frozen=True, kw_only=True)
class SequenceShard:
    """The rank's part of every sequence, where several ranks of one model replica work on the same samples.

    Context-parallel ranks get the same batch (leave their dimension out of `Shard.from_mesh(data_dims=...)`), and
    each a part of axis 1 of the fields that are sequences. Eight tokens, two ranks:

        token         0   1   2   3   4   5   6   7
        contiguous    0   0   0   0   1   1   1   1     a view; but the last rank attends to the most tokens
        zigzag        0   0 │ 1   1 │ 1   1 │ 0   0     pieces r and 2W - 1 - r of 2W: with causal attention, equal work

    "zigzag" is torch's `context_parallel` with its load balancing by head and tail, and Megatron's; a part is then two
    pieces put together, one small copy. Whatever else a model needs to know of its part, `positions` says.

    Eight GPUs, a mesh of (dp=2, cp=2, tp=2):

        shard = Shard.from_mesh(mesh, data_dims="dp")
        sequence_shard = SequenceShard.from_mesh(mesh, dims="cp", fields=("tokens", "labels"), layout="zigzag")

        GPU             0   1   2   3 │ 4   5   6   7
        samples         first half    │ second half      of the global batch
        of a sequence   0   0 │ 1   1 │ 0   0 │ 1   1

    Args:
        rank: This process among those that share a sequence.
        world_size: How many these are.
        fields: Names of the fields that are cut, each [B, length, ...]. All others come whole.
        layout: "contiguous" or "zigzag".

    Raises:
        TypeError: A number is no integer, or `fields` are no names.
        ValueError: `rank` lies outside [0, world_size), no field is named, or there is no such layout.
    """

    rank: int
    world_size: int
    fields: Sequence[str]
    layout: Layout = "contiguous"

    def __post_init__(self) -> None:
        for name, least in (("rank", 0), ("world_size", 1)):
            object.__setattr__(self, name, integer(getattr(self, name), f"SequenceShard: {name}", at_least=least))
        if self.rank >= self.world_size:
            raise ValueError(f"SequenceShard: rank {self.rank} lies outside [0, {self.world_size})")
        object.__setattr__(self, "fields", names(self.fields, "SequenceShard: fields"))
        if not self.fields:
            raise ValueError("SequenceShard: fields names no field")
        if self.layout not in get_args(Layout):
            raise ValueError(f"SequenceShard: layout must be 'contiguous' or 'zigzag', not {self.layout!r}")

    @classmethod
    def from_mesh(
        cls,
        device_mesh: Any,
        *,
        dims: Sequence[str | int] = ("cp",),
        fields: Sequence[str],
        layout: Layout = "contiguous",
    ) -> Self:
        """Return the part of this process in a torch `DeviceMesh`.

        Args:
            device_mesh: As `torch.distributed.device_mesh.init_device_mesh` makes it.
            dims: Names (or numbers) of the dimensions along which a sequence is cut.
            fields: Names of the fields that are cut.
            layout: "contiguous" or "zigzag".

        Raises:
            ValueError: The mesh has no such dimension, one is named twice, or this process is not in the mesh.
        """
        rank, world_size = place_in_mesh(device_mesh, dims, argument="dims")
        return cls(rank=rank, world_size=world_size, fields=fields, layout=layout)

    @property
    def num_pieces(self) -> int:
        """Pieces that a sequence is cut into; its length must be a multiple of it."""
        return self.world_size if self.layout == "contiguous" else 2 * self.world_size

    def positions(self, length: int) -> Int64:
        """Return which places of a sequence of `length` this rank has, in its order: what rotary embeddings need.

        Raises:
            ValueError: `length` is no multiple of the pieces.

        Examples:
            >>> SequenceShard(rank=0, world_size=2, fields=("tokens",), layout="zigzag").positions(8)
            array([0, 1, 6, 7])
        """
        if length % self.num_pieces:
            raise ValueError(f"a sequence of {length} cannot be cut into {self.num_pieces} equal pieces")
        positions: Int64 = self.part(np.arange(length, dtype=np.int64)[None])[0]
        return positions

    def part(self, sequences: Any) -> Any:
        """Return this rank's part of an array or a tensor, [B, length, ...]: a view of one piece, or a copy of two.

        The length must be a multiple of the pieces, which is not checked here.
        """
        length = sequences.shape[1]
        size = length // self.num_pieces
        if self.layout == "contiguous":
            return sequences[:, self.rank * size : (self.rank + 1) * size]
        # Pieces r and 2W - 1 - r are one strided slice: the same line for arrays, tensors and devices.
        pieces = sequences.reshape(sequences.shape[0], self.num_pieces, size, *sequences.shape[2:])
        apart = self.num_pieces - 1 - 2 * self.rank
        both = pieces[:, self.rank : self.rank + apart + 1 : apart]
        return both.reshape(sequences.shape[0], 2 * size, *sequences.shape[2:])

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        """Raise a ValueError where a batch cannot be cut so: `augment` has made a field another shape."""
        for name in self.fields:
            shape = getattr(batch.get(name), "shape", None)
            if shape is None or len(shape) < 2 or shape[1] % self.num_pieces:
                told = "not there" if shape is None else list(shape)
                raise ValueError(
                    f"field {name!r} is {told} after augment, and cannot be cut into {self.num_pieces} equal pieces "
                    "along axis 1"
                )

    def check_fields(self, entries: Iterable[Entry]) -> None:
        """Raise a ValueError where a field of batches, which have these, cannot be cut so."""
        known = {entry.name: entry for entry in entries}
        for name in self.fields:
            if (entry := known.get(name)) is None:
                raise ValueError(f"SequenceShard: there is no field {name!r} to cut; there are {', '.join(known)}")
            if entry.is_ragged:
                raise ValueError(
                    f"SequenceShard: {entry} has sequences of any length, which cannot be cut into equal parts; give "
                    "them one length, by packing or with Field(shape=(length,))"
                )
            if not entry.shape:
                raise ValueError(f"SequenceShard: {entry} is one value a sample, not a sequence")
            length, num = entry.shape[0], self.num_pieces
            if length % num:
                raise ValueError(
                    f"SequenceShard: {entry} cannot be cut into {num} equal pieces for {self.world_size} ranks "
                    f"({self.layout}): the length must be a multiple of {num}, such as {-(-length // num) * num}"
                )
