"""Filling a cache before training: everything that is missing, by any number of threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.dataset.catalogue import Catalogue
from stoker.errors import CacheFullError

# How long to leave a chunk alone that another process builds.
_POLL_S = 0.01
# How often to look how far the parts of a huge row group are, which are built in one go.
_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class WarmProgress:
    """How far a cache is filled.

    Attributes:
        num_chunks: Chunks of the data set.
        num_done: Those in the cache by now.
        num_found: Those of them that were there already.
        num_samples: Samples in chunks built since.
        size_bytes: Bytes of chunks built since.
        found_bytes: Bytes of chunks that were there already.
        is_full: Whether the rest does not fit: it is built while training, each time it is needed.
    """

    num_chunks: int
    num_done: int
    num_found: int
    num_samples: int = 0
    size_bytes: int = 0
    found_bytes: int = 0
    is_full: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is in the cache."""
        return self.num_done == self.num_chunks


OnProgress = Callable[[WarmProgress], object]


def warm(
    catalogue: Catalogue,
    store: Store,
    *,
    pool: AdaptivePool,
    on_progress: OnProgress | None = None,
    stop_event: threading.Event | None = None,
    builder: Builder | None = None,
) -> WarmProgress:
    """Build every chunk that is missing, and return how far that got.

    What is there is not looked at again, so a second call goes on where the first was stopped; several processes at
    once share the work.

    Args:
        catalogue: The opened data set.
        store: Where chunks go. Where they do not all fit, as many as fit are built.
        pool: How many threads build.
        on_progress: Told once at the beginning and after each chunk, by one thread at a time.
        stop_event: When set, chunks in the making are finished and no further one is begun.
        builder: What builds; a `Builder` unless told.

    Raises:
        StokerError: A chunk cannot be built. Chunks in the making are finished first.
    """
    work = _Warming(
        catalogue,
        store,
        builder=Builder(catalogue, store) if builder is None else builder,
        pool=pool,
        on_progress=on_progress,
        stop_event=threading.Event() if stop_event is None else stop_event,
    )
    threads = [
        threading.Thread(target=work.run, args=(i,), name=f"stoker-warm-{i}", daemon=True)
        for i in range(max(1, min(pool.most, work.num_missing)))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                work.look()
    except BaseException:  # Ctrl-C: finish what is begun, so that nothing runs on behind the caller's back
        work.stop()
        for thread in threads:
            thread.join()
        raise
    if work.error is not None:
        raise work.error
    return work.progress


class _Warming:
    """The work that the threads share."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        *,
        builder: Builder,
        pool: AdaptivePool,
        on_progress: OnProgress | None,
        stop_event: threading.Event,
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._builder = builder
        self._pool = pool
        self._on_progress = on_progress
        self._stop_event = stop_event
        self._mutex = threading.Lock()
        self._is_over = threading.Event()
        num_chunks = len(catalogue.fragments)
        found = {i: size for i in range(num_chunks) if (size := self._size_of(i)) is not None}
        self._queue = deque(i for i in range(num_chunks) if i not in found)
        self._missing = set(self._queue)
        self._in_work: dict[int, deque[int]] = {}  # a chunk being built -> what is read in one go with it
        self.num_missing = len(self._queue)
        self.error: BaseException | None = None
        self.progress = WarmProgress(
            num_chunks=num_chunks, num_done=len(found), num_found=len(found), found_bytes=sum(found.values())
        )
        self._tell()

    def stop(self) -> None:
        """Begin no further chunk."""
        self._is_over.set()

    def run(self, number: int) -> None:
        """Build until there is nothing left to do.

        Args:
            number: Of this thread among all: it has work while the pool is larger than that.
        """
        try:
            while not self._stop_event.is_set() and not self._is_over.is_set():
                if number >= self._pool.size and self._queue:
                    self._is_over.wait(_LOOK_S)
                    continue
                try:
                    i = self._queue.popleft()
                except IndexError:
                    return
                if i not in self._missing:
                    continue  # it came along with another
                if not self._build(i):
                    self._queue.append(i)
                    self._is_over.wait(_POLL_S)
                    continue
                with self._mutex:
                    self._pool.built(int(self._catalogue.num_samples[i]), is_hungry=len(self._queue) > self._pool.size)
        except CacheFullError as error:
            self._full(error)
        except BaseException as error:  # belongs to whoever asked for the cache to be filled
            with self._mutex:
                self.error = self.error or error
            self.stop()

    def look(self) -> None:
        """Count the chunks that have come since; parts of a row group come one by one, long before all are there."""
        with self._mutex:
            for chunks in self._in_work.values():
                while chunks and self._count(chunks[0]):
                    chunks.popleft()

    def _build(self, i: int) -> bool:
        """Have a chunk built, and count it and what came with it; False where somebody else is at it."""
        with self._mutex:
            if any(i in chunks for chunks in self._in_work.values()):
                return False
            chunks = self._in_work[i] = deque(j for j in self._catalogue.unit(i) if j in self._missing)
        try:
            return self._builder.build(i, must_be_kept=True)
        finally:
            with self._mutex:
                for j in chunks:  # one that found no room is asked for again by itself, to find out why
                    self._count(j)
                del self._in_work[i]

    def _count(self, i: int) -> bool:
        """Count a chunk as done once it is there, and return whether it is."""
        if i not in self._missing:
            return True
        size_bytes = self._size_of(i)
        if size_bytes is None:
            return False
        self._missing.discard(i)
        self.progress = replace(
            self.progress,
            num_done=self.progress.num_done + 1,
            num_samples=self.progress.num_samples + int(self._catalogue.num_samples[i]),
            size_bytes=self.progress.size_bytes + size_bytes,
        )
        self._tell()
        return True

    def _size_of(self, i: int) -> int | None:
        """Return the size of a chunk that is in the cache, None where it is not."""
        return self._store.size_of(self._catalogue.key(i))

    def _full(self, error: CacheFullError) -> None:
        with self._mutex:
            if self.progress.num_done == 0:  # not one chunk fits: nothing could be trained from it
                self.error = self.error or error
            elif not self.progress.is_full:
                self.progress = replace(self.progress, is_full=True)
                self._tell()
        self.stop()

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)
