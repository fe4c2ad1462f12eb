"""Which epoch each pass over a `DataLoader` is, agreed on by processes that do not see each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Workers of one DataLoader; the process that owns it has a place of its own before theirs.
_MAX_WORKERS = 1023
# Passes that are remembered: a worker may come to one when others are at the next already.
_NUM_ROWS = 16
_MAX_KEY = (1 << 62) - 1


class Pass(NamedTuple):
    """One pass over a DataLoader, in numbers alone.

    Attributes:
        number: Passes before it.
        key: What all workers of the pass know, and hardly ever those of another one; -1 where nobody has begun it.
        base: The pass that begins at the position that follows. Those after it are the epochs after that.
        epoch: Of the position.
        num_consumed: Samples of that epoch that come before the position.
        order: Stands for the order that the position belongs to.
        is_restored: Whether it was saved, so that no epoch that is named may take its place.
    """

    number: int = 0
    key: int = -1
    base: int = 0
    epoch: int = 0
    num_consumed: int = 0
    order: int = 0
    is_restored: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and samples consumed where this pass begins."""
        since = self.number - self.base
        return (self.epoch + since, 0) if since > 0 else (self.epoch, self.num_consumed)


class Passes:
    """A few numbers in memory that the owner of a DataLoader shares with its workers.

    Each pass is the epoch after the one before, unless the owner told another position. The owner does not see its
    workers begin a pass, and they do not see each other. The first of them to come writes down how the pass begins, and
    so does one that comes at the same time: the same. Those that follow find it by its key, behind the pass that they
    were in before. Two workers, three passes with the keys a, b, c:

        passes      0: a   1: b   2: c
        worker 0         was in pass 2
        worker 1         was in pass 1, has the key c: joins pass 2
    """

    def __init__(self) -> None:
        self._rows = _shared(_NUM_ROWS, len(Pass._fields))
        self._joined = _shared(_MAX_WORKERS + 1)

    def copy(self) -> Passes:
        """Return the same numbers in memory of their own, for another owner."""
        other = Passes()
        other._rows.copy_(self._rows)
        other._joined.copy_(self._joined)
        return other

    def tell(self, epoch: int, num_consumed: int, *, is_restored: bool, order: int) -> None:
        """Let the next pass begin there."""
        number = self.next.number
        self.write(Pass(number, -1, number, epoch, num_consumed, order, is_restored))

    def write(self, row: Pass) -> None:
        """Note a pass."""
        place = self._rows[row.number % _NUM_ROWS]
        place[1] = -1  # begun is it last of all
        place.copy_(torch.tensor(row))

    @property
    def told(self) -> Pass | None:
        """The pass that the owner told, as long as nobody has begun it."""
        told = [row for row in self._all() if row.key < 0]
        return max(told) if told and max(told) > (self.latest or Pass(-1)) else None

    @property
    def latest(self) -> Pass | None:
        """The last pass that somebody began."""
        return max((row for row in self._all() if row.key >= 0), default=None)

    @property
    def next(self) -> Pass:
        """The pass that comes next."""
        if (told := self.told) is not None:
            return told
        latest = self.latest
        return Pass() if latest is None else latest._replace(number=latest.number + 1, key=-1, is_restored=0)

    def join(self, worker: int | None, key: int) -> Pass:
        """Return the pass that this worker is in now; the next one where no worker of the same key has begun it.

        Args:
            worker: Its number; None in the process that owns the DataLoader, whose passes are its own.
            key: See `Pass`.

        Raises:
            ValueError: There are too many workers.
        """
        if worker is not None and worker >= _MAX_WORKERS:
            raise ValueError(f"a TorchDataset serves {_MAX_WORKERS} workers at most")
        key, place = key & _MAX_KEY, 0 if worker is None else worker + 1
        before = int(self._joined[place])
        same = [row for row in self._all() if worker is not None and row.key == key and row.number > before]
        if same:
            found = max(same)
        else:
            found = self.next._replace(key=key)
            self.write(found)
        self._joined[place] = found.number
        return found

    def _all(self) -> list[Pass]:
        return [Pass(*row) for row in self._rows.tolist() if row[0] >= 0]


def _shared(*shape: int) -> torch.Tensor:
    """Return numbers in memory that processes share; made there: `share_memory_` copies by threads a fork has not."""
    storage = torch.UntypedStorage._new_shared(8 * math.prod(shape))
    numbers: torch.Tensor = torch.empty(0, dtype=torch.int64).set_(storage)
    return numbers.view(shape).fill_(-1)
