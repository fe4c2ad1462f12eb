"""The cache folder: chunks published whole or not at all, found by key, shared by any number of processes.

publish   room is made ─► written to tmp/ ─► renamed into chunks/ or overflow/
open      header, length and all checksums compared the first time in a process, and again when the file was
touched ─► descriptor to map
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from stoker.cache.care import Care
from stoker.cache.files import Files
from stoker.cache.locks import Kind, Lock
from stoker.cache.opened import Chunk, Opener, pin_of
from stoker.cache.parts import Parts
from stoker.cache.publish import Publisher
from stoker.cache.registry import Registry
from stoker.cache.write import prepare_chunk
from stoker.errors import ChunkCorruptError
from stoker.source.columns import Packable
from stoker.spec import Spec


@dataclass(frozen=True, kw_only=True)
class StoreCounts:
    """What a store has done since it was opened.

    Attributes:
        num_built: Chunks published.
        num_reused: Different chunks opened that it had not published.
        num_mended: Chunks published in place of corrupt ones.
        num_corrupt: Chunks found corrupt and discarded.
        num_evicted: Chunks removed to make room.
        bytes_built: Bytes published.
    """

    num_built: int = 0
    num_reused: int = 0
    num_mended: int = 0
    num_corrupt: int = 0
    num_evicted: int = 0
    bytes_built: int = 0


class Store:
    """Chunks by key, in a folder on a local disk.

    Any number of threads and processes may use the folder at once; each has its own store. On a disk that is
    read-only, chunks can be opened and nothing else.

    Args:
        path: The folder; made if it is not there.
        limit_bytes: Of everything in it; None is what the disk has. A process with a lower limit evicts for all.
        is_temporary: Whether it goes with this process: then nothing is noted for the next one.
        files: What changes the disk; for tests.

    Attributes:
        path: The folder, absolute.
        registry: Data sets that use it.
        care: What is in it, and what may go.

    Raises:
        CacheError: The folder holds something else, is of another version, or cannot be used.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        limit_bytes: int | None = None,
        is_temporary: bool = False,
        files: Files | None = None,
    ) -> None:
        self._parts = Parts.of(Path(path), Files() if files is None else files, limit_bytes=limit_bytes)
        self._opener = Opener(self._parts)
        self._publisher = Publisher(self._parts, self._opener, is_temporary=is_temporary)
        self.path = self._parts.path
        self.registry = Registry(self._parts)
        self.care = Care(self._parts)
        self._mutex = threading.Lock()
        self._counts = StoreCounts()
        self._num_reused = 0
        self._published: set[str] = set()
        self._opened: set[str] = set()
        self._corrupt: set[str] = set()
        try:
            if self.is_writable:
                self._publisher.sweep()
        except BaseException:
            self.close()
            raise

    @property
    def limit_bytes(self) -> int | None:
        """The limit of the whole folder, None for what the disk has."""
        return self._parts.room.limit_bytes

    @property
    def is_writable(self) -> bool:
        """Whether chunks can be published; False on a disk that is read-only."""
        return self._parts.locks.is_writable

    def check_writable(self) -> None:
        """Raise where chunks cannot be published.

        Raises:
            CacheError: The folder is read-only.
        """
        self._publisher.check_writable()

    @property
    def failed(self) -> Path:
        """Folder in which build processes say why they failed."""
        return self._parts.folder.failed

    # ------------------------------------------------------------------ finding

    def path_of(self, key: str) -> Path:
        """Return where the chunk lies, or would if it were kept."""
        overflow, kept = self._parts.folder.overflow_path(key), self._parts.folder.kept_path(key)
        return overflow if overflow.exists() and not kept.exists() else kept

    def has(self, key: str) -> bool:
        """Return whether the chunk is there. Costs a file lookup or two, and does not look inside."""
        folder = self._parts.folder
        return os.path.exists(folder.kept_name(key)) or os.path.exists(folder.overflow_name(key))  # noqa: PTH110  (twice as fast)

    def name_of(self, key: str) -> bytes:
        """Return the name of a chunk's file, if it is kept: what the system is asked by."""
        return os.fsencode(self._parts.folder.kept_name(key))

    def open(self, key: str) -> Chunk:
        """Return the chunk, open for reading.

        The first time this process meets the file, every checksum is compared. A corrupt chunk is discarded, so that
        it is missing from then on.

        Raises:
            KeyError: It is not there; perhaps not any more, because it was evicted.
            ChunkCorruptError: It was not what had been published. It has been discarded: build it again.
        """
        try:
            chunk = self._opener.open(key)
        except ChunkCorruptError:
            if self.is_writable:
                with self._mutex:
                    self._corrupt.add(key)
                    self._counts = replace(self._counts, num_corrupt=self._counts.num_corrupt + 1)
            raise
        if key not in self._opened:
            with self._mutex:
                if key not in self._opened and key not in self._published:
                    self._num_reused += 1
                self._opened.add(key)
        return chunk

    # ------------------------------------------------------------------ locks and pins

    def try_lock(self, key: str) -> Lock | None:
        """Return the lock under which the chunk is built, or None where another thread or process has it.

        Never waits. The system drops the lock when the process dies.

        Raises:
            CacheError: The folder cannot be written to, so nothing can be built in it.
        """
        self.check_writable()
        return self._parts.locks.try_lock(Kind.BUILD, key)

    def is_locked(self, key: str) -> bool:
        """Return whether anyone has the lock under which the chunk is built."""
        return self._parts.locks.is_held(Kind.BUILD, key)

    def pin(self, key: str) -> Lock:
        """Keep the chunk from being evicted, from now on or from when it is there, until the pin is released.

        Who asks for a chunk to be built pins it first and releases it behind the last use: pins of several processes
        add up, so that none takes from another what it is about to need. Chunks that are kept need none.
        """
        return pin_of(self._parts, key)

    def is_pinned(self, key: str) -> bool:
        """Return whether any process has the chunk pinned."""
        return self._parts.locks.is_held(Kind.PIN, key)

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        key: str,
        arrays: Packable,
        spec: Spec,
        *,
        num_samples: int,
        about: Mapping[str, object] | None = None,
        may_overflow: bool = True,
    ) -> int:
        """Write a chunk, whole or not at all, and return its size in bytes.

        Args:
            key: Its name; everything that made it.
            arrays: The fields, each with N rows.
            spec: What a sample is.
            num_samples: N.
            about: What made it, for people: url, row groups, rows.
            may_overflow: Whether it is wanted even where it cannot be kept.

        Raises:
            CacheFullError: There is no room, within the limit or on the disk, and nothing may be evicted for it.
            CacheError: The folder cannot be written to.
            MismatchError: The arrays do not fit the spec.
            FieldError: Two fields would share the name of an array.
        """
        prepared = prepare_chunk(arrays, spec, num_samples=num_samples, about={**(about or {}), "key": key})
        self._publisher.publish(key, prepared, may_overflow=may_overflow)
        self.count_built(key, prepared.size_bytes)
        return prepared.size_bytes

    def count_built(self, key: str, size_bytes: int) -> None:
        """Count a chunk as built by this store: `publish` does, and who has a process of its own do it."""
        with self._mutex:
            self._published.add(key)
            counts = self._counts
            self._counts = replace(
                counts,
                num_built=counts.num_built + 1,
                num_mended=counts.num_mended + (key in self._corrupt),
                bytes_built=counts.bytes_built + size_bytes,
            )
            self._corrupt.discard(key)

    def counts(self) -> StoreCounts:
        """Return what this store has done so far."""
        with self._mutex:
            return replace(self._counts, num_reused=self._num_reused, num_evicted=self._parts.room.num_evicted)

    def close(self) -> None:
        """Give all locks and pins back. Harmless when called again."""
        self._parts.marks.settle()
        self._parts.locks.close()
        self._parts.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, limit_bytes={self.limit_bytes})"
