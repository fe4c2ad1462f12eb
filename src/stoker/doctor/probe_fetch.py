"""Fetching alone: the reads of real chunks, again, without anything behind them, by one thread and by more."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.doctor.meter import in_threads
from stoker.doctor.probe_build import Fetched
from stoker.doctor.tap import Read
from stoker.storage.local import LocalStorage
from stoker.storage.storage import Storage

# More threads are tried as long as they bring so much more.
_BRINGS_MORE = 1.1
# One that brings nothing may only have been disturbed.
_NUM_WORSE = 2
# As many as a pool may have: a store that answers each at its own pace gives more to all of them.
_MAX_THREADS = 64
_NUM_LOOKS = 3


@dataclass(frozen=True, kw_only=True)
class FetchCost:
    """What a source gives.

    Attributes:
        wait_s: Seconds of latency that fetching one unit takes, whatever its size.
        connection_bytes_s: What one request alone gets behind that.
        bytes_s: What all together get at best.
        spread: Of the measurements, as a share.
        by_threads: Bytes a second with so many fetches at once.
    """

    wait_s: float
    connection_bytes_s: float
    bytes_s: float
    spread: float
    by_threads: tuple[tuple[int, float], ...]


def probe_remote(storage: Storage, fetched: Fetched, *, until: float) -> FetchCost:
    """Return what the storage gives for the reads of `fetched`.

    Args:
        storage: What the chunks come from.
        fetched: Units that were read once, with what was asked for.
        until: When to stop, by `time.perf_counter`.
    """
    looks = [_latency_s(storage, fetched.reads[0][0]) for _ in range(_NUM_LOOKS)]
    stat_s, read_s = (statistics.median(times) for times in zip(*looks, strict=True))
    # A unit is fetched by its reads, all at once, and a look at the object behind them.
    wait_s = stat_s + read_s
    alone = [
        num_bytes / max(1e-9, wall_s - wait_s) / max(1, len(reads))
        for num_bytes, wall_s, reads in zip(fetched.num_bytes, fetched.wall_s, fetched.reads, strict=True)
    ]
    connection = statistics.median(alone)
    spread = (max(alone) - min(alone)) / (2 * connection) if len(alone) > 1 else 0.0
    units = [reads for reads in fetched.reads if reads]
    by_threads: list[tuple[int, float]] = []
    num_threads, num_worse = 2, 0
    best = connection
    took_s = 0.0
    while num_threads <= _MAX_THREADS and num_worse < _NUM_WORSE:
        start = time.perf_counter()
        left_s = until - start
        if left_s < took_s or left_s <= 0:
            break
        # As many bytes a thread as come in the time there is, if it is no faster than before.
        limit = int(max(64 * 1024, min(statistics.median(fetched.num_bytes), best * left_s / 3 / num_threads)))
        rate = _rate(storage, units, num_threads=num_threads, limit_bytes=limit, latency_s=wait_s)
        by_threads.append((num_threads, rate))
        num_worse = 0 if rate >= _BRINGS_MORE * best else num_worse + 1
        best = max(best, rate)
        num_threads *= 2
        took_s = time.perf_counter() - start
    return FetchCost(
        wait_s=wait_s,
        connection_bytes_s=connection,
        bytes_s=best,
        spread=spread,
        by_threads=((1, connection), *by_threads),
    )


def probe_local(fetched: Fetched) -> FetchCost:
    """Return what the local disk gave while the units were read."""
    rates = [n / max(1e-9, wall_s) for n, wall_s in zip(fetched.num_bytes, fetched.wall_s, strict=True) if n]
    rate = statistics.median(rates) if rates else float("inf")
    spread = (max(rates) - min(rates)) / (2 * rate) if len(rates) > 1 else 0.0
    return FetchCost(wait_s=0.0, connection_bytes_s=rate, bytes_s=rate, spread=spread, by_threads=((1, rate),))


def _latency_s(storage: Storage, read: Read) -> tuple[float, float]:
    """Return how long looking up an object takes, and reading a byte of it."""
    start = time.perf_counter()
    storage.stat(read.url)
    middle = time.perf_counter()
    storage.read(read.url, read.offset, 1)
    return middle - start, time.perf_counter() - middle


def _rate(
    storage: Storage, units: Sequence[Sequence[Read]], *, num_threads: int, limit_bytes: int, latency_s: float
) -> float:
    """Return the bytes a second that so many threads get, each with a unit of its own, the first latency aside."""
    lock = threading.Lock()
    total = 0

    def work(number: int) -> None:
        nonlocal total
        left = limit_bytes
        for read in units[number % len(units)]:
            num_bytes = min(read.num_bytes, left)
            if num_bytes <= 0:
                break
            storage.read(read.url, read.offset, num_bytes)
            left -= num_bytes
        with lock:
            total += limit_bytes - left

    wall_s = in_threads(num_threads, work)
    # Only the last of the latencies of each thread's reads shows; those of one are like another's.
    return total / max(1e-9, wall_s - latency_s / 2)


def is_local(storage: Storage) -> bool:
    """Return whether a storage reads this machine's files."""
    return isinstance(storage, LocalStorage)
