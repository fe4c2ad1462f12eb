"""The next epoch, begun before the one under way has ended, so that no step waits for its first windows and batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from stoker.loader.run import Run
from stoker.sampling.position import Position

# Batches that are made for an epoch nobody has asked for yet: the first step has its own at once, and while it computes
# the others are made. A loader whose epochs lie far apart, as of a validation, holds no more than these meanwhile.
_MOST_READY = 2


class NextEpoch:
    """Begins the run that probably comes next, and keeps it until the loop asks for it.

        batches   ... 508 509 510 511 │                     the last ones are being made, and threads have nothing
                              0   1   │ 2   3   4           left to do: they begin the next epoch

    So no more batches are made ahead than in the middle of an epoch.

    That another epoch comes nobody says. It is believed once a second one has followed the first; by then every chunk
    has been built, too, so nothing is fetched that may not be wanted. A loop that goes on elsewhere, or not at all,
    leaves what was begun to be closed.

    Args:
        prefetch: How many batches a run has ahead; 0 where none may be made before their epoch has begun.

    Attributes:
        lead: Batches before the end of the run from which on the next one is begun; 0 where it is not.
    """

    def __init__(self, *, prefetch: int) -> None:
        self._prefetch = prefetch
        self._now: weakref.ref[Run] | None = None
        self._expected: Position | None = None  # where the run behind the last one that ended begins
        self._is_likely = False
        self.lead = 0
        self._begun: tuple[Position, Run] | None = None

    @property
    def num_ready(self) -> int:
        """Batches that are ready for an epoch that nobody has asked for yet."""
        return 0 if self._begun is None else self._begun[1].num_ready

    def take(self, start: Position) -> Run | None:
        """Return the run that begins at `start`, if it was begun; any other is closed.

        Blocks: until batches in the making are done, where there is another.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        if begun[0] != start:
            begun[1].close()
            return None
        begun[1].allow(self._prefetch)
        return begun[1]

    def began(self, start: Position, run: Run) -> None:
        """Note the run that the loop is at from now on."""
        self._now = weakref.ref(run)
        self._is_likely = self._prefetch > 0 and start == self._expected
        self._expected = None
        self.lead = self._prefetch - 1 if self._is_likely else 0

    def handed(self, run: Run, begin: Callable[[Position, int], Run]) -> None:
        """Note that a batch was handed over, and begin the next run once nothing is left to make of this one.

        Where more than `lead` batches are left it does nothing, and need not be called.

        Args:
            run: Whose batch.
            begin: Begins a run; the second argument is how many batches it may have ahead.
        """
        if self._now is None or self._now() is not run:
            return
        num_left = run.num_left
        if self._begun is not None:
            self._begun[1].allow(self._room(num_left))
        elif self._is_likely and 0 < num_left <= self.lead:
            start = run.progress.position.next_epoch()
            try:
                self._begun = start, begin(start, self._room(num_left))
            except Exception:  # it belongs to the epoch that cannot begin, and is raised there again
                self._is_likely = False
        if not num_left:
            self._expected = run.progress.position

    def _room(self, num_left: int) -> int:
        """Return how many batches the next run may have ahead, beside so many that are left of this one."""
        return min(self._prefetch - num_left, _MOST_READY)
