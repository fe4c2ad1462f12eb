"""Ready batches inside a torch `DataLoader`, whatever its workers."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self, TypeAlias, Unpack, cast

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from stoker.arguments import explain_arguments, integer
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.errors import ResumeError
from stoker.hashing import fingerprint
from stoker.host.forks import this_process
from stoker.host.machine import num_cores
from stoker.loader.config import DEFAULTS, HINTS, LoaderOptions
from stoker.loader.epoch_run import BatchIterator, position_after
from stoker.loader.loader import Loader
from stoker.loader.resume import Allowed, check_allowed
from stoker.loader.shard import Ranks, Shard
from stoker.sampling.position import Position
from stoker.sampling.steps import Steps
from stoker.torch.callers import OTHER_EPOCH, SHARED_TWICE, Seen, look_at_callers, starting_workers
from stoker.torch.delivery import CpuDelivery
from stoker.torch.passes import Pass, Passes
from stoker.torch.tensors import Tensors

# All data sets of this process. A rank that was itself forked, or got a data set by pickle, must own the state that it
# shares with its workers before it forks them, and only a hook before the fork sees that moment.
_all: weakref.WeakSet[TorchDataset] = weakref.WeakSet()
# Held while a pass is begun, and from then on until the worker that it was begun for is forked: threads may begin
# passes of one data set at the same time. Entered again where a signal's handler does so.
_beginning = threading.RLock()

# The number of a DataLoader's iterator that has started workers; the pass that was begun for these, and whether none
# was begun or told before it.
_Begun: TypeAlias = tuple[int, tuple[Pass, bool] | None]

_OF_DATA_LOADER = "it is the DataLoader's: DataLoader(dataset, batch_size=None, {}=...)"
_HINTS = HINTS | {
    name: _OF_DATA_LOADER.format(name)
    for name in ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context")
}
_HINTS["device"] = "batches are on the CPU; pin_memory=True of the DataLoader and .to(device) bring them over"


@explain_arguments(_HINTS, options=DEFAULTS, types=LoaderOptions)
class TorchDataset(IterableDataset[Tensors]):
    """The batches of a `stoker.TorchLoader`, as a data set for `torch.utils.data.DataLoader`.

        dataset = TorchDataset(stoker.Dataset("data"), cache="cache", batch_size=256, shuffle=True)
        loader = DataLoader(dataset, batch_size=None, num_workers=0)

    For frameworks that insist on a DataLoader. Without workers it is nearly as fast as `TorchLoader`: threads make
    batches ahead. Workers copy each batch into shared memory, and pay only for an `augment` that holds the
    interpreter's lock. The batches are the same, and in the same order, for any number of them:

        step        0   1   2   3   4   5   6
        worker 0    █           █           █      the DataLoader asks its workers in turn, which
        worker 1        █           █              puts the steps back in order
        worker 2            █           █

    Each pass over the DataLoader (`iter` of it) is the next epoch, whether or not the pass before came to its end, as
    with a DataLoader that shuffles itself. `set_epoch` names the next epoch, even one that would come anyway.

    Takes all arguments of `stoker.Loader`, and these. `cache` is required: the workers share chunks through that
    folder. `num_threads` is that of each worker; by default the workers share the cores. Batches are on the CPU;
    `pin_memory=True` and `.to(device, non_blocking=True)` bring them over.

    Args:
        dataset: What to load. With workers that are spawned, a transform must be a module-level function.
        allow: What may differ from a state that is loaded here, or into a `StatefulDataLoader`: see
            `stoker.Loader.load_state_dict`.

    Raises:
        TypeError: `cache` is missing, or an argument has the wrong type. In the first pass: the DataLoader, or a
            framework, would batch batches, or split them among ranks a second time.
        ValueError: An argument is out of range.
        StokerError: As `stoker.Loader` does, since the data set is opened here once, and closed again.
    """

    def __init__(
        self, dataset: Dataset | Mixture, *, allow: Collection[Allowed] = (), **options: Unpack[LoaderOptions]
    ) -> None:
        check_allowed(allow)
        if options.get("cache") is None:
            raise TypeError("TorchDataset needs cache=, a folder: the workers of a DataLoader share chunks through it")
        self._allow = tuple(allow)
        self._ranks = Ranks(
            rank=options.pop("rank", None),
            world_size=options.pop("world_size", None),
            shard=options.pop("shard", None),
            serves_workers=True,
        )
        self._options = options
        self._loader: _InTurnLoader | None = None
        self._loads_in = this_process()
        self._inherited: list[_InTurnLoader] = []
        # The share does not matter yet: `loader_here` sets it.
        opened = _InTurnLoader(dataset, **cast("LoaderOptions", {**options, "shard": self._ranks.given}))
        with opened as loader:
            self._dataset = loader._opened.as_opened()  # files and versions as they are now
            self._config, self._resume = loader._config, loader._resume
            self._has_lists = bool(loader.spec.ragged)
        # The position that others are derived from. Epochs other than its own are those of a new loader.
        self._anchor = self._resume.beginning
        self._agreed, self._owned_in = Passes(), this_process()
        # Of each DataLoader's iterator that has started workers.
        self._started: weakref.WeakKeyDictionary[Any, _Begun] = weakref.WeakKeyDictionary()
        self._num_started = 0
        self._begun: _Begun = 0, None  # in a worker, of the iterator that started it
        self._num_joined = 0  # passes of this worker
        # Only in a spawned worker: what its owner found out about who iterates the DataLoader.
        self._seen: Seen | None = None
        with _beginning:  # last, and while no other thread forks: a fork starts each data set that is there
            _all.add(self)

    @property
    def _passes(self) -> Passes:
        """The passes, as the owner of a DataLoader and its workers agree on them."""
        self.own()
        return self._agreed

    def own(self) -> None:
        """Give a process that was forked, or got this by pickle, passes and ranks apart from those of its parent."""
        if not self._owned_in.is_here and get_worker_info() is None:
            self._agreed, self._owned_in = self._agreed.copy(), this_process()
            self._ranks.own()

    def start(self) -> None:
        """Own what workers share before they are started, and begin their pass where a DataLoader starts them.

        Here and not where they come to it: some come late, when the owner has named another epoch already.
        """
        self.own()
        iterator, dataset = starting_workers()
        if iterator is None:
            return
        if iterator not in self._started:
            self._num_started += 1
            # Another data set's workers begin no pass of this one; one around it may have other plans for it.
            begun = self._join(hash((os.getpid(), self._num_started))) if dataset is self else None
            self._started[iterator] = self._num_started, begun
        self._begun = self._started[iterator]

    def _join(self, key: int | None) -> tuple[Pass, bool]:
        """Return the pass of a key, and whether none was begun or told before it."""
        with _beginning:
            is_first = self._passes.is_new
            return self._passes.join(key), is_first

    # ------------------------------------------------------------------ in the process that owns the DataLoader

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next pass, also in workers that are alive. Does nothing right after `load_state_dict`."""
        epoch = integer(epoch, "epoch", at_least=0)
        last = self._passes.last
        if last.key or not last.is_restored:
            self._passes.tell(epoch, 0, is_restored=False, order=self._order)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[Allowed] | None = None) -> None:
        """Make the next pass go on from a position, of this class's `state_after` or of any `Loader.state_dict`.

        Any number of ranks and workers, with any batch size, can go on from it.

        Args:
            state: A position.
            allow: What may differ; None takes the `allow` that this was made with.

        Raises:
            ResumeError: The position is of other data, or of another seed, window, number of lanes or order version;
                nothing has changed then.
            ValueError: `allow` holds an unknown word, or the ranks and the arguments do not go together.
        """
        # First: what is wrong with ranks is not the state's fault. But a bad state decides nothing.
        size = self._config.global_size(self._ranks.look())
        _, settled = self._resume.load(state, self._allow if allow is None else allow, partial(self._steps_of, size))
        self._ranks.settle()
        self._anchor = settled
        self._passes.tell(settled.epoch, settled.num_consumed, is_restored=True, order=self._order)

    def state_after(self, num_steps: int) -> dict[str, Any]:
        """Return the position after `num_steps` batches of this pass, the same on every rank.

        Workers are ahead of the loop, so only the loop knows how many steps it has done.

        Raises:
            ValueError: The pass has fewer steps.
            ResumeError: A `StatefulDataLoader` goes on in the order of a state that only its workers have.
        """
        start = self.position_of(self._passes.last)
        if start is None:
            raise ResumeError(
                "the workers of the DataLoader go on in an order that only they and their state know: save that of "
                "the StatefulDataLoader, or load the state into this TorchDataset",
                saved=None,
                current=None,
            )
        return position_after(start, self._steps(start), num_steps).to_json()

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return self._steps(self._anchor.at(self._anchor.epoch)).num_steps

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or of the next one where `set_epoch` or `load_state_dict` named it."""
        return self._passes.last.place[0]

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        return self._passes.last.next.place[0]

    def next_steps(self) -> Steps:
        """Return the steps of the next pass."""
        return self._steps(self._at(*self._passes.last.next.place))

    @property
    def generator(self) -> NoReturn:
        """Raise: Accelerate reads this when it is about to split the batches among ranks a second time."""
        raise TypeError(SHARED_TWICE)

    def close(self) -> None:
        """End the loader of this process, if it has one: with workers, only these have loaders."""
        loader, self._loader = self._loader, None
        if loader is not None and self._loads_in.is_here:
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ where the batches are made

    def __iter__(self) -> Iterator[Tensors]:
        """Return this worker's batches of the next pass; all of them outside a DataLoader's worker.

        Raises:
            TypeError: The caller would batch batches, or split them among ranks a second time.
        """
        worker = get_worker_info()
        seen = (None if worker is None else self._seen) or look_at_callers(has_lists=self._has_lists)
        if seen.misuse is not None:
            raise TypeError(seen.misuse)
        if worker is None:
            which, is_first = self._join(None)
        else:
            (number, begun), self._num_joined = self._begun, self._num_joined + 1
            self._begun = number, None
            # Workers that live on go through several passes.
            key = hash((worker.seed - worker.id, worker.num_workers, number, self._num_joined))
            which, is_first = begun or self._join(key)
        if not is_first:
            seen = seen._replace(missing=None)
        epoch, _ = which.place
        if seen.epoch not in (None, epoch):
            raise TypeError(OTHER_EPOCH.format(theirs=seen.epoch, epoch=epoch))
        return TorchIterator(self, which, seen, worker)

    def position_of(self, which: Pass) -> Position | None:
        """Return where a pass begins, the same in all workers; None where it is of an order that is not known here.

        Of an order that a state brought to workers, their owner knows the epoch alone; of one that was loaded here,
        workers know nothing that were begun before.
        """
        if which.order != self._order:
            return None
        return self._at(*which.place)

    def _at(self, epoch: int, num_consumed: int) -> Position:
        anchor = self._anchor if epoch == self._anchor.epoch else self._anchor.at(epoch)
        return replace(anchor, num_consumed=max(num_consumed, anchor.again().num_consumed))

    def go_on(self, which: Pass, state: Mapping[str, Any], seen: Seen, num_workers: int) -> Pass:
        """Let a pass go on from where a saved one stood, or be over where that was; the same in all workers.

        A `ResumeError` says that it was a pass of another data set or order, or of other workers or batches, or that
        nobody knows how many steps of it were done.
        """
        now = self._made_of(num_workers)
        try:
            start, num_before = Position.from_json(json.loads(state["start"])), int(state["num_before"])
            saved = {name: state[name] for name in now}
        except (KeyError, TypeError, ValueError) as error:
            what = f"a worker's state in that of a StatefulDataLoader is none of a TorchDataset: {error!r}"
            raise ResumeError(what, saved=state, current=now) from error
        if num_workers == saved["num_workers"] == 0:  # then one process knows how far all of them were
            now |= {"global_batch_size": saved["global_batch_size"], "remainder": saved["remainder"]}
        if saved != now or seen.num_steps is None:
            what = "; ".join(f"{name} was {saved[name]} and is {now[name]}" for name in now if saved[name] != now[name])
            raise ResumeError(
                f"this state of a StatefulDataLoader is of other batches: {what or 'it does not say of how many'}. "
                "Each worker knows only its own: make the DataLoader as it was, or save what "
                "TorchDataset.state_after(steps) returns, from which any number of workers goes on, of any batch size",
                saved=saved,
                current=now,
            )
        num_steps = seen.num_steps - num_before
        was = start.steps(global_batch_size=saved["global_batch_size"], remainder=saved["remainder"])
        # Where the loop stood, in the order that it had then; only there may files have been added.
        position = self._resume.adopt(start.after(num_steps - 1, was) if num_steps else start, self._allow)
        self._anchor = position = position.settled(self._steps(position))
        is_over = seen.is_over and position.epoch > start.epoch
        place = {"epoch": position.epoch, "num_consumed": position.num_consumed, "order": self._order}
        which = which._replace(base=which.number + is_over, **place)
        self._passes.write(which)
        return which

    def state_of(self, which: Pass, num_before: int, num_workers: int) -> dict[str, Any]:
        """Return where a pass began, as JSON can write it and torchdata, which counts steps, does not take it apart."""
        position = self.position_of(which)
        start = json.dumps(None if position is None else position.to_json())
        return {"start": start, "num_before": num_before, **self._made_of(num_workers)}

    def _made_of(self, num_workers: int) -> dict[str, Any]:
        size, remainder = self._config.global_size(self._ranks.settle()), self._config.remainder
        return {"num_workers": num_workers, "global_batch_size": size, "remainder": remainder}

    def _steps(self, position: Position) -> Steps:
        return self._steps_of(self._config.global_size(self._ranks.settle()), position)

    def _steps_of(self, size: int, position: Position) -> Steps:
        return position.steps(global_batch_size=size, remainder=self._config.remainder)

    @property
    def _order(self) -> int:
        """A number for the order of `_anchor`: 0 is the order of a new loader."""
        if replace(self._anchor, epoch=0, num_consumed=0) == self._resume.beginning:
            return 0
        told = self._anchor.to_json() | {"num_consumed": 0}
        return int(fingerprint("anchor", told)[:12], 16)

    def loader_here(self, num_workers: int) -> _InTurnLoader:
        """Return the loader of this process, one of so many that make the batches; made where there is none yet."""
        with _beginning:
            if not self._loads_in.is_here:
                if self._loader is not None:
                    # Kept for ever: closing it would release locks that the parent holds.
                    self._inherited.append(self._loader)
                self._loader, self._loads_in = None, this_process()
        if self._loader is None:
            options = dict(self._options)
            if options.get("num_threads") is None:
                options["num_threads"] = max(1, num_cores() // num_workers)
            shard = self._ranks.settle()
            options["shard"] = Shard(shard.rank, shard.world_size, checked=False)
            made = _InTurnLoader(self._dataset, **cast("LoaderOptions", options))
            with _beginning:  # not held while a loader is made, which takes long, and may start processes
                self._loader = kept = made if self._loader is None else self._loader
            if kept is not made:  # another thread was faster
                made.close()
            return kept
        return self._loader

    def __getstate__(self) -> dict[str, Any]:
        """Return what a spawned worker needs: everything but this process's loader."""
        with _beginning:
            self.start()
            seen = look_at_callers(has_lists=self._has_lists)
            return self.__dict__ | {"_loader": None, "_inherited": [], "_started": None, "_seen": seen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _started=weakref.WeakKeyDictionary())
        if not self._agreed.are_shared:  # a copy, and no worker's
            self._agreed = self._agreed.copy()
        with _beginning:
            _all.add(self)


def _start_all() -> None:
    _beginning.acquire()
    for dataset in list(_all):
        dataset.start()


os.register_at_fork(before=_start_all, after_in_parent=_beginning.release, after_in_child=_beginning.release)


class TorchIterator(Iterator[Tensors]):
    """The batches of one worker in one pass.

    Has a state that torchdata's `StatefulDataLoader` keeps for each worker: where the pass began, the batch size, and
    the number of workers. torchdata itself counts the steps since then.
    """

    def __init__(self, dataset: TorchDataset, which: Pass, seen: Seen, worker: WorkerInfo | None) -> None:
        self._dataset, self._which, self._seen = dataset, which, seen
        self._worker, self._num_workers = (0, 0) if worker is None else (worker.id, worker.num_workers)
        self._num_before = 0
        self._batches: Iterator[Tensors] | None = None
        self._beginning = threading.Lock()  # several threads may take batches from it

    def __next__(self) -> Tensors:
        with self._beginning:
            if self._batches is None:  # not earlier: a saved state may be loaded between `iter` and the first batch
                self._batches = self._begin_batches()
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker's pass began."""
        return self._dataset.state_of(self._which, self._num_before, self._num_workers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a worker of the same number among as many stood; see `TorchDataset.go_on`."""
        self._which = self._dataset.go_on(self._which, state, self._seen, self._num_workers)
        self._num_before = self._seen.num_steps or 0
        self._seen = self._seen._replace(missing=None)

    def _begin_batches(self) -> Iterator[Tensors]:
        if self._seen.missing is not None:
            raise ResumeError(self._seen.missing, saved=None, current=None)
        if self._which.base > self._which.number:
            return iter(())
        start = self._dataset.position_of(self._which)
        if start is None:
            raise ResumeError(
                "this worker was begun before load_state_dict, and the state is of an epoch that it does not know: "
                "make the DataLoader anew behind load_state_dict, or without persistent_workers",
                saved=None,
                current=None,
            )
        every = max(1, self._num_workers)
        turn = slice((self._worker - self._num_before) % every, None, every)
        return BatchIterator(partial(self._dataset.loader_here(every)._begin_run, start, turn))


class _InTurnLoader(Loader):
    """A loader of a worker, which makes its turn of the steps of any pass."""

    def _make_delivery(self) -> CpuDelivery:
        return CpuDelivery(in_one_storage=True)
