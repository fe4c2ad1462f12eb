"""What a way is, and what all of them are given."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stoker.fields.spec import Arrays
from stoker.storage.storage import Storage

BATCH_SIZE = 4_096
# Rows that are mixed with each other: four row groups, 64 batches.
SHUFFLE_ROW_GROUPS = 4

Batches: TypeAlias = Generator[Arrays, None, None]


class Way(Protocol):
    """A way to get the data set's rows as shuffled batches."""

    def epoch(self, epoch: int) -> Batches:
        """Yield each row once, in batches of `BATCH_SIZE` (the last may be smaller), in an order that differs by epoch.

        Closing the generator early ends whatever works for it.
        """
        ...

    def close(self) -> None:
        """Give back what the way holds; files it cached stay."""
        ...


@dataclass(frozen=True, kw_only=True)
class Source:
    """The rows that all ways deliver.

    Attributes:
        urls: The Parquet files.
        storage: What they are read through.
        seed: Seed of the order.
    """

    urls: tuple[str, ...]
    storage: Storage
    seed: int
