"""Build the chunks that are missing: those that are about to be used, or all of them before training."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

from stoker.cache.builder import Builder
from stoker.cache.threads import AdaptivePool
from stoker.dataset.catalogue import Catalogue
from stoker.errors import CacheFullError
from stoker.metrics.stages import Stages, Subject

# How long to leave a chunk alone that another process builds. Short against building one, long against a file lookup.
_POLL_S = 0.01
_CLOSED = "the loader was closed"

K = TypeVar("K", bound=Hashable)
"""What stands for a chunk."""


class Filler(Generic[K]):
    """Build missing chunks in the order in which they are asked for, by as many threads as the pool says.

    A chunk that another process is building is not built again: it goes to the end of the queue and is looked for
    later, while others get built. An exception of `build` is raised by `wait` for that chunk, which is not tried again.

    Args:
        build: Builds a chunk, unless it is there; False means that another process has its lock.
        size_of: Says how many samples a chunk has.
        max_ahead: Says how many chunks may be built and not yet waited for; None for any number. What the cache cannot
            keep waits for its use in memory.
    """

    def __init__(
        self,
        *,
        is_there: Callable[[K], bool],
        build: Callable[[K], bool],
        pool: AdaptivePool,
        size_of: Callable[[K], int] = lambda _: 1,
        max_ahead: Callable[[], int | None] = lambda: None,
        stages: Stages | None = None,
    ) -> None:
        self._is_there, self._build, self.pool, self._size_of = is_there, build, pool, size_of
        self._max_ahead, self._stages = max_ahead, stages or Stages()
        self._lock = threading.Lock()
        self._to_begin = threading.Condition(self._lock)  # there may be something to build
        self._stopped = threading.Event()
        # Whoever waits for a chunk is woken by that one alone: where dozens of threads build, they would take turns
        # with the GIL to find that there is nothing for them.
        self._asked: dict[K, Future[None]] = {}  # until they are there; those that failed stay
        self._queue: deque[tuple[K, Subject | None]] = deque()
        self._ahead: set[K] = set()  # built, and nobody has waited for them yet
        self._awaited: set[K] = set()
        self._num_building = 0
        self._is_hungry = True  # since a chunk was built, nobody found the queue empty
        self._threads: list[threading.Thread] = []

    def request(self, chunks: Iterable[K], subjects: Iterable[Subject | None] = repeat(None)) -> None:
        """Ask for chunks, in order of use; `subjects` say what each is for. One that is there costs a file lookup."""
        with self._lock:
            # Before the cache is looked at: a chunk that is published between that look and what follows would be asked
            # for again, behind all others, and whoever waits for it would wait for these.
            wanted = [one for one in zip(chunks, subjects, strict=False) if one[0] not in self._asked]
        missing = [one for one in wanted if not self._is_there(one[0])]
        if not missing:
            return
        with self._lock:
            for chunk, subject in missing:
                if chunk not in self._asked:
                    asked = self._asked[chunk] = Future()
                    if self._stopped.is_set():
                        asked.set_exception(InterruptedError(_CLOSED))
                    self._queue.append((chunk, subject))
                    self._to_begin.notify()
            self._start_threads()

    def _start_threads(self) -> None:
        while len(self._threads) < min(self.pool.size, len(self._asked)) and not self._stopped.is_set():
            thread = threading.Thread(target=self._work, name=f"stoker-build-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, chunk: K) -> None:
        """Return when a requested chunk is there, built by whomever.

        Raises:
            InterruptedError: The filler was closed.
        """
        with self._lock:
            asked = self._asked.get(chunk)
            self._ahead.discard(chunk)
            self._awaited.add(chunk)
            # One more may be built, this one at least; also where there was a limit until now, and is none any more.
            if self._queue:
                self._to_begin.notify()
        error: BaseException | None = None
        if asked is not None:
            with nullcontext() if asked.done() else self._stages.span("wait_chunk"):
                error = asked.exception()
        with self._lock:
            self._awaited.discard(chunk)
        if error is not None:
            raise error

    def stop(self) -> None:
        """Begin no further chunk, and free whoever waits for one with an `InterruptedError`."""
        self._stopped.set()
        with self._lock:
            self._to_begin.notify_all()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(InterruptedError(_CLOSED))

    def close(self) -> None:
        """Stop, and end the threads, once chunks in the making are done."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (claimed := self._claim()) is not None:
            chunk, subject = claimed
            error: BaseException | None = None
            try:
                with self._stages.span("build", subject=subject):
                    is_done = self._build(chunk)
            except BaseException as raised:  # it belongs to the step that needs this chunk
                is_done, error = True, raised
            with self._lock:
                self._num_building -= 1
                if is_done:
                    self._note_end(chunk, error)
                else:
                    self._queue.append(claimed)  # for this thread, in a while: nobody is woken to find it taken
            if not is_done:
                self._stopped.wait(_POLL_S)

    def _note_end(self, chunk: K, error: BaseException | None) -> None:
        """Note that a chunk is there, or that it cannot be built. Called with the lock."""
        asked = self._asked[chunk]
        if error is None:
            is_hungry, self._is_hungry = self._is_hungry, True
            if self.pool.built(self._size_of(chunk), is_hungry=is_hungry):
                self._start_threads()
                self._to_begin.notify_all()  # those that a smaller pool had no use for
            del self._asked[chunk]
            if chunk not in self._awaited and self._max_ahead() is not None:
                self._ahead.add(chunk)
        if not asked.done():  # by `stop`
            asked.set_result(None) if error is None else asked.set_exception(error)

    def _claim(self) -> tuple[K, Subject | None] | None:
        """Return the chunk to build next, and what it is for; None once stopped.

        That is the first in the queue; where no more may be built ahead, the first that somebody waits for.
        """
        with self._lock:
            while not self._stopped.is_set():
                claimed, may_build = None, self._num_building < self.pool.size  # the pool may have shrunk
                if may_build and not self._queue:
                    self._is_hungry = False
                elif may_build:
                    if (most := self._max_ahead()) is None:
                        self._ahead.clear()  # nobody waits for these now, nor takes them out of the count
                    may_go_ahead = most is None or len(self._ahead) < most
                    claimed = next((one for one in self._queue if may_go_ahead or one[0] in self._awaited), None)
                if claimed is not None:
                    self._queue.remove(claimed)
                    self._num_building += 1
                    return claimed
                self._to_begin.wait()
            return None


@dataclass(frozen=True, kw_only=True)
class WarmProgress:
    """How far a cache is filled."""

    num_chunks: int  # of the data set, or of the part of it
    num_done: int  # those in the cache by now; of a part, those in the mirror, too
    num_found: int  # those of them that were there already
    num_samples: int = 0  # in chunks built since
    size_bytes: int = 0  # of chunks built since
    found_bytes: int = 0  # of chunks that were there already
    is_full: bool = False  # the rest does not fit: it is built while training, each time it is needed
    num_not_uploaded: int = 0  # chunks that could not be put into the mirror

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is there."""
        return self.num_done == self.num_chunks


OnProgress = Callable[[WarmProgress], object]


def chunks_of_part(catalogue: Catalogue, part: int, num_parts: int) -> list[int]:
    """Return the chunks of one of `num_parts` equal parts: whole units, dealt out in turn, not one after the other."""
    units = dict.fromkeys(tuple(catalogue.unit(i)) for i in range(len(catalogue)))
    return [i for number, unit in enumerate(units) if number % num_parts == part for i in unit]


def warm(
    builder: Builder,
    *,
    pool: AdaptivePool,
    part: tuple[int, int] | None = None,
    on_progress: OnProgress | None = None,
    stop_event: threading.Event | None = None,
) -> WarmProgress:
    """Build every chunk that is missing, or as many as fit, and return how far that got.

    What is there is not looked at again, so a second call goes on where the first was stopped; several processes at
    once share the work. With a mirror, all that is here is put there before this returns, where that can be done.

    Of several parts, `part` is built alone: which one of how many. What the mirror has is left there then; and where
    there is no room, what it has is removed here, unless another process uses the data set. `on_progress` is told once
    at the beginning and after each chunk, by one thread at a time. Once `stop_event` is set, or a chunk cannot be
    built, which is raised, those in the making are finished and no further one is begun.
    """
    return _Warming(builder, part, on_progress, stop_event or threading.Event()).run(pool)


class _Warming:
    """What is known while a cache is filled, and how a filler's threads build for it; see `warm`."""

    def __init__(
        self,
        builder: Builder,
        part: tuple[int, int] | None,
        on_progress: OnProgress | None,
        stop_event: threading.Event,
    ) -> None:
        self._builder, self._catalogue, self._store = builder, builder.catalogue, builder.store
        self._on_progress, self._stop_event = on_progress, stop_event
        self._mutex, self._making_room, self._at_work = threading.Lock(), threading.Lock(), threading.Condition()
        self._num_building = self._num_ended = 0
        chunks = range(len(self._catalogue)) if part is None else chunks_of_part(self._catalogue, *part)
        sizes = {i: builder.size_of(i) for i in chunks}
        if (mirror := self._store.mirror) is not None:
            mirrored = mirror.sizes()
            for i, size in sizes.items():
                key = self._catalogue.key(i)
                if key not in mirrored and size is not None:
                    self._store.put_into_mirror(key)
                elif part is not None:
                    sizes[i] = mirrored.get(key)
        self._makes_room = mirror is not None and part is not None
        found = [size for size in sizes.values() if size is not None]
        self._missing = {i for i, size in sizes.items() if size is None}
        self._error: BaseException | None = None
        self._progress = WarmProgress(num_chunks=len(sizes), num_done=len(found), num_found=len(found))
        self._note(found_bytes=sum(found))

    def run(self, pool: AdaptivePool) -> WarmProgress:
        wanted = sorted(self._missing)
        self._filler: Filler[int] = Filler(
            is_there=lambda i: i not in self._missing,
            build=self._build,
            pool=pool,
            size_of=lambda i: int(self._catalogue.num_samples[i]),
        )
        try:
            self._filler.request(wanted)
            with suppress(InterruptedError):  # stopped, for whatever reason
                for i in wanted:
                    self._filler.wait(i)
        finally:
            self._filler.close()
        if self._error is not None:
            raise self._error
        mirror, progress = self._store.mirror, self._progress
        return progress if mirror is None else replace(progress, num_not_uploaded=mirror.drain(self._stop_event))

    def _build(self, i: int) -> bool:
        """Build a chunk unless it came along with another; False where somebody else is at it."""
        is_built = i not in self._missing
        try:
            if not (is_built or self._stop_event.is_set()):
                is_built = self._build_or_make_room(i)
                if is_built and self._builder.size_of(i) is not None:  # another process may have made it
                    self._count(i)
        except BaseException as error:  # belongs to whoever asked for the cache to be filled
            with self._mutex:
                # Where not one chunk fits, nothing could be trained from it.
                if not (isinstance(error, CacheFullError) and self._progress.num_done):
                    self._error = self._error or error
                elif not self._progress.is_full:
                    self._note(is_full=True)
        if self._stop_event.is_set() or self._error is not None or self._progress.is_full:
            self._filler.stop()
        return is_built

    def _build_or_make_room(self, i: int) -> bool:
        """Build a chunk; of a part that does not fit, one thread at a time then makes room for its own.

        That one waits for chunks that are being built: they may leave room once they have gone. Were it to try again
        later, threads that all find no room would each take the others' tries for such work, without end.

        Raises:
            CacheFullError: There is none to be made.
        """
        build = partial(self._builder.build, i, must_be_kept=True, on_published=self._count)
        try:
            with self._at_work:
                self._num_building += 1
            try:
                return build()
            finally:
                with self._at_work:
                    self._num_building -= 1
                    self._num_ended += 1
                    self._at_work.notify_all()
        except CacheFullError:
            mirror = self._store.mirror
            if mirror is None or not self._makes_room:
                raise
        with self._making_room:
            while True:
                num_ended, is_stuck = self._num_ended, mirror.drain(self._stop_event) > 0
                self._store.discard_unless_used(self._catalogue.fingerprint, mirror.take_uploaded())
                try:
                    return build()
                except CacheFullError:
                    with self._at_work:
                        is_last = not self._num_building and self._num_ended == num_ended
                        if is_stuck or is_last or self._stop_event.is_set():
                            raise
                        self._at_work.wait_for(lambda: self._num_ended != num_ended)  # noqa: B023

    def _count(self, i: int) -> None:
        """Count a chunk, once, when it is there: parts of a huge row group come one by one, long before the last."""
        with self._mutex:
            if i in self._missing:
                self._missing.discard(i)
                self._note(
                    num_done=self._progress.num_done + 1,
                    num_samples=self._progress.num_samples + int(self._catalogue.num_samples[i]),
                    # A chunk of a part may have been removed already, to make room for another.
                    size_bytes=self._progress.size_bytes + (self._builder.size_of(i) or 0),
                )

    def _note(self, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        if self._on_progress is not None:
            self._on_progress(self._progress)
