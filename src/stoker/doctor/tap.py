"""A storage that the doctor listens in on: it notes what is read, and can give the same again from memory."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from stoker.storage.storage import BytesLike, ObjectInfo, Storage


class Read(NamedTuple):
    """One read, as it was asked for and when it ran (ns of `time.perf_counter_ns`)."""

    url: str
    offset: int
    num_bytes: int
    start_ns: int
    stop_ns: int


class _Kept:
    """What a tap has kept, as a storage of its own."""

    def __init__(self) -> None:
        self.reads: dict[tuple[str, int, int], BytesLike] = {}
        self.stats: dict[str, ObjectInfo] = {}

    def list(self, url: str) -> list[ObjectInfo]:
        return [self.stats[name] for name in sorted(self.stats) if name.startswith(url)]

    def stat(self, url: str) -> ObjectInfo:
        return self.stats[url]

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        return self.reads[url, offset, num_bytes]


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
        self._kept = _Kept()
        self._keeps = False
        self._replayed: Storage | None = None

    def list(self, url: str) -> list[ObjectInfo]:
        """Return what `inner` lists."""
        return self.inner.list(url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what `inner` knows of the object, or knew while it was kept."""
        replayed = self._replayed
        if replayed is not None and url in self._kept.stats:
            return replayed.stat(url)
        info = self.inner.stat(url)
        if self._keeps:
            self._kept.stats[url] = info
        return info

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return what `inner` reads, or what was kept."""
        place = (url, offset, num_bytes)
        replayed = self._replayed
        if replayed is not None and place in self._kept.reads:
            return replayed.read(url, offset, num_bytes)
        start_ns = time.perf_counter_ns()
        data = self.inner.read(url, offset, num_bytes)
        with self._lock:
            self._reads.append(Read(url, offset, num_bytes, start_ns, time.perf_counter_ns()))
            if self._keeps:
                self._kept.reads[place] = data
        return data

    def take_reads(self) -> builtins.list[Read]:
        """Return the reads since the last call."""
        with self._lock:
            reads, self._reads = self._reads, []
        return reads

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is read inside the block."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    @contextmanager
    def replaying(self, link: Callable[[Storage], Storage] | None = None) -> Iterator[None]:
        """Give what was kept, from memory, inside the block.

        Args:
            link: Puts a link before that storage; None gives everything at once.
        """
        self._replayed = self._kept if link is None else link(self._kept)
        try:
            yield
        finally:
            self._replayed = None

    def forget(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._kept.reads.clear()

    def __repr__(self) -> str:
        return repr(self.inner)
