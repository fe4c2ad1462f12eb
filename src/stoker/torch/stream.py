"""What copies to a device beside the training loop, as handing over and residence need it."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from stoker.fields.spec import Array


class Mark(Protocol):
    """A place in a side stream's work."""

    def query(self) -> bool:
        """Whether all work before it is done."""


class Copier(Protocol):
    """Brings arrays to where they are wanted as tensors."""

    def copy(self, array: Array) -> torch.Tensor:
        """Begin to copy a contiguous array and return where it will be; the array must stay until that is done."""


class SideStream(Copier, Protocol):
    """Copies to a device while the device does something else. Safe to use from several threads."""

    @property
    def device(self) -> torch.device:
        """Where copies go."""

    def allocate(self, num_bytes: int) -> Array:
        """Return host memory that the device copies from by itself, uint8, shape [num_bytes]."""

    def copies(self) -> AbstractContextManager[object]:
        """Return a block inside which `copy` puts its work on this stream."""

    def mark(self) -> Mark:
        """Return a mark behind all work begun so far."""

    def current(self) -> Hashable:
        """Return which stream the caller's work on the device goes to."""

    def wait(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """Let the caller's work on the device wait for `mark`, and the tensors' memory for that work."""
