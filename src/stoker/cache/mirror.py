"""The mirror of a cache: chunks that one host has built, for all others, in an object store or a folder they all reach.

    host 1   missing ─► not there ─► built ─► published ─► put                    s3://bucket/stoker/<key>.safetensors
    host 2   missing ─► fetched ─► proven ─► published

A chunk is named by everything that made it, so every host puts the same content there: nobody has to coordinate, and
where two hosts put one chunk, the content stays the same. Objects appear whole or not at all, as all stores
have it; in a folder they are written aside and renamed. No chunk is ever removed.

The mirror can make training faster, and never stops it: what does not come, comes too slowly or is not what it should
be is built from the source. Then the mirror is left alone for a while, which is said once and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from stoker.cache.folder import SUFFIX, Files
from stoker.cache.format import MAX_HEADER_BYTES, PAGE_BYTES, ChunkHeader, NewChunk, check_arrays, parse_header
from stoker.errors import ChunkCorruptError, SourceMissingError
from stoker.fields.spec import Spec
from stoker.host.forks import this_process
from stoker.storage.failures import RetryingStorage, WrongArgumentError, within
from stoker.storage.find_storage import storage_for
from stoker.storage.storage import BytesLike, Storage
from stoker.storage.urls import local_folder, local_path, scheme_of, split_query

# Bytes of one request. The first has the header, however large.
_RANGE_BYTES = MAX_HEADER_BYTES
# A mirror that answers later, or gives fewer bytes a second, is slower than building from the source.
_ANSWER_S, _LEAST_BYTES_S = 5.0, 4e6
# How long a mirror that failed is left alone: twice as long each time, up to a minute.
_FIRST_PAUSE_S, _MOST_PAUSE_S = 1.0, 60.0
# Threads that upload. Each holds one chunk in memory.
_NUM_UPLOADING = 2
# Tries to upload one chunk, behind pauses.
_NUM_TRIES = 4
# How often who waits for uploads looks whether one was given up.
_LOOK_S = 0.1

_log = logging.getLogger("stoker")


class _Circuit:
    """Whether to ask a store that may be down: not for a while after each failure, and then one asks first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._pause_s = 0.0
        self._refused_until = 0.0

    def wait_s(self) -> float:
        """Return 0 to whoever may ask now; else for how long nobody may."""
        with self._mutex:
            left_s = self._refused_until - self._clock() if self._pause_s else 0.0
            if left_s <= 0 and self._pause_s:
                self._refused_until = self._clock() + self._pause_s  # others wait for what this one finds
            return max(left_s, 0.0)

    def failed(self) -> None:
        with self._mutex:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _MOST_PAUSE_S)
            self._refused_until = self._clock() + self._pause_s

    def worked(self) -> None:
        with self._mutex:
            self._pause_s = 0.0


class Mirror:
    """Chunks in a store that other hosts reach, too, or in a folder: an answer may take `answer_s` seconds.

    What became of them is in `counts`, by the names that `LoaderStats` has for it.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        options: Mapping[str, Any] | None = None,
        storage: Storage | None = None,
        answer_s: float = _ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = mirror_url(url)
        self._connect: Callable[[], Storage] = partial(storage_for, f"{self.url}/", storage_options=options)
        if storage is not None:
            self._connect = lambda: storage
        self._storage: RetryingStorage | None = None
        self._answer_s = answer_s
        self._home, self._mutex = this_process(), threading.Lock()
        self._reading, self._writing = _Circuit(clock), _Circuit(clock)
        self._said: set[str] = set()
        self._unfit: set[str] = set()  # keys of what is there and damaged
        self.counts: Counter[str] = Counter()
        self._to_do: Queue[tuple[str, Callable[[], bytes | None]] | None] = Queue()
        self._uploaded: set[str] = set()
        self._num_given_up, self._closing = 0, threading.Event()
        self._threads: list[threading.Thread] = []

    def connect(self) -> None:
        """Make the store's client, so that a `ValueError` says before anything is built what no client takes."""
        try:
            within(self._answer_s, self._opened)
        except WrongArgumentError:
            raise
        except Exception as error:  # it may be there later
            self._failed(self._reading, error)

    def sizes(self) -> dict[str, int]:
        """Return the keys of all chunks that are there, and their bytes; nothing where it cannot be asked."""
        try:
            found = self._opened().list(self.url)
        except Exception as error:  # whatever a client raises
            self._failed(self._reading, error)
            return {}
        names = {info.url.rpartition("/")[2]: info.size_bytes for info in found}
        return {name.removesuffix(_END): size for name, size in names.items() if size and name.endswith(_END)}

    # ------------------------------------------------------------------ from there

    def find(self, key: str, *, num_samples: int, spec: Spec | None) -> NewChunk | None:
        """Return a chunk that is there, with the samples that it should have; None where it is not to be had."""
        if self._reading.wait_s():
            return None
        try:
            size_bytes = self._size_of(key)
            if not size_bytes:
                self._reading.worked()
                return None
            begin = self._read(self._name(key), 0, min(_RANGE_BYTES, size_bytes))
            header = parse_header(bytes(begin), path=Path(key + SUFFIX), file_bytes=size_bytes)
            header.check(key, path=Path(key + SUFFIX), num_samples=num_samples, spec=spec)
        except Exception as error:  # whatever a client raises: the chunk is built then
            self._failed(self._reading, error, key)
            return None
        return size_bytes, partial(self._read_into, key, header, begin)

    def _read_into(self, key: str, header: ChunkHeader, begin: BytesLike, fd: int, files: Files) -> ChunkHeader:
        """Write a chunk into a file, prove it there, and return its header; a `KeyError` says that it cannot be had."""
        files.write(fd, memoryview(begin), offset=0)
        for offset in range(len(begin), header.size_bytes, _RANGE_BYTES):
            try:
                data = self._read(self._name(key), offset, min(_RANGE_BYTES, header.size_bytes - offset))
            except Exception as error:
                self._failed(self._reading, error, key)
                raise KeyError(key) from error
            files.write(fd, memoryview(data), offset=offset)
        try:
            check_arrays(fd, header, path=Path(key + SUFFIX))
        except ChunkCorruptError as error:
            self._failed(self._reading, error, key)
            raise KeyError(key) from error
        self._reading.worked()
        with self._mutex:
            self.counts["num_fetched"] += 1
        return header

    def _read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        storage = self._opened()
        return within(self._answer_s + num_bytes / _LEAST_BYTES_S, lambda: storage.read(url, offset, num_bytes))

    # ------------------------------------------------------------------ to there

    def put_later(self, key: str, content: Callable[[], bytes | None]) -> None:
        """Have a chunk put there, unless it is, by a thread that asks for its proven bytes: None where it is gone."""
        if not self._home.is_here or self._closing.is_set():
            return
        self._to_do.put((key, content))
        with self._mutex:
            if len(self._threads) < min(_NUM_UPLOADING, self._to_do.unfinished_tasks):
                thread = threading.Thread(target=self._put_all, name=f"stoker-mirror-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def drain(self, stop_event: threading.Event) -> int:
        """Return how many chunks could not be put there.

        Blocks: until all is there; or one was given up, as others would be; or `stop_event` is set.
        """
        with self._to_do.all_tasks_done:
            while self._to_do.unfinished_tasks and not self._num_given_up and not stop_event.is_set():
                self._to_do.all_tasks_done.wait(_LOOK_S)
            return self._to_do.unfinished_tasks + self._num_given_up

    def take_uploaded(self) -> set[str]:
        """Return the keys of chunks that are there now, of those that were to be put there since the last call."""
        with self._mutex:
            uploaded, self._uploaded = self._uploaded, set()
        return uploaded

    def close(self) -> None:
        """Put no further chunk there, and end the threads. Harmless when called again, and in a fork.

        Blocks: until what is on its way is there, or was given up.
        """
        if not self._home.is_here:  # a fork has none of the threads
            return
        self._closing.set()
        for _ in self._threads:
            self._to_do.put(None)
        for thread in self._threads:
            thread.join()

    def _put_all(self) -> None:
        while (found := self._to_do.get()) is not None and not self._closing.is_set():
            is_there = self._put(*found)
            with self._mutex:
                self._num_given_up += is_there is False
                if is_there:
                    self._uploaded.add(found[0])
            self._to_do.task_done()

    def _put(self, key: str, content: Callable[[], bytes | None]) -> bool | None:
        """Return whether a chunk is there now; None where it is gone here, or nothing is put there any more."""
        for _ in range(_NUM_TRIES):
            while pause_s := self._writing.wait_s():
                if self._closing.wait(pause_s):
                    return None
            try:
                if key in self._unfit or not self._size_of(key):
                    data = content()
                    if data is None:
                        return None
                    self._opened().write(self._name(key), data)
                    with self._mutex:
                        self.counts["num_uploaded"] += 1
                        self._unfit.discard(key)
            except Exception as error:  # whatever a client raises: it is tried again, and then left
                self._failed(self._writing, error)
            else:
                self._writing.worked()
                return True
        return False

    # ------------------------------------------------------------------ what goes wrong

    def _opened(self) -> RetryingStorage:
        if self._storage is None:
            # A failure is not tried again: the source can be read instead.
            self._storage = RetryingStorage(self._connect(), wait=lambda _: True)
        return self._storage

    def _size_of(self, key: str) -> int:
        """Return the bytes of a chunk; 0 where it is not there, or has no content yet, as some stores show it first."""
        storage = self._opened()
        try:
            return within(self._answer_s, lambda: storage.stat(self._name(key))).size_bytes
        except SourceMissingError:
            return 0

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}{_END}"

    def _failed(self, circuit: _Circuit, error: Exception, key: str = "") -> None:
        """Count a failure, say once what it was, and let the mirror alone for a while."""
        if isinstance(error, ChunkCorruptError):
            self._unfit.add(key)  # what is built in its place mends it
            kind, then = "holds what is damaged", "it is built from the source instead"
        else:
            circuit.failed()
            kind, then = "cannot be read", "chunks are built from the source until it can"
            if circuit is self._writing:
                kind, then = "cannot be written to", "what is built here stays here until it can"
        with self._mutex:
            self.counts["num_mirror_failures"] += 1
            is_said = kind in self._said
            self._said.add(kind)
        if not is_said:
            _log.warning("the mirror %s %s (%s): %s", self.url, kind, error, then)


# Where arrays are mapped in larger pages, they lie at other places.
_END = SUFFIX if PAGE_BYTES == 4096 else f".{PAGE_BYTES}{SUFFIX}"


def mirror_url(url: str | Path) -> str:
    """Return the name of a mirror: an absolute path, or a URL without credentials, which would be shown in logs."""
    if not isinstance(url, str | Path):
        raise TypeError(f"mirror must be a URL or the path of a folder, not {type(url).__name__}")
    if isinstance(url, Path) or scheme_of(url) == "file":
        return local_path(local_folder(url, what="mirror")).rstrip("/")
    place, query = split_query(url)
    authority = place.partition("://")[2].partition("/")[0]
    name, at, _ = authority.rpartition("@")
    if query or "?" in place or (at and (":" in name or scheme_of(url) not in ("abfs", "abfss"))):
        raise ValueError(
            f"mirror: credentials and options do not belong into a URL, give them in mirror_options: "
            f"{scheme_of(url)}://..."
        )
    return place.rstrip("/")
