"""One window: its chunks found, and brought to where their samples are gathered from.

    an eighth of memory at most     mapped once                       for as long as the loader lives
    in the page cache               mapped for a window, nothing is copied
    not there, and read before      read past the page cache          into memory that windows share
    not there for the first time    read to compare its checksums, and so in the page cache

Whoever opens a chunk the first time after the machine started reads all of it, and it stays in the page cache if it
can. If it is gone later, something else needed the memory: reading it again that way would push out that or the next
window, and cost the processor more than reading past the page cache does. Reading past it pushes nothing out. So of a
data set larger than memory, what is in the page cache stays there: a fixed set, which hits as often as its share of the
data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from stoker._native import (
    ChunkMap,
    TableLayout,
    WindowChunks,
    WindowMemory,
    WindowOrder,
    cached_bytes,
    find_changed,
    read_chunks,
    unmap,
)
from stoker.cache.builder import Builder
from stoker.cache.format import Chunk, ChunkHeader, array_names, strip_names, table_names
from stoker.errors import CacheError, ChunkCorruptError
from stoker.fields.offsets import Int64
from stoker.fields.spec import Entry, Spec
from stoker.host.machine import available_bytes
from stoker.loader.fill import Filler
from stoker.sampling.units import Units

# A chunk that was found corrupt, or was evicted between being built and being opened, is built again this often before
# it counts as a fault of the disk.
_TRIES = 5
# Files of a window that are held open at a time; the usual limit of a process is 1,024.
_MAX_HELD = 256
# Where a window has many chunks, the thread that opens it waits so often for them, and opens as many as are there then.
# Woken by each of them it would take turns with those that build: 35 kB each, 470 to 487 chunks/s, and 584 to 628 so.
_MOST_WAITS = 16
# A window is brought back if less than the first part of it is missing from the page cache: the system may have let go
# of a page or two of everybody's. If less than the second part is missing, only where all of the data set fits.
_FEW, _SOME = 1 / 16, 1 / 4
# The flag of a file that is read past the page cache; 0 where the system has none, such as macOS.
_DIRECT: int = getattr(os, "O_DIRECT", 0)
# Bytes whose pages are entered in one call. If they lie in memory that takes some 2 milliseconds, which is how long
# whoever stops it may wait.
_ENTERED_BYTES = 64 << 20
# What stays mapped cannot leave the page cache for others as easily. So much of it does no harm: what a window has by
# default, or what two windows have, which are mapped in any case where one is used and the next one is opened.
_HARMLESS_BYTES = 512 << 20
_WINDOWS_MAPPED = 2
# And so much of the memory that is available, as long as nobody else wants it. A map takes a 512th of it for its pages.
_MEMORY_SHARE = 0.125
# A process may have 65,530 maps; a chunk takes one, and what can be read behind it another.
_MAX_CHUNKS = 16384

_log = logging.getLogger("stoker")

ChunkKey: TypeAlias = tuple[Builder, int]
"""What a filler knows a chunk by: who builds the chunks of its data set, and its number there."""


class WindowLayout:
    """What the chunks of a data set hold, and how native code is told of it."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        # Of each table, the samples' own first: its ragged fields, those together whose lists are found together.
        self.groups: list[list[tuple[Entry, ...]]] = []
        self.tables: list[TableLayout] = []
        self.names: list[str] = []  # of the arrays of a chunk, table by table: [A]
        for name, table in zip(table_names(spec), spec.tables, strict=True):
            self.groups.append([*([table.strip] if table.strip else ()), *((entry,) for entry in table.apart)])
            layout = TableLayout(table.record_bytes)
            self.names += [name] if table.record_bytes else []
            if table.strip:
                layout.add_strips([entry.value_bytes for entry in table.strip])
                self.names += strip_names(name)
            for entry in table.apart:
                layout.add_field(entry.value_bytes, entry.num_levels == 2)
                self.names += array_names(entry)
            self.tables.append(layout)

    def places(self, headers: Sequence[ChunkHeader]) -> Int64:
        """Return where the arrays of chunks lie in their files: first byte, and bytes. Shape [K, A, 2]."""
        found = [header.arrays[name] for header in headers for name in self.names]
        places = [(place.offset_bytes, place.size_bytes) for place in found]
        return np.array(places, dtype=np.int64).reshape(len(headers), len(self.names), 2)


class Window(WindowChunks):
    """Samples of K chunks, which stay in memory until the window is closed and nobody gathers from it any more."""

    # Set by the lane that it is opened for.
    order: WindowOrder  # which samples stand at which positions
    chunks: Int64  # chunk of each slot, in fixed order, shape [K]
    which: int  # number of the data set
    units: Units | None  # what the order counts; None for rows
    fragments: Sequence[object]  # names of the data set's chunks, for errors

    def __init__(self, layout: WindowLayout, maps: list[ChunkMap], places: Int64) -> None:
        super().__init__(maps, places, layout.tables)
        self.layout = layout
        self.expected_bytes = [0.0] * len(layout.tables)  # of each table, for the lists of a row; see `expect`

    def expect(self, table: int, num_bytes: int, num_rows: int) -> None:
        """Expect lists as long as those that some rows had, and some more: what varies by chance is asked for once."""
        self.expected_bytes[table] = max(self.expected_bytes[table], 1.05 * num_bytes / max(1, num_rows))

    def settle(self, goes_on: Callable[[], bool]) -> None:
        """Read the chunks into memory and enter their pages, so that nobody has to stop at them later.

        Threads may gather meanwhile. `goes_on` is asked every few milliseconds; False ends it early.
        """
        while goes_on() and not self.enter(_ENTERED_BYTES):
            pass


class WindowOpener:
    """Opens the windows of a data set.

    No chunk stays mapped where it has more than `max_chunks`; else as many as `harmless_bytes` hold may, whatever
    memory is available.
    """

    def __init__(
        self,
        builder: Builder,
        spec: Spec,
        *,
        harmless_bytes: int = _HARMLESS_BYTES,
        max_chunks: int = _MAX_CHUNKS,
        available_bytes: Callable[[], int | None] = available_bytes,
        map_file: Callable[[int, int], ChunkMap] = ChunkMap,
    ) -> None:
        self._harmless_bytes, self._available_bytes, self._map_file = harmless_bytes, available_bytes, map_file
        self._max_chunks = max_chunks
        self._builder, self._catalogue, self._store = builder, builder.catalogue, builder.store
        self.spec, self.expected_bytes = spec, 0  # about how much all chunks take
        self._layout = WindowLayout(spec)
        self._memory = WindowMemory()
        self._trial = PageCacheTrial()
        self._standing: StandingMaps | None = None
        self._has_warned = False

    @property
    def is_tight(self) -> bool:
        """Whether chunks may have to leave the cache again: then none stays mapped, or is built long before its use."""
        limit_bytes = self._store.limit_bytes
        return self._store.is_refusing or (limit_bytes is not None and 2 * self.expected_bytes > limit_bytes)

    def stand(self, window: int | None) -> None:
        """Map each chunk once from now on, if they are few or small enough; `window` of them are mapped together."""
        # With verify="always" a chunk is to be verified each time; one that stays mapped would be verified once.
        if self._store.verify == "always" or self.is_tight or len(self._catalogue) > self._max_chunks:
            return
        max_bytes, num_samples = None, self._catalogue.num_samples
        # None where all chunks that have samples lie in the windows that are open at once.
        if window is not None and int(np.count_nonzero(num_samples)) > _WINDOWS_MAPPED * window:
            max_bytes = max(self._harmless_bytes, int(_MEMORY_SHARE * (self._available_bytes() or 0)))
        least_bytes = int(num_samples.sum()) * self.spec.record_bytes
        if max_bytes is None or least_bytes <= max_bytes:
            self._standing = StandingMaps(
                self._layout,
                len(num_samples),
                max_bytes=max_bytes,
                harmless_bytes=self._harmless_bytes,
                is_large=max_bytes is not None and least_bytes > self._harmless_bytes,
            )

    def not_standing(self, chunks: Int64) -> Int64:
        """Return which chunks are not mapped: the others need not be looked for before their window opens."""
        standing = self._standing
        return chunks if standing is None else chunks[standing.versions[chunks, 0] < 0]

    def open(self, chunks: Int64, filler: Filler[ChunkKey]) -> Window:
        """Return a window of chunks, in this order, once all are there; the filler is asked here or before."""
        standing, layout, numbers = self._standing, self._layout, chunks.tolist()
        maps: list[ChunkMap | None] = [None] * len(numbers)
        if standing is None:
            places = np.zeros((len(numbers), len(layout.names), 2), dtype=np.int64)
        else:
            maps, places = standing.get(chunks)
        slots = [slot for slot, one in enumerate(maps) if one is None]
        if self.is_tight:
            filler.request([(self._builder, numbers[slot]) for slot in slots])
        for begin in range(0, len(slots), _MAX_HELD):
            some = slots[begin : begin + _MAX_HELD]
            with contextlib.ExitStack() as stack:
                # Opened as soon as it is there, where it may be evicted: an open file is still read.
                held = {
                    n: stack.enter_context(self.chunk(n, filler))
                    for n in self._as_they_come([numbers[slot] for slot in some], filler)
                }
                for slot, one in zip(some, self._in_memory(held, is_first=begin == 0), strict=True):
                    maps[slot] = one
                places[some] = layout.places([one.header for one in held.values()])
        window = Window(layout, [one for one in maps if one is not None], places)
        if standing is not None and standing.is_large and len(slots) < len(numbers) and not window.is_in_memory():
            window.close()
            self._standing = None  # somebody needs the memory
            return self.open(chunks, filler)
        return window

    def chunk(self, number: int, filler: Filler[ChunkKey]) -> Chunk:
        """Return a chunk once it is there and found sound; the caller closes it.

        Raises:
            CacheError: It never stays.
        """
        for i in range(_TRIES + 1):
            # Where chunks may have to leave, the filler counts who has been waited for, and builds no more than these.
            # Elsewhere nearly all are there, and asking costs as much as opening.
            if i or self.is_tight:
                filler.wait((self._builder, number))
            try:
                return self._store.open(
                    self._builder.key(number),
                    num_samples=int(self._catalogue.num_samples[number]),
                    spec=self.spec,
                )
            except (KeyError, ChunkCorruptError):  # evicted, or discarded as corrupt: made again from the source
                filler.request([(self._builder, number)])
        raise CacheError(
            f"the chunk of {self._catalogue.fragments[number]} was built {_TRIES} times and never stayed in "
            f"{self._store.path}: check the disk, or give the cache more room",
            path=self._store.path,
        )

    def close(self) -> None:
        """Give back maps and memory that no window uses. Harmless when called again."""
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.close()
        self._memory.clear()

    def _as_they_come(self, numbers: Sequence[int], filler: Filler[ChunkKey]) -> Iterator[int]:
        """Yield chunks that are about to be opened, when they are there or soon will be."""
        num_together = 1 if self.is_tight else len(numbers) // _MOST_WAITS
        for i, number in enumerate(numbers):
            if num_together > 1 and i % num_together == 0:
                filler.wait((self._builder, numbers[min(i + num_together, len(numbers)) - 1]))
            yield number

    def _in_memory(self, held: Mapping[int, Chunk], *, is_first: bool) -> list[ChunkMap]:
        """Return open chunks in memory: mapped, or read past the page cache."""
        are_read = self._are_read(held)
        found = [None if reads else self._mapped(n, held[n]) for n, reads in zip(held, are_read, strict=True)]
        files = [(one.fd, one.header.size_bytes) for one, its in zip(held.values(), found, strict=True) if its is None]
        if not files:
            self._memory.rest()
        read = iter(read_chunks(files, self._memory, is_first) if files else ())
        return [next(read) if one is None else one for one in found]

    def _mapped(self, number: int, chunk: Chunk) -> ChunkMap | None:
        """Return a map of a chunk, which stands from now on if it may; None where the system maps no more files."""
        try:
            found = self._map_file(chunk.fd, chunk.header.size_bytes)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            self._standing = None
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "the system maps no more files into this process (%s): chunks are read into memory instead; "
                    "a larger vm.max_map_count, larger chunks or fewer loaders at a time spare that",
                    error.strerror,  # not the error, whose frames refer to maps
                )
            return None
        # One that is kept in memory is to leave it when its window is closed.
        if chunk.is_kept and (standing := self._standing) is not None:
            standing.keep(number, found, chunk, name=os.fsencode(chunk.path))
        return found

    def _are_read(self, held: Mapping[int, Chunk]) -> list[bool]:
        """Return which chunks to read past the page cache, rather than to map them."""
        standing, sizes = self._standing, [one.header.size_bytes for one in held.values()]
        if standing is not None and not standing.is_large:
            return [False] * len(held)
        missing = list(map(self._missing, held.values()))
        for one, num_bytes in zip(held.values(), missing, strict=True):
            if num_bytes and _DIRECT:  # which changes nothing for a map of it
                with contextlib.suppress(OSError):
                    fcntl.fcntl(one.fd, fcntl.F_SETFL, _DIRECT)
        share = sum(missing) / max(1, sum(sizes))
        gone = [n for n, num_bytes, size in zip(held, missing, sizes, strict=True) if num_bytes > _FEW * size]
        fits = share >= _FEW and self._fits(sum(sizes) // len(sizes))
        is_mapped = self._trial.brings_back(held.keys(), gone, may=fits and share >= _SOME)
        if is_mapped or share < _FEW or not _DIRECT or (fits and share < _SOME):
            return [False] * len(held)
        return [num_bytes > 0 for num_bytes in missing]

    def _missing(self, chunk: Chunk) -> int:
        """Return what of a chunk is not in the page cache."""
        size_bytes = chunk.version[2]
        if chunk.was_read and hasattr(os, "posix_fadvise") and not self._fits(size_bytes):
            os.posix_fadvise(chunk.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return size_bytes - cached_bytes(chunk.fd, size_bytes)

    def _fits(self, mean_bytes: int) -> bool:
        """Return whether all chunks of the data set could lie in memory without pushing out what others have there."""
        available = self._available_bytes()
        return available is None or mean_bytes * len(self._catalogue) <= available


class StandingMaps:
    """The maps of a data set that memory holds: each chunk mapped once, for as long as the loader lives.

        windows of an epoch    ┆ 7 2 5 ┆ 0 3 1 ┆ …
        maps of their own      ┆ 7 ┆ 2 ┆ 5 ┆     ┆ 0 ┆ 3 ┆ 1 ┆     made and entered anew in every window
        standing               ┆ 7 ┆ 2 ┆ 5 ┆ 0 ┆ 3 ┆ 1 ┆ …         made once

    A map costs some 30 microseconds a chunk, and entering its pages and leaving them 50 to 150 milliseconds a gigabyte:
    a data set of thousands of small chunks would spend more time on maps than on rows, one of large ones up to half of
    it. Each chunk is still looked at when its window opens: one that was replaced, touched or removed is mapped anew.

    Where it is large, more than does no harm, what others push out of memory is not brought back.
    """

    def __init__(
        self, layout: WindowLayout, num_chunks: int, *, max_bytes: int | None, harmless_bytes: int, is_large: bool
    ) -> None:
        self._layout, self._max_bytes, self._harmless_bytes = layout, max_bytes, harmless_bytes
        self.is_large = is_large
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._maps: list[ChunkMap | None] = [None] * num_chunks
        self._places = np.zeros((num_chunks, len(layout.names), 2), dtype=np.int64)
        self._names = np.zeros(num_chunks, dtype="S1")
        self.versions = np.full((num_chunks, 3), -1, dtype=np.int64)  # of files, see `FileVersion`; -1: not mapped

    def get(self, chunks: Int64) -> tuple[list[ChunkMap | None], Int64]:
        """Return the maps of chunks, and where their arrays lie; None for those that are not, or not any more."""
        # To look at a file takes a microsecond or two, but each `os.stat` gives up the interpreter's lock, and to get
        # it back from threads that make batches takes twenty, or five milliseconds where these hardly ever wait. So one
        # call looks at a whole window and keeps the lock as long as a thread that runs Python may; where files are slow
        # to look at, the rest is done without it.
        changed, names = np.ones(len(chunks), dtype=np.bool_), self._names
        texts = names.view(np.uint8).reshape(len(names), names.itemsize)
        find_changed(texts, self.versions, chunks, changed, int(1e9 * sys.getswitchinterval()))
        with self._lock:
            self.versions[chunks[changed]] = -1
            maps = [self._maps[chunk] for chunk in chunks.tolist()]
            for slot in np.flatnonzero(changed).tolist():
                maps[slot] = None
            return maps, self._places[chunks]

    def keep(self, number: int, found: ChunkMap, chunk: Chunk, *, name: bytes) -> None:
        """Keep the map of a chunk, unless it would be too much; `name` is its file's, as the system wants it."""
        with self._lock:
            before = self._maps[number]
            num_bytes = self._num_bytes + found.num_bytes - (0 if before is None else before.num_bytes)
            is_too_much = self._max_bytes is not None and num_bytes > self._max_bytes
            # It may not be as small as its records let it seem.
            has_harm = self._max_bytes is not None and num_bytes > self._harmless_bytes
            self.is_large = self.is_large or is_too_much or has_harm
            if is_too_much:
                return
            self._maps[number], self._num_bytes = found, num_bytes
            self._places[number] = self._layout.places([chunk.header])[0]
            if len(name) >= self._names.itemsize:
                self._names = self._names.astype(f"S{len(name) + 1}")  # a zero behind it
            self._names[number] = name
            self.versions[number] = chunk.version

    def close(self) -> None:
        """Let go of all maps; windows keep theirs, and none is opened any more."""
        unmap([one for one in self._maps if one is not None])


class PageCacheTrial:
    """Whether chunks that were pushed out of the page cache would stay there now: tried with one window of them.

        epoch     1            2             3
        windows   T r r r r    r b b b b     …           r: read past the page cache
                  ↑            ↑ a chunk of T was still there when its window came
                  one window goes through it             b: brought back

    Bringing a window back costs several times the processor time of reading past the page cache, and pushes out
    something else where memory is short. Whatever took the memory may have ended, though. So one window shows whether
    all would stay.
    """

    def __init__(self) -> None:
        self._num_gone: Counter[int] = Counter()  # times that a chunk was not there any more
        self._next = 1  # then 2, 4, 8, …: whatever empties the page cache every time costs less and less
        self._brought: set[int] = set()  # chunks that should be there: they were brought back
        self._stays = False

    def brings_back(self, chunks: Collection[int], gone: Collection[int], may: bool) -> bool:
        """Look at a window's chunks, some of which are gone, and return whether to bring it back, if one may."""
        self._num_gone.update(gone)
        if seen := self._brought.intersection(chunks):
            self._stays = seen.isdisjoint(gone)
            if not self._stays:
                self._brought.clear()
        num_gone = min((self._num_gone[chunk] for chunk in gone), default=0)
        if not may or not (self._stays or (not self._brought and num_gone >= self._next)):
            return False
        if not self._stays:
            self._next *= 2
        self._brought.update(gone)
        return True
