"""What the accelerator did when: arithmetic on stretches of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TimeRange(NamedTuple):
    """A stretch of time in seconds."""

    start: float
    stop: float


def busy_s(steps: Sequence[TimeRange]) -> float:
    """Return how long the accelerator computed. Steps do not overlap."""
    return sum(step.stop - step.start for step in steps)


def waited_s(fetches: Sequence[TimeRange], steps: Sequence[TimeRange], *, start: float) -> float:
    """Return how long the accelerator had nothing to do because the loop was waiting for a batch.

        fetches  ──█████──────██──────────    the loop waits for batch 0, batch 1
        steps    ─────────███──────███────    step 0, step 1
                   ▲▲▲▲▲       ▲▲             counted: fetching while no step runs

    Args:
        fetches: When the loop waited for the batch of each step.
        steps: The steps, in order, as many as fetches.
        start: When the epoch began.
    """
    total = 0.0
    free_from = start
    for fetch, step in zip(fetches, steps, strict=True):
        total += max(0.0, min(fetch.stop, step.start) - max(fetch.start, free_from))
        free_from = step.stop
    return total


def busy_over_time(steps: Sequence[TimeRange], *, start: float, stop: float, bin_s: float) -> list[float]:
    """Return the share of each `bin_s` between `start` and `stop` that steps take; the last may be shorter."""
    num_bins = max(1, -int(-(stop - start) // bin_s))
    busy = [0.0] * num_bins
    for step in steps:
        first = max(0, int((step.start - start) / bin_s))
        last = min(num_bins - 1, int((step.stop - start) / bin_s))
        for i in range(first, last + 1):
            begin, end = start + i * bin_s, start + (i + 1) * bin_s
            busy[i] += max(0.0, min(step.stop, end) - max(step.start, begin))
    lengths = [min(bin_s, stop - start - i * bin_s) or bin_s for i in range(num_bins)]
    return [round(min(1.0, time / length), 4) for time, length in zip(busy, lengths, strict=True)]
