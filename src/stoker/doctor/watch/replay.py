"""The replay test: some batches are kept and handed out again, so that the loop runs on batches that lie in RAM.

warm-up │ real, and kept │ replayed: half to settle, half counted │ real, left out until settled │ real
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from stoker.doctor.watch.meter import StepKind

_log = logging.getLogger("stoker")

# A handful of different batches, so that no step finds its batch in the processor's cache.
_MAX_BATCHES = 8
# Kept batches end at so many bytes; one is kept whatever its size.
_MAX_BYTES = 1 << 30
# Containers inside containers that a batch's size is looked for in.
_MAX_DEPTH = 8


class Replayer:
    """Keeps batches, says when to hand them out again, and hands them out, once in its life.

    Args:
        num_steps: Real steps to see first behind the warm-up, and steps to replay.
        warmup: Steps that are neither.

    Attributes:
        num_batches: Different batches that are handed out again.
        num_bytes: Their size, as far as it can be seen.
    """

    def __init__(self, *, num_steps: int, warmup: int) -> None:
        self._num_steps = num_steps
        self._first = warmup + 1
        self._kept: list[Any] = []
        self._num_real = 0
        self._num_replayed = 0
        self._is_over = False
        self._settles_at = -1
        self.num_batches = 0
        self.num_bytes = 0

    def take(self, batch: object) -> StepKind | None:
        """Look at a real batch before it is handed over, and return what its step is where it is no ordinary one."""
        self._num_real += 1
        if self._is_over:
            return StepKind.LEFT_OUT if self._num_real <= self._settles_at else None
        if self._num_real >= min(self._first, self._num_steps) and self.num_batches < _MAX_BATCHES:
            size = size_of(batch)
            if not self._kept or self.num_bytes + size <= _MAX_BYTES:
                self._kept.append(batch)
                self.num_batches += 1
                self.num_bytes += size
        return None

    def is_due(self, *, at_end: bool) -> bool:
        """Say whether the next batch is a replayed one.

        Args:
            at_end: The epoch has no more real ones: an epoch that is too short is followed by its replay.
        """
        if self._is_over or not self._kept:
            return False
        if self._num_replayed:
            return True
        return at_end or self._num_real >= self._first + self._num_steps

    def next(self) -> Any:
        """Return a batch that was handed out before."""
        if not self._num_replayed:
            _log.warning(
                "replay test: the next %d steps get %d batches again that they have had; not for a run that counts",
                self._num_steps,
                self.num_batches,
            )
        batch = self._kept[self._num_replayed % len(self._kept)]
        self._num_replayed += 1
        if self._num_replayed == self._num_steps:
            self._is_over = True
            self._kept = []
            # Behind a replay the loader's queues are fuller than they ever are: as many steps do not count.
            self._settles_at = self._num_real + self._num_steps
        return batch


def size_of(batch: object, depth: int = 0) -> int:
    """Return the bytes of a batch: of its arrays and tensors, in containers and objects too, as far as can be seen."""
    if isinstance(batch, bytes | bytearray | memoryview | str):
        return len(batch)
    num_bytes = getattr(batch, "nbytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    if depth >= _MAX_DEPTH:
        return 0
    if isinstance(batch, Mapping):
        return sum(size_of(value, depth + 1) for value in batch.values())
    if isinstance(batch, list | tuple | set | frozenset):
        return sum(size_of(value, depth + 1) for value in batch)
    inside = getattr(batch, "__dict__", None)
    if inside and not isinstance(batch, type):
        return sum(size_of(value, depth + 1) for value in inside.values())
    return sys.getsizeof(batch)
