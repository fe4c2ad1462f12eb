"""A remote storage that the doctor listens in on: reads are kept, given again from memory, and tried alone."""

from __future__ import annotations

import builtins
import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from stoker.doctor.machine import in_threads
from stoker.storage.storage import BytesLike, ObjectInfo, Storage

# More threads are tried as long as they bring so much more; one that brings nothing may only have been disturbed.
_BRINGS_MORE, _NUM_WORSE = 1.1, 2
_MAX_THREADS = 64
_NUM_LOOKS = 3


class Read(NamedTuple):
    """One read that was asked for."""

    url: str
    offset: int
    num_bytes: int


class Tap:
    """`inner`, listened in on.

    Args:
        inner: Where the objects are.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.list = inner.list
        self._lock = threading.Lock()
        self._reads: dict[Read, BytesLike] = {}
        self._stats: dict[str, ObjectInfo] = {}
        self._doing_now = ""  # "keeping", "replaying"

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
        read = Read(url, offset, num_bytes)
        if self._doing_now == "replaying" and read in self._reads:
            return self._reads[read]
        data = self.inner.read(url, offset, num_bytes)
        if self._doing_now == "keeping":
            with self._lock:
                self._reads[read] = data
        return data

    @property
    def reads(self) -> builtins.list[Read]:
        """The reads that were kept, as they came."""
        with self._lock:
            return [*self._reads]

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept."""
        return sum(read.num_bytes for read in self.reads)

    def keeping(self) -> AbstractContextManager[None]:
        """Keep what is read inside the block."""
        return self._doing("keeping")

    def replaying(self) -> AbstractContextManager[None]:
        """Give what was kept from memory inside the block: a link without limits."""
        return self._doing("replaying")

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
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
    largest = sorted(reads, key=lambda read: -read.num_bytes)[: max(1, len(reads) // 2)]

    def read_at_once(num_threads: int, most_bytes: int) -> tuple[int, float]:
        """Return the bytes that so many threads read, and the seconds that it took."""
        wanted = [largest[i % len(largest)] for i in range(num_threads)]
        sizes = [min(read.num_bytes, most_bytes) for read in wanted]
        wall_s = in_threads(num_threads, lambda i: storage.read(wanted[i].url, wanted[i].offset, sizes[i]))
        return sum(sizes), wall_s

    latency_s = statistics.median(read_at_once(1, 1)[1] for _ in range(_NUM_LOOKS))
    rates: list[float] = []
    num_worse, best, took_s = 0, 0.0, 0.0
    for num_threads in itertools.takewhile(lambda num: num <= _MAX_THREADS, (2**i for i in itertools.count())):
        start, left_s = time.perf_counter(), until_s - time.perf_counter()
        if num_worse >= _NUM_WORSE or (rates and left_s < took_s):
            break
        # As many bytes a thread as come in the time there is, if it is no faster than before.
        most_bytes = int(max(64 * 1024, best * left_s / 3 / num_threads)) if best else 1 << 20
        num_bytes, wall_s = read_at_once(num_threads, most_bytes)
        rates.append(num_bytes / max(1e-9, wall_s - latency_s if wall_s > 2 * latency_s else wall_s))
        num_worse = 0 if rates[-1] >= _BRINGS_MORE * best else num_worse + 1
        best, took_s = max(rates), time.perf_counter() - start
    return {"network": best, "connection": rates[0], "latency": latency_s}
