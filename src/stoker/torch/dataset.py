"""Ready batches inside a torch `DataLoader`, whatever its workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, Unpack, cast

import torch
from torch.utils.data import IterableDataset, get_worker_info

from stoker.errors import ResumeError
from stoker.feed.loader import BatchIterator, Loader
from stoker.feed.options import LoaderOptions, Wanted
from stoker.feed.ranks import Ranks
from stoker.feed.resume import Allowed, Resume
from stoker.feed.run import Turn
from stoker.feed.shard import Shard
from stoker.machine import num_cores
from stoker.order.position import Position
from stoker.order.steps import Steps
from stoker.source.dataset import Dataset
from stoker.source.mixture import Mixture
from stoker.torch.handover import CpuHandover
from stoker.torch.tensors import Tensors

_log = logging.getLogger("stoker")

# Places in the memory that all workers share with the process that owns the DataLoader.
_EPOCH, _NUM_CONSUMED, _IS_RESTORED, _FINISHED = range(4)


class TorchDataset(IterableDataset[Tensors]):
    """The batches of a `stoker.TorchLoader`, as a data set for `torch.utils.data.DataLoader`.

        dataset = TorchDataset(stoker.Dataset("data"), cache="cache", batch_size=256, shuffle=True)
        loader = DataLoader(dataset, batch_size=None, num_workers=0)

    For frameworks that insist on a DataLoader. Without workers it is nearly as fast as `TorchLoader`: threads make
    batches ahead. Workers copy each of them into shared memory, and pay for an `augment` that holds the interpreter's
    lock alone. The batches are the same, and in the same order, for any number of them:

        step        0   1   2   3   4   5   6
        worker 0    █           █           █      the DataLoader asks its workers in turn, which
        worker 1        █           █              puts the steps back in order
        worker 2            █           █

    Every pass is the epoch of the last `set_epoch`: the process that owns the DataLoader cannot see its workers
    finish, so no epoch follows another by itself.

    Args:
        dataset: What to load. With workers that are spawned, a transform must be a module-level function.
        options: Those of `stoker.TorchLoader` but the device: batches are on the CPU (`pin_memory=True` and
            `.to(device, non_blocking=True)` bring them over). `cache` is needed: the workers share what is built
            through that folder. `num_threads` is a worker's; default: the cores shared out among the workers.

    Raises:
        TypeError: There is no cache, or an argument has the wrong type.
        ValueError: An argument is out of range.
        StokerError: As `stoker.Loader` says: the data set is opened here once, and closed again.
    """

    def __init__(self, dataset: Dataset | Mixture, **options: Unpack[LoaderOptions]) -> None:
        if options.get("cache") is None:
            raise TypeError("TorchDataset needs cache=, a folder: the workers of a DataLoader share chunks through it")
        self._dataset = dataset
        self._ranks = Ranks(
            rank=options.pop("rank", None),
            world_size=options.pop("world_size", None),
            shard=options.pop("shard", None),
            serves_workers=True,
        )
        self._options = options
        self._loader: _InTurnLoader | None = None
        self._pid = os.getpid()
        self._inherited: list[_InTurnLoader] = []
        # Which share it is means nothing yet: `_loader_here` says it.
        opened = _InTurnLoader(dataset, **cast("LoaderOptions", {**options, "shard": self._ranks.given}))
        with opened as loader:
            self._beginning, self._lane_sizes, self._wanted, self._resume = loader.plan()
        self._shared = torch.zeros(4, dtype=torch.int64).share_memory_()
        self._shared[_FINISHED] = -1

    # ------------------------------------------------------------------ in the process that owns the DataLoader

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next pass, in workers that are alive too. A position just restored is kept."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be an integer from 0 on, not {epoch!r}")
        if not self._shared[_IS_RESTORED]:
            self._tell(self._beginning_of(epoch))

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[Allowed] = ()) -> None:
        """Make the next pass go on from a position, of this class's `state_after` or of any `Loader.state_dict`.

        Any number of ranks and workers, with any batch size, can go on from it.

        Raises:
            ResumeError: The position is of another data set, seed, window, number of lanes or order version.
        """
        saved = self._resume.load(state, allow)
        try:
            settled = saved.settled(self._steps(start=saved.num_consumed))
        except ValueError as error:
            raise ResumeError(f"the saved position is not sound: {error}", saved=dict(state), current=None) from error
        self._beginning = replace(settled, epoch=0, num_consumed=0)
        self._tell(settled)
        self._shared[_IS_RESTORED] = 1

    def state_after(self, num_steps: int) -> dict[str, Any]:
        """Return the position when `num_steps` batches of this pass have come out of the DataLoader.

        Workers are ahead of the loop, which alone knows how many steps it has done. The same on every rank.

        Raises:
            ValueError: A pass from where this one begins has fewer steps.
        """
        start = self._position()
        steps = self._steps(start=start.num_consumed)
        if not 0 <= num_steps <= steps.num_steps:
            raise ValueError(f"this pass has {steps.num_steps} steps, not {num_steps}")
        return (start if num_steps == 0 else start.after(num_steps - 1, steps)).to_json()

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return self._steps(start=0).num_steps

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or of the next one."""
        return int(self._shared[_EPOCH])

    def close(self) -> None:
        """End what this process has begun for itself, which is nothing where there are workers."""
        loader, self._loader = self._loader, None
        if loader is not None and self._pid == os.getpid():
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beginning_of(self, epoch: int) -> Position:
        return self._position_at(epoch, 0)

    def _position(self) -> Position:
        return self._position_at(int(self._shared[_EPOCH]), int(self._shared[_NUM_CONSUMED]))

    def _position_at(self, epoch: int, num_consumed: int) -> Position:
        return replace(self._beginning, epoch=epoch, num_consumed=num_consumed)

    def _steps(self, *, start: int) -> Steps:
        return Steps(
            lane_sizes=self._lane_sizes,
            global_batch_size=self._wanted.global_size(self._ranks.settle()),
            remainder=self._wanted.remainder,
            start=start,
        )

    def _tell(self, position: Position) -> None:
        self._shared.copy_(torch.tensor([position.epoch, position.num_consumed, 0, -1]))

    # ------------------------------------------------------------------ where the batches are made

    def __iter__(self) -> Iterator[Tensors]:
        """Return this worker's batches of the pass; all of them outside a DataLoader's worker."""
        worker = get_worker_info()
        start = self._position()
        self._shared[_IS_RESTORED] = 0
        if self._beginning.shuffle and int(self._shared[_FINISHED]) == start.epoch and (not worker or worker.id == 0):
            # Logged, not warned of: a filter that makes warnings errors would end a worker without a word.
            _log.warning("epoch %d once more, in the same order: call set_epoch before each epoch", start.epoch)
        turn = Turn(first=worker.id, every=worker.num_workers) if worker else Turn()
        return TorchIterator(self, start, turn)

    def batches(self, start: Position, turn: Turn) -> BatchIterator:
        """Return batches of a pass that begins at `start`, from this process's own loader."""
        return self._loader_here(turn.every).batches(start, turn)

    def note_finished(self, epoch: int) -> None:
        """Remember that this epoch has come to its end in some worker."""
        self._shared[_FINISHED] = epoch

    def position_of(self, state: object) -> Position:
        """Return the position that a state stands for; `ResumeError` where it is of another order."""
        return self._resume.load(state)

    def _loader_here(self, num_workers: int) -> _InTurnLoader:
        if self._pid != os.getpid():
            if self._loader is not None:
                # Never let go: closing it would give back locks that the parent holds.
                self._inherited.append(self._loader)
            self._loader, self._pid = None, os.getpid()
        if self._loader is None:
            options = dict(self._options)
            if options.get("num_threads") is None:
                options["num_threads"] = max(1, num_cores() // num_workers)
            shard = self._ranks.settle()
            options["shard"] = Shard(shard.rank, shard.world_size, checked=False)
            self._loader = _InTurnLoader(self._dataset, **cast("LoaderOptions", options))
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        """Return what a spawned worker needs: everything but this process's loader."""
        return self.__dict__ | {"_loader": None, "_inherited": []}


class TorchIterator(Iterator[Tensors]):
    """The batches of one worker in one pass.

    Has the state that torchdata's `StatefulDataLoader` keeps for each worker: where the pass began, and how many of
    its batches this worker has made.
    """

    def __init__(self, dataset: TorchDataset, start: Position, turn: Turn) -> None:
        self._dataset = dataset
        self._start = start
        self._turn = turn
        self._num_made = 0
        self._is_over = False
        self._batches: BatchIterator | None = None

    def __next__(self) -> Tensors:
        if self._is_over:
            raise StopIteration
        if self._batches is None:  # not before: a saved state may come between `iter` and the first batch
            first = self._turn.first + self._num_made * self._turn.every
            self._batches = self._dataset.batches(self._start, Turn(first=first, every=self._turn.every))
        try:
            batch: Tensors = next(self._batches)
        except StopIteration:
            self._is_over = True
            self._batches = None
            self._dataset.note_finished(self._start.epoch)
            raise
        self._num_made += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands, as JSON can write it."""
        return {"start": self._start.to_json(), "num_made": self._num_made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a worker of the same number among as many stood.

        Raises:
            ResumeError: The pass was one of another data set or order.
        """
        start = self._dataset.position_of(state["start"])
        self._start, self._num_made = start, int(state["num_made"])
        self._is_over, self._batches = False, None


class _InTurnLoader(Loader):
    """A loader that begins any pass, and makes any of its steps."""

    def _make_handover(self) -> CpuHandover:
        return CpuHandover(in_one_storage=True)

    def plan(self) -> tuple[Position, tuple[int, ...], Wanted, Resume]:
        """Return where epoch 0 begins, the samples of each lane, what was asked for, and what states are read by."""
        return self._start, self._order.lane_sizes, self._wanted, self._resume

    def batches(self, start: Position, turn: Turn) -> BatchIterator:
        """Return some of the batches of the pass that begins at `start`."""
        return BatchIterator(self, self._begin_run(start, turn))
