"""What goes wrong in silence under the loops of some frameworks, found by looking who asks for batches.

A data set is not told what a DataLoader or a framework does with its batches, nor that a run goes on from a checkpoint;
the frames that called it know. They are looked through once a pass. In a forked worker they are those of the process
that owns the DataLoader; for a spawned one, they are looked through when the data set is pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

SHARED_TWICE = (
    "this DataLoader's batches are shared out among ranks already, and Accelerate would share them out once more, so "
    "that most rows never come: prepare it with stoker.hf.prepare(accelerator, loader), not accelerator.prepare(loader)"
)
_BATCHED_TWICE = (
    "a TorchDataset gives whole batches, and this DataLoader would make batches of them: give it batch_size=None, and "
    "TorchDataset the batch size. In transformers.Trainer, override get_train_dataloader (and get_eval_dataloader) to "
    "return stoker.hf.prepare(self.accelerator, DataLoader(dataset, batch_size=None))"
)
_CUT_LISTS = (
    "Accelerate's dispatch_batches cuts every tensor of a batch at its number of samples, the values of ragged fields "
    "too: prepare it with stoker.hf.prepare(accelerator, loader) instead of accelerator.prepare(loader)"
)
_OTHER_EPOCH = (
    "transformers.Trainer is in epoch {wanted}, but this pass would be epoch {epoch}: Trainer tells it only to what "
    "Accelerate prepared. Let get_train_dataloader return stoker.hf.prepare(self.accelerator, loader)"
)
_NO_POSITION = (
    "Lightning goes on from a checkpoint, but has not handed its position to the loader (it never does so to a plain "
    "DataLoader, nor to any loader once trainer.estimated_stepping_batches was asked for): give the Trainer "
    "callbacks=[stoker.lightning.KeepPosition(loader)], in the run that saves as in the one that goes on"
)


class Seen(NamedTuple):
    """What the frames behind a pass tell.

    Attributes:
        misuse: How the batches would be spoiled: batched, shared out once more, cut, or of another epoch than is meant.
        missing: What is wrong unless a position is loaded before the first batch.
        is_over: Whether the state that a `StatefulDataLoader` goes on from is of a pass that had come to its end.
    """

    misuse: str | None = None
    missing: str | None = None
    is_over: bool = False


def look_at_callers(*, has_lists: bool, epoch: int) -> Seen:
    """Return what those who ask for the batches of a `TorchDataset` make of them.

    Args:
        has_lists: Whether batches have ragged fields.
        epoch: Of the pass that begins.
    """
    misuse, is_over = None, False
    for frame in _frames():
        if _is_in(frame, "torch.utils.data", "torchdata.stateful_dataloader"):
            known = frame.f_locals
            if getattr(known.get("loader"), "batch_size", None) is not None or known.get("auto_collation"):
                misuse = misuse or _BATCHED_TWICE
            if (state := known.get("next_iter_state")) is not None:
                is_over = bool(state["_iterator_finished"])
        elif _is_in(frame, "accelerate", "transformers"):
            misuse = misuse or _misuse_of(frame, has_lists=has_lists, epoch=epoch)
    return Seen(misuse, missing_position(), is_over)


def _misuse_of(frame: FrameType, *, has_lists: bool, epoch: int) -> str | None:
    caller = frame.f_locals.get("self")
    kind = type(caller).__name__
    if kind == "IterableDatasetShard":
        return SHARED_TWICE
    if kind == "DataLoaderDispatcher" and caller is not None:
        if caller.state.num_processes > 1:
            return SHARED_TWICE
        return _CUT_LISTS if has_lists else None
    if frame.f_code.co_name == "_run_epoch":
        wanted = frame.f_locals.get("epoch", epoch)
        return None if wanted == epoch else _OTHER_EPOCH.format(wanted=wanted, epoch=epoch)
    return None


def missing_position() -> str | None:
    """Return what is wrong if no position is loaded before the first batch; None where nothing is."""
    for frame in _frames():
        if _is_in(frame, "lightning.pytorch.loops", "pytorch_lightning.loops"):
            caller = frame.f_locals.get("self")
            if type(caller).__name__ == "_EvaluationLoop":
                return None
            if type(caller).__name__ == "_FitLoop" and caller is not None:
                return None if caller.trainer.ckpt_path is None else _NO_POSITION
    return None


def _frames() -> Iterator[FrameType]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_in(frame: FrameType, *packages: str) -> bool:
    module = frame.f_globals.get("__name__", "")
    return any(module == package or module.startswith(f"{package}.") for package in packages)
