"""The arguments of a loader, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from stoker.arguments import check_function, flag, integer, names
from stoker.cache.store import Cache
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.host.machine import num_cores
from stoker.loader.augmenting import Augment
from stoker.loader.sequence import SequenceShard
from stoker.loader.shard import Ranks, Shard
from stoker.metrics.record import Trace
from stoker.sampling.steps import Remainder

# Batches made ahead of the step. The more there are, the more are made together, and the less often threads wait for
# the interpreter's lock (docs/decisions/0010); large ones gain nothing by it and take memory.
_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 12, 40, 128 << 20
# For a device more are made together, because the fixed cost of a group is taken from the loop's time.
_AHEAD_ON_DEVICE_BYTES = 256 << 20
# Chunks opened together without shuffling: at least two are read while two are used.
_MIN_PLAIN_WINDOW = 4

OnError: TypeAlias = Literal["raise", "substitute"]

Once: TypeAlias = Literal["never", "always", "where it pays"]
"""Whether values that samples of a batch share are gathered once for all of them, or once for each sample."""

# What other loaders call it, and what it is here.
HINTS = {
    "num_workers": "batches are made by threads of this process, num_threads= of them; transform_in='processes' is for "
    "a transform that holds the interpreter's lock",
    "drop_last": "say remainder='drop', 'keep' or 'pad'",
    "pin_memory": "leave it out; stoker.torch.TorchLoader(device='cuda') copies from pinned memory by itself",
    "pin_memory_device": "leave it out; stoker.torch.TorchLoader(device='cuda') copies from pinned memory by itself",
    "persistent_workers": "leave it out; there are no workers, only threads of this process",
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


_NOTHING: Any = None  # a default that `__post_init__` always replaces


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The arguments of a loader, checked and in one form each; `Loader` says what they mean, and what is wrong."""

    batch_size: int | None = None
    shuffle: bool = False
    seed: int = 0
    window: int | Literal["all"] | None = None
    lanes: int = 1
    remainder: Remainder = "keep"
    rank: int | None = None
    world_size: int | None = None
    shard: Shard | None = None
    global_batch_size: int | None = None
    cache: Cache = _NOTHING
    cache_limit: int | str | None = None
    num_threads: int = _NOTHING
    prefetch: int | None = None
    transform_in: Literal["threads", "processes"] = "threads"
    on_error: OnError = "raise"
    augment: Augment | None = None
    trace: Trace | None = None
    group_by: str | Sequence[str] | None = None
    weights: str | None = None
    sequence: NGram | Pack | None = None
    sequence_shard: SequenceShard | None = None
    deduplicated: Literal["expand", "unique"] = "expand"
    ranks: Ranks = _NOTHING  # resolves `rank`, `world_size` and `shard` on first use
    unit: SamplingUnit | None = None  # from `group_by`, `weights` and `sequence`; None for rows

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                listed = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
                raise ValueError(f"{name} must be {listed}, not {getattr(self, name)!r}")
        for name, kind in _KINDS.items():
            if getattr(self, name) is not None and not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a stoker.{kind.__name__}, not {getattr(self, name)!r}")
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name in ("lanes", "seed"):
                self._set(name, integer(getattr(self, name), name, at_least=least))
        self._set("shuffle", flag(self.shuffle, "shuffle"))
        if self.augment is not None:
            check_function(self.augment, "augment", "batch", "generator")
        if isinstance(self.window, str) and self.window != "all":
            raise TypeError(f"window must be a number of chunks, 'all' or None, not {self.window!r}")
        if self.window is not None and self.window != "all":
            integer(self.window, "window")
        self._check_together()
        self._set("num_threads", num_cores() if self.num_threads is None else self.num_threads)
        cache: Any = self.cache
        if not isinstance(cache, Cache):
            self._set("cache", Cache(cache, limit=self.cache_limit))
            self._set("cache_limit", None)
        if self.window is None and not self.shuffle:
            # A window then mixes nothing. A small one lets the first batch wait for few chunks, built at once.
            self._set("window", plain_window(self.num_threads))
        if self.ranks is _NOTHING:
            self._set("ranks", Ranks(rank=self.rank, world_size=self.world_size, shard=self.shard))
        if self.ranks.given is not None:
            self.global_size(self.ranks.given)
        elif self.batch_size is None:
            self.global_size(Shard())  # checks it now: it is the same for any number of ranks

    def _check_together(self) -> None:
        """Raise where arguments contradict each other; find out what the order counts."""
        if self.batch_size is None and self.global_batch_size is None:
            raise TypeError("give a batch_size (samples a rank) or a global_batch_size")
        if isinstance(self.cache, Cache) and self.cache_limit is not None:
            raise ValueError("cache_limit is told twice: give it to stoker.Cache, as limit=")
        if self.deduplicated == "unique" and self.sequence is not None:
            raise ValueError(
                "deduplicated='unique' is for batches of whole rows; with sequence=, fields come expanded: leave it out"
            )
        if self.unit is None:
            unit = parse_unit(group_by=self.group_by, weights=self.weights, sequence=self.sequence)
            self._set("unit", unit)
        if self.unit is not None and self.on_error == "substitute":
            raise ValueError(
                "on_error='substitute' lets other rows stand in for bad ones, and group_by=, weights= and sequence= "
                "count what is in the rows: leave one out"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def global_size(self, shard: Shard) -> int:
        """Return the samples of a global batch that the ranks of `shard` share; a ValueError where none can be."""
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


_WORDS: dict[str, tuple[str, ...]] = {
    "remainder": ("keep", "drop", "pad"),
    "transform_in": ("threads", "processes"),
    "on_error": ("raise", "substitute"),
    "deduplicated": ("expand", "unique"),
}
_KINDS: dict[str, type] = {"sequence_shard": SequenceShard, "trace": Trace}
# The integers among them, each with its least value.
_LEAST: dict[str, int | None] = {
    **dict.fromkeys(("batch_size", "global_batch_size", "world_size", "lanes", "num_threads"), 1),
    **dict.fromkeys(("rank", "prefetch"), 0),
    "seed": None,
}

DEFAULTS: dict[str, Any] = {name: getattr(LoaderConfig, name) for name in LoaderOptions.__annotations__}


def parse_unit(*, group_by: object, weights: object, sequence: object) -> SamplingUnit | None:
    """Return what the order counts by the arguments of a loader, which are checked here; None for rows."""
    given = {"group_by": group_by, "weights": weights, "sequence": sequence}
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1:
        raise ValueError(f"{' and '.join(said)} each say what the order counts; give one of them")
    if group_by is not None:
        if not (keys := names(group_by, "group_by")):
            raise ValueError("group_by names no column")
        return Grouped(keys=keys)
    if weights is not None:
        if not isinstance(weights, str):
            raise TypeError(f"weights must be the name of a column, not {weights!r}")
        return Weighted(column=names(weights, "weights")[0])
    if sequence is not None and not isinstance(sequence, NGram | Pack):
        raise TypeError(f"sequence must be a stoker.NGram or a stoker.Pack, not {sequence!r}")
    return sequence


def plain_window(num_threads: int) -> int:
    """Return how many chunks are opened together by default, where the order is that of the files."""
    return max(_MIN_PLAIN_WINDOW, num_threads)


def default_prefetch(batch_bytes: float | None, *, crosses: bool = False) -> int:
    """Return how many batches are made ahead of the step by default; `crosses` means that they go to a device."""
    if batch_bytes is None:
        return _LEAST_AHEAD
    ahead_bytes = _AHEAD_ON_DEVICE_BYTES if crosses else _AHEAD_BYTES
    return int(min(max(ahead_bytes // max(batch_bytes, 1), _LEAST_AHEAD), _MOST_AHEAD))
