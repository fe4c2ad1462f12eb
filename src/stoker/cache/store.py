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
import itertools
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from stoker.cache.eviction import Account, Ledger, Quota
from stoker.cache.folder import NO_ROOM, Files, Folder, file_size
from stoker.cache.format import ChunkHeader, check_arrays, read_header
from stoker.cache.locks import Kind, Lock, Locks
from stoker.cache.manifests import Manifests
from stoker.cache.registry import Registry
from stoker.cache.verified import FileVersion, Readahead, VerifiedFiles, version_of
from stoker.cache.write import PreparedChunk, prepare_chunk
from stoker.columns import Packable
from stoker.errors import CacheError, CacheFullError, ChunkCorruptError
from stoker.fields.spec import Spec

# Verified files by folder and key: which version, and its header. By process, not by store: a second loader need not
# verify again, and parsing a header costs as much as all else about opening a chunk.
_verified: dict[tuple[int, int, str], tuple[FileVersion, ChunkHeader]] = {}
# A header takes some 2 kB. Whoever has more chunks than this reads headers again; the oldest are let go first.
_MAX_VERIFIED = 16384

_temporary_numbers = itertools.count()


class Chunk:
    """An open chunk: a descriptor to map or read, and what the file says about itself.

    Until it is closed, a chunk in overflow is pinned. Maps of the file outlive it.

    Attributes:
        fd: Open for reading.
        header: What lies where.
        version: Which file it is: inode, time of writing and size.
        is_kept: Whether it stays in the cache.
        was_read: Whether all of it was just read, to be verified.
    """

    __slots__ = ("_name", "_pin", "fd", "header", "is_kept", "version", "was_read")

    def __init__(
        self, fd: int, header: ChunkHeader, name: str, pin: Lock | None, *, version: FileVersion, was_read: bool
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
        folder: What lies where.
        locks: Who uses what.
        verified: Which files were verified.
        manifests: The data sets.
        ledger: What is there, in bytes.
        quota: Who gets room.
        registry: Data sets that use it.

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
        self.folder = folder = Folder(Path(path), Files() if files is None else files)
        try:
            self.locks = Locks(folder.lock_file)
        except OSError as error:
            raise CacheError(
                f"{folder.path} cannot be used as a cache: {error.strerror}; give a folder this user may write to",
                path=folder.path,
            ) from error
        self.verified = VerifiedFiles(folder.checked)
        self.manifests = Manifests(folder.datasets, folder.files)
        self.ledger = Ledger(folder, self.locks, self.manifests)
        self.quota = Quota(folder, self.locks, self.manifests, limit_bytes=limit_bytes)
        self.registry = Registry(self.ledger, self.quota)
        about = folder.path.stat()
        self._device, self._inode = about.st_dev, about.st_ino
        self._is_temporary = is_temporary
        self._mutex = threading.Lock()
        self._writer = (-1, "")  # by process: a fork is another one
        self._counts = StoreCounts()
        self._num_reused = 0
        self._published: set[str] = set()
        self._opened: set[str] = set()
        self._corrupt: set[str] = set()
        try:
            if self.is_writable:
                self._sweep()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        return self.folder.path

    @property
    def limit_bytes(self) -> int | None:
        """The limit of the whole folder, None for what the disk has."""
        return self.quota.limit_bytes

    @property
    def is_writable(self) -> bool:
        """Whether chunks can be published; False on a disk that is read-only."""
        return self.locks.is_writable

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

    # ------------------------------------------------------------------ finding

    def path_of(self, key: str) -> Path:
        """Return where the chunk lies, or would if it were kept."""
        overflow, kept = self.folder.overflow_path(key), self.folder.kept_path(key)
        return overflow if overflow.exists() and not kept.exists() else kept

    def has(self, key: str) -> bool:
        """Return whether the chunk is there. Costs a file lookup or two, and does not look inside."""
        folder = self.folder
        return os.path.exists(folder.kept_name(key)) or os.path.exists(folder.overflow_name(key))  # noqa: PTH110  (twice as fast)

    def name_of(self, key: str) -> bytes:
        """Return the name of a chunk's file, if it is kept: what the system is asked by."""
        return os.fsencode(self.folder.kept_name(key))

    def open(self, key: str) -> Chunk:
        """Return the chunk, open for reading.

        The first time this process meets the file, every checksum is compared. A corrupt chunk is discarded, so that
        it is missing from then on.

        Raises:
            KeyError: It is not there; perhaps not any more, because it was evicted.
            ChunkCorruptError: It was not what had been published. It has been discarded: build it again.
        """
        try:
            chunk = self._open(key)
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

    def _open(self, key: str) -> Chunk:
        kept = self.folder.kept_name(key)
        try:
            fd = os.open(kept, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unreadable(Path(kept), error) from error
        else:
            return self._verify(key, fd, kept, None)
        # Pinned before it is opened: between the two it could be evicted.
        pin = self.pin(key)
        overflow = self.folder.overflow_name(key)
        try:
            fd = os.open(overflow, os.O_RDONLY | os.O_CLOEXEC)
            return self._verify(key, fd, overflow, pin)
        except FileNotFoundError:
            pin.release()
            raise KeyError(key) from None
        except OSError as error:
            pin.release()
            raise _unreadable(Path(overflow), error) from error
        except BaseException:
            pin.release()
            raise

    def _note(self, key: str, version: FileVersion, header: ChunkHeader) -> None:
        """Note that a file need not be verified: which one, and what it says about itself."""
        place = self._device, self._inode, key
        _verified.pop(place, None)
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread lets go of the same one
            while len(_verified) >= _MAX_VERIFIED:
                del _verified[next(iter(_verified))]
        _verified[place] = (version, header)

    def _verify(self, key: str, fd: int, name: str, pin: Lock | None) -> Chunk:
        was_read = False
        try:
            try:
                about = os.fstat(fd)  # before it is read: what is written meanwhile is not what was verified
                version = version_of(about)
                known, header = _verified.get((self._device, self._inode, key), (None, None))
                if known != version or header is None:
                    ahead = None if self.verified.holds(key, about) else Readahead(fd, about.st_size)
                    if ahead is not None:
                        ahead.reach(1)  # before the header is read, in pages that would stay small
                    header = read_header(fd, file_bytes=about.st_size)
                    if ahead is not None:
                        check_arrays(fd, header, path=Path(name), ahead=ahead)
                        self.verified.set(key, about)
                        was_read = True
                    self._note(key, version, header)
            except (ChunkCorruptError, OSError) as error:
                path = Path(name)
                self._discard_corrupt(key, fd, path)
                raise ChunkCorruptError(f"{path} is corrupt and was discarded: {error}", path=path) from error
        except BaseException:
            os.close(fd)
            raise
        return Chunk(fd, header, name, pin, version=version, was_read=was_read)

    def _discard_corrupt(self, key: str, fd: int, path: Path) -> None:
        """Remove a chunk, where the name still is the file that `fd` has open: another process may have mended it."""
        if not self.is_writable:
            return
        self.verified.drop(key)
        with self.ledger.open() as account:
            if path.exists() and os.path.samestat(path.stat(), os.fstat(fd)):
                self.quota.discard(account, path)

    def discard(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there. Maps of it stay readable."""
        self.verified.drop(key)
        with self.ledger.open() as account:
            was_kept = self.quota.discard(account, self.folder.kept_path(key))
            return self.quota.discard(account, self.folder.overflow_path(key)) or was_kept

    # ------------------------------------------------------------------ locks and pins

    def try_lock(self, key: str) -> Lock | None:
        """Return the lock under which the chunk is built, or None where another thread or process has it.

        Never waits. The system drops the lock when the process dies.

        Raises:
            CacheError: The folder cannot be written to, so nothing can be built in it.
        """
        self.check_writable()
        return self.locks.try_lock(Kind.BUILD, key)

    def is_locked(self, key: str) -> bool:
        """Return whether anyone has the lock under which the chunk is built."""
        return self.locks.is_held(Kind.BUILD, key)

    def pin(self, key: str) -> Lock:
        """Keep the chunk from being evicted, from now on or from when it is there, until the pin is released.

        Who asks for a chunk to be built pins it first and releases it behind the last use: pins of several processes
        add up, so that none takes from another what it is about to need. Chunks that are kept need none.
        """
        pin = self.locks.try_lock(Kind.PIN, key, is_shared=True)
        assert pin is not None, "nobody locks a pin exclusively"
        return pin

    def is_pinned(self, key: str) -> bool:
        """Return whether any process has the chunk pinned."""
        return self.locks.is_held(Kind.PIN, key)

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
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self.folder.unwritable(error) from error
            self._publish_on_full_disk(key, prepared, may_overflow=may_overflow)
        self.count_built(key, prepared.size_bytes)
        return prepared.size_bytes

    def _sweep(self) -> None:
        """Remove what killed processes left, and count what is kept, where that is limited.

        Elsewhere nobody asks how much it is, and thousands of chunks take longer to look at than the first batch takes.
        """
        with self.ledger.open() as account:
            for path in self.folder.tmp.iterdir():
                lock = self.locks.try_lock(Kind.TEMPORARY, path.stem.rpartition(".")[2].rpartition("-")[0])
                if lock is not None:
                    with lock:
                        self.folder.files.remove(path)
            for chunk in self.folder.overflow_chunks():
                if self.folder.kept_path(chunk.key).exists():  # killed between keeping it and this
                    self.folder.files.remove(chunk.path)
            self.folder.sweep_failures()
            if self.quota.limit_bytes is None:
                with account.changing():
                    account.relist()
            else:
                account.recount(self.manifests)

    def _writer_name(self) -> str:
        """Return this process's name as a writer, locked: who finds a file of it without its lock knows it is dead."""
        with self._mutex:
            pid, name = self._writer
            if pid != os.getpid():
                name = f"{os.getpid()}x{secrets.token_hex(4)}"
                lock = self.locks.try_lock(Kind.TEMPORARY, name)
                assert lock is not None, "the name is new"
                self._writer = os.getpid(), name
            return name

    def _publish_on_full_disk(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        """Make room on the disk and try once more."""
        with self.ledger.open() as account:
            num_free = self.quota.clear_disk(account, prepared.size_bytes)
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self.folder.unwritable(error) from error
            raise CacheFullError(
                f"the disk of {self.path} is full: a chunk needs {prepared.size_bytes:,} bytes, {num_free:,} are "
                f"free, and no chunk may be evicted; free the disk, or give a cache_limit that leaves room",
                path=self.path,
            ) from error

    def _publish(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        self.check_writable()
        fd, aside, is_kept = self.ledger.share(
            lambda account: self._begin(account, key, prepared.size_bytes, may_overflow=may_overflow)
        )
        try:
            try:
                # Its checksums were taken from what was written a moment ago: nothing to compare them with.
                header = prepared.write(fd, self.folder.files)
                version = version_of(os.fstat(fd))
                self._note(key, version, header)
            finally:
                os.close(fd)
            self.ledger.share(lambda account: self._place(account, key, aside, prepared.size_bytes, is_kept=is_kept))
        except BaseException:
            self.folder.files.remove(aside)
            raise
        if not self._is_temporary:
            self.verified.set_later(key, self.folder.kept_name(key), version)

    def _begin(self, account: Account, key: str, size_bytes: int, *, may_overflow: bool) -> tuple[int, str, bool]:
        """Return a new file for a chunk, open, where it lies, and whether it is to be kept."""
        is_kept = self.quota.admit(account, size_bytes, may_overflow=may_overflow)
        name = f"{key}.{self._writer_name()}-{next(_temporary_numbers)}{'.kept' if is_kept else '.overflow'}"
        aside = f"{self.folder.tmp}/{name}"
        with account.growing(size_bytes):
            # Made at its full length, so that it counts for who lists the folder.
            return self.folder.files.create(aside, size_bytes=size_bytes), aside, is_kept

    def _place(self, account: Account, key: str, aside: str, size_bytes: int, *, is_kept: bool) -> None:
        folder, files = self.folder, self.folder.files
        target = folder.kept_name(key)
        replaced = file_size(target)
        if not is_kept and replaced is None:
            files.replace(aside, folder.overflow_name(key))
            return
        with account.changing(size_bytes - (replaced or 0), loose_bytes=-size_bytes):
            try:
                files.replace(aside, target)
            except FileNotFoundError:  # the first in its folder
                folder.kept_path(key).parent.mkdir(exist_ok=True)
                files.replace(aside, target)
        files.remove(folder.overflow_name(key))

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
            return replace(self._counts, num_reused=self._num_reused, num_evicted=self.quota.num_evicted)

    def close(self) -> None:
        """Give all locks and pins back. Harmless when called again."""
        self.verified.settle()
        self.locks.close()
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, limit_bytes={self.limit_bytes})"


def _unreadable(path: Path, error: OSError) -> CacheError:
    return CacheError(f"{path} cannot be opened: {error.strerror}", path=path)
