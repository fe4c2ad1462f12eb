"""The loader whose batches are torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self, Unpack

import torch

from stoker.arguments import explain_arguments
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.errors import ResumeError
from stoker.fields.spec import parse_size
from stoker.loader.config import DEFAULTS, HINTS, LoaderOptions
from stoker.loader.epoch_run import Run
from stoker.loader.loader import Loader
from stoker.sampling.position import Position
from stoker.sampling.steps import Steps
from stoker.torch.callers import missing_position
from stoker.torch.cuda import CudaStream, ResidentRows
from stoker.torch.delivery import CpuDelivery, DeviceDelivery

# Attributes that frameworks read in order to make a DataLoader anew.
_OF_A_DATA_LOADER = ("dataset", "num_workers", "collate_fn", "worker_init_fn", "generator", "drop_last")
_NO_DATA_LOADER = (
    "for it is no DataLoader to be made anew or shared out among ranks: it knows its rank by itself. For "
    "transformers.Trainer, return stoker.hf.prepare(self.accelerator, loader) from get_train_dataloader; in Ray Train, "
    "leave prepare_data_loader out and give it device="
)


@explain_arguments(HINTS, options=DEFAULTS, types=LoaderOptions)
class TorchLoader(Loader):
    """A `stoker.Loader` whose batches are dicts of torch tensors.

        assemble threads    gather ──► pinned buffer ──► copy on a side stream ─┐
        training loop                              step waits for that copy alone ──► views on the device

    On the CPU, tensors share the batch's memory and nothing is copied. On a GPU, all fixed-width fields of a batch
    are copied at once, while earlier steps compute, and the fields are views of that copy; `prefetch` batches are on
    the GPU ahead of their step.

    Ragged fields are `Ragged(values, offsets)` of tensors; `to_nested` makes torch's own nested tensors of them. Takes
    all arguments of `stoker.Loader`, and these:

    Args:
        dataset: What to load.
        device: Where the tensors are wanted: "cpu", "cuda" (the current one), "cuda:1", ...
        resident: Memory of the GPU, "40GB" or bytes, for chunks that stay there: their fixed-width fields are gathered
            there from the second epoch on, and not copied again. The first chunks that are used stay, as many as fit.

    Raises:
        ValueError: The device does not exist here; or `resident` is given for the CPU, or together with a Mixture,
            `deduplicate`, `augment`, `sequence_shard`, or sampling units other than rows.
        TypeError: `device` is neither a text nor a `torch.device`.
    """

    def __init__(
        self,
        dataset: Dataset | Mixture,
        *,
        device: str | torch.device = "cpu",
        resident: int | str | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self._torch_delivery = _delivery_to(device, None if resident is None else parse_size(resident, name="resident"))
        super().__init__(dataset, **options)

    batch_sampler = None  # frameworks that find `sampler` read this as well

    @property
    def sampler(self) -> Self:
        """This loader: Lightning calls `set_epoch` of what it finds here."""
        return self

    if not TYPE_CHECKING:  # with it, a type checker takes whatever is misspelled for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = f", {_NO_DATA_LOADER}" if name in _OF_A_DATA_LOADER else ""
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{hint}")

    def next_steps(self) -> Steps:
        """Return the steps of the next `for`."""
        return self._steps_of(self._settle().global_batch_size, self._epochs.start)

    def _make_delivery(self) -> CpuDelivery | DeviceDelivery:
        return self._torch_delivery

    def _begin_run(self, start: Position | None = None, turn: slice = slice(None)) -> Run:
        if not (self._epochs.is_restored or self._epochs.num_steps) and (missing := missing_position()) is not None:
            raise ResumeError(missing, saved=None, current=None)
        return super()._begin_run(start, turn)


def _delivery_to(device: str | torch.device, resident_bytes: int | None) -> CpuDelivery | DeviceDelivery:
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a text like 'cuda:0' or a torch.device, not {device!r}")
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is none that torch knows: 'cpu', 'cuda', 'cuda:1', ...") from error
    if device.type == "cpu":
        if resident_bytes is not None:
            raise ValueError("resident= keeps chunks on a GPU; on the CPU the page cache keeps them: leave it out")
        return CpuDelivery()
    if device.type != "cuda":
        raise ValueError(f"device {device} is not supported: 'cpu' or 'cuda'; move the tensors yourself")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {device} here; torch sees {torch.cuda.device_count()} GPUs")
    index = torch.cuda.current_device() if device.index is None else device.index
    stream = CudaStream(torch.device("cuda", index))
    resident = None if resident_bytes is None else ResidentRows(stream, limit_bytes=resident_bytes)
    return DeviceDelivery(stream, resident=resident)
