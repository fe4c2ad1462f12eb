"""Which rank of how many: the only thing about a process that the order needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.arguments import integer


@dataclass(frozen=True)
class RankShare:
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
            object.__setattr__(self, name, integer(getattr(self, name), f"Shard: {name}", at_least=None))
        if self.world_size < 1:
            raise ValueError(f"Shard: world_size must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"Shard: rank {self.rank} lies outside [0, {self.world_size}): {self.world_size} ranks count from 0"
            )
