"""Which epoch each pass over a `DataLoader` is, agreed on by processes that do not see each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Workers of one DataLoader; the process that owns it has a place of its own before theirs.
_MAX_WORKERS = 1023
# A worker may come late to a pass that began before the last times that a position was told.
_MAX_TOLD = 64
_NUMBER_BITS, _TOLD_BITS, _KEY_BITS = 20, 20, 23


class Pass(NamedTuple):
    """One pass over a DataLoader.

    Attributes:
        told: How often a position was told before it began.
        number: Passes since then.
    """

    told: int
    number: int


class Loaded(NamedTuple):
    """Where one worker stood in the pass of a saved state, in numbers alone.

    Attributes:
        told: Of the pass that goes on from there, as `number`.
        number: See `Pass`.
        epoch: Of the saved pass.
        num_consumed: Samples of that epoch that were consumed when the saved pass began.
        first: The worker that made the saved pass's first step.
        num_made: Steps that came from this worker.
        is_over: Whether the saved pass had come to its end, so that the one that goes on from it has no batches.
        global_batch_size: Of the saved pass.
        remainder: Of the saved pass, as a number.
        is_special: Whether its order is not the one that the data set was made with: only who has the state knows it.
    """

    told: int
    number: int
    epoch: int
    num_consumed: int
    first: int
    num_made: int
    is_over: int
    global_batch_size: int
    remainder: int
    is_special: int


class Passes:
    """A few numbers in memory that the owner of a DataLoader shares with its workers.

    Each pass is the epoch after the one before, from the position on that the owner told last. The owner does not see
    its workers begin a pass, and they do not see each other: each writes down which pass it has joined, in one word,
    and who joins a pass looks for somebody with the same key in it. Two workers, three passes with the keys a, b, c:

        worker 0    a0  b1  c2
        worker 1    a0  b1  ..    joins pass 2, because c is there; without it pass 2 as well, as the next one
    """

    def __init__(self) -> None:
        self._count = _shared(1, fill=0)
        self._told = _shared(_MAX_TOLD, 4, fill=0)
        self._joined = _shared(_MAX_WORKERS + 1, fill=-1)
        self._loaded = _shared(_MAX_WORKERS + 1, len(Loaded._fields), fill=-1)

    def copy(self) -> Passes:
        """Return the same numbers in memory of their own, for another owner."""
        other = Passes()
        for mine, own in zip(self.__dict__.values(), other.__dict__.values(), strict=True):
            own.copy_(mine)
        return other

    # ------------------------------------------------------------------ the owner

    def tell(self, epoch: int, num_consumed: int, *, is_restored: bool, order: int = 0) -> None:
        """Let the next pass begin there, in an order that a number stands for."""
        count = self.num_told + 1
        self._told[count % _MAX_TOLD] = torch.tensor([epoch, num_consumed, is_restored, order])
        self._count[0] = count  # last: whoever reads it finds the rest

    @property
    def num_told(self) -> int:
        """How often a position was told."""
        return int(self._count[0])

    @property
    def is_restored(self) -> bool:
        """Whether the next pass goes on from a saved position."""
        return bool(self._told[self.num_told % _MAX_TOLD, 2]) and self.latest is None

    @property
    def latest(self) -> Pass | None:
        """The last pass that somebody joined since a position was told; None before the first."""
        passes = [one for one in self._passes() if one.told == self.num_told]
        return max(passes, default=None)

    @property
    def has_begun(self) -> bool:
        """Whether there was any pass."""
        return bool(self._passes())

    # ------------------------------------------------------------------ whoever makes batches

    def join(self, worker: int | None, key: int) -> Pass:
        """Return the pass that this worker is in now; a new one where no worker of the same key is in a later one.

        Args:
            worker: Its number; None in the process that owns the DataLoader.
            key: What all workers of a pass know, and hardly ever those of another one.

        Raises:
            ValueError: There are too many workers.
        """
        if worker is not None and worker >= _MAX_WORKERS:
            raise ValueError(f"a TorchDataset serves {_MAX_WORKERS} workers at most")
        place = 0 if worker is None else worker + 1
        key &= (1 << _KEY_BITS) - 1
        words = self._joined.tolist()
        own = _pass_of(words[place]) if words[place] >= 0 else Pass(-1, -1)
        same = [] if worker is None else [_pass_of(word) for word in words if word >= 0 and _key_of(word) == key]
        found = max((one for one in same if one > own), default=None)
        if found is None:
            told = self.num_told
            found = Pass(told, 1 + max((one.number for one in map(_pass_of, words) if one.told == told), default=-1))
        # One word, so that others see all of it or nothing.
        self._joined[place] = (((key << _TOLD_BITS) | found.told) << _NUMBER_BITS) | found.number
        return found

    def told(self, which: Pass) -> tuple[int, int, int]:
        """Return epoch, samples consumed and order of the position from which a pass was counted."""
        epoch, num_consumed, _, order = self._told[which.told % _MAX_TOLD].tolist()
        return epoch, num_consumed, order

    # ------------------------------------------------------------------ saved states, which each worker gets its own of

    def load(self, worker: int | None, loaded: Loaded) -> None:
        """Note where a worker stood. All do so before any of them is asked for a batch."""
        self._loaded[0 if worker is None else worker + 1] = torch.tensor(loaded)

    def loaded(self, which: Pass) -> list[Loaded]:
        """Return where workers stood in the state that this pass, or the last one before that has one, goes on from."""
        rows = [Loaded(*row) for row in self._loaded.tolist()]
        rows = [row for row in rows if row.told == which.told and 0 <= row.number <= which.number]
        last = max((row.number for row in rows), default=None)
        return [row for row in rows if row.number == last]

    def _passes(self) -> list[Pass]:
        return [_pass_of(word) for word in self._joined.tolist() if word >= 0]


def _shared(*shape: int, fill: int) -> torch.Tensor:
    """Return numbers in memory that processes share; made there: `share_memory_` copies by threads a fork has not."""
    storage = torch.UntypedStorage._new_shared(8 * math.prod(shape))
    numbers: torch.Tensor = torch.empty(0, dtype=torch.int64).set_(storage)
    return numbers.view(shape).fill_(fill)


def _pass_of(word: int) -> Pass:
    return Pass((word >> _NUMBER_BITS) & ((1 << _TOLD_BITS) - 1), word & ((1 << _NUMBER_BITS) - 1))


def _key_of(word: int) -> int:
    return word >> (_NUMBER_BITS + _TOLD_BITS)
