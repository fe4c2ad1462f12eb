"""`watch` as a callback of the Hugging Face `Trainer`.

from stoker.doctor.watch.transformers import TransformersWatch

trainer = Trainer(..., callbacks=[TransformersWatch(on_report=print)])
"""

from __future__ import annotations

import importlib
from typing import Any

from stoker.doctor.watch.hooks import Hooks


def _callback_class() -> Any:
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise ImportError("TransformersWatch needs Transformers: pip install 'stoker[transformers]'") from error


class TransformersWatch(Hooks, _callback_class()):  # type: ignore[misc]  # which class it is shows at run time
    """Watches `Trainer.train`: does a step wait for its batches, when, and why?

    A step is the trainer's: with gradient accumulation, all its forward and backward passes. Its stall goes from
    `on_step_end`, or from the end of logging, evaluation or saving, to the next `on_step_begin`. The Trainer takes all
    batches of a step from the loader before it begins, and the loader itself is one batch ahead.

    Args:
        options: `warmup`, `synchronize`, `device`, `ranks`, `on_report` of `stoker.watch`.
    """

    def on_epoch_begin(self, *_: Any, train_dataloader: Any = None, **__: Any) -> None:
        """Wait for the epoch's first batch."""
        self.epoch_begins(train_dataloader)

    on_step_begin = Hooks.step_begins
    on_step_end = Hooks.step_ends
    on_log = on_evaluate = on_save = Hooks.interlude_ends
    on_epoch_end = Hooks.epoch_ends
