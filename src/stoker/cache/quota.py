"""Who gets room in a cache: decided on disk alone, so that any number of processes agree.

What is there stays while its data set is in use, whatever comes: where the order is known and every chunk is needed
once an epoch, a fixed set hits as often as its share of the data, and making room for the newest would hit never. Room
is made from chunks of data sets that no living process uses, those of the least recently opened first.

What a data set is made of lies in a file named by its fingerprint: a line of JSON for people, a line for each
chunk's key, and a checksum. Its time of writing is when the data set was last opened, which decides what goes first.

The file `usage` says how many bytes all chunks have, those being written included; at most, for a crash may leave it
too high. Where even that leaves room, nothing is listed. Where it does not, the folder is listed, which puts it right.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from xxhash import xxh3_64_hexdigest

from stoker.cache.folder import SUFFIX, ChunkFile, Folder, Locks
from stoker.errors import CacheError, CacheFullError, without_secrets

_USAGE = struct.Struct("<q")
# Chunks removed by a user before others may count theirs, for which they get so long: a file of 32 MB takes a disk some
# milliseconds to remove, and who unlocks and locks again at once is faster than who waits.
_REMOVED_AT_ONCE, _PAUSE_S = 16, 0.001


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set in the cache.

    Attributes:
        fingerprint: Of the data set; empty for chunks that none claims.
        name: What people call it.
        urls: Where it comes from.
        keys: Of its chunks, in its order, whether in the cache or not.
        opened_ns: When it was last opened.
        chunks: Its chunks that are there, as far as they were listed. One that several data sets share is in each.
        is_in_use: Whether a living process uses it.
    """

    fingerprint: str = ""
    name: str = ""
    urls: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    opened_ns: int = 0
    chunks: tuple[ChunkFile, ...] = ()
    is_in_use: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of its chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


def _sound(data: bytes) -> bytes:
    """Return what is kept of a data set without the checksum in its last line.

    Raises:
        ValueError: The checksum does not fit.
    """
    content, checksum = data[:-16], data[-16:]
    if xxh3_64_hexdigest(content).encode() != checksum:
        raise ValueError("it is damaged")
    return content


class Quota:
    """The data sets of a cache folder; admits chunks of theirs, and evicts others for them.

    Args:
        limit_bytes: Of all chunks; None is what the disk has. A process with a lower limit adds less, and evicts no
            more than others: what a data set in use has stays.

    Attributes:
        num_evicted: Chunks removed to make room.
    """

    def __init__(self, folder: Folder, locks: Locks, *, limit_bytes: int | None) -> None:
        self._folder, self._locks, self._limit_bytes = folder, locks, limit_bytes
        self._fd, _ = folder.open_own("usage")
        self._full: tuple[int, int, frozenset[str]] | None = None  # bytes, listing and uses that left no room
        self._unused: tuple[frozenset[str], deque[str]] | None = None
        self.num_evicted = 0

    # ------------------------------------------------------------------ data sets

    def enter(self, fingerprint: str, name: object, urls: Sequence[str], keys: Callable[[], Sequence[str]]) -> None:
        """Say that this store uses a data set, until locks are closed: as long as any process does, its chunks stay.

        Raises:
            OSError: That cannot be written down.
        """
        folder, is_writable, content = self._folder, self._locks.is_writable, b""
        while True:
            # Who evicts or removes chunks looks who uses which, and does both under this lock.
            with self._locks.usage() if is_writable else nullcontext():
                self._locks.try_lock(fingerprint, is_shared=True)  # which nobody has exclusively
                if not is_writable:
                    return
                with suppress(OSError, ValueError):  # a hundred thousand keys are not worked out to write what is there
                    _sound(folder.read_small(folder.datasets, fingerprint))
                    folder.renew(folder.datasets, fingerprint)
                    return
                if content:
                    folder.write_small(folder.datasets, fingerprint, content)
                    return
            head = json.dumps({"name": without_secrets(str(name)), "urls": list(map(without_secrets, urls))})
            content = "".join(f"{line}\n" for line in (head, *keys())).encode()
            content += xxh3_64_hexdigest(content).encode()

    def in_use(self) -> frozenset[str]:
        """Return the data sets that a living process uses."""
        return frozenset(one for one in self._folder.list_datasets() if self._locks.is_held(one))

    def datasets(self, fingerprints: Iterable[str] | None = None) -> list[DatasetEntry]:
        """Return some data sets, or all, without what cannot be read: such a one is entered again."""
        found, folder = [], self._folder
        for fingerprint in folder.list_datasets() if fingerprints is None else fingerprints:
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                opened_ns = os.stat(fingerprint, dir_fd=folder.datasets, follow_symlinks=False).st_mtime_ns
                head, *keys = _sound(folder.read_small(folder.datasets, fingerprint)).decode().splitlines()
                about = json.loads(head)
                name, urls = str(about["name"]), tuple(map(str, about["urls"]))
                it = DatasetEntry(fingerprint=fingerprint, name=name, urls=urls, keys=tuple(keys), opened_ns=opened_ns)
                found.append(it)
        return found

    def _keys_of(self, fingerprints: Iterable[str]) -> set[str]:
        """Return the keys of the chunks of some data sets."""
        return {key for one in self.datasets(fingerprints) for key in one.keys}

    # ------------------------------------------------------------------ chunks

    # A file comes or goes and its bytes are counted under one lock: who lists the folder in between, and so counts it
    # already, would have it counted twice.

    @contextmanager
    def writing(self, key: str, size_bytes: int) -> Iterator[int]:
        """Give a new file for a chunk, a descriptor open for reading and writing, and publish it when the block ends.

        It takes the place of what has its name. Where the block raises, nothing is left of it.

        Raises:
            CacheFullError: The limit leaves no room for it.
            OSError: The disk refuses.
        """
        folder, aside = self._folder, self._folder.name_aside(key)
        with self._counting() as used_bytes:
            used_bytes = self._with_room(used_bytes, size_bytes)
            self._write(used_bytes + size_bytes)  # before it is there: a crash in between leaves too high a number
            try:
                # At its full length, so that it counts for who lists.
                fd = folder.files.create(folder.tmp, aside, size_bytes=size_bytes, mode=folder.file_mode)
            except BaseException:
                self._write(used_bytes)
                raise
        try:
            try:
                yield fd
            finally:
                os.close(fd)
            with self._counting() as used_bytes:
                replaced = folder.status(key)
                folder.files.replace(folder.tmp, aside, folder.chunks, key + SUFFIX)
                if replaced is not None:
                    self._write(used_bytes - replaced.st_size)
        except BaseException:
            with self._counting() as used_bytes:
                if folder.files.remove(folder.tmp, aside):
                    self._write(used_bytes - size_bytes)
            raise

    def remove(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there."""
        if self._folder.status(key) is None:
            return False
        with self._counting() as used_bytes:
            size_bytes = self._folder.remove(key)
            if size_bytes is not None:
                self._write(used_bytes - size_bytes)
        return size_bytes is not None

    def remove_datasets(self, fingerprints: Collection[str] | None = None) -> int:
        """Remove data sets with the chunks that no other one has, and return how many bytes that freed.

        Args:
            fingerprints: Which; None removes everything, chunks of no data set included.

        Raises:
            CacheError: One of them is in use by a process, this one included; no more is removed then.
        """
        folder, total_bytes = self._folder, 0
        known: set[str] | None = None
        goes: set[str] = set()
        while True:
            with self._counting() as used_bytes:
                there = set(folder.list_datasets())
                chosen = there if fingerprints is None else set(fingerprints)
                if busy := sorted(chosen & self.in_use()):
                    raise CacheError(
                        f"the data set {busy[0]} in {folder.path} is in use; end the processes that load from it first",
                        path=folder.path,
                    )
                if there != known:  # one that has come meanwhile may share chunks
                    known, is_all = there, fingerprints is None
                    goes = {one.key for one in folder.list_chunks()} if is_all else self._keys_of(chosen)
                    goes -= self._keys_of(there - chosen)
                some = [goes.pop() for _ in range(min(len(goes), _REMOVED_AT_ONCE))]
                freed_bytes = sum(folder.remove(key) or 0 for key in some)
                total_bytes += freed_bytes
                self._write(used_bytes - freed_bytes)
                if not goes:
                    for name in chosen:
                        folder.files.remove(folder.datasets, name)
                    return total_bytes
            time.sleep(_PAUSE_S)

    def recount(self) -> int:
        """List the folder, and return the bytes of all chunks."""
        with self._counting():
            return self._listed()

    def make_room(self, size_bytes: int) -> bool:
        """Evict until the disk has so many bytes more, and return whether anything went."""
        with self._counting() as used_bytes:
            self._unused = None
            freed_bytes = self._evict(self._find_unused(self.in_use()), size_bytes)
            self._write(used_bytes - freed_bytes)
        return freed_bytes > 0

    def trim(self, fingerprint: str) -> None:
        """Evict what is beyond the limit, if it is lower than it was: of data sets not in use, and of one of ours."""
        limit_bytes = self._limit_bytes
        if limit_bytes is None:
            return
        with self._counting() as used_bytes:
            if used_bytes <= limit_bytes or (used_bytes := self._listed()) <= limit_bytes:
                return
            in_use = self.in_use()
            used_bytes -= self._evict(self._find_unused(in_use), used_bytes - limit_bytes)
            if used_bytes > limit_bytes and not self._locks.is_held(fingerprint, elsewhere=True):
                others = self._keys_of(in_use - {fingerprint})
                mine = sorted(self._keys_of({fingerprint}) - others)
                used_bytes -= self._evict(mine, used_bytes - limit_bytes)
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
        in_use, why = self.in_use(), "can never fit"
        if size_bytes <= limit_bytes:
            why = "finds no room beside those of data sets in use"
            if (used_bytes, self._folder.changed_ns(), in_use) != self._full:
                used_bytes = self._listed()
                if used_bytes + size_bytes > limit_bytes:
                    used_bytes -= self._evict(self._find_unused(in_use), used_bytes + size_bytes - limit_bytes)
                    self._write(used_bytes)
                if used_bytes + size_bytes <= limit_bytes:
                    return used_bytes
                self._full = used_bytes, self._folder.changed_ns(), in_use
        raise CacheFullError(
            f"{self._folder.path} is limited to {limit_bytes:,} bytes, and a chunk of {size_bytes:,} bytes {why}; "
            f"raise cache_limit, or lower the data set's chunk_size",
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
            needed = self._keys_of(in_use)
            others = [one for one in self.datasets() if one.fingerprint not in in_use]
            # Chunks that no data set claims were never opened.
            opened = {key: one.opened_ns for one in sorted(others, key=lambda one: one.opened_ns) for key in one.keys}
            keys = [chunk.key for chunk in self._folder.list_chunks() if chunk.key not in needed]
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
