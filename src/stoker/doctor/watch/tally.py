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


@dataclass(frozen=True, kw_only=True)
class TimeSpread:
    """How times of one kind are spread.

    Attributes:
        num: Times.
        total_s: Their sum.
        p50_s: Half of the latest 4,096 are at most this; p95_s and p99_s likewise.
        p95_s: See p50_s.
        p99_s: See p50_s.
        max_s: The longest.
    """

    num: int = 0
    total_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Their mean, 0 where there are none."""
        return self.total_s / self.num if self.num else 0.0


@dataclass(frozen=True, kw_only=True)
class Tallied:
    """What is known of the steps so far.

    Attributes:
        num_of: Steps of each kind.
        stall_s_of: Their stalls, summed.
        step_s_of: Their steps, summed.
        stall: Stalls of steady steps.
        step: Step times of steady steps.
        latest: The latest steady steps. Shape [N, 4]: step in its epoch, stall in ns, step in ns, workers that were
            late (`Tally.add`).
        parts: The whole run of steady steps in at most 128 equal parts, the last may be shorter. Shape [P, 3]: steps,
            stall in ns, step in ns.
        replayed: Replayed steps. Shape [R, 2]: stall in ns, step in ns.
    """

    num_of: dict[StepKind, int]
    stall_s_of: dict[StepKind, float]
    step_s_of: dict[StepKind, float]
    stall: TimeSpread
    step: TimeSpread
    latest: Int64
    parts: Int64
    replayed: Int64

    @property
    def counted_s(self) -> float:
        """All time that counts: steady steps, and those at an epoch's start."""
        counted = (StepKind.STEADY, StepKind.EPOCH_START)
        return sum(self.stall_s_of[kind] + self.step_s_of[kind] for kind in counted)

    @property
    def waited_s(self) -> float:
        """What of it was waited."""
        return self.stall_s_of[StepKind.STEADY] + self.stall_s_of[StepKind.EPOCH_START]


class Tally:
    """Takes blocks of steps and keeps what a report needs."""

    def __init__(self) -> None:
        self._num = [0] * len(StepKind)
        self._total_ns = np.zeros((len(StepKind), 2), dtype=np.int64)  # stall, step
        self._longest_ns = np.zeros((len(StepKind), 2), dtype=np.int64)
        self._timeline = Timeline()
        self._latest: Int64 = np.empty((0, 4), dtype=np.int64)
        self._replayed: list[Int64] = []

    def add(self, block: Int64) -> None:
        """Take steps in order.

        Args:
            block: Shape [N, 5]: kind; step in its epoch; stall in ns; step in ns; a bit for each worker that had
                batches yet to make when this one came, -1 where nobody knows.
        """
        for kind in StepKind:
            rows = block[block[:, 0] == kind]
            if not len(rows):
                continue
            self._num[kind] += len(rows)
            self._total_ns[kind] += rows[:, 2:4].sum(axis=0)
            self._longest_ns[kind] = np.maximum(self._longest_ns[kind], rows[:, 2:4].max(axis=0))
            if kind is StepKind.STEADY:
                self._timeline.add(rows[:, 2:4])
                self._latest = np.concatenate([self._latest, rows[:, 1:]])[-NUM_LATEST:]
            elif kind is StepKind.REPLAY:
                self._replayed.append(rows[:, 2:4].copy())

    def look(self) -> Tallied:
        """Return what is known so far; later steps do not change it."""
        total_s = self._total_ns / 1e9
        return Tallied(
            num_of={kind: self._num[kind] for kind in StepKind},
            stall_s_of={kind: float(total_s[kind, 0]) for kind in StepKind},
            step_s_of={kind: float(total_s[kind, 1]) for kind in StepKind},
            stall=self._spread(0),
            step=self._spread(1),
            latest=self._latest.copy(),
            parts=self._timeline.parts(),
            replayed=np.concatenate([np.empty((0, 2), dtype=np.int64), *self._replayed]),
        )

    def _spread(self, column: int) -> TimeSpread:
        if not len(self._latest):
            return TimeSpread()
        times = self._latest[:, 1 + column]
        p50, p95, p99 = np.percentile(times, (50, 95, 99), method="inverted_cdf") / 1e9
        return TimeSpread(
            num=self._num[StepKind.STEADY],
            total_s=float(self._total_ns[StepKind.STEADY, column] / 1e9),
            p50_s=float(p50),
            p95_s=float(p95),
            p99_s=float(p99),
            max_s=float(self._longest_ns[StepKind.STEADY, column] / 1e9),
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
