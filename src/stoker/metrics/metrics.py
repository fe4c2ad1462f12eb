"""Which figures of a loader go to monitoring systems, and under which names: once, for all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from stoker.metrics.stats import LoaderStats

Values: TypeAlias = Mapping[tuple[str, ...], float]
"""Label values -> value."""


class HasStats(Protocol):
    """A loader, as far as monitoring needs one."""

    def stats(self) -> LoaderStats:
        """Return what it has done so far."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure.

    Attributes:
        name: Without prefix and unit.
        kind: A counter only grows; a gauge says what holds now.
        unit: Base unit, "" for a count.
        text: What it is.
        labels: What tells its values apart, beside the loader.
        read: Gives the values.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: Literal["", "seconds", "bytes", "ratio"] = ""
    text: str
    labels: tuple[str, ...] = ()
    read: Callable[[LoaderStats], Values]


def _one(read: Callable[[LoaderStats], float]) -> Callable[[LoaderStats], Values]:
    return lambda stats: {(): read(stats)}


def _cache_chunks(stats: LoaderStats) -> Values:
    return {("hit",): stats.num_reused, ("miss",): stats.num_missed}


def _waits(stats: LoaderStats) -> Values:
    waits = stats.waits
    return {
        ("loop", "batch"): waits.loop_for_batch_s,
        ("batch", "window"): waits.batch_for_window_s,
        ("window", "chunk"): waits.window_for_chunk_s,
        ("build", "bytes"): waits.build_for_bytes_s,
        ("batch", "room"): waits.batch_for_room_s,
    }


def _progress(stats: LoaderStats) -> float:
    return stats.epoch_step / stats.epoch_steps if stats.epoch_steps else 0.0


METRICS = (
    Metric(name="steps", kind="counter", text="Batches handed over.", read=_one(lambda s: s.num_steps)),
    Metric(name="samples", kind="counter", text="Samples handed over.", read=_one(lambda s: s.num_samples)),
    Metric(
        name="stall",
        kind="counter",
        unit="seconds",
        text="Time the training loop waited for a batch.",
        read=_one(lambda s: s.wait_s),
    ),
    Metric(
        name="step",
        kind="counter",
        unit="seconds",
        text="Time the training loop spent in its steps, between waits.",
        read=_one(lambda s: s.step_s),
    ),
    Metric(
        name="wait",
        kind="counter",
        unit="seconds",
        text="Time that one waited for another, added over threads.",
        labels=("waiter", "awaited"),
        read=_waits,
    ),
    Metric(
        name="stage",
        kind="counter",
        unit="seconds",
        text="Time spent in each stage, added over threads; some stages lie inside others.",
        labels=("stage",),
        read=lambda s: {(name,): total.busy_s for name, total in s.stages.items()},
    ),
    Metric(
        name="stage",
        kind="counter",
        unit="bytes",
        text="Bytes that went through each stage.",
        labels=("stage",),
        read=lambda s: {(name,): total.num_bytes for name, total in s.stages.items()},
    ),
    Metric(
        name="stage_calls",
        kind="counter",
        text="Pieces of work of each stage.",
        labels=("stage",),
        read=lambda s: {(name,): total.num_calls for name, total in s.stages.items()},
    ),
    Metric(
        name="cache_chunks",
        kind="counter",
        text="Different chunks that were used: found in the cache (hit) or built (miss).",
        labels=("result",),
        read=_cache_chunks,
    ),
    Metric(
        name="chunks_mended",
        kind="counter",
        text="Chunks that were corrupt and were built again.",
        read=_one(lambda s: s.num_mended),
    ),
    Metric(
        name="chunks_evicted",
        kind="counter",
        text="Chunks removed to make room for others.",
        read=_one(lambda s: s.num_evicted),
    ),
    Metric(
        name="trace_dropped_spans",
        kind="counter",
        text="Spans that a trace could not keep.",
        read=_one(lambda s: s.num_dropped_spans),
    ),
    Metric(
        name="ready_batches",
        kind="gauge",
        text="Batches that wait for their step.",
        read=_one(lambda s: s.num_ready),
    ),
    Metric(
        name="building_chunks",
        kind="gauge",
        text="Chunks in the making.",
        read=_one(lambda s: s.num_building),
    ),
    Metric(name="epoch", kind="gauge", text="Epoch of the next batch, from 0 on.", read=_one(lambda s: s.epoch)),
    Metric(
        name="epoch_progress",
        kind="gauge",
        unit="ratio",
        text="Share of the epoch's steps that are over.",
        read=_one(_progress),
    ),
)


class LoadersByName:
    """Loaders by name, none of them kept alive.

    Args:
        loaders: A loader, or several by name; a lone one is called "loader".

    Raises:
        TypeError: What was given has no `stats`.
    """

    def __init__(self, loaders: HasStats | Mapping[str, HasStats]) -> None:
        named = loaders if isinstance(loaders, Mapping) else {"loader": loaders}
        for name, loader in named.items():
            if not isinstance(name, str) or not callable(getattr(loader, "stats", None)):
                raise TypeError(f"give a loader, or loaders by name, not {name!r}: {type(loader).__name__}")
        self._loaders = {name: weakref.ref(loader) for name, loader in named.items()}

    def stats(self) -> dict[str, LoaderStats]:
        """Return what the loaders that are still there have done so far, by name."""
        alive = {name: found for name, loader in self._loaders.items() if (found := loader()) is not None}
        return {name: loader.stats() for name, loader in alive.items()}
