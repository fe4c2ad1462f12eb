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

_LOADERS = ("torch.utils.data", "torchdata.stateful_dataloader")
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
OTHER_EPOCH = (
    "transformers.Trainer is in epoch {theirs}, but this pass would be epoch {epoch}: Trainer tells it only to what "
    "Accelerate prepared. Let get_train_dataloader return stoker.hf.prepare(self.accelerator, loader)"
)
_NO_POSITION = (
    "Lightning goes on from a checkpoint, but has not handed its position to the loader (it never does so to a plain "
    "DataLoader, nor to any loader once trainer.estimated_stepping_batches was asked for): give the Trainer "
    "callbacks=[stoker.lightning.KeepPosition(loader)], in the run that saves as in the one that goes on"
)


class Seen(NamedTuple):
    """What the frames behind a pass tell."""

    misuse: str | None = None  # how the batches would be spoiled: batched, shared out once more, or cut
    epoch: int | None = None  # which one is meant, where that is known
    missing: str | None = None  # what is wrong unless a position is loaded before the first batch
    num_steps: int | None = None  # of its pass behind which the state stands that a `StatefulDataLoader` goes on from
    is_over: bool = False  # whether that pass had come to its end


def look_at_callers(*, has_lists: bool) -> Seen:
    """Return what those who ask for the batches of a `TorchDataset` make of them."""
    misuse, epoch, num_steps, is_over = None, None, None, False
    for frame in _frames():
        known = frame.f_locals
        if _is_in(frame, *_LOADERS):
            if getattr(known.get("loader"), "batch_size", None) is not None or known.get("auto_collation"):
                misuse = misuse or _BATCHED_TWICE
            if num_steps is None and (state := known.get("next_iter_state")) is not None:
                is_over = bool(state["_iterator_finished"])
                of_workers = state.get("_snapshot")  # as they were then; torchdata itself takes the steps since
                num_steps = state["_num_yielded"] if of_workers is None else of_workers["_snapshot_step"]
        elif _is_in(frame, "accelerate", "transformers"):
            misuse = misuse or _shared_or_cut(known.get("self"), has_lists=has_lists)
            if frame.f_code.co_name == "_run_epoch":
                epoch = known.get("epoch")
    return Seen(misuse, epoch, missing_position(), num_steps, is_over)


def starting_workers() -> tuple[Any, Any]:
    """Return the DataLoader's iterator that is starting workers, and the DataLoader's data set; None where none is."""
    for frame in _frames():
        known = frame.f_locals
        if frame.f_code.co_name == "__init__" and _is_in(frame, *_LOADERS) and hasattr(known.get("self"), "_workers"):
            return known["self"], getattr(known.get("loader"), "dataset", None)
    return None, None


def _shared_or_cut(caller: Any, *, has_lists: bool) -> str | None:
    kind = type(caller).__name__
    if kind == "IterableDatasetShard" or (kind == "DataLoaderDispatcher" and caller.state.num_processes > 1):
        return SHARED_TWICE
    return _CUT_LISTS if kind == "DataLoaderDispatcher" and has_lists else None


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
