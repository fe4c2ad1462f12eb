"""The cache folder: chunks published whole or not at all, found by key, shared by any number of processes.

    publish   room is made ─► written to tmp/ ─► renamed into chunks/ or overflow/
    open      header, length and all checksums compared the first time in a process, and again when the file was
              touched ─► descriptor to map

Nothing is synced to disk. A killed process cannot harm a chunk: what it had written is in the kernel's hands, and the
rename comes last. A power failure can: the name may survive where the bytes did not. Length and checksums find that
when the chunk is first opened, and it is built again; syncing every chunk would cost every build what a power failure
costs once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from stoker.cache.ahead import Ahead
from stoker.cache.chunk import ChunkHeader, check_arrays, read_header
from stoker.cache.failures import sweep_failures
from stoker.cache.files import Files
from stoker.cache.folder import ChunkFile, Folder, file_size
from stoker.cache.ledger import Account, Ledger
from stoker.cache.locks import Kind, Lock, Locks
from stoker.cache.look import Version, version_of
from stoker.cache.manifest import Manifest, Manifests
from stoker.cache.marks import Marks
from stoker.cache.room import Room
from stoker.cache.write import PreparedChunk, prepare_chunk
from stoker.errors import CacheError, CacheFullError, ChunkCorruptError
from stoker.source.columns import Packable
from stoker.spec import Spec

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# Checked files by folder and key: which version, and its header. By process, not by store: a second loader need not
# check again, and parsing a header costs as much as all else about opening a chunk.
_checked: dict[tuple[int, int, str], tuple[Version, ChunkHeader]] = {}
# A header takes some 2 kB. Whoever has more chunks than this reads headers again; the oldest are let go first.
_MAX_CHECKED = 16384
_temporary_numbers = itertools.count()


class Chunk:
    """An open chunk: a descriptor to map or read, and what the file says about itself.

    Until it is closed, a chunk in overflow is pinned. Maps of the file outlive it.

    Attributes:
        fd: Open for reading.
        header: What lies where.
        version: Which file it is: inode, time of writing and size.
        is_kept: Whether it stays in the cache.
        was_read: Whether all of it was just read, to be checked.
    """

    __slots__ = ("_name", "_pin", "fd", "header", "is_kept", "version", "was_read")

    def __init__(
        self, fd: int, header: ChunkHeader, name: str, pin: Lock | None, *, version: Version, was_read: bool
    ) -> None:
        self.fd = fd
        self.header = header
        self.version = version
        self.is_kept = pin is None
        self.was_read = was_read
        self._name = name
        self._pin = pin

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return Path(self._name)

    def detach(self) -> int:
        """Return the descriptor, which the caller closes, and close the rest."""
        fd, self.fd = self.fd, -1
        if self._pin is not None:
            self._pin.release()
        return fd

    def close(self) -> None:
        """Close the descriptor and give the pin back. Harmless when called again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
            if self._pin is not None:
                self._pin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


class Store:
    """Chunks by key, in a folder on a local disk.

    Any number of threads and processes may use the folder at once; each has its own store. On a disk that is
    read-only, chunks can be opened and nothing else.

    Args:
        path: The folder; made if it is not there.
        limit_bytes: Of everything in it; None is what the disk has. A process with a lower limit evicts for all.
        is_temporary: Whether it goes with this process: then nothing is noted for the next one.
        files: What changes the disk; for tests.

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
        self._is_temporary = is_temporary
        self._files = Files() if files is None else files
        self._folder = Folder(Path(path), self._files)
        self.path = self._folder.path
        try:
            self._locks = Locks(self._folder.locks)
        except OSError as error:
            raise CacheError(
                f"{self.path} cannot be used as a cache: {error.strerror}; give a folder this user may write to",
                path=self.path,
            ) from error
        self._marks = Marks(self._folder.checked)
        self._manifests = Manifests(self._folder.datasets, self._files)
        self._ledger = Ledger(self._folder, self._files, self._locks, self._manifests)
        self._room = Room(self._folder, self._files, self._locks, self._manifests, limit_bytes=limit_bytes)
        about = self._folder.path.stat()
        self._device, self._inode = about.st_dev, about.st_ino
        self._mutex = threading.Lock()
        self._counts = StoreCounts()
        self._num_reused = 0
        self._published: set[str] = set()
        self._opened: set[str] = set()
        self._corrupt: set[str] = set()
        self._in_use: dict[str, Lock] = {}
        self._named = (-1, "")
        self._is_closed = False
        try:
            if self._locks.is_writable:
                self._sweep()
        except BaseException:
            self.close()
            raise

    @property
    def limit_bytes(self) -> int | None:
        """The limit of the whole folder, None for what the disk has."""
        return self._room.limit_bytes

    @property
    def is_writable(self) -> bool:
        """Whether chunks can be published; False on a disk that is read-only."""
        return self._locks.is_writable

    @property
    def failed(self) -> Path:
        """Folder in which build processes say why they failed."""
        return self._folder.failed

    # ------------------------------------------------------------------ finding

    def path_of(self, key: str) -> Path:
        """Return where the chunk lies, or would if it were kept."""
        overflow = self._folder.overflow_path(key)
        kept = self._folder.kept_path(key)
        return overflow if overflow.exists() and not kept.exists() else kept

    def has(self, key: str) -> bool:
        """Return whether the chunk is there. Costs a file lookup or two, and does not look inside."""
        return os.path.exists(self._folder.kept_name(key)) or os.path.exists(self._folder.overflow_path(key))  # noqa: PTH110  (twice as fast)

    def name_of(self, key: str) -> bytes:
        """Return the name of a chunk's file, if it is kept: what `versions_of` asks for."""
        return os.fsencode(self._folder.kept_name(key))

    def open(self, key: str) -> Chunk:
        """Return the chunk, open for reading.

        The first time this process meets the file, every checksum is compared. A corrupt chunk is discarded, so that
        it is missing from then on.

        Raises:
            KeyError: It is not there; perhaps not any more, because it was evicted.
            ChunkCorruptError: It was not what had been published. It has been discarded: build it again.
        """
        chunk = self._open(key)
        if key not in self._opened:
            with self._mutex:
                if key not in self._opened and key not in self._published:
                    self._num_reused += 1
                self._opened.add(key)
        return chunk

    def _open(self, key: str) -> Chunk:
        kept = self._folder.kept_name(key)
        try:
            fd = os.open(kept, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._unreadable(Path(kept), error) from error
        else:
            return self._checked_chunk(key, fd, kept, None)
        # Pinned before it is opened: between the two it could be evicted.
        pin = self.pin(key)
        overflow = self._folder.overflow_path(key)
        try:
            fd = os.open(overflow, os.O_RDONLY | os.O_CLOEXEC)
            return self._checked_chunk(key, fd, str(overflow), pin)
        except FileNotFoundError:
            pin.release()
            raise KeyError(key) from None
        except OSError as error:
            pin.release()
            raise self._unreadable(overflow, error) from error
        except BaseException:
            pin.release()
            raise

    def _checked_chunk(self, key: str, fd: int, name: str, pin: Lock | None) -> Chunk:
        was_read = False
        try:
            try:
                about = os.fstat(fd)  # before it is read: what is written meanwhile is not what was checked
                version = version_of(about)
                place = (self._device, self._inode, key)
                known, header = _checked.get(place, (None, None))
                if known != version or header is None:
                    ahead = None if self._marks.holds(key, about) else Ahead(fd, about.st_size)
                    if ahead is not None:
                        ahead.reach(1)  # before the header is read, in pages that would stay small
                    header = read_header(fd, file_bytes=about.st_size)
                    if ahead is not None:
                        check_arrays(fd, header, path=Path(name), ahead=ahead)
                        self._marks.set(key, about)
                        was_read = True
                    _remember(place, version, header)
            except (ChunkCorruptError, OSError) as error:
                path = Path(name)
                self._discard_corrupt(key, fd, path)
                raise ChunkCorruptError(f"{path} is corrupt and was discarded: {error}", path=path) from error
        except BaseException:
            os.close(fd)
            raise
        return Chunk(fd, header, name, pin, version=version, was_read=was_read)

    def _discard_corrupt(self, key: str, fd: int, path: Path) -> None:
        if not self.is_writable:
            return
        self._marks.drop(key)
        with self._ledger.open() as account:
            # Another process may have mended it meanwhile: then this name is another file.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(fd)):
                self._room.discard(account, path)
        with self._mutex:
            self._corrupt.add(key)
            self._counts = replace(self._counts, num_corrupt=self._counts.num_corrupt + 1)

    def _unreadable(self, path: Path, error: OSError) -> CacheError:
        return CacheError(f"{path} cannot be opened: {error.strerror}", path=path)

    # ------------------------------------------------------------------ locks and pins

    def try_lock(self, key: str) -> Lock | None:
        """Return the lock under which the chunk is built, or None where another thread or process has it.

        Never waits. The system drops the lock when the process dies.

        Raises:
            CacheError: The folder cannot be written to, so nothing can be built in it.
        """
        self.check_writable()
        return self._locks.try_lock(Kind.BUILD, key)

    def is_locked(self, key: str) -> bool:
        """Return whether anyone has the lock under which the chunk is built."""
        return self._locks.is_held(Kind.BUILD, key)

    def pin(self, key: str) -> Lock:
        """Keep the chunk from being evicted, from now on or from when it is there, until the pin is released.

        Who asks for a chunk to be built pins it first and releases it behind the last use: pins of several processes
        add up, so that none takes from another what it is about to need. Chunks that are kept need none.
        """
        pin = self._locks.try_lock(Kind.PIN, key, is_shared=True)
        assert pin is not None, "nobody locks a pin exclusively"
        return pin

    def is_pinned(self, key: str) -> bool:
        """Return whether any process has the chunk pinned."""
        return self._locks.is_held(Kind.PIN, key)

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
            ValueError: The arrays do not fit the spec.
            FieldError: Two fields would share the name of an array.
        """
        prepared = prepare_chunk(arrays, spec, num_samples=num_samples, about={**(about or {}), "key": key})
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise self._unwritable(error) from error
            self._publish_on_full_disk(key, prepared, may_overflow=may_overflow)
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

    def _publish_on_full_disk(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        """Make room on the disk and try once more."""
        with self._ledger.open() as account:
            num_free = self._room.clear_disk(account, prepared.size_bytes)
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise self._unwritable(error) from error
            raise CacheFullError(
                f"the disk of {self.path} is full: a chunk needs {prepared.size_bytes:,} bytes, {num_free:,} are free, "
                f"and no chunk may be evicted; free the disk, or give a cache_limit that leaves room",
                path=self.path,
            ) from error

    def _publish(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        self.check_writable()
        fd, aside, is_kept = self._ledger.share(
            lambda account: self._begin(account, key, prepared.size_bytes, may_overflow=may_overflow)
        )
        try:
            try:
                # Its checksums were taken from what was written a moment ago: nothing to compare them with.
                header = prepared.write(fd, self._files)
                version = version_of(os.fstat(fd))
                _remember((self._device, self._inode, key), version, header)
            finally:
                os.close(fd)
            self._ledger.share(lambda account: self._place(account, key, aside, prepared.size_bytes, is_kept=is_kept))
        except BaseException:
            self._files.remove(aside)
            raise
        if not self._is_temporary:
            self._marks.set_later(key, self._folder.kept_path(key), version)

    def _begin(self, account: Account, key: str, size_bytes: int, *, may_overflow: bool) -> tuple[int, Path, bool]:
        """Return a new file for a chunk, open, where it lies, and whether it is to be kept."""
        is_kept = self._room.admit(account, size_bytes, may_overflow=may_overflow)
        name = f"{key}.{self._writer()}-{next(_temporary_numbers)}{'.kept' if is_kept else '.overflow'}"
        aside = self._folder.tmp / name
        with account.changing(loose_bytes=size_bytes):
            # Made at its full length, so that it counts for who lists the folder.
            return self._files.create(aside, size_bytes=size_bytes), aside, is_kept

    def _place(self, account: Account, key: str, aside: Path, size_bytes: int, *, is_kept: bool) -> None:
        target = self._folder.kept_path(key)
        replaced = file_size(target)
        if not is_kept and replaced is None:
            self._files.replace(aside, self._folder.overflow_path(key))
            return
        with account.changing(size_bytes - (replaced or 0), loose_bytes=-size_bytes):
            try:
                self._files.replace(aside, target)
            except FileNotFoundError:  # the first in its folder
                target.parent.mkdir(exist_ok=True)
                self._files.replace(aside, target)
        self._files.remove(self._folder.overflow_path(key))

    def _writer(self) -> str:
        """Return this store's name as a writer, locked: who finds a file of it without its lock knows it to be dead."""
        with self._mutex:
            pid, name = self._named
            if pid != os.getpid():
                name = f"{os.getpid()}x{secrets.token_hex(4)}"
                lock = self._locks.try_lock(Kind.TEMPORARY, name)
                assert lock is not None, "the name is new"
                self._named = os.getpid(), name
            return name

    def check_writable(self) -> None:
        """Raise where chunks cannot be published.

        Raises:
            CacheError: The folder is read-only.
        """
        if not self.is_writable:
            raise CacheError(
                f"{self.path} is not writable and lacks a chunk; use a folder this user may write to, or fill it first",
                path=self.path,
            )

    def _unwritable(self, error: OSError) -> CacheError:
        return CacheError(f"{self.path} cannot be written to: {error.strerror}", path=self.path)

    def _sweep(self) -> None:
        """Remove what killed processes left, and count what is kept."""
        with self._ledger.open() as account:
            for path in self._folder.tmp.iterdir():
                lock = self._locks.try_lock(Kind.TEMPORARY, path.stem.rpartition(".")[2].rpartition("-")[0])
                if lock is not None:
                    with lock:
                        self._files.remove(path)
            for chunk in self._folder.overflow_chunks():
                if self._folder.kept_path(chunk.key).exists():  # killed between keeping it and this
                    self._files.remove(chunk.path)
            sweep_failures(self._folder.failed, self._files)
            account.recount(self._manifests)

    # ------------------------------------------------------------------ data sets

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
        limit = self.limit_bytes
        if limit is not None and reserve_bytes > limit:
            raise CacheFullError(
                f"{self.path} is limited to {limit:,} bytes, but {reserve_bytes:,} are needed for the chunks that are "
                f"in use at one time; raise cache_limit, or use a smaller window",
                path=self.path,
            )
        lock = self._locks.try_lock(Kind.DATASET, fingerprint, is_shared=True)
        assert lock is not None, "nobody locks a data set exclusively"
        with self._mutex:
            is_mine = fingerprint in self._in_use
            held = self._in_use.setdefault(fingerprint, lock)
        if held is not lock:
            lock.release()
        if not self.is_writable:
            return
        with self._writing(), self._ledger.open() as account:
            known = self._manifests.get(fingerprint)
            has_keys = known is not None and len(self._manifests.keys(fingerprint)) == num_chunks
            others = known is not None and self._locks.is_held_elsewhere(Kind.DATASET, fingerprint)
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
            others_bytes = sum(one.reserve_bytes for one in self._manifests if one.fingerprint != fingerprint)
            account.set_reserve(others_bytes + reserve_bytes)
            self._manifests.write(manifest, None if has_keys else keys())
            self._room.trim(account, last=fingerprint)

    def keep_spec(self, fingerprint: str, spec: Spec) -> None:
        """Keep what a sample of a registered data set is, for `spec_of` of later runs."""
        if self.is_writable:
            with self._writing(), self._ledger.open():
                known = self._manifests.get(fingerprint)
                if known is not None and known.spec != spec:
                    self._manifests.write(replace(known, spec=spec), None)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate what the disk refuses."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise CacheFullError(f"the disk of {self.path} is full; free it", path=self.path) from error
            raise self._unwritable(error) from error

    def spec_of(self, fingerprint: str) -> Spec | None:
        """Return what a sample of a registered data set is, None where that is not known."""
        manifest = self._manifests.get(fingerprint)
        return None if manifest is None else manifest.spec

    # ------------------------------------------------------------------ looking after it

    @property
    def usage_bytes(self) -> int:
        """Bytes of all chunks, those being written included."""
        chunks = (*self._folder.kept_chunks(), *self._folder.overflow_chunks(), *self._folder.temporary())
        return sum(chunk.size_bytes for chunk in chunks)

    def counts(self) -> StoreCounts:
        """Return what this store has done so far."""
        with self._mutex:
            return replace(self._counts, num_reused=self._num_reused, num_evicted=self._room.num_evicted)

    def entries(self) -> list[DatasetEntry]:
        """Return the data sets and their chunks, the most recently opened first; chunks of none come last."""
        chunks = {chunk.key: chunk for chunk in (*self._folder.overflow_chunks(), *self._folder.kept_chunks())}
        in_use = self._room.in_use()
        unclaimed = dict(chunks)
        entries = []
        for manifest in sorted(self._manifests, key=lambda manifest: -manifest.opened_ns):
            keys = self._manifests.keys(manifest.fingerprint)
            mine = tuple(chunks[key] for key in keys if key in chunks)
            for key in keys:
                unclaimed.pop(key, None)
            entries.append(DatasetEntry(manifest=manifest, chunks=mine, is_in_use=manifest.fingerprint in in_use))
        if unclaimed:
            entries.append(DatasetEntry(manifest=None, chunks=tuple(unclaimed.values()), is_in_use=False))
        return entries

    def discard(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there. Maps of it stay readable."""
        self._marks.drop(key)
        with self._ledger.open() as account:
            was_kept = self._room.discard(account, self._folder.kept_path(key))
            return self._room.discard(account, self._folder.overflow_path(key)) or was_kept

    def verify(self, *, fix: bool = False, on_chunk: Callable[[ChunkFile], object] | None = None) -> VerifyReport:
        """Compare the checksums of every chunk.

        Args:
            fix: Whether to remove what is corrupt or stray, so that it is built again.
            on_chunk: Told of each chunk checked.
        """
        corrupt: list[tuple[Path, str]] = []
        num_chunks = num_bytes = 0
        for chunk in (*self._folder.kept_chunks(), *self._folder.overflow_chunks()):
            reason = _find_damage(chunk.path)
            num_chunks, num_bytes = num_chunks + 1, num_bytes + chunk.size_bytes
            if reason is not None:
                corrupt.append((chunk.path, reason))
                if fix:
                    with self._ledger.open() as account:
                        self._room.discard(account, chunk.path)
            if on_chunk is not None:
                on_chunk(chunk)
        strays = self._folder.strays()
        if fix:
            for path in strays:
                self._files.remove(path)
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
        with self._ledger.open() as account:
            known = self._manifests.fingerprints()
            chosen = set(known if fingerprints is None else fingerprints)
            busy = sorted(chosen & self._room.in_use())
            if busy:
                raise CacheError(
                    f"the data set {busy[0]} in {self.path} is in use; end the processes that load from it first",
                    path=self.path,
                )
            stays = {key for name in known if name not in chosen for key in self._manifests.keys(name)}
            goes = {key for name in chosen for key in self._manifests.keys(name)}
            freed = 0
            for chunk in (*self._folder.kept_chunks(), *self._folder.overflow_chunks()):
                if chunk.key not in stays and (fingerprints is None or chunk.key in goes):
                    self._marks.drop(chunk.key)
                    freed += chunk.size_bytes * self._room.discard(account, chunk.path)
            for name in chosen:
                self._manifests.remove(name)
        return freed

    def close(self) -> None:
        """Give all locks and pins back. Harmless when called again."""
        self._marks.settle()
        self._locks.close()
        self._in_use.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, limit_bytes={self.limit_bytes})"


def _remember(place: tuple[int, int, str], version: Version, header: ChunkHeader) -> None:
    """Note a checked file."""
    _checked.pop(place, None)
    with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread lets go of the same one
        while len(_checked) >= _MAX_CHECKED:
            del _checked[next(iter(_checked))]
    _checked[place] = (version, header)


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
