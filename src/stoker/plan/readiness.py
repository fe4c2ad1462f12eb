"""What the first steps of an epoch need of a cache, and how long what is missing takes: nothing is built to say so."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.cache.store import Store
from stoker.fields.offsets import Int64
from stoker.loader.orders import Orders
from stoker.plan.known import KnownSet
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.steps import RankShare, Steps

# Chunks that were published with longer pauses between them were not all that could be had.
_PAUSE_S = 10.0
# Of fewer chunks, how long they took says little.
_LEAST_CHUNKS = 4


def needed_chunks(
    orders: Orders, steps: Steps, which: range, shards: Iterable[RankShare], *, epoch: int
) -> list[Int64]:
    """Return the chunks of the windows that some ranks open for some steps, of each data set, in order of use.

    Args:
        orders: The orders of the data sets.
        steps: The epoch's steps.
        which: Numbers of the steps.
        shards: The ranks.
        epoch: Which epoch.
    """
    lanes = orders.lanes_of_epoch(epoch)
    windows: dict[tuple[int, int, int, int], EpochOrder] = {}  # lane, data set, its own epoch and window
    for shard in shards:
        for piece in (piece for step in which for piece in steps.slices(step, shard)):
            lane = lanes[piece.lane]
            if isinstance(lane, EpochOrder):
                opened = lane.windows_of([piece.start, piece.stop - 1]).tolist()
                for window in range(opened[0], opened[1] + 1):
                    windows.setdefault((piece.lane, 0, epoch, window), lane)
                continue
            component, own_epoch, chunk, row = lane.samples(piece.start, piece.stop)
            for part, own in sorted(set(zip(component.tolist(), own_epoch.tolist(), strict=True))):
                order = lane.component_epoch(part, own)
                inside = (component == part) & (own_epoch == own)
                for window in np.unique(order.windows_of(order.positions_of(chunk[inside], row[inside]))).tolist():
                    windows.setdefault((piece.lane, part, own, window), order)
    num_sets = max(1, len(orders.names))
    found: list[dict[int, None]] = [{} for _ in range(num_sets)]
    for (_, part, _, window), order in windows.items():
        found[part].update(dict.fromkeys(order.window_chunks(window).tolist()))
    return [np.array(list(chunks), dtype=np.int64) for chunks in found]


@dataclass(frozen=True, kw_only=True)
class BuildRate:
    """How fast chunks come.

    Attributes:
        samples_s: Samples a second.
        is_bound: Whether nothing but reading was measured, so that it takes longer.
        told: Where it is known from, in words.
    """

    samples_s: float
    is_bound: bool
    told: str


def noted_rate(known: KnownSet, store: Store, present: Sequence[int]) -> BuildRate | None:
    """Return how fast the chunks that are there were published last, as their files say; None where they do not."""
    written = []
    for chunk in present:
        try:
            written.append((store.path_of(known.catalogue.key(chunk)).stat().st_mtime, chunk))
        except OSError:
            continue
    written.sort()
    times = np.array([at for at, _ in written])
    first = int(np.flatnonzero(np.diff(times) > _PAUSE_S)[-1]) + 1 if (np.diff(times) > _PAUSE_S).any() else 0
    chunks = [chunk for _, chunk in written[first:]]
    if len(chunks) < _LEAST_CHUNKS or times[-1] <= times[first]:
        return None
    # The time that the first of them took is not known.
    num_samples = int(known.num_samples[chunks[1:]].sum())
    return BuildRate(
        samples_s=num_samples / float(times[-1] - times[first]),
        is_bound=False,
        told=f"as the last {len(chunks)} chunks that were built here",
    )


def measured_rate(known: KnownSet, chunk: int, *, num_threads: int) -> BuildRate:
    """Return how fast chunks could come at most: reads one, and counts neither transform nor writing.

    Blocks: until it is read and decoded.

    Raises:
        SourceError: It cannot be.
    """
    start_s, num_rows = time.perf_counter(), 0
    for _, table in known.catalogue.read(chunk):
        num_rows += table.num_rows
    passed_s = max(time.perf_counter() - start_s, 1e-9)
    return BuildRate(
        samples_s=num_threads * num_rows / passed_s,
        is_bound=True,
        told="reading and decoding one chunk, as fast in every thread; transform and writing come on top",
    )
