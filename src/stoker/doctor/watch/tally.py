"""Any number of steps in bounded memory: exact sums, a coarse timeline and the latest steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64

Floats: TypeAlias = npt.NDArray[np.float64]

# Patterns are looked for in the latest 4,096 steps: 64 turns of the longest period that is looked for.
NUM_LATEST = 4096
# Enough parts to see a trend, few enough to hold and to draw.
_NUM_PARTS = 128


class StepKind(IntEnum):
    """What a step was, and so what its times are counted as."""

    STEADY = 0
    WARMUP = 1
    EPOCH_START = 2
    REPLAY = 3
    LEFT_OUT = 4


COUNTED = (StepKind.STEADY, StepKind.EPOCH_START)
"""What a verdict is about."""


@dataclass(frozen=True, kw_only=True)
class TimeSpread:
    """How times of one kind are spread.

    Attributes:
        mean_s: Of all of them, 0 where there are none.
        p50_s: Half of the latest 4,096 are at most this; p95_s and p99_s likewise.
        p95_s: See p50_s.
        p99_s: See p50_s.
        max_s: The longest of all.
    """

    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class Tally:
    """Takes blocks of steps and keeps what a report needs.

    Attributes:
        num_of: Steps of each kind.
        latest: The latest steady steps. Shape [N, 4]: step in its epoch, stall in ns, step in ns, workers that were
            late (`add`).
    """

    def __init__(self) -> None:
        self.num_of = dict.fromkeys(StepKind, 0)
        self.latest: Int64 = np.empty((0, 4), dtype=np.int64)
        self._total_ns = np.zeros((len(StepKind), 2), dtype=np.int64)  # stall, step
        self._longest_ns = np.zeros(2, dtype=np.int64)  # of steady steps
        self._timeline = Timeline()
        self._replayed: list[Int64] = [np.empty((0, 2), dtype=np.int64)]

    def add(self, block: Int64) -> None:
        """Take steps in order.

        Args:
            block: Shape [N, 5]: kind; step in its epoch; stall in ns; step in ns; a bit for each worker that had
                batches yet to make when this one came, -1 where nobody knows.
        """
        for kind in StepKind:
            rows = block[block[:, 0] == kind]
            times = rows[:, 2:4]
            self.num_of[kind] += len(rows)
            self._total_ns[kind] += times.sum(axis=0)
            if kind is StepKind.STEADY:
                self._longest_ns = np.maximum(self._longest_ns, times.max(axis=0, initial=0))
                self._timeline.add(times)
                self.latest = np.concatenate([self.latest, rows[:, 1:]])[-NUM_LATEST:]
            elif kind is StepKind.REPLAY:
                self._replayed.append(times.copy())

    def stall_s(self, *kinds: StepKind) -> float:
        """Return the stalls of some kinds of steps, summed."""
        return float(self._total_ns[list(kinds), 0].sum() / 1e9)

    def step_s(self, *kinds: StepKind) -> float:
        """Return the times of some kinds of steps, summed."""
        return float(self._total_ns[list(kinds), 1].sum() / 1e9)

    @property
    def counted_s(self) -> float:
        """All time that counts: steady steps, and those at an epoch's start."""
        return self.stall_s(*COUNTED) + self.step_s(*COUNTED)

    @property
    def parts(self) -> Int64:
        """The whole run of steady steps in at most 128 equal parts, the last may be shorter. [P, 3]: see `Timeline`."""
        return self._timeline.parts()

    @property
    def replayed(self) -> Int64:
        """Replayed steps. Shape [R, 2]: stall in ns, step in ns."""
        return np.concatenate(self._replayed)

    @property
    def stall(self) -> TimeSpread:
        """Stalls of steady steps."""
        return self._spread(0)

    @property
    def step(self) -> TimeSpread:
        """Times of steady steps."""
        return self._spread(1)

    def _spread(self, column: int) -> TimeSpread:
        if not len(self.latest):
            return TimeSpread()
        p50, p95, p99 = np.percentile(self.latest[:, 1 + column], (50, 95, 99), method="inverted_cdf") / 1e9
        total_s = self._total_ns[StepKind.STEADY, column] / 1e9
        return TimeSpread(
            mean_s=float(total_s) / self.num_of[StepKind.STEADY],
            p50_s=float(p50),
            p95_s=float(p95),
            p99_s=float(p99),
            max_s=float(self._longest_ns[column] / 1e9),
        )


class Timeline:
    """A run of any length in at most 128 equal parts: when they are full, neighbours are joined."""

    def __init__(self) -> None:
        self._width = 1  # steps a part
        self._parts: Int64 = np.zeros((_NUM_PARTS, 3), dtype=np.int64)
        self._num = 0  # steps taken

    def add(self, times_ns: Int64) -> None:
        """Take steps in order. Shape [N, 2]: stall, step."""
        while self._num + len(times_ns) > _NUM_PARTS * self._width:
            joined = self._parts.reshape(-1, 2, 3).sum(axis=1)
            self._parts = np.concatenate([joined, np.zeros_like(joined)])
            self._width *= 2
        at = (self._num + np.arange(len(times_ns))) // self._width
        np.add.at(self._parts, at, np.column_stack([np.ones(len(times_ns), dtype=np.int64), times_ns]))
        self._num += len(times_ns)

    def parts(self) -> Int64:
        """Return the parts that hold steps. Shape [P, 3]: steps, stall, step. A copy."""
        return self._parts[: -(-self._num // self._width)].copy()
