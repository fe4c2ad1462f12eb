"""Hugging Face: Accelerate and `transformers.Trainer`.

    loader = prepare(accelerator, loader)             in place of accelerator.prepare(loader)

    class MyTrainer(Trainer):
        def get_train_dataloader(self):
            return prepare(self.accelerator, loader)

Accelerate splits the batches of any DataLoader among ranks. Those of a `TorchDataset` or a `TorchLoader` are split
already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from stoker.torch.dataset import TorchDataset
from stoker.torch.loader import TorchLoader
from stoker.torch.tensors import Tensors

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard
except ImportError as error:
    raise ImportError("stoker.hf needs Accelerate: pip install 'stoker[transformers]'") from error

# Arguments of a DataLoader that are kept: how batches are loaded, not which.
_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


def prepare(accelerator: Accelerator, loader: TorchLoader | DataLoader[Any]) -> PreparedLoader:
    """Return a loader as `accelerator.prepare` does, without splitting its batches among ranks a second time.

    Gradient accumulation, moving to the device, `skip_first_batches`, `save_state` and `load_state` work as with any
    prepared loader. They save its position in mid-epoch, from which any number of ranks can go on.

    Args:
        accelerator: The accelerator of the training loop; `self.accelerator` in a Trainer.
        loader: A `TorchLoader`, or a `DataLoader` of a `TorchDataset` with `batch_size=None`.

    Raises:
        TypeError: `loader` is neither.
    """
    dataset = _BatchesOf(loader) if isinstance(loader, TorchLoader) else getattr(loader, "dataset", None)
    if not isinstance(dataset, _BatchesOf | TorchDataset) or getattr(loader, "batch_size", None) is not None:
        raise TypeError(
            f"prepare takes a TorchLoader, or DataLoader(TorchDataset(...), batch_size=None), not {loader!r}; any "
            "other loader is for accelerator.prepare"
        )
    settings = {name: getattr(loader, name) for name in _SETTINGS} if isinstance(loader, DataLoader) else {}
    prepared = PreparedLoader(dataset, device=accelerator.device, batch_size=None, **settings)
    accelerator.prepare_data_loader(prepared)  # only registers it, since it is prepared already
    return prepared


class PreparedLoader(DataLoaderShard):  # type: ignore[misc]  # where Accelerate is not installed it is any
    """A loader whose batches are this rank's already, as Accelerate knows loaders that it has prepared."""

    _is_accelerate_prepared = True

    def __init__(self, dataset: TorchDataset | _BatchesOf, **settings: Any) -> None:
        self._num_handed = 0
        super().__init__(dataset, **settings)
        self.use_stateful_dataloader = True  # what Accelerate asks before it saves and loads the state

    def begin(self) -> None:
        """Begin a pass, and tell `gather_for_metrics` how many samples of the last global batch to keep."""
        super().begin()
        steps = self.dataset.next_steps()
        if steps.remainder == "pad" and len(steps.lane_sizes) == 1:
            self.remainder = (steps.num_samples - steps.start) % steps.global_batch_size

    @property
    def iteration(self) -> int:
        """The next epoch, which Accelerate passes to `set_epoch` before a pass, also after a position was loaded."""
        return int(self.dataset.next_epoch)

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        """Ignore the count of Accelerate: the data set counts epochs."""

    def __iter__(self) -> Iterator[Tensors]:
        for batch in super().__iter__():
            self._num_handed += 1  # Accelerate itself is one batch ahead, to know which is the last
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next pass. A position just loaded is kept."""
        self._num_handed = 0
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that the loop has."""
        state: dict[str, Any] = self.dataset.state_after(self._num_handed)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on from a position."""
        self._num_handed = 0
        self.dataset.load_state_dict(state_dict)


class _BatchesOf(IterableDataset[Tensors]):
    """The batches of a `TorchLoader` as a data set, for a DataLoader that has no workers."""

    def __init__(self, loader: TorchLoader) -> None:
        self._loader = loader
        self.set_epoch, self.next_steps = loader.set_epoch, loader.next_steps
        self.state_after, self.load_state_dict = loader.state_after, loader.load_state_dict

    def __iter__(self) -> Iterator[Tensors]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        return self._loader.epoch
