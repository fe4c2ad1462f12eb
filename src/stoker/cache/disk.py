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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from stoker.cache.folder import SUFFIX, Files, Folder, Locks
from stoker.errors import CacheError, CacheFullError, without_secrets

_USAGE = struct.Struct("<q")
# Chunks removed by a user before others may count theirs, for which they get so long: a file of 32 MB takes a disk some
# milliseconds to remove, and who unlocks and locks again at once is faster than who waits.
_REMOVED_AT_ONCE, _PAUSE_S = 16, 0.001


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set in the cache, last opened at `opened_ns`."""

    fingerprint: str = ""  # empty for chunks that none claims
    name: str = ""
    urls: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # of its chunks, in its order, whether in the cache or not
    opened_ns: int = 0
    chunks: dict[str, int] = field(default_factory=dict)  # those there: key -> bytes; data sets may share one
    is_in_use: bool = False  # by a living process

    @property
    def size_bytes(self) -> int:
        """Bytes of its chunks."""
        return sum(self.chunks.values())


def _sound(data: bytes) -> bytes:
    """Return what is kept of a data set without the checksum in its last line; a `ValueError` where that is wrong."""
    content, checksum = data[:-16], data[-16:]
    if xxh3_64_hexdigest(content).encode() != checksum:
        raise ValueError("it is damaged")
    return content


class Disk:
    """A cache folder in use, with its locks: admits chunks of its data sets, and evicts others for them.

    All chunks together have `limit_bytes`, or what the disk has. A process with a lower limit adds less, and evicts no
    more than others: what a data set in use has stays. Arguments and errors are otherwise those of `Folder`. To make
    room, `num_evicted` chunks were removed.
    """

    def __init__(self, path: Path, files: Files, *, limit_bytes: int | None, is_shared: bool) -> None:
        self._limit_bytes = limit_bytes
        self._full: tuple[int, int, frozenset[str]] | None = None  # bytes, listing and uses that left no room
        self._unused: tuple[frozenset[str], deque[str]] | None = None
        self._used_bytes = self._written_bytes = 0  # under the lock, see `_counting`
        self.num_evicted = 0
        with ExitStack() as stack:
            self.folder = Folder(path, files, is_shared=is_shared)
            stack.callback(self.folder.close)
            self.locks = Locks(self.folder)
            stack.callback(self.locks.close)
            self._fd, _ = self.folder.open_own("usage")
            stack.callback(os.close, self._fd)
            if self.locks.is_writable:
                self._sweep()
            self.folder.mark()
            if self.locks.is_writable and limit_bytes is not None:
                with self._counting():
                    self._used_bytes = self.folder.count_bytes()
            self._open = stack.pop_all()

    def _sweep(self) -> None:
        """Take this process's name as a writer, and remove what killed writers left."""
        self.locks.try_lock(self.folder.writer)
        for name in self.folder.list_temporary():
            lock = self.locks.try_lock(name.rpartition(".")[2].rpartition("-")[0])
            if lock is not None:
                with lock:
                    self.folder.files.remove(self.folder.tmp, name)

    def close(self) -> None:
        """Close all of it. Harmless when called again."""
        self._fd = -1  # who is counting just now must not write into what has its number next
        self._open.close()

    # ------------------------------------------------------------------ data sets

    def enter(self, fingerprint: str, name: object, urls: Sequence[str], keys: Callable[[], Sequence[str]]) -> None:
        """Say that this store uses a data set, until locks are closed: as long as any process does, its chunks stay."""
        folder, is_writable, content = self.folder, self.locks.is_writable, b""
        while True:
            # Who evicts or removes chunks looks who uses which, and does both under this lock.
            with self.locks.usage() if is_writable else nullcontext():
                self.locks.try_lock(fingerprint, is_shared=True)  # which nobody has exclusively
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
        return frozenset(one for one in self.folder.list_datasets() if self.locks.is_held(one))

    def datasets(self, fingerprints: Iterable[str] | None = None) -> list[DatasetEntry]:
        """Return some data sets, or all, without what cannot be read: such a one is entered again."""
        found, folder = [], self.folder
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
    # already, would have it counted twice. It may move to its place meanwhile, which `count_bytes` counts once.

    @contextmanager
    def writing(self, key: str, size_bytes: int) -> Iterator[int]:
        """Give a new file for a chunk, a descriptor open for reading and writing, and publish it when the block ends.

        It takes the place of what has its name. Where the block raises, nothing is left of it. A `CacheFullError` says
        that the limit leaves no room for it, an `OSError` what the disk refuses.
        """
        folder, aside = self.folder, self.folder.name_aside(key)
        with self._counting():
            self._find_room(size_bytes)
            self._used_bytes += size_bytes
            self._write()  # before it is there: a crash in between leaves too high a number
            try:
                # At its full length, so that it counts for who lists.
                fd = folder.files.create(folder.tmp, aside, size_bytes=size_bytes, mode=folder.file_mode)
            except BaseException:
                self._used_bytes -= size_bytes
                raise
        try:
            try:
                yield fd
            finally:
                os.close(fd)
            # The number changes only where another file goes. Under the lock, threads wait for each other and the GIL.
            with nullcontext() if folder.status(key) is None else self._counting():
                replaced = folder.status(key)
                folder.files.replace(folder.tmp, aside, folder.chunks, key + SUFFIX)
                if replaced is not None:
                    self._used_bytes -= replaced.st_size
        except BaseException:
            with self._counting():
                if folder.files.remove(folder.tmp, aside):
                    self._used_bytes -= size_bytes
            raise

    def remove(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there."""
        if self.folder.status(key) is None:
            return False
        with self._counting():
            return self._remove(key) is not None

    def remove_datasets(
        self, fingerprints: Collection[str] | None = None, *, on_removed: Callable[[int], object] = lambda _: None
    ) -> None:
        """Remove data sets with the chunks that no other one has, or everything, chunks of no data set included.

        `on_removed` is told the bytes of each chunk that is gone. A `CacheError` says that one of them is in use by a
        process, this one included; no more is removed then.
        """
        folder, goes = self.folder, set[str]()
        known: set[str] | None = None
        while True:
            with self._counting():
                there = set(folder.list_datasets())
                chosen = there if fingerprints is None else set(fingerprints)
                if busy := sorted(chosen & self.in_use()):
                    raise CacheError(
                        f"the data set {busy[0]} in {folder.path} is in use; end the processes that load from it first",
                        path=folder.path,
                    )
                if there != known:  # one that has come meanwhile may share chunks
                    known = there
                    goes = set(folder.list_chunks()) if fingerprints is None else self._keys_of(chosen)
                    goes -= self._keys_of(there - chosen)
                for key in [goes.pop() for _ in range(min(len(goes), _REMOVED_AT_ONCE))]:
                    if (freed_bytes := self._remove(key)) is not None:
                        on_removed(freed_bytes)
                if not goes:
                    for name in chosen:
                        folder.files.remove(folder.datasets, name)
                    return
            time.sleep(_PAUSE_S)

    def make_room(self, size_bytes: int) -> bool:
        """Evict until the disk has so many bytes more, and return whether anything went."""
        with self._counting():
            self._unused, before = None, self._used_bytes
            self._evict(self._find_unused(self.in_use()), before - size_bytes)
            return self._used_bytes < before

    def trim(self, fingerprint: str) -> None:
        """Evict what is beyond the limit, if it is lower than it was: of data sets not in use, and of one of ours."""
        if (limit_bytes := self._limit_bytes) is None:
            return
        with self._counting():
            if not self._is_beyond(limit_bytes):
                return
            in_use = self.in_use()
            self._evict(self._find_unused(in_use), limit_bytes)
            if self._used_bytes > limit_bytes and not self.locks.is_held(fingerprint, elsewhere=True):
                others = self._keys_of(in_use - {fingerprint})
                self._evict(sorted(self._keys_of({fingerprint}) - others), limit_bytes)

    def _find_room(self, size_bytes: int) -> None:
        """Evict what may go for a chunk, until the limit leaves room for it; else raise a `CacheFullError`."""
        limit_bytes = self._limit_bytes
        if limit_bytes is None or self._used_bytes + size_bytes <= limit_bytes:
            return
        in_use, why = self.in_use(), "can never fit"
        if size_bytes <= limit_bytes:
            why = "finds no room beside those of data sets in use"
            if (self._used_bytes, self.folder.changed_ns(), in_use) != self._full:
                if self._is_beyond(limit_bytes - size_bytes):
                    self._evict(self._find_unused(in_use), limit_bytes - size_bytes)
                if self._used_bytes + size_bytes <= limit_bytes:
                    return
                self._full = self._used_bytes, self.folder.changed_ns(), in_use
        raise CacheFullError(
            f"{self.folder.path} is limited to {limit_bytes:,} bytes, and a chunk of {size_bytes:,} bytes {why}; "
            f"raise cache_limit, or lower the data set's chunk_size",
            path=self.folder.path,
        )

    def _is_beyond(self, num_bytes: int) -> bool:
        """Return whether more is used, having listed the folder where the number says so."""
        if self._used_bytes > num_bytes:
            self._used_bytes = self.folder.count_bytes()
        return self._used_bytes > num_bytes

    def _remove(self, key: str) -> int | None:
        """Remove a chunk, and return how large it was; None where it was not there."""
        size_bytes = self.folder.remove(key)
        self._used_bytes -= size_bytes or 0
        return size_bytes

    def _evict(self, victims: Iterable[str], num_bytes: int) -> None:
        """Remove victims until no more than `num_bytes` are used."""
        for key in victims:
            self.num_evicted += self._remove(key) is not None
            if self._used_bytes <= num_bytes:
                break

    def _find_unused(self, in_use: frozenset[str]) -> Iterator[str]:
        """Yield keys of chunks of no data set in use. The listing is kept while the same ones are in use."""
        if self._unused is None or self._unused[0] != in_use:
            needed = self._keys_of(in_use)
            others = [one for one in self.datasets() if one.fingerprint not in in_use]
            # Chunks that no data set claims were never opened.
            opened = {key: one.opened_ns for one in sorted(others, key=lambda one: one.opened_ns) for key in one.keys}
            keys = self.folder.list_chunks().keys() - needed
            self._unused = in_use, deque(sorted(keys, key=lambda key: (opened.get(key, 0), key)))
        while self._unused[1]:
            yield self._unused[1].popleft()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Let `_used_bytes` be what the file `usage` says, which nobody else changes in the with block; then write it.

        Blocks: while another thread or process counts; for moments, or while it lists the folder.
        """
        with self.locks.usage():
            data = os.pread(self._fd, _USAGE.size, 0)
            self._written_bytes = _USAGE.unpack(data)[0] if len(data) == _USAGE.size else -1
            self._used_bytes = self.folder.count_bytes() if self._written_bytes < 0 else self._written_bytes
            try:
                yield
            finally:
                self._write()

    def _write(self) -> None:
        if self._used_bytes != self._written_bytes:
            self._written_bytes = self._used_bytes = max(0, self._used_bytes)
            self.folder.files.write(self._fd, _USAGE.pack(self._used_bytes), offset=0)
