"""Data sets that memory holds: each chunk mapped once, at a place that it keeps as long as the loader lives.

windows of an epoch    ┆ 7 2 5 ┆ 0 3 1 ┆ …
maps of their own      ┆ 7 ┆ 2 ┆ 5 ┆     ┆ 0 ┆ 3 ┆ 1 ┆     made and entered anew in every window
standing               ┆ 7 ┆ 2 ┆ 5 ┆ 0 ┆ 3 ┆ 1 ┆ …         made once: a window is a table of where its chunks are

A map costs some 30 microseconds a chunk, and entering its pages and leaving them 50 to 150 milliseconds a gigabyte: a
data set of thousands of small chunks would spend more time on maps than on rows, one of large ones up to half of it.
Each chunk is still looked at when its window opens: one that was replaced, touched or removed gets another place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from stoker.cache.format import ChunkHeader
from stoker.cache.verified import NO_VERSION, FileVersion, find_changed
from stoker.fields.spec import Spec
from stoker.host.huge import PAGE_BYTES
from stoker.host.machine import available_bytes
from stoker.loader.windows.reading import FilePart
from stoker.loader.windows.region import CAN_MAP_SIDE_BY_SIDE, NUM_SAMPLED, Region, next_place
from stoker.loader.windows.window import Index, Window, WindowTable, table_array_names

# What stays mapped cannot leave the page cache for others as easily. So much of it does no harm: what a window has by
# default, or what two windows have, which are mapped in any case where one is used and the next one is opened.
MAX_BYTES = 512 << 20
_WINDOWS_MAPPED = 2
# And so much of the memory that is available, as long as nobody else wants it. A map takes a 512th of it for its pages.
MEMORY_SHARE = 0.125
# A process may have 65,530 maps; a chunk takes one, and the gap behind it another.
MAX_CHUNKS = 16384
# Addresses cost nothing, as far as they go: a process has 128 TiB. Chunks that were replaced leave gaps, and chunks are
# rounded up to pages and records.
_ROOM = 8
_MAX_ROOM_BYTES = 8 << 40
_ROOM_ANYWAY_BYTES = 256 << 30


class NoPlaceError(Exception):
    """There is no place for a chunk any more."""


class Standing:
    """The places of all chunks of a data set.

    Args:
        spec: Of the samples, which share nothing.
        num_samples: Of each chunk. Shape [N].
        window: Chunks that lie in a window at most; None for all.

    Attributes:
        region: Where they lie.
        is_large: Whether they are more than does no harm: then what others push out of memory is not brought back.
        versions: Which file each chunk is; `NO_VERSION` where it has no place. Shape [N, 3].
    """

    def __init__(self, spec: Spec, num_samples: Index, *, window: int | None) -> None:
        self.spec = spec
        self._is_mapped_anyway = _is_mapped_anyway(num_samples, window)
        self._max_bytes = _ROOM_ANYWAY_BYTES if self._is_mapped_anyway else _most_bytes()
        self.region = Region(_ROOM_ANYWAY_BYTES if self._is_mapped_anyway else self._max_bytes * _ROOM)
        self.is_large = self._does_harm(int(num_samples.sum()) * spec.record_bytes)
        self.versions = np.full((len(num_samples), 3), NO_VERSION, dtype=np.int64)
        self._lock = threading.Lock()
        self._end = 0
        self._num_bytes = 0
        self._num_users = 1  # whoever made it
        (self._array_names,) = table_array_names(spec)
        self._begins = np.zeros((len(num_samples), len(self._array_names)), dtype=np.int64)
        self._names = np.zeros(len(num_samples), dtype="S1")
        self._extents = np.zeros((len(num_samples), 2), dtype=np.int64)
        self._fresh: set[int] = set()

    @staticmethod
    def suits(spec: Spec, num_samples: Index, *, window: int | None) -> bool:
        """Return whether memory may hold a data set, as far as its records tell; lists show when they come."""
        num_bytes = int(num_samples.sum()) * spec.record_bytes
        max_bytes = _ROOM_ANYWAY_BYTES // _ROOM if _is_mapped_anyway(num_samples, window) else _most_bytes()
        return CAN_MAP_SIDE_BY_SIDE and not spec.keys and len(num_samples) <= MAX_CHUNKS and num_bytes <= max_bytes

    def place(self, chunk: int, fd: int, header: ChunkHeader, version: FileVersion, *, name: bytes) -> None:
        """Give a chunk a place, or another one.

        Args:
            chunk: Its number.
            fd: Open for reading.
            header: What lies where.
            version: Which file it is.
            name: Of that file, as the system wants it.

        Raises:
            NoPlaceError: There is none left.
            OSError: The system could not map it.
        """
        with self._lock:
            at = next_place(self._end, header.size_bytes)
            end = at + -(-header.size_bytes // PAGE_BYTES) * PAGE_BYTES
            num_bytes = self._num_bytes + header.size_bytes
            if end > self.region.size_bytes or num_bytes > self._max_bytes:
                raise NoPlaceError
            self.region.place([FilePart(fd, 0, header.size_bytes, at)])
            self._begins[chunk] = [at + header.arrays[name].offset_bytes for name in self._array_names]
            self._end = end
            self._num_bytes = num_bytes
            self.is_large = self.is_large or self._does_harm(num_bytes)
            self._extents[chunk] = at, header.size_bytes
            self._fresh.add(chunk)
            if len(name) >= self._names.itemsize:
                self._names = self._names.astype(f"S{len(name) + 1}")  # a zero behind it
            self._names[chunk] = name
            self.versions[chunk] = version

    def window(self, chunks: Index) -> StandingWindow:
        """Return a window of chunks that have a place. Shape [K]."""
        with self._lock:
            self._num_users += 1
            return StandingWindow(self, chunks, self._begins[chunks])

    def find_changed(self, chunks: Index) -> Index:
        """Return which chunks have no place, or are not the files any more that were given one."""
        found: Index = chunks[find_changed(self._names, self.versions, chunks)]
        return found

    def _does_harm(self, num_bytes: int) -> bool:
        """Return whether so much is more than what others need not mind."""
        return num_bytes > MAX_BYTES and not self._is_mapped_anyway

    def extents(self, chunks: Index) -> list[tuple[int, int]]:
        """Return where chunks lie: first byte and bytes."""
        extents = self._extents[chunks]
        found: list[tuple[int, int]] = extents[extents[:, 1] > 0].tolist()
        return found

    def take_fresh(self, chunks: Index) -> Index:
        """Return which of these chunks nobody has entered the pages of; whoever asks does."""
        with self._lock:
            fresh = self._fresh.intersection(chunks.tolist()) if self._fresh else set()
            self._fresh.difference_update(fresh)
        return np.array(sorted(fresh), dtype=np.int64)

    def give_back_fresh(self, chunks: Index) -> None:
        """Say that the pages of chunks that were taken as fresh were not entered after all."""
        with self._lock:
            self._fresh.update(chunks.tolist())

    def leave(self) -> None:
        """Say that a window, or whoever made this, is done with it: the last one gives the addresses back."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self.region.close()


class StandingWindow(Window):
    """A window whose chunks lie where they always do: they were placed before."""

    def __init__(self, standing: Standing, chunks: Index, begins: Index) -> None:
        self.spec = standing.spec
        self.num_slots = len(chunks)
        self._standing: Standing | None = standing
        self._region = standing.region
        self._chunks = chunks
        self._is_in_memory = True
        self.tables = (WindowTable(self._region, self.spec, begins),)

    @property
    def is_in_memory(self) -> bool:
        """Whether its pages lie in memory already, as far as a look at a few of them tells."""
        if self._standing is not None:
            some = self._chunks[:: -(-len(self._chunks) // NUM_SAMPLED) or 1]
            self._is_in_memory = self._region.are_in_memory(self._standing.extents(some))
        return self._is_in_memory

    def settle(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Enter the pages of chunks that are new; of all, where some were found missing from memory."""
        if self._standing is None:
            return
        standing = self._standing
        fresh = standing.take_fresh(self._chunks)
        chunks = fresh if self._is_in_memory else self._chunks
        self._is_in_memory = True
        if not self._region.enter(standing.extents(chunks), goes_on):
            standing.give_back_fresh(chunks)

    def close(self) -> None:
        """Let go of the chunks, which stay where they are."""
        for table in self.tables:
            table.forget()
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.leave()


def _is_mapped_anyway(num_samples: Index, window: int | None) -> bool:
    """Return whether all chunks that have samples lie in the two windows that are open at once."""
    return window is None or int(np.count_nonzero(num_samples)) <= _WINDOWS_MAPPED * window


def _most_bytes() -> int:
    """Return how much may stay mapped: what does no harm, and a part of the memory that is available."""
    return min(max(MAX_BYTES, int(MEMORY_SHARE * (available_bytes() or 0))), _MAX_ROOM_BYTES // _ROOM)
