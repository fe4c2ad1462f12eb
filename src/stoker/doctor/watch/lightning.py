"""`watch` as a callback of Lightning.

from stoker.doctor.watch.lightning import LightningWatch

trainer = Trainer(callbacks=[LightningWatch(on_report=print)])
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from stoker.doctor.watch.hooks import Hooks


def _callback_class() -> Any:
    """Return the `Callback` of the Lightning in use: `lightning` and `pytorch_lightning` are two packages."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):  # stable: what is loaded already, first
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("LightningWatch needs Lightning: pip install 'stoker[lightning]'")


class LightningWatch(Hooks, _callback_class()):  # type: ignore[misc]  # which class it is shows at run time
    """Watches `Trainer.fit`: does a step wait for its batch, when, and why?

    A stall goes from `on_train_batch_end` to the next `on_train_batch_start`: the loader, the way to the device, and
    the callbacks that come after this one, so put it last. Validation is left out; so is the step behind a checkpoint,
    for no hook tells when that is written.

    Args:
        options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
    """

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Wait for the epoch's first batch."""
        self.epoch_begins(trainer.train_dataloader)

    on_train_batch_start = Hooks.step_begins
    on_train_batch_end = Hooks.step_ends
    on_validation_end = Hooks.interlude_ends
    on_save_checkpoint = Hooks.disturb
    on_train_epoch_end = Hooks.epoch_ends
