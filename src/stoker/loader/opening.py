"""Opening windows of one data set: its chunks found, and brought to where they are gathered from.

    an eighth of memory at most     each chunk mapped once            standing
    in the page cache               mapped, nothing is copied         window
    not there, and read before      read past the page cache          window, in memory that windows share
    not there for the first time    read to compare its checksums, and so in the page cache

Whoever opens a chunk the first time after the machine started reads all of it, and it stays in the page cache if it
can. If it is gone later, something else needed the memory: reading it again that way would push out that or the next
window, and cost the processor more than reading past the page cache does. Nothing is pushed out so, and what is in the
page cache of a data set larger than memory stays there: a fixed set, which hits as often as its share of the data.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from stoker.cache.store import Chunk, Store
from stoker.cache.verified import NO_VERSION
from stoker.errors import CacheError, ChunkCorruptError
from stoker.fields.spec import Spec
from stoker.host.machine import available_bytes
from stoker.loader.fill import Filling
from stoker.loader.held import Held, HeldAhead
from stoker.loader.windows.memory import Memories
from stoker.loader.windows.page_cache_trial import PageCacheTrial
from stoker.loader.windows.reading import DIRECT, pass_by_page_cache
from stoker.loader.windows.resident import cached_bytes
from stoker.loader.windows.standing import NoPlaceError, Standing
from stoker.loader.windows.window import Index, Window

# A chunk that was found corrupt, or was evicted between being built and being opened, is built again this often before
# it counts as a fault of the disk.
_TRIES = 5
# Files that a window may hold open while its chunks come in; the usual limit of a process is 1,024.
_MAX_HELD = 256
# Where a window has many chunks, the thread that opens it waits so often for them, and opens as many as are there then.
# Woken by each of them it would take turns with those that build: 35 kB each, 470 to 487 chunks/s, and 584 to 628 so.
_MOST_WAITS = 16
# Missing from the page cache, less than this part of a window is brought back: the system may have let go of a page or
# two of everybody's. Up to the other part only where all of the data set fits.
_FEW, _SOME = 1 / 16, 1 / 4

T = TypeVar("T")

_log = logging.getLogger("stoker")


class _NotInMemoryError(Exception):
    """A chunk that could be mapped once and for all is not in the page cache now."""


class WindowOpener:
    """Opens the windows of a data set.

    Args:
        store: Where its chunks are.
        spec: What a sample is.
        num_samples: Of each chunk. Shape [N].
        key: Gives the key of a chunk.
        fragments: Names the chunks, for errors.
        is_tight: Whether chunks may have to leave the cache again: then none stays mapped.
    """

    def __init__(
        self,
        *,
        store: Store,
        spec: Spec,
        num_samples: Index,
        key: Callable[[int], str],
        fragments: Sequence[object],
        is_tight: bool,
    ) -> None:
        self._store = store
        self._spec = spec
        self._num_samples: list[int] = num_samples.tolist()
        self._key = key
        self._fragments = fragments
        self._memories = Memories()
        self._trial = PageCacheTrial()
        self._ahead = HeldAhead(self._hold_now)
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
        if not self._is_tight and Standing.suits(self._spec, num_samples, window=window):
            with contextlib.suppress(OSError):  # no room for its addresses
                self._standing = Standing(self._spec, num_samples, window=window)

    def not_standing(self, chunks: Index) -> Index:
        """Return which chunks are not mapped: the others need not be looked for before their window opens."""
        standing = self._standing
        return chunks if standing is None else chunks[standing.versions[chunks, 0] < 0]

    def open(self, numbers: Sequence[int], filler: Filling, *, following: Sequence[int] = ()) -> Window:
        """Return a window of chunks, in this order.

        Blocks: until all of them are there.

        Args:
            numbers: Of the chunks. Shape [K].
            filler: Has been or will be asked for them.
            following: Chunks that will be asked for next, if it is known.
        """
        standing = self._standing
        # What is held was found while the window before it was read past the page cache: it is hardly there now.
        if standing is not None and not self._ahead.holds_any(numbers):
            try:
                window = self._open_standing(standing, numbers, filler)
                if not standing.is_large or window.is_in_memory:
                    return window
                window.close()
                self._give_up(standing)  # somebody needs the memory
            except NoPlaceError:  # it is not as small as its records let it seem, or nearly all of it was replaced
                self._give_up(standing)
            except _NotInMemoryError:
                pass  # it may be another time
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                self._give_up(standing)  # no more maps: those of a window alone may still be made
        if self._is_tight:
            filler.request(numbers)
        if len(numbers) > _MAX_HELD:
            return self._open_in_turn(numbers, filler)
        with self._all_held(numbers, filler) as held:
            sizes = [one.header.size_bytes for one in held]
            is_mapped = self._is_mapped(numbers, sizes, [one.missing_bytes for one in held])

            def hold_following() -> None:
                if not self._is_tight and len(following) <= _MAX_HELD:
                    self._ahead.fill(following)

            return self._filled(sizes, is_mapped, lambda window: _place(window, 0, held, hold_following))

    def with_chunk(self, chunk: int, filler: Filling, use: Callable[[Chunk], T]) -> T:
        """Return what `use` makes of a chunk, once it is there and found sound; closed afterwards.

        Raises:
            CacheError: It never stays.
        """
        for i in range(_TRIES + 1):
            # Where chunks may have to leave, the filler counts who has been waited for, and builds no more than these.
            # Elsewhere nearly all are there, and asking costs as much as opening.
            if i or self._is_tight:
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
        if self._standing is not None:
            self._give_up(self._standing)
        self._ahead.close()
        self._memories.clear()

    def _give_up(self, standing: Standing) -> None:
        with self._lock:
            was_mine, self._standing = self._standing is standing, None
        if was_mine:
            standing.leave()

    def _open_standing(self, standing: Standing, numbers: Sequence[int], filler: Filling) -> Window:
        chunks = np.array(numbers, dtype=np.int64)
        missing: list[int] = standing.find_changed(chunks).tolist()

        def place(chunk: int, opened: Chunk) -> None:
            if not opened.is_kept:
                raise NoPlaceError  # it is to leave the disk when its window is closed
            if standing.is_large and self._missing(opened) > _FEW * opened.version[2]:
                raise _NotInMemoryError
            name = self._store.name_of(self._key(chunk))
            standing.place(chunk, opened.fd, opened.header, opened.version, name=name)

        if missing:
            standing.versions[missing] = NO_VERSION
            for n in self._as_they_come(missing, filler):
                self.with_chunk(n, filler, partial(place, n))
        return standing.window(chunks)

    def _open_in_turn(self, numbers: Sequence[int], filler: Filling) -> Window:
        """Open a window of too many chunks to hold open: looked up twice, built again where one went in between."""
        sizes, missing = [], []
        for chunk in self._as_they_come(numbers, filler):
            size, lacking = self.with_chunk(chunk, filler, lambda opened: (opened.version[2], self._missing(opened)))
            sizes.append(size)
            missing.append(lacking)
        is_mapped = self._is_mapped(numbers, sizes, missing)

        def place(window: Window) -> None:
            for begin in range(0, len(numbers), _MAX_HELD):
                with self._all_held(numbers[begin : begin + _MAX_HELD], filler) as held:
                    for chunk, size, one in zip(numbers[begin:], sizes[begin:], held, strict=False):
                        if one.header.size_bytes > size:
                            raise CacheError(
                                f"the chunk of {self._fragments[chunk]} was built anew while a window of it was "
                                "opened, and is larger than before: its transform is not deterministic; give it a new "
                                "version",
                                path=self._store.path,
                            )
                    _place(window, begin, held)

        return self._filled(sizes, is_mapped, place)

    def _window(self, sizes: Sequence[int], *, is_mapped: bool | None) -> Window:
        return Window(self._spec, size_bytes=sizes, is_mapped=is_mapped, memories=self._memories)

    def _filled(
        self,
        sizes: Sequence[int],
        is_mapped: bool | None,
        place: Callable[[Window], None],
    ) -> Window:
        """Return a window with all its chunks in their places, in memory of its own where no more can be mapped."""
        try:
            return _with_all_placed(self._window(sizes, is_mapped=is_mapped), place)
        except OSError as error:
            if error.errno != errno.ENOMEM or is_mapped is False:
                raise
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "the system maps no more files into this process (%s): windows are read into memory instead; "
                    "a larger vm.max_map_count, larger chunks or fewer loaders at a time spare that",
                    error,
                )
        return _with_all_placed(self._window(sizes, is_mapped=False), place)

    @contextlib.contextmanager
    def _all_held(self, numbers: Sequence[int], filler: Filling) -> Iterator[list[Held]]:
        """Hold chunks open for the length of a with block."""
        held: list[Held] = []
        try:
            # Opened as soon as it is there, where it may be evicted: an open file is still read.
            for chunk in self._as_they_come(numbers, filler):
                held.append(self._ahead.take(chunk) or self.with_chunk(chunk, filler, self._hold))  # noqa: PERF401
            yield held
        finally:
            for one in held:
                os.close(one.fd)

    def _as_they_come(self, numbers: Sequence[int], filler: Filling) -> Iterator[int]:
        """Yield chunks that are about to be opened, when they are there or soon will be.

        Blocks: until the last of some of them is there, if it was asked for.
        """
        num_together = 1 if self._is_tight else len(numbers) // _MOST_WAITS
        for i, chunk in enumerate(numbers):
            if num_together > 1 and i % num_together == 0:
                filler.wait(numbers[min(i + num_together, len(numbers)) - 1])
            yield chunk

    def _hold_now(self, chunk: int) -> Held:
        with self._store.open(self._key(chunk)) as opened:
            return self._hold(opened)

    def _hold(self, opened: Chunk) -> Held:
        missing_bytes = self._missing(opened)
        if missing_bytes:  # it is read so, if its window is not mapped after all
            pass_by_page_cache(opened.fd)
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

    def _is_mapped(self, numbers: Sequence[int], sizes: Sequence[int], missing: Sequence[int]) -> bool | None:
        """Return whether to map a window: None is as the platform can, False is to read it past the page cache."""
        total = sum(sizes)
        share = sum(missing) / max(1, total)
        gone = [chunk for chunk, lacking, size in zip(numbers, missing, sizes, strict=True) if lacking > _FEW * size]
        self._trial.see(numbers, gone)
        if share < _FEW or not DIRECT:
            self._memories.rest()
            return None
        if (share < _SOME or self._trial.is_due(gone)) and self._fits(total // len(sizes)):
            if share >= _SOME:
                self._trial.bring_back(gone)
            return None
        return False


def _with_all_placed(window: Window, place: Callable[[Window], None]) -> Window:
    """Return the window with all its chunks in their places; closed where that fails."""
    try:
        place(window)
    except BaseException:
        window.close()
        raise
    return window


def _place(window: Window, first: int, held: Sequence[Held], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Put chunks in their slots, from `first` on; `meanwhile` is called while a disk reads them, if it does."""
    window.place({slot: (one.fd, one.header) for slot, one in enumerate(held, first)}, meanwhile)
