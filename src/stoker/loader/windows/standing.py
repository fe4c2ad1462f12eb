"""Data sets that memory holds: each chunk mapped once, for as long as the loader lives.

windows of an epoch    ┆ 7 2 5 ┆ 0 3 1 ┆ …
maps of their own      ┆ 7 ┆ 2 ┆ 5 ┆     ┆ 0 ┆ 3 ┆ 1 ┆     made and entered anew in every window
standing               ┆ 7 ┆ 2 ┆ 5 ┆ 0 ┆ 3 ┆ 1 ┆ …         made once

A map costs some 30 microseconds a chunk, and entering its pages and leaving them 50 to 150 milliseconds a gigabyte: a
data set of thousands of small chunks would spend more time on maps than on rows, one of large ones up to half of it.
Each chunk is still looked at when its window opens: one that was replaced, touched or removed is mapped anew.
"""

from __future__ import annotations

import threading

import numpy as np

from stoker._native import ChunkMap, let_go
from stoker.cache.store import Chunk
from stoker.cache.verified import NO_VERSION, find_changed
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.host.machine import available_bytes
from stoker.loader.windows.window import Window, WindowLayout

# What stays mapped cannot leave the page cache for others as easily. So much of it does no harm: what a window has by
# default, or what two windows have, which are mapped in any case where one is used and the next one is opened.
MAX_BYTES = 512 << 20
_WINDOWS_MAPPED = 2
# And so much of the memory that is available, as long as nobody else wants it. A map takes a 512th of it for its pages.
MEMORY_SHARE = 0.125
# A process may have 65,530 maps; a chunk takes one, and what can be read behind it another.
MAX_CHUNKS = 16384


class Standing:
    """The maps of a data set's chunks.

    Args:
        layout: What a chunk holds.
        num_samples: Of each chunk. Shape [N].
        window: Chunks that lie in a window at most; None for all.

    Attributes:
        versions: Which file each chunk is; `NO_VERSION` where it is not mapped. Shape [N, 3].
    """

    def __init__(self, layout: WindowLayout, num_samples: Int64, *, window: int | None) -> None:
        self._layout = layout
        self._max_bytes = _most_bytes(num_samples, window)
        self._least_bytes = int(num_samples.sum()) * layout.spec.record_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._maps: list[ChunkMap | None] = [None] * len(num_samples)
        self._places = np.zeros((len(num_samples), len(layout.names), 2), dtype=np.int64)
        self._names = np.zeros(len(num_samples), dtype="S1")
        self.versions = np.full((len(num_samples), 3), NO_VERSION, dtype=np.int64)

    @staticmethod
    def suits(spec: Spec, num_samples: Int64, *, window: int | None) -> bool:
        """Return whether memory may hold a data set, as far as its records tell; lists show when they come."""
        num_bytes = int(num_samples.sum()) * spec.record_bytes
        most_bytes = _most_bytes(num_samples, window)
        return len(num_samples) <= MAX_CHUNKS and (most_bytes is None or num_bytes <= most_bytes)

    @property
    def is_large(self) -> bool:
        """Whether they are more than does no harm: then what others push out of memory is not brought back."""
        return self._max_bytes is not None and max(self._least_bytes, self._num_bytes) > MAX_BYTES

    def keep(self, chunk: int, opened: Chunk, *, name: bytes) -> bool:
        """Map a chunk, and return True; or False where it would be too much.

        Args:
            chunk: Its number.
            opened: The chunk.
            name: Of its file, as the system wants it.

        Raises:
            OSError: The system could not map it.
        """
        num_bytes = opened.header.size_bytes
        with self._lock:
            if self._max_bytes is not None and self._num_bytes + num_bytes > self._max_bytes:
                return False
            before = self._maps[chunk]
            self._maps[chunk] = ChunkMap(opened.fd, num_bytes)
            self._num_bytes += num_bytes - (0 if before is None else before.num_bytes)
            self._places[chunk] = self._layout.places([opened.header])[0]
            if len(name) >= self._names.itemsize:
                self._names = self._names.astype(f"S{len(name) + 1}")  # a zero behind it
            self._names[chunk] = name
            self.versions[chunk] = opened.version
        return True

    def find_changed(self, chunks: Int64) -> Int64:
        """Return which chunks are not mapped, or are not the files any more that were, and count them as not mapped."""
        found: Int64 = chunks[find_changed(self._names, self.versions, chunks)]
        self.versions[found] = NO_VERSION
        return found

    def window(self, chunks: Int64) -> Window | None:
        """Return a window of chunks; None where one is not mapped. Shape [K]."""
        with self._lock:
            maps = [one for chunk in chunks.tolist() if (one := self._maps[chunk]) is not None]
            return Window(self._layout, maps, self._places[chunks]) if len(maps) == len(chunks) else None

    def close(self) -> None:
        """Let go of all maps; windows keep theirs. Harmless when called again."""
        with self._lock:
            maps, self._maps = self._maps, [None] * len(self._maps)
            self.versions[:] = NO_VERSION
        let_go([one for one in maps if one is not None])


def _most_bytes(num_samples: Int64, window: int | None) -> int | None:
    """Return how much may stay mapped: what does no harm, and a part of the memory that is available.

    None for any, where all chunks that have samples lie in the two windows that are open at once.
    """
    if window is None or int(np.count_nonzero(num_samples)) <= _WINDOWS_MAPPED * window:
        return None
    return max(MAX_BYTES, int(MEMORY_SHARE * (available_bytes() or 0)))
