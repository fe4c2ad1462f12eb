"""Opening windows of one data set: its chunks found, and brought to where they are gathered from.

    an eighth of memory at most     mapped once                       standing
    in the page cache               mapped for a window, nothing is copied
    not there, and read before      read past the page cache          into memory that windows share
    not there for the first time    read to compare its checksums, and so in the page cache

Whoever opens a chunk the first time after the machine started reads all of it, and it stays in the page cache if it
can. If it is gone later, something else needed the memory: reading it again that way would push out that or the next
window, and cost the processor more than reading past the page cache does. Nothing is pushed out so, and what is in the
page cache of a data set larger than memory stays there: a fixed set, which hits as often as its share of the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from stoker._native import ChunkMap, WindowMemory, cached_bytes, read_chunks
from stoker.cache.format import ChunkHeader
from stoker.cache.store import Chunk, Store
from stoker.errors import CacheError, ChunkCorruptError
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.host.machine import available_bytes
from stoker.loader.fill import Filling
from stoker.loader.windows.page_cache_trial import PageCacheTrial
from stoker.loader.windows.standing import Standing
from stoker.loader.windows.window import Window, WindowLayout

# A chunk that was found corrupt, or was evicted between being built and being opened, is built again this often before
# it counts as a fault of the disk.
_TRIES = 5
# Files of a window that are held open at a time; the usual limit of a process is 1,024.
_MAX_HELD = 256
# Where a window has many chunks, the thread that opens it waits so often for them, and opens as many as are there then.
# Woken by each of them it would take turns with those that build: 35 kB each, 470 to 487 chunks/s, and 584 to 628 so.
_MOST_WAITS = 16
# Missing from the page cache, less than this part of a window is brought back: the system may have let go of a page or
# two of everybody's. Up to the other part only where all of the data set fits.
_FEW, _SOME = 1 / 16, 1 / 4
# The flag of a file that is read past the page cache; 0 where the system, as all but Linux, has no such.
_DIRECT: int = getattr(os, "O_DIRECT", 0)

T = TypeVar("T")

_log = logging.getLogger("stoker")


class Held(NamedTuple):
    """A chunk that is held open while its window is opened.

    Attributes:
        fd: Open for reading.
        header: What lies where.
        missing_bytes: What of it is not in the page cache.
    """

    fd: int
    header: ChunkHeader
    missing_bytes: int


class WindowOpener:
    """Opens the windows of a data set.

    Args:
        store: Where its chunks are.
        spec: What a sample is.
        num_samples: Of each chunk. Shape [N].
        key: Gives the key of a chunk.
        fragments: Names the chunks, for errors.
        is_tight: Says whether chunks may have to leave the cache again: then none stays mapped.
    """

    def __init__(
        self,
        *,
        store: Store,
        spec: Spec,
        num_samples: Int64,
        key: Callable[[int], str],
        fragments: Sequence[object],
        is_tight: Callable[[], bool],
    ) -> None:
        self._store = store
        self._num_samples: list[int] = num_samples.tolist()
        self._key = key
        self._fragments = fragments
        self._layout = WindowLayout(spec)
        self._memory = WindowMemory()
        self._trial = PageCacheTrial()
        self._lock = threading.Lock()
        self._standing: Standing | None = None
        self._is_tight = is_tight
        self._has_warned = False

    def stand(self, window: int | None) -> None:
        """Map each chunk once from now on, if they are few or small enough.

        Args:
            window: Chunks that lie in a window at most; None for all.
        """
        num_samples = np.array(self._num_samples, dtype=np.int64)
        is_looked_at = self._store.verify == "always"  # each time: what stays mapped is looked at once
        if not (is_looked_at or self._is_tight()) and Standing.suits(self._layout.spec, num_samples, window=window):
            self._standing = Standing(self._layout, num_samples, window=window)

    def not_standing(self, chunks: Int64) -> Int64:
        """Return which chunks are not mapped: the others need not be looked for before their window opens."""
        standing = self._standing
        return chunks if standing is None else chunks[standing.versions[chunks, 0] < 0]

    def open(self, numbers: Sequence[int], filler: Filling) -> Window:
        """Return a window of chunks, in this order.

        Blocks: until all of them are there.

        Args:
            numbers: Of the chunks. Shape [K].
            filler: Has been or will be asked for them.
        """
        if (standing := self._standing) is not None:
            window = self._open_standing(standing, numbers, filler)
            if window is not None:
                return window
        if self._is_tight():
            filler.request(numbers)
        maps, headers = [], []
        for begin in range(0, len(numbers), _MAX_HELD):
            some = numbers[begin : begin + _MAX_HELD]
            with self._all_held(some, filler) as held:
                maps += self._in_memory(some, held, is_first=begin == 0)
                headers += [one.header for one in held]
        return Window(self._layout, maps, self._layout.places(headers))

    def with_chunk(self, chunk: int, filler: Filling, use: Callable[[Chunk], T]) -> T:
        """Return what `use` makes of a chunk, once it is there and found sound; closed afterwards.

        Raises:
            CacheError: It never stays.
        """
        for i in range(_TRIES + 1):
            # Where chunks may have to leave, the filler counts who has been waited for, and builds no more than these.
            # Elsewhere nearly all are there, and asking costs as much as opening.
            if i or self._is_tight():
                filler.wait(chunk)
            try:
                with self._store.open(self._key(chunk)) as opened:
                    return use(opened)
            except (KeyError, ChunkCorruptError):  # evicted, or discarded as corrupt: made again from the source
                filler.request([chunk])
        raise CacheError(
            f"the chunk of {self._fragments[chunk]} was built {_TRIES} times and never stayed in "
            f"{self._store.path}: check the disk, or give the cache more room",
            path=self._store.path,
        )

    def close(self) -> None:
        """Give back maps and memory that no window uses. Harmless when called again."""
        self._give_up()
        self._memory.clear()

    def _give_up(self) -> bool:
        """Map no chunk once and for all any more, and return False."""
        with self._lock:
            standing, self._standing = self._standing, None
        if standing is not None:
            standing.close()
        return False

    def _open_standing(self, standing: Standing, numbers: Sequence[int], filler: Filling) -> Window | None:
        """Return a window of chunks that are mapped once; None where one of them should not be, now or ever."""
        chunks = np.array(numbers, dtype=np.int64)
        changed: list[int] = standing.find_changed(chunks).tolist()
        for n in self._as_they_come(changed, filler):
            if not self.with_chunk(n, filler, partial(self._stays, standing, n)):
                return None
        window = standing.window(chunks)
        if window is not None and standing.is_large and not window.is_in_memory():
            window.close()
            self._give_up()  # somebody needs the memory
            return None
        return window

    def _stays(self, standing: Standing, chunk: int, opened: Chunk) -> bool:
        """Map a chunk once, if it should be, and return whether it is."""
        if not opened.is_kept:  # it is in memory, which it is to leave when its window is closed
            return self._give_up()
        if standing.is_large and self._missing(opened) > _FEW * opened.version[2]:
            return False  # it may be another time
        try:
            # It may not be as small as its records let it seem, or nearly all of it was replaced.
            name = self._store.name_of(self._key(chunk))
            return standing.keep(chunk, opened, name=name) or self._give_up()
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            return self._give_up()  # no more maps: those of a window alone may still be made

    def _in_memory(self, chunks: Sequence[int], held: Sequence[Held], *, is_first: bool) -> list[ChunkMap]:
        """Return chunks in memory.

        Args:
            chunks: Their numbers.
            held: The same, open.
            is_first: Whether they are the first of their window.
        """
        is_read = self._are_read(chunks, held)
        found = [None if reads else self._mapped(one) for one, reads in zip(held, is_read, strict=True)]
        maps = {slot: one for slot, one in enumerate(found) if one is not None}
        if len(maps) < len(held):
            slots = [slot for slot in range(len(held)) if slot not in maps]
            files = [(held[slot].fd, held[slot].header.size_bytes) for slot in slots]
            maps |= zip(slots, read_chunks(files, self._memory, is_first), strict=True)
        else:
            self._memory.rest()
        return [maps[slot] for slot in range(len(held))]

    def _mapped(self, held: Held) -> ChunkMap | None:
        """Return a map of a chunk; None where the system maps no more files."""
        try:
            return ChunkMap(held.fd, held.header.size_bytes)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "the system maps no more files into this process (%s): chunks are read into memory instead; "
                    "a larger vm.max_map_count, larger chunks or fewer loaders at a time spare that",
                    error.strerror,  # not the error, whose frames refer to maps
                )
            return None

    @contextlib.contextmanager
    def _all_held(self, numbers: Sequence[int], filler: Filling) -> Iterator[list[Held]]:
        """Hold chunks open for the length of a with block."""
        held: list[Held] = []
        try:
            # Opened as soon as it is there, where it may be evicted: an open file is still read.
            for chunk in self._as_they_come(numbers, filler):
                held.append(self.with_chunk(chunk, filler, self._hold))  # noqa: PERF401  kept where a later one fails
            yield held
        finally:
            for one in held:
                os.close(one.fd)

    def _as_they_come(self, numbers: Sequence[int], filler: Filling) -> Iterator[int]:
        """Yield chunks that are about to be opened, when they are there or soon will be.

        Blocks: until the last of some of them is there, if it was asked for.
        """
        num_together = 1 if self._is_tight() else len(numbers) // _MOST_WAITS
        for i, chunk in enumerate(numbers):
            if num_together > 1 and i % num_together == 0:
                filler.wait(numbers[min(i + num_together, len(numbers)) - 1])
            yield chunk

    def _hold(self, opened: Chunk) -> Held:
        missing_bytes = self._missing(opened)
        if missing_bytes and _DIRECT:  # a map of it is as it would be
            with contextlib.suppress(OSError):
                fcntl.fcntl(opened.fd, fcntl.F_SETFL, _DIRECT)
        return Held(opened.detach(), opened.header, missing_bytes)

    def _missing(self, opened: Chunk) -> int:
        """Return what of a chunk is not in the page cache."""
        size_bytes = opened.version[2]
        if opened.was_read and hasattr(os, "posix_fadvise") and not self._fits(size_bytes):
            os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return size_bytes - cached_bytes(opened.fd, size_bytes)

    def _fits(self, mean_bytes: int) -> bool:
        """Return whether all chunks of the data set could lie in memory without pushing out what others have there."""
        available = available_bytes()
        return available is None or mean_bytes * len(self._num_samples) <= available

    def _are_read(self, chunks: Sequence[int], held: Sequence[Held]) -> list[bool]:
        """Return which chunks to read past the page cache, rather than to map them."""
        sizes = [one.header.size_bytes for one in held]
        share = sum(one.missing_bytes for one in held) / max(1, sum(sizes))
        gone = [n for n, one, size in zip(chunks, held, sizes, strict=True) if one.missing_bytes > _FEW * size]
        self._trial.see(chunks, gone)
        if share < _FEW or not _DIRECT:
            return [False] * len(held)
        if (share < _SOME or self._trial.is_due(gone)) and self._fits(sum(sizes) // len(sizes)):
            if share >= _SOME:
                self._trial.bring_back(gone)
            return [False] * len(held)
        return [one.missing_bytes > 0 for one in held]
