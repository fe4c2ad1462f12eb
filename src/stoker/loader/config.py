"""The arguments of a loader, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from stoker.arguments import check_function, flag, integer
from stoker.cache.store import Cache
from stoker.dataset.units.kinds import NGram, Pack, SamplingUnit, parse_unit
from stoker.host.machine import num_cores
from stoker.loader.augmenting import Augment
from stoker.loader.sequence import SequenceShard
from stoker.loader.shard import Ranks, Shard
from stoker.metrics.record import Trace
from stoker.sampling.steps import Remainder

# Batches made ahead of the step. The more there are, the more are made together, and the less often threads wait for
# the interpreter's lock (docs/decisions/0010); large ones gain nothing by it and take memory.
_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 12, 40, 128 << 20
# To a device more are made together, because what a group of them costs comes out of the loop's time.
_AHEAD_ON_DEVICE_BYTES = 256 << 20
# Chunks opened together where the order is that of the files: two at least are read while two are used.
_MIN_PLAIN_WINDOW = 4

OnError: TypeAlias = Literal["raise", "substitute"]

Once: TypeAlias = Literal["never", "always", "where it pays"]
"""Whether what samples of a batch share is gathered once for all of them, rather than for each."""

# What other loaders call it, and what it is here.
HINTS = {
    "num_workers": "batches are made by threads of this process, num_threads= of them; transform_in='processes' is for "
    "a transform that holds the interpreter's lock",
    "drop_last": "say remainder='drop', 'keep' or 'pad'",
    "pin_memory": "leave it out; stoker.torch.TorchLoader(device='cuda') copies from pinned memory by itself",
    "pin_memory_device": "leave it out; stoker.torch.TorchLoader(device='cuda') copies from pinned memory by itself",
    "persistent_workers": "leave it out; there are no workers, and threads live from epoch to epoch",
    "worker_init_fn": "leave it out; there are no workers, only threads of this process",
    "multiprocessing_context": "leave it out; there are no workers, only threads of this process",
    "timeout": "leave it out; what fails is raised at the step that needed it",
    "in_order": "leave it out; batches always come in their order",
    "prefetch_factor": "say prefetch=, the batches made ahead of the step",
    "collate_fn": "batches come made; augment= changes each of them, Dataset(transform=...) what is kept in the cache",
    "sampler": "the order is said by shuffle=, seed=, group_by=, weights= or sequence=, and ranks' shares by shard=",
    "batch_sampler": "the order is said by shuffle=, group_by=, weights= or sequence=, and the size by batch_size=",
    "generator": "say seed=, an integer",
    "random_state": "say seed=, an integer",
    "shuffle_buffer": "say window=, the chunks whose samples are mixed; window='all' mixes the whole data set",
    "shuffle_buffer_size": "say window=, the chunks whose samples are mixed; window='all' mixes the whole data set",
    "buffer_size": "say window=, the chunks whose samples are mixed; window='all' mixes the whole data set",
    "num_replicas": "say world_size=",
    "num_epochs": "each `for` over the loader is one epoch: for epoch in range(3): for batch in loader: ...",
    "epochs": "each `for` over the loader is one epoch: for epoch in range(3): for batch in loader: ...",
    "cache_dir": "say cache=, a folder",
    "device": "tensors on a device come from stoker.torch.TorchLoader(..., device='cuda')",
}


class LoaderOptions(TypedDict, total=False):
    """The keyword arguments of every loader; `Loader` says what they mean."""

    batch_size: int | None
    shuffle: bool
    seed: int
    window: int | Literal["all"] | None
    lanes: int
    remainder: Remainder
    rank: int | None
    world_size: int | None
    shard: Shard | None
    global_batch_size: int | None
    cache: str | Path | Cache | None
    cache_limit: int | str | None
    num_threads: int | None
    prefetch: int | None
    transform_in: Literal["threads", "processes"]
    on_error: OnError
    augment: Augment | None
    trace: Trace | None
    group_by: str | Sequence[str] | None
    weights: str | None
    sequence: NGram | Pack | None
    sequence_shard: SequenceShard | None
    deduplicated: Literal["expand", "unique"]


DEFAULTS: LoaderOptions = {
    "batch_size": None,
    "shuffle": False,
    "seed": 0,
    "window": None,
    "lanes": 1,
    "remainder": "keep",
    "rank": None,
    "world_size": None,
    "shard": None,
    "global_batch_size": None,
    "cache": None,
    "cache_limit": None,
    "num_threads": None,
    "prefetch": None,
    "transform_in": "threads",
    "on_error": "raise",
    "augment": None,
    "trace": None,
    "group_by": None,
    "weights": None,
    "sequence": None,
    "sequence_shard": None,
    "deduplicated": "expand",
}


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What a loader was asked for, in one form each.

    Attributes:
        ranks: Which rank of how many, once that must be known.
        batch_size: Samples a step on this rank; None where `global_batch_size` says it.
        global_batch_size: Samples a step over all ranks; None where that follows from `batch_size` and the ranks.
        shuffle: See `Loader`, as for all that follow.
        seed: Any integer.
        window: Chunks; None for as many as make a default window.
        lanes: Divides a global batch.
        remainder: Of samples.
        cache: Folder, or memory, and how it is used.
        num_threads: At least 1.
        prefetch: At least 0; None for `default_prefetch`.
        transform_in: Threads or processes.
        on_error: What becomes of bad chunks.
        augment: Function.
        trace: Records spans.
        unit: What the order counts; None for rows.
        sequence_shard: Part of every sequence.
        deduplicated: How shared fields come.
    """

    ranks: Ranks
    batch_size: int | None
    global_batch_size: int | None
    shuffle: bool
    seed: int
    window: int | Literal["all"] | None
    lanes: int
    remainder: Remainder
    cache: Cache
    num_threads: int
    prefetch: int | None
    transform_in: Literal["threads", "processes"]
    on_error: OnError
    augment: Augment | None
    trace: Trace | None
    unit: SamplingUnit | None
    sequence_shard: SequenceShard | None
    deduplicated: Literal["expand", "unique"]

    @property
    def marks_padding(self) -> bool:
        """Whether batches have a field that says which samples fill them up."""
        return self.remainder == "pad"

    def global_size(self, shard: Shard) -> int:
        """Return the samples of a global batch where so many ranks share it.

        Raises:
            ValueError: `batch_size` and `global_batch_size` contradict each other, or it cannot be cut into lanes.
        """
        size, num_ranks = self.global_batch_size, shard.world_size
        if size is None:
            assert self.batch_size is not None
            size = self.batch_size * num_ranks
        elif self.batch_size is not None and self.batch_size * num_ranks != size:
            raise ValueError(
                f"batch_size {self.batch_size} on {num_ranks} ranks is no global batch of {size}; give one of the two"
            )
        if size % self.lanes:
            raise ValueError(
                f"a global batch of {size} samples cannot be cut into {self.lanes} equal lanes; take a multiple of "
                f"{self.lanes}, such as {-(-size // self.lanes) * self.lanes}"
            )
        return size


def make_config(given: LoaderOptions) -> LoaderConfig:
    """Return what the arguments of a loader say.

    Raises:
        TypeError: One has the wrong type.
        ValueError: One is out of range, or two contradict each other.
    """
    options: LoaderOptions = {**DEFAULTS, **given}
    sequence_shard, sequence = options["sequence_shard"], options["sequence"]
    if sequence_shard is not None and not isinstance(sequence_shard, SequenceShard):
        raise TypeError(f"sequence_shard must be a stoker.SequenceShard, not {sequence_shard!r}")
    rank, world_size = options["rank"], options["world_size"]
    ranks = Ranks(
        rank=None if rank is None else integer(rank, "rank", at_least=0),
        world_size=None if world_size is None else integer(world_size, "world_size"),
        shard=options["shard"],
    )
    batch_size, global_batch_size = (
        None if size is None else integer(size, name)
        for name, size in (("batch_size", options["batch_size"]), ("global_batch_size", options["global_batch_size"]))
    )
    if batch_size is None and global_batch_size is None:
        raise TypeError("give a batch_size (samples a rank) or a global_batch_size")
    shuffle, window = options["shuffle"], options["window"]
    shuffle = flag(shuffle, "shuffle")
    seed = integer(options["seed"], "seed", at_least=None)
    if isinstance(window, str) and window != "all":
        raise TypeError(f"window must be a number of chunks, 'all' or None, not {window!r}")
    if window is not None and window != "all":
        integer(window, "window")
    lanes = integer(options["lanes"], "lanes")
    remainder, transform_in = options["remainder"], options["transform_in"]
    if remainder not in ("keep", "drop", "pad"):
        raise ValueError(f"remainder must be 'keep', 'drop' or 'pad', not {remainder!r}")
    if transform_in not in ("threads", "processes"):
        raise ValueError(f"transform_in must be 'threads' or 'processes', not {transform_in!r}")
    on_error = options["on_error"]
    if on_error not in ("raise", "substitute"):
        raise ValueError(f"on_error must be 'raise' or 'substitute', not {on_error!r}")
    augment, cache, deduplicated, trace = (
        options["augment"],
        options["cache"],
        options["deduplicated"],
        options["trace"],
    )
    if augment is not None:
        check_function(augment, "augment", "batch", "generator")
    if not isinstance(cache, Cache):
        cache = Cache(cache, limit=options["cache_limit"])
    elif options["cache_limit"] is not None:
        raise ValueError("cache_limit is told twice: give it to stoker.Cache, as limit=")
    if deduplicated not in ("expand", "unique"):
        raise ValueError(f"deduplicated must be 'expand' or 'unique', not {deduplicated!r}")
    if deduplicated == "unique" and sequence is not None:
        raise ValueError(
            "deduplicated='unique' is for batches of whole rows; with sequence=, fields come expanded: leave it out"
        )
    if trace is not None and not isinstance(trace, Trace):
        raise TypeError(f"trace must be a stoker.Trace, not {trace!r}")
    unit = parse_unit(group_by=options["group_by"], weights=options["weights"], sequence=sequence)
    if unit is not None and on_error == "substitute":
        raise ValueError(
            "on_error='substitute' lets other rows stand in for bad ones, and group_by=, weights= and sequence= count "
            "what is in the rows: leave one out"
        )
    prefetch = None if options["prefetch"] is None else integer(options["prefetch"], "prefetch", at_least=0)
    num_threads = num_cores() if options["num_threads"] is None else integer(options["num_threads"], "num_threads")
    if window is None and not shuffle:
        # A window then mixes nothing, so the first batch should wait for few chunks: those built at once.
        window = plain_window(num_threads)
    config = LoaderConfig(
        ranks=ranks,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        shuffle=shuffle,
        seed=seed,
        window=window,
        lanes=lanes,
        remainder=remainder,
        cache=cache,
        num_threads=num_threads,
        prefetch=prefetch,
        transform_in=transform_in,
        on_error=on_error,
        augment=augment,
        trace=trace,
        unit=unit,
        sequence_shard=sequence_shard,
        deduplicated=deduplicated,
    )
    if ranks.given is not None:
        config.global_size(ranks.given)
    elif batch_size is None:
        config.global_size(Shard())  # it is the same for any number of ranks
    return config


def plain_window(num_threads: int) -> int:
    """Return how many chunks are opened together unless told, where the order is that of the files."""
    return max(_MIN_PLAIN_WINDOW, num_threads)


def default_prefetch(batch_bytes: float | None, *, crosses: bool = False) -> int:
    """Return how many batches are made ahead of the step unless told.

    Args:
        batch_bytes: About how large they are; None is any size.
        crosses: Whether they go to a device.
    """
    if batch_bytes is None:
        return _LEAST_AHEAD
    ahead_bytes = _AHEAD_ON_DEVICE_BYTES if crosses else _AHEAD_BYTES
    return int(min(max(ahead_bytes // max(batch_bytes, 1), _LEAST_AHEAD), _MOST_AHEAD))
