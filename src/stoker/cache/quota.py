"""Who gets room in a cache: decided on disk alone, so that any number of processes agree.

What is there stays while its data set is in use, whatever comes: where the order is known and every chunk is needed
once an epoch, a fixed set hits as often as its share of the data, and making room for the newest would hit never. Room
is made from chunks of data sets that no living process uses, those of the least recently opened first.

The file `usage` says how many bytes all chunks have, those being written included; at most, for a crash may leave it
too high. Where even that leaves room, nothing is listed. Where it does not, the folder is listed, which puts it right.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stoker.cache.datasets import Manifests
from stoker.cache.folder import Folder
from stoker.cache.locks import Locks
from stoker.errors import CacheFullError

_USAGE = struct.Struct("<q")


class Quota:
    """Admits chunks, and evicts others for them.

    Args:
        folder: Of the cache.
        locks: Of its processes.
        manifests: Of its data sets.
        limit_bytes: Of all chunks; None is what the disk has. A process with a lower limit adds less, and evicts no
            more than others: what a data set in use has stays.

    Attributes:
        num_evicted: Chunks removed to make room.
    """

    def __init__(self, folder: Folder, locks: Locks, manifests: Manifests, *, limit_bytes: int | None) -> None:
        self._folder = folder
        self._locks = locks
        self._manifests = manifests
        self._limit_bytes = limit_bytes
        self._fd, _ = folder.open_own("usage")
        self._full: tuple[int, int, frozenset[str]] | None = None  # how all stood when nothing could be done
        self._unused: tuple[frozenset[str], deque[str]] | None = None
        self.num_evicted = 0

    def create(self, name: str, size_bytes: int) -> int:
        """Return a file in which a chunk is to be written: a descriptor, open for reading and writing.

        Raises:
            CacheFullError: The limit leaves no room for it.
            OSError: The disk refuses.
        """
        with self._counting() as used_bytes:
            used_bytes = self._with_room(used_bytes, size_bytes)
            self._write(used_bytes + size_bytes)  # before it is there: a crash in between leaves too high a number
            try:
                return self._folder.create_chunk(name, size_bytes)
            except BaseException:
                self._write(used_bytes)
                raise

    # A file comes or goes and its bytes are counted under one lock: who lists the folder in between, and so counts it
    # already, would have it counted twice.

    def place(self, name: str, key: str) -> None:
        """Publish a chunk that was written, in place of what has its name."""
        with self._counting() as used_bytes:
            replaced_bytes = self._folder.size_of(key)
            self._folder.place(name, key)
            if replaced_bytes is not None:
                self._write(used_bytes - replaced_bytes)

    def abandon(self, name: str, size_bytes: int) -> None:
        """Remove a file in which a chunk was written."""
        with self._counting() as used_bytes:
            if self._folder.files.remove(self._folder.tmp, name):
                self._write(used_bytes - size_bytes)

    def remove(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there."""
        if self._folder.size_of(key) is None:
            return False
        with self._counting() as used_bytes:
            size_bytes = self._folder.remove(key)
            if size_bytes is not None:
                self._write(used_bytes - size_bytes)
        return size_bytes is not None

    def recount(self) -> int:
        """List the folder, and return the bytes of all chunks."""
        with self._counting():
            return self._listed()

    def make_room(self, size_bytes: int) -> bool:
        """Evict until the disk has so many bytes more, and return whether anything went."""
        with self._counting() as used_bytes:
            self._unused = None
            freed_bytes = self._evict(self._find_unused(self._manifests.in_use()), size_bytes)
            self._write(used_bytes - freed_bytes)
        return freed_bytes > 0

    def trim(self, fingerprint: str) -> None:
        """Evict what is beyond the limit, if it is lower than it was: of data sets not in use, and of one of ours."""
        if self._limit_bytes is None:
            return
        with self._counting() as used_bytes:
            if used_bytes <= self._limit_bytes or (used_bytes := self._listed()) <= self._limit_bytes:
                return
            used_bytes -= self._evict(self._find_unused(self._manifests.in_use()), used_bytes - self._limit_bytes)
            mine = self._manifests.get(fingerprint)
            if used_bytes > self._limit_bytes and mine and not self._locks.is_held(fingerprint, elsewhere=True):
                others = self._manifests.in_use() - {fingerprint}
                shared = {key for one in self._manifests.all() if one.fingerprint in others for key in one.keys}
                mine_alone = set(mine.keys) - shared
                keys = sorted(chunk.key for chunk in self._folder.list_chunks() if chunk.key in mine_alone)
                used_bytes -= self._evict(keys, used_bytes - self._limit_bytes)
            self._write(used_bytes)

    def close(self) -> None:
        """Close the file. Harmless when called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _with_room(self, used_bytes: int, size_bytes: int) -> int:
        """Return how many bytes are used when there is room for a chunk, evicting what may go."""
        limit_bytes = self._limit_bytes
        if limit_bytes is None or used_bytes + size_bytes <= limit_bytes:
            return used_bytes
        state = used_bytes, self._folder.changed_ns(), self._manifests.in_use()
        if size_bytes <= limit_bytes and state != self._full:
            used_bytes = self._listed()
            excess = used_bytes + size_bytes - limit_bytes
            if excess > 0:
                used_bytes -= self._evict(self._find_unused(state[2]), excess)
                self._write(used_bytes)
            if used_bytes + size_bytes <= limit_bytes:
                return used_bytes
            self._full = used_bytes, self._folder.changed_ns(), state[2]
        if size_bytes > limit_bytes:
            raise CacheFullError(
                f"a chunk of {size_bytes:,} bytes can never fit: {self._folder.path} is limited to {limit_bytes:,} "
                f"bytes; raise cache_limit, or lower the data set's chunk_size",
                path=self._folder.path,
            )
        raise CacheFullError(
            f"{self._folder.path}, limited to {limit_bytes:,} bytes, has no room for a chunk of {size_bytes:,} bytes "
            f"beside those of data sets in use; raise cache_limit, or lower the data set's chunk_size",
            path=self._folder.path,
        )

    def _evict(self, victims: Iterable[str], num_bytes: int) -> int:
        """Remove victims until `num_bytes` are free, and return how many are."""
        freed_bytes = 0
        for key in victims:
            if (removed_bytes := self._folder.remove(key)) is not None:
                freed_bytes += removed_bytes
                self.num_evicted += 1
            if freed_bytes >= num_bytes:
                break
        return freed_bytes

    def _find_unused(self, in_use: frozenset[str]) -> Iterator[str]:
        """Yield keys of chunks of no data set in use. The listing is kept while the same ones are in use."""
        if self._unused is None or self._unused[0] != in_use:
            needed: set[str] = set()
            opened: dict[str, int] = {}
            for manifest in self._manifests.all():
                if manifest.fingerprint in in_use:
                    needed.update(manifest.keys)
                else:
                    opened.update({key: max(opened.get(key, 0), manifest.opened_ns) for key in manifest.keys})
            keys = [chunk.key for chunk in self._folder.list_chunks() if chunk.key not in needed]
            # Chunks that no manifest knows were never opened.
            self._unused = in_use, deque(sorted(keys, key=lambda key: (opened.get(key, 0), key)))
        while self._unused[1]:
            yield self._unused[1].popleft()

    @contextmanager
    def _counting(self) -> Iterator[int]:
        """Give the number, which nobody else changes within the with block.

        Blocks: while another thread or process counts; for moments, or while it lists the folder.
        """
        with self._locks.usage():
            data = os.pread(self._fd, _USAGE.size, 0)
            yield _USAGE.unpack(data)[0] if len(data) == _USAGE.size else self._listed()

    def _listed(self) -> int:
        used_bytes = self._folder.count_bytes()
        self._write(used_bytes)
        return used_bytes

    def _write(self, used_bytes: int) -> None:
        self._folder.files.write(self._fd, _USAGE.pack(max(0, used_bytes)), offset=0)
