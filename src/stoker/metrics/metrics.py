"""Which figures of a loader go to monitoring systems, and under which names: once, for all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from stoker.errors import printable
from stoker.metrics.stats import LoaderStats

Values: TypeAlias = Mapping[tuple[str, ...], float]
"""Label values -> value."""


class HasStats(Protocol):
    """A loader, as far as monitoring needs one."""

    def stats(self) -> LoaderStats:
        """Return what it has done so far."""


class Metric(NamedTuple):
    """One figure."""

    kind: Literal["counter", "gauge"]  # a counter only grows, a gauge says what holds now
    name: str  # without prefix and unit
    unit: Literal["", "seconds", "bytes", "ratio"]
    text: str
    read: Callable[[LoaderStats], float | Values]
    labels: tuple[str, ...] = ()  # what tells its values apart, beside the loader

    def values(self, loaders: Mapping[str, LoaderStats]) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels, the loader's name first, and the value."""
        for loader, stats in loaders.items():
            found = self.read(stats)
            for labels, value in (found if isinstance(found, Mapping) else {(): found}).items():
                yield dict(zip(("loader", *self.labels), (loader, *labels), strict=True)), value


def _waits(stats: LoaderStats) -> Values:
    # "loop_for_batch_s" -> ("loop", "batch")
    return {tuple(name.removesuffix("_s").split("_for_")): s for name, s in stats.waits._asdict().items()}


def _each_stage(figure: str) -> Callable[[LoaderStats], Values]:
    return lambda stats: {(name,): getattr(total, figure) for name, total in stats.stages.items()}


def _chunks(stats: LoaderStats) -> Values:
    return {("hit",): stats.num_reused, ("miss",): stats.num_built}


_STAGE_TEXT = "Time spent in each stage, added over threads; some stages lie inside others."
_STEP_TEXT = "Time the training loop spent in its steps, between waits."
_WAIT_TEXT = "Time that one waited for another, added over threads."
_CHUNKS_TEXT = "Different chunks that were used: found in the cache (hit) or built (miss)."
_PROGRESS_TEXT = "Share of the epoch's steps that are over."

METRICS = (
    Metric("counter", "steps", "", "Batches handed over.", lambda s: s.num_steps),
    Metric("counter", "samples", "", "Samples handed over.", lambda s: s.num_samples),
    Metric("counter", "stall", "seconds", "Time the training loop waited for a batch.", lambda s: s.wait_s),
    Metric("counter", "step", "seconds", _STEP_TEXT, lambda s: s.step_s),
    Metric("counter", "wait", "seconds", _WAIT_TEXT, _waits, ("waiter", "awaited")),
    Metric("counter", "stage", "seconds", _STAGE_TEXT, _each_stage("busy_s"), ("stage",)),
    Metric("counter", "stage", "bytes", "Bytes that went through each stage.", _each_stage("num_bytes"), ("stage",)),
    Metric("counter", "stage_calls", "", "Pieces of work of each stage.", _each_stage("num_calls"), ("stage",)),
    Metric("counter", "cache_chunks", "", _CHUNKS_TEXT, _chunks, ("result",)),
    Metric("counter", "chunks_mended", "", "Chunks that were corrupt and were built again.", lambda s: s.num_mended),
    Metric("gauge", "chunks_substituted", "", "Chunks for whose rows others stand in.", lambda s: s.num_substituted),
    Metric("counter", "chunks_evicted", "", "Chunks removed to make room for others.", lambda s: s.num_evicted),
    Metric("counter", "chunks_fetched", "", "Chunks that came from the mirror.", lambda s: s.num_fetched),
    Metric("counter", "chunks_uploaded", "", "Chunks put into the mirror.", lambda s: s.num_uploaded),
    Metric("counter", "mirror_failures", "", "Times the mirror could not be used.", lambda s: s.num_mirror_failures),
    Metric("counter", "trace_dropped_spans", "", "Spans that a trace could not keep.", lambda s: s.num_dropped_spans),
    Metric("gauge", "ready_batches", "", "Batches that wait for their step.", lambda s: s.num_ready),
    Metric("gauge", "building_chunks", "", "Chunks in the making.", lambda s: s.num_building),
    Metric("gauge", "epoch", "", "Epoch of the next batch, from 0 on.", lambda s: s.epoch),
    Metric("gauge", "epoch_progress", "ratio", _PROGRESS_TEXT, lambda s: s.epoch_step / max(1, s.epoch_steps)),
)


def stats_by_name(loaders: HasStats | Mapping[str, HasStats]) -> Callable[[], dict[str, LoaderStats]]:
    """Return what tells what loaders have done so far, by name; a lone one is called "loader".

    It keeps none alive, and leaves out who is gone. What has no `stats` is a `TypeError`.
    """
    named = loaders if isinstance(loaders, Mapping) else {"loader": loaders}
    for name, loader in named.items():
        if not isinstance(name, str) or not callable(getattr(loader, "stats", None)):
            raise TypeError(f"give a loader, or loaders by name, not {name!r}: {type(loader).__name__}")
    known = {printable(name, is_line=True): weakref.ref(loader) for name, loader in named.items()}
    return lambda: {name: found.stats() for name, loader in known.items() if (found := loader()) is not None}
