"""A storage that the doctor listens in on: it notes what is read, and can give the same again from memory."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from stoker.source.storage import BytesLike, ObjectInfo, Storage


class Read(NamedTuple):
    """One read, as it was asked for and when it ran (ns of `time.perf_counter_ns`)."""

    url: str
    offset: int
    num_bytes: int
    start_ns: int
    stop_ns: int


class Tap:
    """`inner`, listened in on.

    Args:
        inner: Where the objects are.

    Attributes:
        inner: The same.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._reads: list[Read] = []
        self._kept: dict[tuple[str, int, int], BytesLike] = {}
        self._stats: dict[str, ObjectInfo] = {}
        self._keeps = False
        self._replays = False

    def list(self, url: str) -> list[ObjectInfo]:
        """Return what `inner` lists."""
        return self.inner.list(url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what `inner` knows of the object, or knew while it was kept."""
        if self._replays and url in self._stats:
            return self._stats[url]
        info = self.inner.stat(url)
        if self._keeps:
            self._stats[url] = info
        return info

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return what `inner` reads, or what was kept."""
        place = (url, offset, num_bytes)
        if self._replays and place in self._kept:
            return self._kept[place]
        start_ns = time.perf_counter_ns()
        data = self.inner.read(url, offset, num_bytes)
        with self._lock:
            self._reads.append(Read(url, offset, num_bytes, start_ns, time.perf_counter_ns()))
            if self._keeps:
                self._kept[place] = data
        return data

    def take_reads(self) -> builtins.list[Read]:
        """Return the reads since the last call."""
        with self._lock:
            reads, self._reads = self._reads, []
        return reads

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory."""
        with self._lock:
            return sum(num_bytes for _, _, num_bytes in self._kept)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is read inside the block."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Give what was kept, from memory, inside the block."""
        self._replays = True
        try:
            yield
        finally:
            self._replays = False

    def forget(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._kept.clear()

    def __repr__(self) -> str:
        return repr(self.inner)
