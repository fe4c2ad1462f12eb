"""The stopwatch: when the loop asked for a batch, when it had it; and any number of steps in bounded memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.doctor.watch.device import DeviceSampler
from stoker.fields.offsets import Int64

Floats: TypeAlias = npt.NDArray[np.float64]

# Patterns are looked for in the latest 4,096 steps: 64 turns of the longest period that is looked for.
NUM_LATEST = 4096
# Parts of a run: enough to see a trend, few enough to hold and to draw.
_NUM_PARTS = 128
# Steps that are collected before they are counted: about 1 ms of work every so many steps.
_BLOCK = 2048


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
    """How times of one kind are spread: the mean and the longest of all, percentiles of the latest 4,096."""

    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class Tally:
    """Takes blocks of steps and keeps what a report needs: exact sums, a coarse timeline and the latest steps.

    Attributes:
        latest: The latest steady steps. Shape [N, 4]: step in its epoch, stall in ns, step in ns, workers that were
            late (`add`).
        replayed: Replayed steps. Shape [R, 2]: stall in ns, step in ns.
    """

    def __init__(self) -> None:
        self.latest: Int64 = np.empty((0, 4), dtype=np.int64)
        self.replayed: Int64 = np.empty((0, 2), dtype=np.int64)
        self._sums = np.zeros((len(StepKind), 3), dtype=np.int64)  # steps, stall, step
        self._longest_ns = np.zeros(2, dtype=np.int64)  # of steady steps
        self._width = 1  # steps of a part
        self._parts: Int64 = np.zeros((_NUM_PARTS, 3), dtype=np.int64)

    def add(self, block: Int64) -> None:
        """Take steps in order.

        Args:
            block: Shape [N, 5]: kind; step in its epoch; stall in ns; step in ns; a bit for each worker that had
                batches yet to make when this one came, -1 where nobody knows.
        """
        steady, replayed = (block[block[:, 0] == kind] for kind in (StepKind.STEADY, StepKind.REPLAY))
        self.latest = np.concatenate([self.latest, steady[:, 1:]])[-NUM_LATEST:]
        self.replayed = np.concatenate([self.replayed, replayed[:, 2:4]])
        self._longest_ns = np.maximum(self._longest_ns, steady[:, 2:4].max(axis=0, initial=0))
        num, ones = self.num(StepKind.STEADY), np.ones_like(block[:, :1])
        while num + len(steady) > _NUM_PARTS * self._width:  # full: neighbours are joined
            joined = self._parts.reshape(-1, 2, 3).sum(axis=1)
            self._parts = np.concatenate([joined, np.zeros_like(joined)])
            self._width *= 2
        at = (num + np.arange(len(steady))) // self._width
        np.add.at(self._parts, at, np.hstack([ones[: len(steady)], steady[:, 2:4]]))
        np.add.at(self._sums, block[:, 0], np.hstack([ones, block[:, 2:4]]))

    def num(self, *kinds: StepKind) -> int:
        """Return how many steps of some kinds there were."""
        return int(self._sums[list(kinds), 0].sum())

    def stall_s(self, *kinds: StepKind) -> float:
        """Return the stalls of some kinds of steps, summed."""
        return float(self._sums[list(kinds), 1].sum() / 1e9)

    def step_s(self, *kinds: StepKind) -> float:
        """Return the times of some kinds of steps, summed."""
        return float(self._sums[list(kinds), 2].sum() / 1e9)

    @property
    def counted_s(self) -> float:
        """All time that counts: steady steps, and those at an epoch's start."""
        return self.stall_s(*COUNTED) + self.step_s(*COUNTED)

    @property
    def parts(self) -> Int64:
        """All steady steps in at most 128 equal parts, the last may be shorter. Shape [P, 3]: steps, stall, step."""
        return self._parts[: -(-self.num(StepKind.STEADY) // self._width)].copy()

    def spread(self, column: int) -> TimeSpread:
        """Return how stalls (0) or times (1) of steady steps are spread."""
        if not len(self.latest):
            return TimeSpread()
        p50, p95, p99 = np.percentile(self.latest[:, 1 + column], (50, 95, 99), method="inverted_cdf") / 1e9
        num, total_ns = self._sums[StepKind.STEADY, [0, 1 + column]]
        return TimeSpread(
            mean_s=float(total_ns / 1e9) / int(num),
            p50_s=float(p50),
            p95_s=float(p95),
            p99_s=float(p99),
            max_s=float(self._longest_ns[column] / 1e9),
        )


class Meter:
    """Takes the moments of a training loop and counts what lies between.

        ask ───stall─── got ───step─── ask ───stall─── got ───step─── ask
         the loop waits     it works

    A step counts when the next `ask` ends it: what a loop does after it was left early is not a step.

    Args:
        warmup: Steps at the very beginning that count as warm-up.
        clock: Nanoseconds since any moment.
        synchronize: Called before each `ask`, so that work which the step only launched counts as step.
        device: Told the same moments, to time some steps on the device's own clock; kept under this name.

    Attributes:
        now: Returns what the clock says.
        num_epochs: Epochs begun.
        num_steps: Batches handed over.
        stall_ns: What the step under way waited for its batch.
        late: Which workers had batches yet to make when it came, a bit each; -1 where nobody knows.
        first_batch_s: What the very first batch took.
    """

    def __init__(
        self,
        *,
        warmup: int,
        clock: Callable[[], int],
        synchronize: Callable[[], object] | None,
        device: DeviceSampler | None,
    ) -> None:
        self.now = clock
        self._synchronize = synchronize
        self.device = device
        self._warmup = warmup
        self._tally = Tally()
        self._collected: list[int] = []  # the columns of `Tally.add`, five numbers a step
        self._counting = threading.Lock()
        self._asked_ns = 0
        self._got_ns: int | None = None  # None: no step is under way
        self.late = -1
        self._begin_ns = 0  # what ending the last epoch and beginning this one took, part of its first batch's stall
        self._in_epoch = 0
        self._kind = StepKind.WARMUP
        self.num_epochs = 0
        self.num_steps = 0
        self.stall_ns = 0
        self.first_batch_s = 0.0

    def begin_epoch(self, num_ns: int = 0) -> None:
        """Note that the next batch is an epoch's first one, and that beginning the epoch took `num_ns`."""
        self.pause()
        self._begin_ns += num_ns
        self._in_epoch = 0
        self.num_epochs += 1

    def end_epoch(self) -> None:
        """Note that there is no batch: what it took to say so is part of what the next epoch's first one takes."""
        self._begin_ns = self.now() - self._asked_ns

    def ask(self) -> None:
        """Note that the loop wants a batch: the step under way is over."""
        if self._got_ns is None:
            self._asked_ns = self.now()
            return
        if self._synchronize is not None:
            self._synchronize()
        if self.device is not None:
            self.device.ask()
        now = self.now()
        collected = self._collected
        collected += (self._kind, self._in_epoch, self.stall_ns, now - self._got_ns, self.late)
        self._in_epoch += 1
        self._got_ns = None
        if len(collected) >= 5 * _BLOCK:
            with self._counting:
                self._count()
            now = self.now()  # counting is neither step nor stall
        self._asked_ns = now

    def got(self, kind: StepKind | None = None) -> None:
        """Note that the batch is there.

        Args:
            kind: What the step is, where it is no ordinary one.
        """
        got = self.now()
        self.stall_ns = got - self._asked_ns
        self.late = -1
        self.num_steps += 1
        if self._in_epoch == 0:
            self.stall_ns += self._begin_ns
            self._begin_ns = 0
            if self.num_steps == 1:
                self.first_batch_s = self.stall_ns / 1e9
        if kind is not None:
            self._kind = kind
        elif self._in_epoch and self.num_steps > self._warmup:
            self._kind = StepKind.STEADY
        else:
            self._kind = StepKind.WARMUP if self.num_steps <= self._warmup else StepKind.EPOCH_START
        if self.device is not None:
            if self._kind is StepKind.STEADY:
                self.device.got()
            else:
                self.device.drop()
        self._got_ns = got

    def pause(self) -> None:
        """Drop the step under way: what follows is no part of it."""
        self._got_ns = None
        if self.device is not None:
            self.device.drop()

    def look(self) -> Tally:
        """Return what is known of the steps that are over; later ones do not change it. Any thread may."""
        with self._counting:
            self._count()
            return copy.deepcopy(self._tally)

    def _count(self) -> None:
        num = len(self._collected)  # whole steps, whatever a loop in another thread adds: five numbers at once
        if num:
            self._tally.add(np.array(self._collected[:num], dtype=np.int64).reshape(-1, 5))
            del self._collected[:num]
