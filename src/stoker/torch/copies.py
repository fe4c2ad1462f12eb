"""What crosses to a device with a batch, or with several: copies that are begun, and what is made of them there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stoker.fields.compact import Compact
from stoker.fields.spec import Array, Deduplicated, Ragged, Spec
from stoker.loader.gather.assemble import Assembled, SharedRows
from stoker.torch.compact import widen_tensor
from stoker.torch.expand import expand_ragged, expand_rows, expanded_totals
from stoker.torch.resident import ResidentRows
from stoker.torch.stream import Copier
from stoker.torch.tensors import Tensors, fields_of


class Copies:
    """Copies to a device. Used inside a block of the stream's.

    Args:
        copier: Copies; or shows what is wanted where it lies.
        resident: Records that stay on the device; None keeps none there.
        compact: Fields that are widened there, and how.

    Attributes:
        memory: Every tensor that owns memory there of what was copied and made so far.
    """

    def __init__(self, copier: Copier, resident: ResidentRows | None, compact: Mapping[str, Compact]) -> None:
        self._copier = copier
        self._resident = resident
        self._compact = compact
        self.memory: list[torch.Tensor] = []

    def array(self, array: Array) -> torch.Tensor:
        """Begin to copy an array."""
        # Not ascontiguousarray, which gives an array without dimensions one.
        return self.own(self._copier.copy(np.asarray(array, order="C")))

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that owns memory on the device, noted."""
        self.memory.append(tensor)
        return tensor

    def field(self, field: Any) -> Any:
        """Begin to copy a field, whatever it is."""
        if type(field) is int:  # `max_seqlen`, which nobody wants to ask a device for
            return field
        return field.map(self.array) if isinstance(field, Ragged | Deduplicated) else self.array(field)

    def records(self, assembled: Assembled) -> torch.Tensor:
        """Begin to copy the records of samples, those aside that lie on the device; uint8, shape [B, record_bytes]."""
        if self._resident is None or assembled.residence is None:
            return self.array(assembled.records)
        return self.own(self._resident.gather(assembled.residence, assembled.records, self.array))

    def shared(self, shared: SharedRows, *, is_expanded: bool) -> Tensors:
        """Begin to copy what samples share, each value once; expanded there, behind the copy, where that is wanted."""
        index = self.array(shared.index)
        fields: Tensors = {}
        rows = shared.rows
        if rows.spec.record_bytes:
            records = self.array(rows.records)
            if is_expanded:
                records = self.own(expand_rows(records, index))
            fields |= fields_of(records, rows.spec)
        for name, lists in rows.ragged.items():
            copied = self.field(lists)
            fields[name] = self.expanded(copied, index, lists, shared.index) if is_expanded else copied
        return fields if is_expanded else {name: Deduplicated(field, index) for name, field in fields.items()}

    def expanded(self, lists: Ragged, index: torch.Tensor, host_lists: Ragged, host_index: Array) -> Ragged:
        """Return lists of the device, expanded there; the host has the same, and counts them."""
        found = expand_ragged(lists, index, expanded_totals(host_lists, host_index))
        self.memory += found.arrays
        return found

    def has_narrow(self, spec: Spec) -> bool:
        """Whether fixed-width fields of these are widened here."""
        return any(entry.name in self._compact for entry in spec.fixed)

    def widened(self, name: str, field: Any) -> Any:
        """Return a field as it is delivered, behind the copy: itself, where it is not kept narrower."""
        return self._widened(field, self._compact[name]) if name in self._compact else field

    def _widened(self, field: Any, compact: Compact) -> Any:
        if isinstance(field, Deduplicated):
            return Deduplicated(self._widened(field.values, compact), field.index)
        if isinstance(field, Ragged):
            return Ragged(self._widened(field.values, compact), field.offsets)
        return self.own(widen_tensor(field, compact))
