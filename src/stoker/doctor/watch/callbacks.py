"""`watch` as a callback of frameworks that own the loop: their hooks become the moments of one.

from stoker.doctor.watch.callbacks import LightningWatch, TransformersWatch

trainer = Trainer(callbacks=[LightningWatch(on_report=print)])

The classes are made when they are asked for: each needs its framework.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import suppress
from typing import Any

from stoker.doctor.watch.meter import StepKind
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.traits import traits_of
from stoker.doctor.watch.watched import watch


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
        self._session = watch((), **options)._session
        self._is_in_epoch = False
        self._is_in_step = False
        self._is_disturbed = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as a callback of its own, which tells nobody here."""
        plain = {name: self._session.options[name] for name in ("warmup", "device", "ranks")}
        return functools.partial(type(self), **plain), ()

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


# Of each callback: what it says of itself, the module and the class that it extends, and which hook tells what.
_CALLBACKS: dict[str, tuple[str, tuple[str, ...], str, dict[str, Any]]] = {
    "LightningWatch": (
        """Watches `Trainer.fit`: does a step wait for its batch, when, and why?

        A stall goes from `on_train_batch_end` to the next `on_train_batch_start`: the loader, the way to the device,
        and the callbacks that come after this one, so put it last. Validation is left out; so is the step behind a
        checkpoint, for no hook tells when that is written.

        Args:
            options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
        """,
        ("lightning.pytorch", "pytorch_lightning"),
        "Callback",
        {
            "on_train_epoch_start": lambda self, trainer, *_: self.epoch_begins(trainer.train_dataloader),
            "on_train_batch_start": Hooks.step_begins,
            "on_train_batch_end": Hooks.step_ends,
            "on_validation_end": Hooks.interlude_ends,
            "on_save_checkpoint": Hooks.disturb,
            "on_train_epoch_end": Hooks.epoch_ends,
        },
    ),
    "TransformersWatch": (
        """Watches `Trainer.train`: does a step wait for its batches, when, and why?

        A step is the trainer's: with gradient accumulation, all its forward and backward passes. Its stall goes from
        `on_step_end`, or from the end of logging, evaluation or saving, to the next `on_step_begin`. The Trainer takes
        all batches of a step from the loader before it begins, and the loader itself is one batch ahead.

        Args:
            options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
        """,
        ("transformers",),
        "TrainerCallback",
        {
            "on_epoch_begin": lambda self, *_, train_dataloader=None, **__: self.epoch_begins(train_dataloader),
            "on_step_begin": Hooks.step_begins,
            "on_step_end": Hooks.step_ends,
            **dict.fromkeys(("on_log", "on_evaluate", "on_save"), Hooks.interlude_ends),
            "on_epoch_end": Hooks.epoch_ends,
        },
    ),
}


@functools.cache
def __getattr__(name: str) -> type[Hooks]:
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    about, modules, base_name, hooks = _CALLBACKS[name]
    for module in sorted(modules, key=lambda module: module not in sys.modules):  # one that is in use first
        with suppress(ImportError):
            base = getattr(importlib.import_module(module), base_name)
            return type(name, (Hooks, base), {"__doc__": about, "__module__": __name__, **hooks})
    framework = name.removesuffix("Watch")
    raise ImportError(f"{name} needs {framework}: pip install 'stoker[{framework.lower()}]'")
