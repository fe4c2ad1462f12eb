"""`watch` as a callback of the Hugging Face `Trainer`.

from stoker.doctor.watch.transformers import TransformersWatch

trainer = Trainer(..., callbacks=[TransformersWatch(on_report=print)])
"""

from __future__ import annotations

import importlib
from typing import Any, Unpack

from stoker.doctor.watch.hooks import Hooks, WatchOptions
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.session import Session


def _callback_class() -> Any:
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise ImportError("TransformersWatch needs Transformers: pip install 'stoker[transformers]'") from error


class TransformersWatch(_callback_class()):  # type: ignore[misc]  # which class it is shows at run time
    """Watches `Trainer.train`: does a step wait for its batches, when, and why?

    A step is the trainer's: with gradient accumulation, all its forward and backward passes. Its stall goes from
    `on_step_end`, or from the end of logging, evaluation or saving, to the next `on_step_begin`. The Trainer takes all
    batches of a step from the loader before it begins, and the loader itself is one batch ahead.

    Args:
        options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._hooks = Hooks(Session(**options))

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        return self._hooks.report()

    def on_epoch_begin(self, *_: Any, train_dataloader: Any = None, **__: Any) -> None:
        """Wait for the epoch's first batch."""
        self._hooks.epoch_begins(train_dataloader)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """The batches are there."""
        self._hooks.step_begins()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait for the next ones."""
        self._hooks.step_ends()

    def on_log(self, *_: Any, **__: Any) -> None:
        """Logging is no stall."""
        self._hooks.interlude_ends()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Nor is an evaluation."""
        self._hooks.interlude_ends()

    def on_save(self, *_: Any, **__: Any) -> None:
        """Nor is a checkpoint."""
        self._hooks.interlude_ends()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """The epoch is over."""
        self._hooks.epoch_ends()
