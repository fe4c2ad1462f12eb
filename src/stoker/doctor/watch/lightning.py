"""`watch` as a callback of Lightning.

from stoker.doctor.watch.lightning import LightningWatch

trainer = Trainer(callbacks=[LightningWatch(on_report=print)])
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Unpack

from stoker.doctor.watch.hooks import Hooks, WatchOptions
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.session import Session


def _callback_class() -> Any:
    """Return the `Callback` of the Lightning in use: `lightning` and `pytorch_lightning` are two packages."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):  # stable: what is loaded already, first
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("LightningWatch needs Lightning: pip install 'stoker[lightning]'")


class LightningWatch(_callback_class()):  # type: ignore[misc]  # which class it is shows at run time
    """Watches `Trainer.fit`: does a step wait for its batch, when, and why?

    A stall goes from `on_train_batch_end` to the next `on_train_batch_start`: the loader, the way to the device, and
    the callbacks that come after this one, so put it last. Validation is left out; so is the step behind a checkpoint.

    Args:
        options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._hooks = Hooks(Session(**options))

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        return self._hooks.report()

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Wait for the epoch's first batch."""
        self._hooks.epoch_begins(trainer.train_dataloader)

    def on_train_batch_start(self, *_: Any) -> None:
        """The batch is there."""
        self._hooks.step_begins()

    def on_train_batch_end(self, *_: Any) -> None:
        """Wait for the next batch."""
        self._hooks.step_ends()

    def on_validation_end(self, *_: Any) -> None:
        """Validation is no stall."""
        self._hooks.interlude_ends()

    def on_save_checkpoint(self, *_: Any) -> None:
        """Writing a checkpoint is no stall; it begins here, and no hook tells when it is over."""
        self._hooks.disturb()

    def on_train_epoch_end(self, *_: Any) -> None:
        """The epoch is over."""
        self._hooks.epoch_ends()
