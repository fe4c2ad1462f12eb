"""Data sets that use a cache: what is known of each, and that its chunks stay while a process uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stoker.cache.eviction import Ledger, Quota
from stoker.cache.folder import NO_ROOM
from stoker.cache.locks import Kind, Lock
from stoker.cache.manifests import Manifest
from stoker.errors import CacheFullError
from stoker.fields.spec import Spec


class Registry:
    """Says for a store which data sets it uses, and keeps what was learnt of them.

    Args:
        ledger: What is there, in bytes.
        quota: Who gets room.
    """

    def __init__(self, ledger: Ledger, quota: Quota) -> None:
        self._ledger = ledger
        self._quota = quota
        self._mutex = threading.Lock()
        self._in_use: dict[str, Lock] = {}

    def register(
        self,
        fingerprint: str,
        *,
        name: str,
        urls: Sequence[str],
        num_chunks: int,
        keys: Callable[[], Sequence[str]],
        spec: Spec | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        """Say that this store uses a data set, until it is closed.

        While any process uses it, its kept chunks stay. Call it again to change the reserve.

        Args:
            fingerprint: Of the data set; two with the same one have the same keys.
            name: What people call it.
            urls: Where it comes from.
            num_chunks: Number of its chunks.
            keys: Gives the keys of its chunks, in order; called only where the folder does not know them.
            spec: What a sample is; None keeps what is known.
            reserve_bytes: Room that must be left for chunks that are needed but not kept: those of all windows open
                or about to be. Processes that share a data set share it: the largest counts.

        Raises:
            CacheFullError: The manifest does not fit on the disk, or the reserve is more than the limit.
            CacheError: The manifest cannot be written.
        """
        folder, locks, manifests = self._quota.folder, self._quota.locks, self._quota.manifests
        limit = self._quota.limit_bytes
        if limit is not None and reserve_bytes > limit:
            raise CacheFullError(
                f"{folder.path} is limited to {limit:,} bytes, but {reserve_bytes:,} are needed for the chunks that "
                f"are in use at one time; raise cache_limit, or use a smaller window",
                path=folder.path,
            )
        lock = locks.try_lock(Kind.DATASET, fingerprint, is_shared=True)
        assert lock is not None, "nobody locks a data set exclusively"
        with self._mutex:
            is_mine = fingerprint in self._in_use
            held = self._in_use.setdefault(fingerprint, lock)
        if held is not lock:
            lock.release()
        if not locks.is_writable:
            return
        with self._writing(), self._ledger.open() as account:
            known = manifests.get(fingerprint)
            has_keys = known is not None and len(manifests.keys(fingerprint)) == num_chunks
            others = known is not None and locks.is_held_elsewhere(Kind.DATASET, fingerprint)
            if known is not None and others and not is_mine:
                reserve_bytes = max(reserve_bytes, known.reserve_bytes)
            manifest = Manifest(
                fingerprint=fingerprint,
                name=name,
                urls=tuple(urls),
                num_chunks=num_chunks,
                reserve_bytes=reserve_bytes,
                spec=spec if spec is not None or known is None else known.spec,
            )
            others_bytes = sum(one.reserve_bytes for one in manifests if one.fingerprint != fingerprint)
            account.set_reserve(others_bytes + reserve_bytes)
            manifests.write(manifest, None if has_keys else keys())
            self._quota.trim(account, last=fingerprint)

    def keep_spec(self, fingerprint: str, spec: Spec) -> None:
        """Keep what a sample of a registered data set is, for `spec_of` of later runs."""
        manifests = self._quota.manifests
        if self._quota.locks.is_writable:
            with self._writing(), self._ledger.open():
                known = manifests.get(fingerprint)
                if known is not None and known.spec != spec:
                    manifests.write(replace(known, spec=spec), None)

    def spec_of(self, fingerprint: str) -> Spec | None:
        """Return what a sample of a registered data set is, None where that is not known."""
        manifest = self._quota.manifests.get(fingerprint)
        return None if manifest is None else manifest.spec

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate what the disk refuses."""
        folder = self._quota.folder
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise CacheFullError(f"the disk of {folder.path} is full; free it", path=folder.path) from error
            raise folder.unwritable(error) from error
