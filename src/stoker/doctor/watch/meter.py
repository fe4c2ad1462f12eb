"""The stopwatch: when the loop asked for a batch, when it had it, and so how long it waited and how long it worked."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import numpy as np

from stoker.doctor.watch.device import DeviceSampler, DeviceTimes
from stoker.doctor.watch.tally import StepKind, Tally

# Steps that are collected before they are counted: about 1 ms of work every so many steps.
_BLOCK = 2048


class Meter:
    """Takes the moments of a training loop and counts what lies between.

        ask ───stall─── got ───step─── ask ───stall─── got ───step─── ask
         the loop waits     it works

    A step counts when the next `ask` ends it: what a loop does after it was left early is not a step.

    Args:
        warmup: Steps at the very beginning that count as warm-up.
        clock: Nanoseconds since any moment.
        synchronize: Called before each `ask`, so that work which the step only launched counts as step.
        device: Told the same moments, to time some steps on the device's own clock.

    Attributes:
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
        clock: Callable[[], int] = time.perf_counter_ns,
        synchronize: Callable[[], object] | None = None,
        device: DeviceSampler | None = None,
    ) -> None:
        self._clock = clock
        self._synchronize = synchronize
        self._device = device
        self._warmup = warmup
        self._tally = Tally()
        self._collected: list[int] = []  # the columns of `Tally.add`, five numbers a step
        self._counting = threading.Lock()
        self._asked_ns = 0
        self._got_ns: int | None = None  # None: no step is under way
        self.late = -1
        self._begin_ns = 0  # what beginning the epoch took, part of its first batch's stall
        self._in_epoch = 0
        self._kind = StepKind.WARMUP
        self.num_epochs = 0
        self.num_steps = 0
        self.stall_ns = 0
        self.first_batch_s = 0.0

    def begin_epoch(self, num_ns: int = 0) -> None:
        """Note that the next batch is an epoch's first one, and that beginning the epoch took `num_ns`."""
        self.pause()
        self._begin_ns = num_ns
        self._in_epoch = 0
        self.num_epochs += 1

    def now(self) -> int:
        """Return what the clock says."""
        return self._clock()

    def ask(self) -> None:
        """Note that the loop wants a batch: the step under way is over."""
        if self._got_ns is not None:
            if self._synchronize is not None:
                self._synchronize()
            if self._device is not None:
                self._device.ask()
            now = self._clock()
            collected = self._collected
            collected += (self._kind, self._in_epoch, self.stall_ns, now - self._got_ns, self.late)
            self._in_epoch += 1
            self._got_ns = None
            if len(collected) >= 5 * _BLOCK:
                with self._counting:
                    self._count()
                now = self._clock()  # counting is neither step nor stall
            self._asked_ns = now
        else:
            self._asked_ns = self._clock()

    def got(self, kind: StepKind | None = None) -> None:
        """Note that the batch is there.

        Args:
            kind: What the step is, where it is no ordinary one.
        """
        got = self._clock()
        self.stall_ns = got - self._asked_ns
        self.late = -1
        self.num_steps += 1
        if self._in_epoch == 0:
            self.stall_ns += self._begin_ns
            if self.num_steps == 1:
                self.first_batch_s = self.stall_ns / 1e9
        if kind is not None:
            self._kind = kind
        elif self._in_epoch and self.num_steps > self._warmup:
            self._kind = StepKind.STEADY
        else:
            self._kind = StepKind.WARMUP if self.num_steps <= self._warmup else StepKind.EPOCH_START
        if self._device is not None:
            if self._kind is StepKind.STEADY:
                self._device.got()
            else:
                self._device.drop()
        self._got_ns = got

    def pause(self) -> None:
        """Drop the step under way: what follows is no part of it."""
        self._got_ns = None
        if self._device is not None:
            self._device.drop()

    @property
    def is_synchronized(self) -> bool:
        """Whether step times are those of the device."""
        return self._synchronize is not None or self._device is not None

    def device_times(self) -> DeviceTimes | None:
        """Return what the device's own clock has said, where it was asked."""
        return None if self._device is None else self._device.times()

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
