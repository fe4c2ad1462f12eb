"""Which epoch each pass over a `DataLoader` is, agreed on by processes that do not see each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Passes that are remembered: a worker may come to one when others are at the next already.
_NUM_ROWS = 16
_KEY_BITS = 32


class Pass(NamedTuple):
    """One pass over a DataLoader, in numbers alone."""

    number: int = 0  # of passes before it
    key: int = 0  # that all workers of the pass know, and those of another one do not; 0 where nobody has begun it
    base: int = 0  # the pass that begins at the position that follows; those after it are the epochs after that
    epoch: int = 0
    num_consumed: int = 0
    order: int = 0  # stands for the order that the position belongs to
    is_restored: int = 0  # saved, so that no epoch that is named may take its place

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and samples consumed where this pass begins."""
        since = self.number - self.base
        return (self.epoch + since, 0) if since > 0 else (self.epoch, self.num_consumed)

    @property
    def next(self) -> Pass:
        """The pass that begins next where this one is the last: itself, as long as nobody has begun it."""
        return self._replace(number=self.number + 1, key=0, is_restored=0) if self.key else self


class Passes:
    """A few numbers in memory that the owner of a DataLoader shares with its workers.

    Each pass is the epoch after the one before, unless the owner told another position. The owner does not see that
    workers that live on begin another pass, and they do not see each other. The first of them to come writes down how
    the pass begins, and so does one that comes at the same time: the same. Those that follow find it by its key.

    There is no lock, as none survives each way that a worker is started or killed. So a worker decides by what it read
    at one time, and what says that a row is there, its number and key, is one number: written last, read first.
    """

    def __init__(self) -> None:
        self._marks = _shared(_NUM_ROWS)  # number and key of each row
        self._positions = _shared(_NUM_ROWS, len(Pass._fields) - 2)

    @property
    def are_shared(self) -> bool:
        """Whether other processes see them: those that were copied with a data set are not."""
        return bool(self._marks.is_shared())

    @property
    def is_new(self) -> bool:
        """Whether no pass was ever begun or told."""
        return not self._rows()

    def copy(self) -> Passes:
        """Return the same numbers in memory of their own, for another owner."""
        other = Passes()
        for name, numbers in vars(self).items():
            vars(other)[name].copy_(numbers)
        return other

    def tell(self, epoch: int, num_consumed: int, *, is_restored: bool, order: int) -> None:
        """Let the next pass begin there."""
        number = self.last.next.number
        self.write(Pass(number, 0, number, epoch, num_consumed, order, is_restored))

    def write(self, row: Pass) -> None:
        """Note a pass."""
        number, key, *position = row
        place = number % _NUM_ROWS
        self._positions[place].copy_(torch.tensor(position))
        self._marks[place] = number << _KEY_BITS | key

    @property
    def last(self) -> Pass:
        """The last pass that somebody began, or the one after it, where the owner told that."""
        return max(self._rows(), default=Pass())

    def join(self, key: int | None) -> Pass:
        """Return the pass of this key; the next one where nobody has begun it, and always for None."""
        rows = self._rows()
        found = None if key is None else max((row for row in rows if row.key == _key(key)), default=None)
        if found is None:
            found = max(rows, default=Pass()).next._replace(key=_key(key or 0))
            self.write(found)
        return found

    def _rows(self) -> list[Pass]:
        marks = self._marks.tolist()  # before the positions: a row that is marked is whole
        rows = zip(marks, self._positions.tolist(), strict=True)
        return [Pass(mark >> _KEY_BITS, mark % (1 << _KEY_BITS), *position) for mark, position in rows if mark >= 0]


def _key(number: int) -> int:
    return 1 + number % ((1 << _KEY_BITS) - 1)


def _shared(*shape: int) -> torch.Tensor:
    """Return numbers in memory that processes share; made there: `share_memory_` copies by threads a fork has not."""
    storage = torch.UntypedStorage._new_shared(8 * math.prod(shape))
    numbers: torch.Tensor = torch.empty(0, dtype=torch.int64).set_(storage)
    return numbers.view(shape).fill_(-1)
