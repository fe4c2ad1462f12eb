"""Looking after a cache: what is in it, whether it is whole, and what may go."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from stoker.cache.chunk import check_arrays, read_header
from stoker.cache.folder import ChunkFile
from stoker.cache.manifest import Manifest
from stoker.cache.parts import Parts
from stoker.errors import CacheError, ChunkCorruptError


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set in the cache.

    Attributes:
        manifest: What is known of it; None for chunks that no data set claims.
        chunks: Its chunks that are there. One that several data sets share is in each.
        is_in_use: Whether a living process uses it.
    """

    manifest: Manifest | None
    chunks: tuple[ChunkFile, ...]
    is_in_use: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of its chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a check of a whole cache found.

    Attributes:
        num_chunks: Chunks checked.
        num_bytes: Their bytes.
        corrupt: Paths and reasons.
        strays: Files among the chunks that are none.
        is_fixed: Whether what was found was also removed.
    """

    num_chunks: int
    num_bytes: int
    corrupt: tuple[tuple[Path, str], ...]
    strays: tuple[Path, ...]
    is_fixed: bool


class Care:
    """What people do with a cache, by `stoker cache` or by a store's `care`.

    Args:
        parts: Of the folder.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def usage_bytes(self) -> int:
        """Bytes of all chunks, those being written included."""
        return sum(chunk.size_bytes for chunk in (*self._chunks(), *self._parts.folder.temporary()))

    def entries(self) -> list[DatasetEntry]:
        """Return the data sets and their chunks, the most recently opened first; chunks of none come last."""
        manifests = self._parts.manifests
        folder = self._parts.folder
        chunks = {chunk.key: chunk for chunk in (*folder.overflow_chunks(), *folder.kept_chunks())}
        in_use = self._parts.room.in_use()
        unclaimed = dict(chunks)
        entries = []
        for manifest in sorted(manifests, key=lambda manifest: -manifest.opened_ns):
            keys = manifests.keys(manifest.fingerprint)
            mine = tuple(chunks[key] for key in keys if key in chunks)
            for key in keys:
                unclaimed.pop(key, None)
            entries.append(DatasetEntry(manifest=manifest, chunks=mine, is_in_use=manifest.fingerprint in in_use))
        if unclaimed:
            entries.append(DatasetEntry(manifest=None, chunks=tuple(unclaimed.values()), is_in_use=False))
        return entries

    def discard(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there. Maps of it stay readable."""
        parts = self._parts
        parts.marks.drop(key)
        with parts.ledger.open() as account:
            was_kept = parts.room.discard(account, parts.folder.kept_path(key))
            return parts.room.discard(account, parts.folder.overflow_path(key)) or was_kept

    def verify(self, *, fix: bool = False, on_chunk: Callable[[ChunkFile], object] | None = None) -> VerifyReport:
        """Compare the checksums of every chunk.

        Args:
            fix: Whether to remove what is corrupt or stray, so that it is built again.
            on_chunk: Told of each chunk checked.
        """
        parts = self._parts
        corrupt: list[tuple[Path, str]] = []
        num_chunks = num_bytes = 0
        for chunk in self._chunks():
            reason = _find_damage(chunk.path)
            num_chunks, num_bytes = num_chunks + 1, num_bytes + chunk.size_bytes
            if reason is not None:
                corrupt.append((chunk.path, reason))
                if fix:
                    with parts.ledger.open() as account:
                        parts.room.discard(account, chunk.path)
            if on_chunk is not None:
                on_chunk(chunk)
        strays = parts.folder.strays()
        if fix:
            for path in strays:
                parts.files.remove(path)
        return VerifyReport(
            num_chunks=num_chunks,
            num_bytes=num_bytes,
            corrupt=tuple(corrupt),
            strays=tuple(strays),
            is_fixed=fix,
        )

    def remove(self, fingerprints: Collection[str] | None = None) -> int:
        """Remove data sets with their chunks, and return how many bytes that freed.

        A chunk that another data set in the cache has too stays.

        Args:
            fingerprints: Which; None removes everything, chunks of no data set included.

        Raises:
            CacheError: One of them is in use by a process, this one included; nothing was removed.
        """
        parts = self._parts
        with parts.ledger.open() as account:
            known = parts.manifests.fingerprints()
            chosen = set(known if fingerprints is None else fingerprints)
            busy = sorted(chosen & parts.room.in_use())
            if busy:
                raise CacheError(
                    f"the data set {busy[0]} in {parts.path} is in use; end the processes that load from it first",
                    path=parts.path,
                )
            stays = {key for name in known if name not in chosen for key in parts.manifests.keys(name)}
            goes = {key for name in chosen for key in parts.manifests.keys(name)}
            freed = 0
            for chunk in self._chunks():
                if chunk.key not in stays and (fingerprints is None or chunk.key in goes):
                    parts.marks.drop(chunk.key)
                    freed += chunk.size_bytes * parts.room.discard(account, chunk.path)
            for name in chosen:
                parts.manifests.remove(name)
        return freed

    def _chunks(self) -> tuple[ChunkFile, ...]:
        folder = self._parts.folder
        return (*folder.kept_chunks(), *folder.overflow_chunks())


def _find_damage(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # evicted since it was listed
        return None
    try:
        check_arrays(fd, read_header(fd), path=path)
    except (ChunkCorruptError, OSError) as error:
        return str(error)
    finally:
        os.close(fd)
    return None
