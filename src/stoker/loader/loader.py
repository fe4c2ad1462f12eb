"""The loader: batches of a data set as NumPy arrays, ahead of their step."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack

from stoker.arguments import explain_arguments, integer
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.errors import printable
from stoker.fields.ragged import register_pytrees
from stoker.fields.spec import Spec
from stoker.host.forks import this_process
from stoker.loader.batches import Batches, Delivery
from stoker.loader.buffers import BufferPool
from stoker.loader.config import DEFAULTS, HINTS, LoaderConfig, LoaderOptions
from stoker.loader.epoch_run import BatchIterator, Epochs, Run
from stoker.loader.explain import Explanation, Use, explain, find_all
from stoker.loader.opened import OpenDatasets, naming, open_datasets
from stoker.loader.orders import Orders, UnitsReport, needed_chunks
from stoker.loader.resume import Allowed
from stoker.loader.units import make_collator
from stoker.metrics import status
from stoker.metrics.stages import Stages, StageTotal
from stoker.metrics.stats import LoaderStats
from stoker.sampling import steps as order
from stoker.sampling.position import Position
from stoker.sampling.steps import Steps


@explain_arguments(HINTS, options=DEFAULTS, types=LoaderOptions)
class Loader:
    """Batches of a data set as dicts of NumPy arrays, in an order that depends on the data set and the arguments alone.

        for batch in loader:                 # one epoch
            batch["dense"]                   # [B, 40], a view of the batch's one buffer
            batch["history"].values          # ragged: all values, [total]
            batch["history"].offsets         # int64 [B + 1]

    The first epoch reads, transforms and caches while it trains; later ones read the cache alone. Each `for` is one
    epoch, the next `for` the next epoch; a `for` that was left early begins the same epoch again. A batch is yours: its
    memory is reused only when nothing refers any more to it, or to the batches gathered with it (24 MiB together at
    most, on a device 64). Fixed-width fields are views with the record as stride; `np.ascontiguousarray` copies one
    that must be contiguous.

    The order counts rows, unless `group_by`, `weights` or `sequence` says otherwise. What it counts then is found by
    reading the columns that decide it once, and kept with the cache; `units` describes it.

    Use it in a with block, or call `close`: threads, maps and locks end there.

    Args:
        dataset: What to load: a `Dataset`, or a `Mixture` of several.
        batch_size: Samples a batch on this rank. With `global_batch_size`, leave it out.
        shuffle: Mix the samples anew each epoch; otherwise they come in the order of the files.
        seed: Seed of the shuffle and of `augment`.
        window: Chunks whose samples are mixed together; "all" mixes the whole data set. None takes as many as make
            about 512 MiB, which depends on the data set alone. Of a mixture, chunks of each data set.
        lanes: Fixed equal shares of the samples, each of which feeds an equal part of every global batch, so that n
            nodes can each cache their own share. With 21 samples, two lanes and global batches of 8:

                samples   0 ········· 9 │ 10 ·········· 20     lane 0 has 10, lane 1 has 11; each is shuffled by itself
                step 0    ████          │ ████                 a rank of two reads its own lane alone
                step 1    ████          │ ████                 any other number of ranks gets the same batches
                step 2    ██            │ ███                  "keep": 5 samples; "drop": no such step;
                          ██░░          │ ███░                 "pad": each lane repeats its own beginning
        remainder: What becomes of the samples that do not fill a global batch: "keep" makes the last batch smaller,
            "drop" leaves them out, "pad" fills it up with samples of the epoch's beginning and adds the bool field
            `sample_mask`, False on those.
        rank: Number of this process among those that train together. By default the loader finds it and `world_size`
            when it is first iterated, or asked for its length: from torch.distributed, JAX, Accelerate, Ray Train or
            MPI, else from the environment variables of torchrun, MPI or SLURM.
        world_size: Number of these processes. Any number works; all take the same number of steps.
        shard: Which share of a global batch this process takes, in place of `rank` and `world_size`, where several
            processes take the same share: `Shard.from_mesh(...)`, or `Shard(0, 1)` for the whole batch.
        global_batch_size: Samples a step over all ranks; default batch_size x world_size.
        cache: Folder on a fast local disk that keeps the transformed chunks; it may be shared by any number of
            processes and data sets. `stoker.Cache` says more about it. None keeps them in memory (tmpfs) for this
            loader alone.
        cache_limit: Most bytes in that folder, such as "500GB", or a number; None means as much as the disk has.
        num_threads: How many threads decode, transform and convert at a time, and how many at most assemble batches.
            Further threads wait for a remote source, as many as are of use, and one writes. The default is the cores
            that this process may use, within its container's limit. Changes no batch.
        prefetch: Batches made ahead of the step. With 0 a batch is assembled when it is asked for, in the calling
            thread; without `augment` and a device, small batches are then assembled several at a time, up to 1 MiB.
            None makes 40 ahead, or fewer where these would take more than 128 MiB (for a device 256 MiB), but at
            least 12. Changes no batch. Takes memory for these, for the one in use, and for twice the 24 MiB (for a
            device 64 MiB) that are gathered together.
        transform_in: "threads", or "processes" for a transform that holds the GIL.
        on_error: What becomes of a chunk that cannot be made of its rows, because a page is corrupt or the transform or
            a field refuses them: "raise" raises at the step that needs it. "substitute" replaces the rows by equally
            many of the next chunk that can be made, the same on every rank and after a resume; each such chunk is
            logged and counted (`stats().num_substituted`). What fails for another reason, such as a network,
            credentials, or a file that is gone or changed, raises in either case. Not with `group_by`, `weights` or
            `sequence`, which count what was in the rows.
        augment: Function of (batch, generator) that returns the batch to hand over; runs after the cache, on every
            epoch, in threads. The generator, a `stoker.SampleGenerator`, depends only on the seed, the epoch and the
            positions of the samples in it; its `seeds` has one seed a sample, the same on any number of ranks.
        trace: Records what every thread does; see `stoker.Trace`. Totals are always counted.
        group_by: A column, or several: consecutive rows with equal values are a group, which stays together in one
            batch, in its order; groups are shuffled. `batch_size` then counts groups, and a batch has all their rows,
            and the field `group_offsets` (int64, [B + 1]), which says where each group begins and ends.
        weights: A column: an epoch has as many draws as there are samples, and each sample is drawn in proportion to
            its value, rounded down or up.
        sequence: `stoker.NGram` for windows over consecutive rows, `stoker.Pack` for lists packed into rows of one
            length. `batch_size` counts these.
        sequence_shard: This rank's part of every sequence, where several ranks work on the same samples: see
            `SequenceShard`. All other fields stay whole.
        deduplicated: How deduplicated fields come (`Dataset(deduplicate=...)`): "expand" gives each sample a value of
            its own; "unique" gives a `stoker.Deduplicated`, with each value of a batch once and an index of the value
            of each sample, for a model that expands them after its embedding.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or two contradict each other. When the ranks are known, also if these
            contradict an argument, or each other.
        SourceError: The data set cannot be listed or a footer cannot be read.
        FieldError: Columns cannot become tensors; it lists them all.
        CacheError: The cache folder cannot be used.
    """

    def __init__(self, dataset: Dataset | Mixture, **options: Unpack[LoaderOptions]) -> None:
        if not isinstance(dataset, Dataset | Mixture):
            raise TypeError(
                f"dataset must be a stoker.Dataset or a stoker.Mixture of some, not {type(dataset).__name__}; wrap it: "
                "Dataset(...)"
            )
        config = LoaderConfig(**dict[str, Any](options))
        self._config = config
        self._made_s = time.monotonic()
        name = _title(dataset)
        self._stages = Stages() if config.trace is None else config.trace.stages(name)
        self._opened: OpenDatasets = open_datasets(dataset, config, on_stage=self._stages)
        shown = status.StatusFile(self._stages, partial(_look, weakref.ref(self), name))
        self._begun = begun = _Resources(self._opened, shown)
        self._home = begun.home
        self._close_all = weakref.finalize(self, begun.close)
        try:
            self._collator = make_collator(config, self._opened.spec)
            window = self._opened.window(config.window, self._opened.spec)
            self._orders = Orders(
                self._opened, shuffle=config.shuffle, seed=config.seed, window=window, lanes=config.lanes
            )
            self._batches: Batches | None = None  # once the ranks are known
            self._resume = self._orders.resume(takes_window=config.window is None)
            self._epochs = Epochs(self._resume.beginning)
            self._build_first()
            for one in self._opened.datasets:
                one.windows.stand(window)
            self._delivery = delivery = self._make_delivery()
            if delivery.resident is not None:
                _check_resident(config, self._opened)
                delivery.resident.open(self._opened.num_samples, self._opened.spec.record_bytes)
        except BaseException:
            self.close()
            raise
        shown.show()  # last: it is asked for by threads that already run, and must find a complete loader

    # ------------------------------------------------------------------ what a loop needs

    def __iter__(self) -> Iterator[Any]:
        """Return the batches from the position at which the first is asked for to the end of its epoch.

        An iterator that is never asked for a batch, such as frameworks make to inspect a loader, does not advance it.

        Raises:
            ValueError: An argument and what is known of ranks contradict each other.
            RuntimeError: The loader took another share before, because the ranks were not known then.
        """
        register_pytrees()
        self._home.check(f"this {type(self).__name__}")
        self._settle()
        self._check_open()
        return BatchIterator(self._begin_run)

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank. Raises as `iter` does."""
        start = self._epochs.start
        return self._steps_of(self._settle().global_batch_size, start.at(start.epoch)).num_steps

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one. Does nothing right after `load_state_dict`, because the state says the epoch."""
        epoch = integer(epoch, "epoch", at_least=0)
        if not self._epochs.is_restored:
            self._epochs.go_to(self._epochs.start.at(epoch))

    def close(self) -> None:
        """End all threads, maps and locks. Harmless when called again.

        Blocks: until running work is done. A read that fails meanwhile is not tried again.
        """
        self._close_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ where it stands

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a few integers and texts that JSON can write, the same on every rank.

        It counts samples of batches handed over, not of batches made ahead. Any number of ranks, with any batch size,
        can go on from it.
        """
        return self._epochs.after().to_json()

    def state_after(self, num_steps: int) -> dict[str, Any]:
        """Return the position after `num_steps` batches of this pass, for loops that take batches ahead of a step.

        Raises:
            ValueError: The pass has fewer steps, or none has begun.
        """
        return self._epochs.after(num_steps).to_json()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[Allowed] = ()) -> None:
        """Go on from a saved position: the next `for` begins there.

        The files may lie elsewhere than they did, and columns, fields, transform, batch size and ranks may be others. A
        loader that was made without `window` takes that of the state.

        Args:
            state: What `state_dict` returned.
            allow: What else may differ: "files", "weights".

        Raises:
            ResumeError: The position is of other data, or of another seed, window, number of lanes or order version, as
                the message says.
            ValueError: `allow` holds an unknown word.
        """
        _, size = self._known()  # the ranks may be known later
        saved, start = self._resume.load(state, allow, partial(self._steps_of, size))
        self._orders = self._orders.going_on(saved)
        self._epochs.go_to(start, told=saved)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epochs.at.epoch

    @property
    def spec(self) -> Spec:
        """Names, dtypes and shapes of a sample's fields."""
        return self._opened.spec.delivered

    @property
    def num_samples(self) -> int:
        """Samples of the whole data set, or of all of a mixture, after the filter."""
        return int(self._opened.num_samples.sum())

    @property
    def units(self) -> UnitsReport:
        """What the order counts, how many of these units there are, and how many are cut by the borders of chunks."""
        return self._opened.report

    def stats(self) -> LoaderStats:
        """Return what the loader has done so far.

        Raises:
            RuntimeError: This process is a fork of the loader's.
        """
        self._home.check(f"this {type(self).__name__}")
        totals, epochs = self._stages.totals(), self._epochs
        at = epochs.at
        _, global_size = self._known()
        with self._begun.lock:  # or another thread begins a run meanwhile
            runs = list(self._begun.runs)
        return LoaderStats(
            num_steps=epochs.num_steps,
            num_samples=epochs.num_samples,
            wait_s=totals.get("wait", StageTotal()).busy_s,
            step_s=totals.get("step", StageTotal()).busy_s,
            elapsed_s=time.monotonic() - self._made_s,
            num_ready=sum(run.queue.num_ready for run in runs),
            **self._opened.counts(),
            epoch=at.epoch,
            epoch_step=-(-at.num_consumed // global_size),
            epoch_steps=self._steps_of(global_size, at.again()).num_steps,
            stages=totals,
            active=self._stages.active(),
            num_dropped_spans=self._stages.num_dropped,
        )

    def explain(self, step: int, *, epoch: int | None = None) -> Explanation:
        """Return file, row group and row of every sample of a step on this rank, without reading data.

        All rows of a group, window or packed row are named, where the order counts these.

        Args:
            step: Counted from the epoch's beginning.
            epoch: Which epoch; by default the one that the next batch belongs to.

        Raises:
            TypeError: `step` or `epoch` is not an integer.
            ValueError: There is no such step or epoch.
        """
        step = integer(step, "step", at_least=None)
        orders, steps, epoch = self._order_of(epoch)
        return explain(orders, steps, step, epoch=epoch, shard=self._settle().shard)

    def find(self, url: str | Path, row_group: int, row: int, *, epoch: int | None = None) -> Use:
        """Return in which step of an epoch, and on which rank, a row is used first: the inverse of `explain`.

        Args:
            url: A file: its whole path or URL, or the last part of it.
            row_group: Its row group.
            row: The row in it.
            epoch: Which epoch; by default the one that the next batch belongs to.

        Raises:
            ValueError: There is no such file, row group or row; or a filter leaves open which sample it is.
        """
        return self.find_all(url, row_group, row, epoch=epoch)[0]

    def find_all(self, url: str | Path, row_group: int, row: int, *, epoch: int | None = None) -> list[Use]:
        """Return every step of an epoch that uses a row, the first one first.

        There are several where draws, windows or packed rows have a row more than once, or a mixture begins a data set
        again. One entry without a step says that the epoch does not use it. Otherwise as `find`.
        """
        if not isinstance(url, str | os.PathLike):
            raise TypeError(f"url must be a path or URL of a file, or an end of one, not {url!r}")
        url = url if isinstance(url, str) else os.fsdecode(url)
        at = url, integer(row_group, "row_group", at_least=None), integer(row, "row", at_least=None)
        orders, steps, epoch = self._order_of(epoch)
        return find_all(orders, steps, at, epoch=epoch, world_size=self._settle().shard.world_size)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or sent to another process; send what it was made of, such as "
            "the Dataset, and make one there"
        )

    def __repr__(self) -> str:
        shard, global_size = self._known()
        return (
            f"{type(self).__name__}({self.num_samples:,} samples in {len(self._opened.num_samples):,} chunks, "
            f"global batch {global_size:,}, rank {shard.rank} of {shard.world_size}"
            f"{' unless told' * (self._batches is None)}, epoch {self.epoch})"
        )

    # ------------------------------------------------------------------ inside

    def _make_delivery(self) -> Delivery:
        """Return how batches leave; a loader for another framework brings its own."""
        return Delivery()

    def _build_first(self) -> None:
        """Build the first chunk of each data set, unless it is there, and beside it others that the first batch needs.

        At most `num_threads - 1` others, so that a thread is left for the first one.
        """
        for name, one in zip(self._opened.named, self._opened.datasets, strict=True):
            if (first := one.first_missing) is None:
                continue
            beside: list[int] = []
            if not (name or one.windows.is_tight):
                shard, size = self._known()  # if that guess is wrong, another rank's chunks are built early
                steps = self._steps_of(size, self._epochs.start)
                (needed,) = needed_chunks(self._orders, steps, range(min(1, steps.num_steps)), [shard], epoch=0)
                whole = [i for i in needed.tolist() if i != first and len(one.catalogue.unit(i)) == 1]
                beside = whole[: self._config.num_threads - 1]
            with naming(name):
                one.build_first(first, beside)

    def _settle(self) -> Batches:
        """Return what makes batches. Resolves the ranks, if that was not done before."""
        self._config.ranks.settle()
        if (batches := self._batches) is not None:  # looked at without the lock, which a fork may find taken for ever
            return batches
        with self._begun.lock:  # threads may share a loader, which has one pool to give back
            if self._batches is None:
                batches = Batches(
                    self._config,
                    self._opened,
                    collator=self._collator,
                    delivery=self._delivery,
                    stages=self._stages,
                    num_units=self._orders.order.num_samples,
                )
                self._begun.pool = batches.pool
                self._batches = batches
            return self._batches

    def _known(self) -> tuple[order.RankShare, int]:
        """Return this rank's share and the size of a global batch, as far as they are known now."""
        if self._batches is not None:
            return self._batches.shard, self._batches.global_batch_size
        shard = self._config.ranks.guess()
        try:
            return shard, self._config.global_size(shard)
        except ValueError:  # it is raised where somebody asks for a batch
            return shard, self._config.lanes

    def _begin_run(self, start: Position | None = None, turn: slice = slice(None)) -> Run:
        """Begin some of the steps from a position on, of the one where the loader stands unless told."""
        self._home.check(f"this {type(self).__name__}")
        batches, begun = self._settle(), self._begun
        with begun.lock:
            abandoned = [run for run in begun.runs if run.is_abandoned]
        for before in abandoned:
            before.close()  # its threads, memory and room in the cache may be needed now
        start = self._epochs.start if start is None else start
        orders = self._orders.going_on(start)
        with begun.lock:
            self._check_open()
            run = Run(start, orders, self._opened, batches=batches, epochs=self._epochs, stages=self._stages, turn=turn)
            begun.runs.add(run)
        try:
            self._check_open()
        except RuntimeError:  # a signal's handler has closed the loader while the run began
            run.close()
            raise
        self._epochs.enter(run)
        return run

    def _check_open(self) -> None:
        if not self._close_all.alive:
            raise RuntimeError("the loader is closed; make a new one")

    def _steps_of(self, global_batch_size: int, position: Position) -> Steps:
        return position.steps(global_batch_size=global_batch_size, remainder=self._config.remainder)

    def _order_of(self, epoch: int | None) -> tuple[Orders, Steps, int]:
        """Return the orders, the steps and the number of an epoch; None is the epoch of the next batch.

        For the epoch under way they are those with which it began, even if files were added to it.
        """
        at = self._epochs.at
        epoch = at.epoch if epoch is None else integer(epoch, "epoch", at_least=0)
        begins = at.again() if at.epoch == epoch else at.at(epoch)
        return self._orders.going_on(begins), self._steps_of(self._settle().global_batch_size, begins), epoch


class _Resources:
    """The resources of a loader, which end with it. Must not refer to the loader, which could then not be collected."""

    def __init__(self, opened: OpenDatasets, shown: status.StatusFile) -> None:
        self.home = this_process()
        # Held while a run begins, so that `close` finds one that is being started. A signal's handler may close the
        # loader meanwhile, in the same thread.
        self.lock = threading.RLock()
        self.runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self.pool: BufferPool | None = None  # the memory for its batches, once it has some
        self._opened, self._shown = opened, shown

    def close(self) -> None:
        """Close the resources, because `Loader.close` was called or the loader was collected, in whatever thread.

        Garbage in cycles is collected in any thread that runs Python, so perhaps in one that closing waits for. Does
        nothing in a fork.
        """
        if threading.current_thread().name.startswith("stoker-"):
            threading.Thread(target=self._close, name="stoker-close", daemon=True).start()
            return
        try:
            self._close()
        except BaseException:  # Ctrl-C: the rest is done without the caller, and the process waits for it at its end
            threading.Thread(target=self._close, name="stoker-close").start()
            raise

    def _close(self) -> None:
        if not self.home.is_here:
            return
        self._shown.close()
        with self.lock:
            runs = list(self.runs)
        self._opened.is_ending.set()
        for run in runs:
            run.close()
        self._opened.close()
        if self.pool is not None:  # runs refer to it, and are garbage in cycles, which may be collected much later
            self.pool.release()


def _check_resident(config: LoaderConfig, opened: OpenDatasets) -> None:
    """Raise a ValueError if `resident=` is combined with arguments for which rows need more than a gather."""
    conflicts = {
        "a Mixture": opened.mixture is not None,
        "Dataset(deduplicate=...)": bool(opened.spec.keys),
        "group_by=, weights= or sequence=": config.unit is not None,
        "augment=": config.augment is not None,
        "sequence_shard=": config.sequence_shard is not None,
        "fields that are all lists": not opened.spec.record_bytes,
    }
    for what, is_so in conflicts.items():
        if is_so:
            raise ValueError(f"resident= keeps rows on the device as they are, which {what} do not fit: leave one out")


def _look(loader: weakref.ref[Loader], name: str) -> tuple[dict[str, object], LoaderStats] | None:
    """Return what a loader is and what it has done so far; None where it has been collected."""
    if (found := loader()) is None:
        return None
    shard, global_size = found._known()
    about = {"dataset": name, "rank": shard.rank, "world_size": shard.world_size, "global_batch_size": global_size}
    return about, found.stats()


def _title(dataset: Dataset | Mixture) -> str:
    """Return a name for a data set, in one printable line."""
    if isinstance(dataset, Mixture):
        title = f"a mixture of {', '.join(dataset.names)}"
    else:
        first, *others = dataset.sources
        title = f"{first} and {len(others):,} more" if others else str(first)
    return printable(title, is_line=True)
