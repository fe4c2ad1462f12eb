"""How batches leave: as NumPy arrays here; `stoker.torch` has its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.fields.compact import Compact
from stoker.fields.spec import Array, Arrays
from stoker.loader.buffers import plain_buffer
from stoker.loader.gather import Together
from stoker.loader.lane import Resident
from stoker.loader.sequence import SequenceShard
from stoker.loader.units import Made


@dataclass(frozen=True, kw_only=True)
class DeliveryForm:
    """How the batches of a run leave, all of them alike.

    Attributes:
        is_augmented: Whether `augment` has been at their fields, which may be no views of what was gathered then.
        sequence_shard: Which part of each sequence leaves; None for all of it.
        is_expanded: Whether what was gathered once leaves as each sample's; else as `Deduplicated`.
        compact: The fields that are kept narrower than they leave, and how each is widened.
        is_widened: Whether the fields are widened already; what was gathered never is.
    """

    is_augmented: bool
    sequence_shard: SequenceShard | None
    is_expanded: bool
    compact: Mapping[str, Compact]
    is_widened: bool

    def cut(self, name: str, array: Any) -> Any:
        """Return what leaves of a field, an array or a tensor: all of it, or this rank's part of each sequence."""
        if self.sequence_shard is None or name not in self.sequence_shard.fields:
            return array
        return self.sequence_shard.part(array)


class Delivery(Protocol):
    """Turns batches into what the training loop gets. Must not refer to the loader, which could never be let go."""

    @property
    def copies(self) -> bool:
        """Whether `prepare` copies the batch to a device: time worth a stage of its own."""

    @property
    def resident(self) -> Resident | None:
        """Records that stay on a device, which need not be gathered; None without any."""

    @property
    def prepare_together(self) -> Callable[[Together, DeliveryForm], Sequence[Any]] | None:
        """Does what `prepare` does for several batches as one, and returns what it made of each; None if it cannot."""

    @property
    def expands(self) -> bool:
        """Whether it expands what samples share behind the copy, so that each value is copied once."""

    @property
    def widens(self) -> bool:
        """Whether it widens what is kept narrower behind the copy, so that narrow values are copied."""

    def allocate(self, num_bytes: int) -> Array:
        """Return memory for batches, uint8, shape [num_bytes]."""

    def prepare(self, made: Made, form: DeliveryForm) -> Any:
        """Do what can be done ahead of the step; runs in the threads that assemble."""

    def deliver(self, prepared: Any) -> Any:
        """Return what the loop gets; runs in the loop's own thread, when the step is due."""


class NumpyDelivery:
    """Dicts of NumPy arrays, as they were gathered."""

    copies = False
    expands = False
    widens = False
    resident = None
    prepare_together = None

    def allocate(self, num_bytes: int) -> Array:
        """Return ordinary memory."""
        return plain_buffer(num_bytes)

    def prepare(self, made: Made, form: DeliveryForm) -> Arrays:
        """Return the fields."""
        if form.sequence_shard is None:
            return made.arrays
        return {name: form.cut(name, array) for name, array in made.arrays.items()}

    def deliver(self, prepared: Arrays) -> Arrays:
        """Return the fields."""
        return prepared
