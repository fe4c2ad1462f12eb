"""Who gets room in a cache: decided on disk alone, under one lock, so that any number of processes agree.

    ├───────────── limit ──────────────────────────────┤
    │ kept: a fixed set         │ reserve: overflow    │

What is kept stays while its data set is in use, whatever comes: where the order is known and every chunk is needed once
an epoch, keeping a fixed set hits as often as its share of the data, and making room for the newest would hit never.
A chunk beyond it is still needed to train on; it goes to the overflow, and leaves it when room is needed and nobody has
it pinned. Room is made, in this order, from

    1. chunks that belong to no data set in use, that of the least recently opened data set first
    2. overflow that nobody has pinned, oldest first

Where the numbers of the ledger say that there is plenty, nothing is listed: of many threads that publish small
chunks, all would wait for the one that lists.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.cache.files import Files
from stoker.cache.folder import ChunkFile, Folder, file_size
from stoker.cache.ledger import Account
from stoker.cache.locks import Kind, Locks
from stoker.cache.manifest import Manifests
from stoker.errors import CacheFullError


@dataclass
class _Candidates:
    """What may go because no data set in use has it, and the data sets in use at the time of looking."""

    in_use: frozenset[str]
    chunks: deque[ChunkFile]


class Room:
    """Admits chunks, and evicts others for them. Every method needs the account, that is, the ledger's lock."""

    def __init__(
        self, folder: Folder, files: Files, locks: Locks, manifests: Manifests, *, limit_bytes: int | None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.num_evicted = 0
        self._folder = folder
        self._files = files
        self._locks = locks
        self._manifests = manifests
        self._candidates: _Candidates | None = None

    def admit(self, account: Account, size_bytes: int, *, may_overflow: bool) -> bool:
        """Make room for a chunk that is about to be made, and return whether it is to be kept.

        Raises:
            CacheFullError: There is no room for it, or only in the overflow and that is not wanted.
        """
        return self._has_plenty(account, size_bytes) or self._make_room(account, size_bytes, may_overflow=may_overflow)

    def _has_plenty(self, account: Account, size_bytes: int) -> bool:
        """Return whether a chunk could be kept even if all that may be needed beside the kept ones were there."""
        beside = account.loose_bytes + account.reserve_bytes + size_bytes
        if self.limit_bytes is not None and account.kept_bytes + beside > self.limit_bytes:
            return False
        return beside <= free_bytes(self._folder.path)

    def _make_room(self, account: Account, size_bytes: int, *, may_overflow: bool) -> bool:
        if self.limit_bytes is not None and size_bytes > self.limit_bytes:
            raise CacheFullError(
                f"a chunk of {size_bytes:,} bytes can never fit: {self._folder.path} is limited to "
                f"{self.limit_bytes:,} bytes; raise cache_limit, or lower the data set's chunk_size",
                path=self._folder.path,
            )
        account.relist()
        excess = self._kept_excess(account, size_bytes)
        if excess > 0:
            self._evict(account, self._unused(), excess)
            excess = self._kept_excess(account, size_bytes)
        is_kept = excess <= 0
        if not is_kept and not may_overflow:
            raise self._full(size_bytes, "beside the chunks that are kept")
        excess = self._total_excess(account, size_bytes)
        if excess > 0:
            self._evict(account, self._released(), excess)
            if self._total_excess(account, size_bytes) > 0:
                raise self._full(size_bytes, "beside the chunks that are kept or needed right now")
        return is_kept

    def trim(self, account: Account, *, last: str) -> None:
        """Evict until all reserves have room: those not in use first, then data set by data set, `last` at the end.

        Needed where the limit is lower than before, or another data set has come.
        """
        excess = self._kept_excess(account, 0) if self.limit_bytes is not None else 0
        if excess <= 0:
            return
        excess -= self._evict(account, self._unused(), excess)
        if excess > 0:
            in_use = sorted(self.in_use(), key=lambda fingerprint: (fingerprint == last, fingerprint))
            rank: dict[str, int] = {}
            for i, fingerprint in enumerate(in_use):  # a shared chunk has the rank of the data set that goes last
                rank.update(dict.fromkeys(self._manifests.keys(fingerprint), i))
            kept = sorted(self._folder.kept_chunks(), key=lambda chunk: (rank.get(chunk.key, -1), chunk.key))
            self._evict(account, kept, excess)

    def clear_disk(self, account: Account, size_bytes: int) -> int:
        """Evict what may go until the disk has `size_bytes` free, and return how many bytes it has then."""
        self._candidates = None
        for victims in (self._unused(), self._released()):
            lacking = size_bytes - free_bytes(self._folder.path)
            if lacking > 0:
                self._evict(account, victims, lacking)
        return free_bytes(self._folder.path)

    def in_use(self) -> frozenset[str]:
        """Return the data sets that a living process has in use."""
        return frozenset(name for name in self._manifests.fingerprints() if self._locks.is_held(Kind.DATASET, name))

    def discard(self, account: Account, path: Path) -> bool:
        """Remove a chunk file, kept or overflow, and return whether it was there."""
        size_bytes = file_size(path)
        if size_bytes is None:
            return False
        if path.is_relative_to(self._folder.chunks):
            with account.changing(-size_bytes):
                return self._files.remove(path)
        with account.changing(loose_bytes=-size_bytes):
            return self._files.remove(path)

    def _kept_excess(self, account: Account, size_bytes: int) -> int:
        """Return by how many bytes the kept chunks and one more would reach into the reserves."""
        reserve = sum(m.reserve_bytes for name in self.in_use() if (m := self._manifests.get(name)) is not None)
        temporary = self._folder.temporary()
        overflow = sum(chunk.size_bytes for chunk in self._folder.overflow_chunks())
        # On the disk the files being written already have some of their bytes; those still to come are spoken for.
        excess = size_bytes + max(0, reserve - overflow) + _unwritten(temporary) - free_bytes(self._folder.path)
        if self.limit_bytes is not None:
            kept = account.kept_bytes + sum(chunk.size_bytes for chunk in temporary if chunk.is_kept)
            excess = max(excess, kept + size_bytes + reserve - self.limit_bytes)
        return excess

    def _total_excess(self, account: Account, size_bytes: int) -> int:
        """Return by how many bytes everything and one more chunk would be over the limit."""
        if self.limit_bytes is None:
            return 0
        return account.kept_bytes + account.loose_bytes + size_bytes - self.limit_bytes

    def _evict(self, account: Account, victims: Iterable[ChunkFile], num_bytes: int) -> int:
        """Remove victims until `num_bytes` are free, and return how many are."""
        freed = 0
        for chunk in victims:
            if self.discard(account, chunk.path):
                freed += chunk.size_bytes
                self.num_evicted += 1
            if freed >= num_bytes:
                break
        return freed

    def _released(self) -> Iterator[ChunkFile]:
        return (chunk for chunk in self._folder.overflow_chunks() if not self._locks.is_held(Kind.PIN, chunk.key))

    def _unused(self) -> Iterator[ChunkFile]:
        """Yield chunks of no data set in use. The listing is kept between calls while the same ones are in use."""
        in_use = self.in_use()
        if self._candidates is None or self._candidates.in_use != in_use:
            self._candidates = _Candidates(in_use, deque(self._find_unused(in_use)))
        while self._candidates.chunks:
            yield self._candidates.chunks.popleft()

    def _find_unused(self, in_use: frozenset[str]) -> list[ChunkFile]:
        needed = {key for fingerprint in in_use for key in self._manifests.keys(fingerprint)}
        opened: dict[str, int] = {}
        for manifest in self._manifests:
            if manifest.fingerprint not in in_use:
                for key in self._manifests.keys(manifest.fingerprint):
                    opened[key] = max(opened.get(key, 0), manifest.opened_ns)
        unused = [chunk for chunk in self._folder.kept_chunks() if chunk.key not in needed]
        # Chunks that no manifest knows were never opened.
        return sorted(unused, key=lambda chunk: (opened.get(chunk.key, 0), chunk.key))

    def _full(self, size_bytes: int, beside: str) -> CacheFullError:
        limit = "" if self.limit_bytes is None else f", limited to {self.limit_bytes:,} bytes,"
        return CacheFullError(
            f"{self._folder.path}{limit} has no room for a chunk of {size_bytes:,} bytes {beside} "
            f"(disk: {free_bytes(self._folder.path):,} bytes free); raise cache_limit, free the disk, or use a "
            f"smaller window",
            path=self._folder.path,
        )


def _unwritten(chunks: Iterable[ChunkFile]) -> int:
    total = 0
    for chunk in chunks:
        try:
            total += max(0, chunk.size_bytes - chunk.path.stat().st_blocks * 512)
        except FileNotFoundError:
            continue
    return total


def free_bytes(path: Path) -> int:
    """Return how many bytes the disk of `path` has for this user."""
    about = os.statvfs(path)
    return about.f_bavail * about.f_frsize
