"""What the callbacks share: a framework's hooks become the moments of a loop."""

from __future__ import annotations

from typing import Any

from stoker.doctor.watch.meter import StepKind
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.traits import traits_of
from stoker.doctor.watch.watched import Session


class Hooks:
    """A loop that a framework runs, told of hook by hook; a callback gives these methods its framework's names.

        epoch_begins ─► step_begins ─► step_ends ─► (interlude) ─► step_begins ─► ... ─► epoch_ends
                   stall          step                        stall

    Whatever else a framework says to a hook does not matter.

    Args:
        options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        if "replay" in options:
            raise TypeError("a callback cannot replay batches: it does not hand them out; wrap the loader in watch()")
        self._session = Session(**options)
        self._is_in_epoch = False
        self._is_in_step = False
        self._is_disturbed = False

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        return self._session.report()

    def epoch_begins(self, loader: object = None) -> None:
        """Wait for the first batch of an epoch over `loader`."""
        if loader is not None:
            self._session.traits = traits_of(loader)
        self._is_in_epoch, self._is_in_step, self._is_disturbed = True, False, False
        self._session.meter.begin_epoch()
        self._session.meter.ask()

    def step_begins(self, *_: Any, **__: Any) -> None:
        """The batch is there."""
        self._session.meter.got(StepKind.LEFT_OUT if self._is_disturbed else None)
        self._is_in_step, self._is_disturbed = True, False

    def step_ends(self, *_: Any, **__: Any) -> None:
        """Wait for the next batch."""
        self._is_in_step = False
        self._session.meter.ask()

    def interlude_ends(self, *_: Any, **__: Any) -> None:
        """Something else than waiting took place between two steps, and is over: the stall begins now.

        Inside a step it is part of the step.
        """
        if self._is_in_epoch and not self._is_in_step:
            self._session.meter.ask()

    def disturb(self, *_: Any, **__: Any) -> None:
        """Something else begins between two steps, and no hook tells when it is over: leave the next step out."""
        self._is_disturbed = not self._is_in_step

    def epoch_ends(self, *_: Any, **__: Any) -> None:
        """The epoch ran to its end."""
        if self._is_in_epoch:
            self._is_in_epoch = self._is_in_step = False
            self._session.meter.pause()
            self._session.end_epoch()
