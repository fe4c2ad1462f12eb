"""Ready batches inside a torch `DataLoader`, whatever its workers."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self, Unpack, cast, get_args

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from stoker.arguments import explain_arguments, integer
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.errors import ResumeError
from stoker.hashing import fingerprint
from stoker.host.machine import num_cores
from stoker.loader.config import DEFAULTS, HINTS, LoaderConfig, LoaderOptions
from stoker.loader.epoch_run import Progress
from stoker.loader.loader import BatchIterator, Loader
from stoker.loader.resume import Allowed, Resume, check_allowed
from stoker.loader.shard import Ranks, Shard
from stoker.sampling.position import Position
from stoker.sampling.steps import Remainder, Steps
from stoker.torch.callers import OTHER_EPOCH, SHARED_TWICE, Seen, look_at_callers
from stoker.torch.delivery import CpuDelivery
from stoker.torch.passes import Loaded, Pass, Passes
from stoker.torch.tensors import Tensors

_REMAINDERS = get_args(Remainder)

# Those of this process. A rank that was itself forked, or was sent one, has to own what it shares with its workers
# before it forks them: there is no other moment at which it sees that.
_all: weakref.WeakSet[TorchDataset] = weakref.WeakSet()

_OF_DATA_LOADER = "it is the DataLoader's: DataLoader(dataset, batch_size=None, {}=...)"
_HINTS = HINTS | {
    name: _OF_DATA_LOADER.format(name)
    for name in ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context")
}
_HINTS["device"] = "batches are on the CPU; pin_memory=True of the DataLoader and .to(device) bring them over"


class Begin(NamedTuple):
    """Where a pass begins.

    Attributes:
        start: Its position.
        first: The worker that makes its first step.
        is_over: Whether it has no batches: it goes on from the end of a pass that had come to it.
        is_known: Whether that is all of it: of an order that a state brought to workers, their owner knows the epoch.
    """

    start: Position
    first: int = 0
    is_over: bool = False
    is_known: bool = True


@explain_arguments(_HINTS, options=DEFAULTS, types=LoaderOptions)
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

    Each pass over the DataLoader (`iter` of it) is the next epoch, whether or not the pass before came to its end, as
    with a DataLoader that shuffles itself. `set_epoch` says which one is next; what comes anyway may be said too.

    All arguments of `stoker.Loader` are taken, beside these. `cache` is needed: the workers share what is built through
    that folder. `num_threads` is a worker's; default: the cores shared out among the workers. Batches are on the CPU;
    `pin_memory=True` and `.to(device, non_blocking=True)` bring them over.

    Args:
        dataset: What to load. With workers that are spawned, a transform must be a module-level function.
        allow: What may differ from a state that is loaded here, or into a `StatefulDataLoader`: see
            `stoker.Loader.load_state_dict`.

    Raises:
        TypeError: There is no cache, or an argument has the wrong type. In the first pass: the DataLoader, or a
            framework, would batch batches, or share them out among ranks once more.
        ValueError: An argument is out of range.
        StokerError: As `stoker.Loader` says: the data set is opened here once, and closed again.
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
        self._pid = os.getpid()
        self._inherited: list[_InTurnLoader] = []
        # Which share it is means nothing yet: `_loader_here` says it.
        opened = _InTurnLoader(dataset, **cast("LoaderOptions", {**options, "shard": self._ranks.given}))
        with opened as loader:
            self._dataset = loader.as_opened()
            self._config, self._resume = loader.plan()
            self._has_lists = bool(loader.spec.ragged)
        # What positions are told from: epochs but its own are those of a loader that was made anew.
        self._anchor = self._resume.beginning
        self._saved: Position | None = None  # of the state that a worker goes on from, as it was saved
        self._agreed, self._owner = Passes(), os.getpid()
        _all.add(self)
        self._num_joined = 0  # passes of this process, which all workers of a pass count alike
        # In a spawned worker, which does not see who iterates its owner's DataLoader: what the owner saw.
        self._seen: Seen | None = None

    @property
    def _passes(self) -> Passes:
        """What the owner of a DataLoader and its workers agree on."""
        self.own()
        return self._agreed

    def own(self) -> None:
        """Let this process and its own workers agree alone, on passes and ranks, where it was sent this, or forked."""
        if self._owner != os.getpid() and get_worker_info() is None:
            self._agreed, self._owner = self._agreed.copy(), os.getpid()
            self._ranks.own()

    # ------------------------------------------------------------------ in the process that owns the DataLoader

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next pass, in workers that are alive too. A position just restored is kept."""
        epoch = integer(epoch, "epoch", at_least=0)
        if not self._passes.is_restored:
            self._passes.tell(epoch, 0, is_restored=False, order=self._order)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[Allowed] | None = None) -> None:
        """Make the next pass go on from a position, of this class's `state_after` or of any `Loader.state_dict`.

        Any number of ranks and workers, with any batch size, can go on from it.

        Args:
            state: A position.
            allow: What may differ; None for what the data set was made with.

        Raises:
            ResumeError: The position is of other data, or of another seed, window, number of lanes or order version.
        """
        saved = self._resume.load(state, self._allow if allow is None else allow)
        try:
            settled = saved.settled(self._steps(saved))
        except ValueError as error:
            raise ResumeError(f"the saved position is not sound: {error}", saved=dict(state), current=None) from error
        self._anchor = settled
        self._passes.tell(settled.epoch, settled.num_consumed, is_restored=True, order=self._order)

    def state_after(self, num_steps: int) -> dict[str, Any]:
        """Return the position when `num_steps` batches of this pass have come out of the DataLoader.

        Workers are ahead of the loop, which alone knows how many steps it has done. The same on every rank.

        Raises:
            ValueError: A pass from where this one begins has fewer steps.
            ResumeError: A `StatefulDataLoader` goes on in the order of a state that its workers alone have.
        """
        start, _, _, is_known = self._under_way()
        if not is_known:
            raise ResumeError(
                "the workers of the DataLoader go on in an order that only they and their state know: save that of "
                "the StatefulDataLoader, or load the state into this TorchDataset",
                saved=None,
                current=None,
            )
        return Progress(start, self._steps(start)).after(num_steps).to_json()

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return self._steps(self._anchor.at(self._anchor.epoch)).num_steps

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or of the next one where `set_epoch` or `load_state_dict` named it."""
        return self._under_way().start.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        begin = self._under_way()
        return begin.start.epoch + (self._passes.latest is not None and not begin.is_over)

    @property
    def generator(self) -> NoReturn:
        """Nothing: Accelerate asks for it when it is about to share the batches out among ranks once more."""
        raise TypeError(SHARED_TWICE)

    def close(self) -> None:
        """End what this process has begun for itself, which is nothing where there are workers."""
        loader, self._loader = self._loader, None
        if loader is not None and self._pid == os.getpid():
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ where the batches are made

    def __iter__(self) -> Iterator[Tensors]:
        """Return this worker's batches of the next pass; all of them outside a DataLoader's worker.

        Raises:
            TypeError: The loop that asks would batch batches, or share them out once more.
        """
        seen = (None if get_worker_info() is None else self._seen) or self._look()
        if seen.misuse is not None:
            raise TypeError(seen.misuse)
        if self._passes.has_begun or self._passes.num_told:
            seen = seen._replace(missing=None)
        worker = get_worker_info()
        self._num_joined += 1
        if worker is None:
            which = self._passes.join(None, 0)
        else:
            # `seed` is drawn once a DataLoader's iterator; workers that live on go through several passes with it.
            key = hash((worker.seed - worker.id, worker.num_workers, os.getppid(), self._num_joined))
            which = self._passes.join(worker.id, key)
        epoch = self.begin_of(which).start.epoch
        if seen.epoch not in (None, epoch):
            raise TypeError(OTHER_EPOCH.format(theirs=seen.epoch, epoch=epoch))
        return TorchIterator(self, which, seen, worker)

    def begin_of(self, which: Pass) -> Begin:
        """Return where a pass begins: the same in all workers."""
        loaded = self._passes.loaded(which)
        if not loaded:
            epoch, num_consumed, order = self._passes.told(which)
            position = self._at(epoch + which.number, num_consumed if which.number == 0 else 0)
            return Begin(position, is_known=order == self._order)
        begin = self._gone_on(loaded)
        since = which.number - loaded[0].number
        if not since:
            return begin
        return Begin(begin.start.at(begin.start.epoch + since - begin.is_over), is_known=begin.is_known)

    def _gone_on(self, loaded: list[Loaded]) -> Begin:
        """Return where a pass begins that goes on from what every worker had made of another one."""
        newest = max(loaded, key=lambda row: (row.epoch, row.num_consumed))
        # A worker that has no batch in a pass yet still stands in the one from which that goes on.
        rows = [row for row in loaded if (row.epoch, row.num_consumed) == (newest.epoch, newest.num_consumed)]
        num_made, is_over = sum(row.num_made for row in rows), any(row.is_over for row in rows)
        first, saved = (newest.first + num_made) % len(loaded), self._saved
        if saved is None or (saved.epoch, saved.num_consumed) != (newest.epoch, newest.num_consumed):
            saved = self._at(newest.epoch, newest.num_consumed)
            if newest.is_special:  # the owner of workers, which did not get the state
                return Begin(saved, first, is_over, is_known=False)
        was = saved.steps(global_batch_size=newest.global_batch_size, remainder=_REMAINDERS[newest.remainder])
        # Where the loop stood, in the order that it had then; only there may files have been added.
        position = self._resume.adopt(saved.after(num_made - 1, was) if num_made else saved, self._allow)
        return Begin(position.settled(self._steps(position)), first, is_over)

    def batches(self, start: Position, turn: slice) -> BatchIterator:
        """Return batches of a pass that begins at `start`, from this process's own loader."""
        return self._loader_here(turn.step or 1).batches(start, turn)

    def go_on(
        self, which: Pass, worker: int | None, num_workers: int, state: Mapping[str, Any], *, is_over: bool
    ) -> None:
        """Let a pass go on from where a worker of the same number stood; have no batches where that pass was over.

        Raises:
            ResumeError: The pass was one of another data set or order, or of other workers; or workers made other
                batches of it.
        """
        start = Position.from_json(json.loads(state["start"]))
        if not self._allow:
            self._resume.adopt(start)
        now = self._made_of(num_workers)
        saved = {name: state[name] for name in now}
        if num_workers == saved["num_workers"] == 0:  # then one process knows how far all of them were
            now |= {"global_batch_size": saved["global_batch_size"], "remainder": saved["remainder"]}
        if saved != now:
            what = "; ".join(f"{name} was {saved[name]} and is {now[name]}" for name in now if saved[name] != now[name])
            raise ResumeError(
                f"this state of a StatefulDataLoader is of other batches: {what}. Each worker knows only how many it "
                "made itself: make the DataLoader as it was, or save TorchDataset.state_after(steps), from which any "
                "number of workers goes on, with any batch size",
                saved=saved,
                current=now,
            )
        row = Loaded(
            which.told,
            which.number,
            start.epoch,
            start.num_consumed,
            state["first"],
            state["num_made"],
            is_over,
            saved["global_batch_size"],
            _REMAINDERS.index(saved["remainder"]),
            replace(start, epoch=0, num_consumed=0) != self._resume.beginning,
        )
        self._saved = start
        self._passes.load(worker, row)

    def state_of(self, begin: Begin, num_made: int, num_workers: int) -> dict[str, Any]:
        """Return where a worker stands, as JSON can write it and torchdata does not take it apart."""
        start = json.dumps(begin.start.to_json())
        stands = {"start": start, "first": begin.first, "num_made": num_made}
        return stands | self._made_of(num_workers)

    def _made_of(self, num_workers: int) -> dict[str, Any]:
        steps = self._steps(self._resume.beginning)
        return {
            "num_workers": num_workers,
            "global_batch_size": steps.global_batch_size,
            "remainder": steps.remainder,
        }

    def _steps(self, position: Position) -> Steps:
        return position.steps(
            global_batch_size=self._config.global_size(self._ranks.settle()), remainder=self._config.remainder
        )

    def _at(self, epoch: int, num_consumed: int) -> Position:
        anchor = self._anchor if epoch == self._anchor.epoch else self._anchor.at(epoch)
        return replace(anchor, num_consumed=max(num_consumed, anchor.again().num_consumed))

    @property
    def _order(self) -> int:
        """What stands for the order that positions are told from: 0 for that of a loader made anew."""
        if replace(self._anchor, epoch=0, num_consumed=0) == self._resume.beginning:
            return 0
        told = self._anchor.to_json() | {"num_consumed": 0}
        return int(fingerprint("anchor", told)[:12], 16)

    def _under_way(self) -> Begin:
        return self.begin_of(self._passes.latest or Pass(self._passes.num_told, 0))

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
        self.own()
        return self.__dict__ | {"_loader": None, "_inherited": [], "_seen": self._look()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _all.add(self)

    def _look(self) -> Seen:
        return look_at_callers(has_lists=self._has_lists)


def _own_all() -> None:
    for dataset in list(_all):
        dataset.own()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_own_all)


class TorchIterator(Iterator[Tensors]):
    """The batches of one worker in one pass.

    Has the state that torchdata's `StatefulDataLoader` keeps for each worker: where the pass began, how many of its
    batches this worker has made, and of which batches of how many workers that is true.

    Args:
        dataset: Makes the batches.
        which: The pass.
        seen: What those who ask for them do.
        worker: What torch tells of the worker; None outside one.
    """

    def __init__(self, dataset: TorchDataset, which: Pass, seen: Seen, worker: WorkerInfo | None) -> None:
        self._dataset = dataset
        self._which = which
        self._worker = None if worker is None else worker.id
        self._missing = seen.missing
        self._was_over = seen.is_over
        self._num_workers = 0 if worker is None else worker.num_workers
        self._num_made = 0
        self._is_over = False
        self._begin: Begin | None = None
        self._batches: BatchIterator | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __next__(self) -> Tensors:
        if self._is_over:
            raise StopIteration
        if self._batches is None:  # not before: a saved state may come between `iter` and the first batch
            self._batches = self._begin_batches()
        try:
            if self._batches is None:
                raise StopIteration
            batch: Tensors = next(self._batches)
        except StopIteration:
            self._is_over = True
            self._batches = None
            raise
        self._num_made += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands."""
        if self._begin is None and self._loaded is not None:
            return dict(self._loaded)
        begin = self._begin or self._dataset.begin_of(self._which)
        return self._dataset.state_of(begin, self._num_made, self._num_workers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a worker of the same number among as many stood.

        Raises:
            ResumeError: The pass was one of another data set, order or batch size.
        """
        self._dataset.go_on(self._which, self._worker, self._num_workers, state, is_over=self._was_over)
        self._loaded, self._missing = state, None

    def _begin_batches(self) -> BatchIterator | None:
        if self._missing is not None:
            raise ResumeError(self._missing, saved=None, current=None)
        self._begin = begin = self._dataset.begin_of(self._which)
        if begin.is_over:
            return None
        if not begin.is_known:
            raise ResumeError(
                "this worker was begun before load_state_dict, and the state is of an epoch that it does not know: "
                "make the DataLoader anew behind load_state_dict, or without persistent_workers",
                saved=None,
                current=None,
            )
        every = max(1, self._num_workers)
        return self._dataset.batches(begin.start, slice(((self._worker or 0) - begin.first) % every, None, every))


class _InTurnLoader(Loader):
    """A loader that begins any pass, and makes any of its steps."""

    def _make_delivery(self) -> CpuDelivery:
        return CpuDelivery(in_one_storage=True)

    def plan(self) -> tuple[LoaderConfig, Resume]:
        """Return what was asked for, and what states are read by."""
        return self._config, self._resume

    def as_opened(self) -> Dataset | Mixture:
        """Return what it loads, as it was when it was opened."""
        return self._opened.as_opened()

    def batches(self, start: Position, turn: slice) -> BatchIterator:
        """Return some of the batches of the pass that begins at `start`."""
        return BatchIterator(self, partial(self._begin_run, start, turn))
