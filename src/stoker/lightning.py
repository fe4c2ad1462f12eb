"""Lightning: the position of a loader in its checkpoints.

    trainer = Trainer(callbacks=[KeepPosition(loader)], ...)
    trainer.fit(module, loader, ckpt_path="last")

Lightning saves the position of a `TorchLoader` by itself. It loads the position, too, unless something read
`trainer.estimated_stepping_batches`, as learning-rate schedules do. Of a plain `DataLoader` it saves no position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from stoker.errors import ResumeError
from stoker.sampling.position import Position
from stoker.torch.dataset import TorchDataset
from stoker.torch.loader import TorchLoader

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError("stoker.lightning needs Lightning: pip install 'stoker[lightning]'") from error

_KEY = "stoker.position"


class KeepPosition(Callback):  # type: ignore[misc]  # where Lightning is not installed it is any
    """Saves the position of the training loader in checkpoints, and restores it.

    Each row comes once, in the order of a run that was never interrupted. The number of ranks and workers and the batch
    size may change, except with a `StatefulDataLoader`, whose own state limits what may change.

    Args:
        loader: The loader that `Trainer.fit` gets: a `TorchLoader`, or a `DataLoader` or `StatefulDataLoader` of a
            `TorchDataset`.

    Raises:
        TypeError: `loader` is none of these.
    """

    def __init__(self, loader: TorchLoader | DataLoader[Any]) -> None:
        self._dataset: Any = getattr(loader, "dataset", None)
        if not isinstance(loader, TorchLoader) and not isinstance(self._dataset, TorchDataset):
            raise TypeError(f"KeepPosition takes a TorchLoader or a DataLoader of a TorchDataset, not {loader!r}")
        self._loader: Any = loader
        self._num_steps = 0  # of this pass, as the loop counts them

    def on_save_checkpoint(self, trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the position to the checkpoint."""
        if hasattr(self._loader, "state_dict"):
            checkpoint[_KEY] = self._loader.state_dict()
            return
        position = Position.from_json(self._dataset.state_after(self._num_steps))
        if trainer.is_last_batch and position != position.again():  # limit_train_batches: the rest of it never comes
            position = position.at(position.epoch + 1)
        checkpoint[_KEY] = position.to_json()

    def on_load_checkpoint(self, trainer: Trainer, _module: LightningModule, checkpoint: Mapping[str, Any]) -> None:
        """Let the loader go on from the position, before Lightning makes an iterator of it.

        Raises:
            ResumeError: The checkpoint has no position, or that of another order.
        """
        if trainer.state.fn != "fit":
            return
        state = checkpoint.get(_KEY)
        if state is None:
            raise ResumeError(
                "the checkpoint has no position of a loader: it was saved without stoker.lightning.KeepPosition. Load "
                "one into the loader yourself before fit, and leave KeepPosition out where a run goes on from it",
                saved=None,
                current=None,
            )
        target = self._loader if hasattr(self._loader, "load_state_dict") else self._dataset
        target.load_state_dict(state)

    def on_train_start(self, _trainer: Trainer, _module: LightningModule) -> None:
        """Reset the number of steps of this pass."""
        self._num_steps = 0

    def on_train_epoch_start(self, trainer: Trainer, _module: LightningModule) -> None:
        """Set the epoch, as Lightning does for samplers: it may have made iterators that it does not use."""
        self._num_steps = 0
        if trainer.current_epoch and isinstance(self._dataset, TorchDataset):
            self._dataset.set_epoch(trainer.current_epoch)

    def on_train_batch_start(self, _trainer: Trainer, _module: LightningModule, _batch: Any, _number: int) -> None:
        """Count the batch: the loop has it."""
        self._num_steps += 1
