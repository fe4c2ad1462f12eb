"""Which step each piece of a run's work is for: what makes a trace readable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stoker.metrics.stages import Subject
from stoker.sampling.steps import Steps

# Windows of one lane that are asked for and not yet built: a few, and some more where a batch takes several of them.
_WINDOWS = 64


class Subjects:
    """Subjects of one run's spans. Steps count from the epoch's beginning, as those of `Loader.explain` do.

    Args:
        epoch: Which epoch.
        steps: The run's.
        num_lanes: Lanes whose windows are asked for.
    """

    def __init__(self, *, epoch: int, steps: Steps, num_lanes: int) -> None:
        self._epoch = epoch
        self._steps = steps
        self._first_step = steps.start // steps.global_batch_size
        # (subject of the window, its chunks), the latest last: chunks of a past window are not built any more.
        self._asked: deque[tuple[Subject, frozenset[int]]] = deque(maxlen=_WINDOWS * num_lanes)

    def of_step(self, step: int) -> Subject:
        """Return the subject of a step, counted from the run's beginning."""
        return self._epoch, self._first_step + step, -1, -1

    def of_window(self, number: int, *, start: int) -> Subject:
        """Return the subject of a window: it is for the first step that uses it.

        Args:
            number: The window.
            start: The first position of the lane that it is used at.
        """
        start = max(start - self._steps.lane_start, 0)
        return self._epoch, self._first_step + start // self._steps.part_size, number, -1

    def asking(self, number: int, *, start: int, chunks: Iterable[int]) -> Subject:
        """Return the subject of a window, and note that its chunks are asked for now."""
        subject = self.of_window(number, start=start)
        numbers = frozenset(chunks)
        if (subject, numbers) not in list(self._asked):
            self._asked.append((subject, numbers))
        return subject

    def of_chunk(self, chunk: int) -> Subject:
        """Return the subject of a chunk that was asked for: it is for the first step of its window."""
        for (epoch, step, window, _), chunks in list(self._asked):
            if chunk in chunks:
                return epoch, step, window, chunk
        return self._epoch, -1, -1, chunk
