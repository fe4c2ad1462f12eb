"""A remote storage that the doctor listens in on: reads are kept, given again from memory, and tried alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, TypeAlias

from stoker.storage.storage import BytesLike, ObjectInfo, Storage

Read: TypeAlias = tuple[str, int, int]
"""One read that was asked for: URL, offset, bytes."""

# More threads are tried as long as they bring so much more; one that brings nothing may only have been disturbed.
_BRINGS_MORE, _NUM_WORSE = 1.1, 2
_MAX_THREADS = 64
_NUM_LOOKS = 3


class Tap:
    """`inner`, listened in on.

    Attributes:
        reads: What was kept, as it came.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.list = inner.list
        self.reads: dict[Read, BytesLike] = {}
        self._stats: dict[str, ObjectInfo] = {}
        self._doing_now = ""

    def stat(self, url: str) -> ObjectInfo:
        """Return what `inner` knows of the object, or knew while it was kept."""
        if self._doing_now == "replaying" and url in self._stats:
            return self._stats[url]
        info = self.inner.stat(url)
        if self._doing_now == "keeping":
            self._stats[url] = info
        return info

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return what `inner` reads, or what was kept."""
        read = (url, offset, num_bytes)
        if self._doing_now == "replaying" and read in self.reads:
            return self.reads[read]
        data = self.inner.read(url, offset, num_bytes)
        if self._doing_now == "keeping":
            self.reads[read] = data
        return data

    @contextmanager
    def doing(self, what: Literal["keeping", "replaying"]) -> Iterator[None]:
        """Keep what is read inside the block, or give what was kept from memory: a link without limits."""
        self._doing_now = what
        try:
            yield
        finally:
            self._doing_now = ""

    def __repr__(self) -> str:
        return repr(self.inner)


def probe_link(storage: Storage, reads: Sequence[Read], *, until_s: float) -> dict[str, float]:
    """Return what a storage gives for reads by themselves: one after the other, then in more and more threads.

    That is bytes/s of one ("connection") and of as many at once as bring most ("network"), and the seconds until the
    first byte ("latency").

    Args:
        storage: What the chunks come from.
        reads: That were asked for, one at least.
        until_s: When to stop, by `time.perf_counter`.
    """
    largest = sorted(reads, key=lambda read: -read[2])[: max(1, len(reads) // 2)]

    def read_at_once(num_threads: int, most_bytes: int) -> tuple[int, float]:
        """Return the bytes that so many threads read, and the seconds that it took."""
        start_s = time.perf_counter()
        with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-doctor") as pool:
            wanted = [(url, offset, min(size, most_bytes)) for url, offset, size in largest]
            found = [pool.submit(storage.read, *wanted[i % len(wanted)]) for i in range(num_threads)]
        return sum(memoryview(one.result()).nbytes for one in found), time.perf_counter() - start_s

    latency_s = statistics.median(read_at_once(1, 1)[1] for _ in range(_NUM_LOOKS))
    rates, num_worse, best, took_s, num_threads = list[float](), 0, 0.0, 0.0, 1
    while num_threads <= _MAX_THREADS and num_worse < _NUM_WORSE:
        start, left_s = time.perf_counter(), until_s - time.perf_counter()
        if rates and left_s < took_s:
            break
        # As many bytes a thread as come in the time there is, if it is no faster than before.
        most_bytes = int(max(64 * 1024, best * left_s / 3 / num_threads)) if best else 1 << 20
        num_bytes, wall_s = read_at_once(num_threads, most_bytes)
        rates.append(num_bytes / max(1e-9, wall_s - latency_s if wall_s > 2 * latency_s else wall_s))
        num_worse = 0 if rates[-1] >= _BRINGS_MORE * best else num_worse + 1
        best, took_s, num_threads = max(rates), time.perf_counter() - start, 2 * num_threads
    return {"network": best, "connection": rates[0], "latency": latency_s}
