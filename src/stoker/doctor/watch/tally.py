"""Any number of steps in bounded memory: exact sums, histograms, a coarse timeline and the latest steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64

Floats: TypeAlias = npt.NDArray[np.float64]

# A histogram's bins grow by 2 %, so a percentile is off by 1 % at most; 1,512 of them reach from 1 ns to 2.8 hours.
_GROWTH = 1.02
_NUM_BINS = 1512
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
        p50_s: Half of them are at most this; p95_s and p99_s likewise. Exact up to 4,096 times, else within 1 %.
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
        step: Step times of steady steps, and of those at an epoch's start.
        latest: The latest steady steps. Shape [N, 4]: step in its epoch, stall in ns, step in ns, readiness of the
            batches behind (`Tally.add`).
        parts: The whole run of steady steps in at most 128 equal parts, the last may be shorter. Shape [P, 3]: steps,
            stall in ns, step in ns.
        replayed: Replayed steps. Shape [R, 2]: stall in ns, step in ns.
        longest_start_s: The longest wait for an epoch's first batch, the first epoch left out.
    """

    num_of: dict[StepKind, int]
    stall_s_of: dict[StepKind, float]
    step_s_of: dict[StepKind, float]
    stall: TimeSpread
    step: TimeSpread
    latest: Int64
    parts: Int64
    replayed: Int64
    longest_start_s: float


class Tally:
    """Takes blocks of steps and keeps what a report needs."""

    def __init__(self) -> None:
        self._num = [0] * len(StepKind)
        self._stall_ns = [0] * len(StepKind)
        self._step_ns = [0] * len(StepKind)
        self._stalls = Histogram()
        self._steps = Histogram()
        self._timeline = Timeline()
        self._latest: Int64 = np.empty((0, 4), dtype=np.int64)
        self._replayed: list[Int64] = []
        self._longest_start_ns = 0

    def add(self, block: Int64) -> None:
        """Take steps in order.

        Args:
            block: Shape [N, 5]: kind; step in its epoch; stall in ns; step in ns; thousandths of the other workers'
                batches that were ready behind this one when it came, -1 where nobody knows.
        """
        kinds = block[:, 0]
        for kind in StepKind:
            rows = block[kinds == kind]
            if not len(rows):
                continue
            self._num[kind] += len(rows)
            self._stall_ns[kind] += int(rows[:, 2].sum())
            self._step_ns[kind] += int(rows[:, 3].sum())
            if kind in (StepKind.STEADY, StepKind.EPOCH_START):
                self._steps.add(rows[:, 3])
            if kind is StepKind.STEADY:
                self._stalls.add(rows[:, 2])
                self._timeline.add(rows[:, 2:4])
                self._latest = np.concatenate([self._latest, rows[:, 1:]])[-NUM_LATEST:]
            elif kind is StepKind.REPLAY:
                self._replayed.append(rows[:, 2:4].copy())
            elif kind is StepKind.EPOCH_START:
                self._longest_start_ns = max(self._longest_start_ns, int(rows[:, 2].max()))

    def look(self) -> Tallied:
        """Return what is known so far; later steps do not change it."""
        return Tallied(
            num_of={kind: self._num[kind] for kind in StepKind},
            stall_s_of={kind: self._stall_ns[kind] / 1e9 for kind in StepKind},
            step_s_of={kind: self._step_ns[kind] / 1e9 for kind in StepKind},
            stall=self._stalls.spread(),
            step=self._steps.spread(),
            latest=self._latest.copy(),
            parts=self._timeline.parts(),
            replayed=np.concatenate([np.empty((0, 2), dtype=np.int64), *self._replayed]),
            longest_start_s=self._longest_start_ns / 1e9,
        )


class Histogram:
    """Percentiles of any number of times: exact while they are few, within 1 % after."""

    def __init__(self) -> None:
        self._counts: Int64 = np.zeros(_NUM_BINS, dtype=np.int64)
        self._few: Int64 | None = np.empty(0, dtype=np.int64)
        self._num = 0
        self._total_ns = 0
        self._max_ns = 0

    def add(self, times_ns: Int64) -> None:
        """Take some times."""
        self._num += len(times_ns)
        self._total_ns += int(times_ns.sum())
        self._max_ns = max(self._max_ns, int(times_ns.max(initial=0)))
        bins = np.log(np.maximum(times_ns, 1)) / np.log(_GROWTH)
        self._counts += np.bincount(np.minimum(bins.astype(np.int64), _NUM_BINS - 1), minlength=_NUM_BINS)
        if self._few is not None:
            self._few = np.concatenate([self._few, times_ns]) if self._num <= NUM_LATEST else None

    def spread(self) -> TimeSpread:
        """Return how they are spread."""
        if not self._num:
            return TimeSpread()
        p50, p95, p99 = (self._percentile(share) for share in (0.5, 0.95, 0.99))
        return TimeSpread(
            num=self._num,
            total_s=self._total_ns / 1e9,
            p50_s=p50,
            p95_s=p95,
            p99_s=p99,
            max_s=self._max_ns / 1e9,
        )

    def _percentile(self, share: float) -> float:
        rank = max(0, int(np.ceil(share * self._num)) - 1)
        if self._few is not None:
            return float(np.partition(self._few, rank)[rank]) / 1e9
        at = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        middle = _GROWTH ** (at + 0.5) if at else 0.0  # bin 0 holds what is no time at all
        return float(min(middle, self._max_ns) / 1e9)


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
