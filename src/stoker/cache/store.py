"""The cache folder: chunks published whole or not at all, found by key, shared by any number of processes.

    publish   room is made ─► written to tmp/ ─► renamed into chunks/
                         └──► the folder is full, read-only or gone ─► kept in memory until it was used
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
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from stoker.arguments import explain_arguments, flag
from stoker.cache.datasets import Manifests
from stoker.cache.folder import NO_ROOM, SUFFIX, Files, Folder
from stoker.cache.format import ChunkHeader, check_arrays, read_header
from stoker.cache.locks import Locks
from stoker.cache.memory import MemoryChunks
from stoker.cache.mirror import Mirror, MirroredChunk, UnfitError, mirror_url
from stoker.cache.quota import Quota
from stoker.cache.verified import FileVersion, Readahead, VerifiedFiles, version_of
from stoker.cache.write import PreparedChunk, prepare_chunk
from stoker.columns import Packable
from stoker.errors import CacheError, CacheFullError, ChunkCorruptError
from stoker.fields.spec import Spec, parse_size
from stoker.storage.urls import local_folder

# Verified files by folder and key: which version, and its header. By process, not by store: a second loader need not
# verify again, and parsing a header costs as much as all else about opening a chunk.
_verified: dict[tuple[int, int, str], tuple[FileVersion, ChunkHeader]] = {}
# A header takes some 2 kB. Whoever has more chunks than this reads headers again; the oldest are let go first.
_MAX_VERIFIED = 16384
# Of a data set, so many chunks are looked for to find one that says what a sample is.
_MOST_ASKED = 64

_log = logging.getLogger("stoker")

Verify: TypeAlias = Literal["boot", "always"]


@explain_arguments({})
@dataclass(frozen=True)
class Cache:
    """A folder that keeps transformed chunks, and how it is used; give it to a loader as `cache=`.

    Args:
        folder: On a fast local disk; made if it is not there. None keeps chunks in memory, for one loader alone.
        limit: Size of that folder, "500GB" or bytes; None is what the disk has.
        is_shared: Whether other users of the folder's group use it, too: what is made there they may write to, and what
            they put there is believed. Otherwise folders and files are this user's alone, and those of another user
            are refused.
        verify: When the checksums of a chunk are compared: "boot", when it is first opened after the machine was
            started, and when its file changed since; "always", whenever a window opens it.
        mirror: Where hosts leave the chunks that they have built for each other, such as "s3://bucket/stoker": an
            object store, or a folder that all of them reach. What is there is fetched and proven instead of being
            built. It need not be there, and nothing of it is ever removed.
        mirror_options: What the client of that store takes, as `storage_options` of a `Dataset`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The folder is no local one, the limit is 0, `verify` is none of these, or `mirror` has what may be
            credentials in it.
    """

    folder: Path | str | None
    _: KW_ONLY
    limit: int | str | None = None
    is_shared: bool = False
    verify: Verify = "boot"
    mirror: Path | str | None = None
    mirror_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            if not isinstance(self.folder, str | os.PathLike):
                raise TypeError(f"cache must be the path of a folder, not {self.folder!r}")
            local_folder(self.folder, what="cache")
        flag(self.is_shared, "is_shared")
        if self.verify not in ("boot", "always"):
            raise ValueError(f"verify must be 'boot' or 'always', not {self.verify!r}")
        if self.mirror is not None:
            mirror_url(self.mirror)
        elif self.mirror_options is not None:
            raise ValueError("mirror_options mean nothing without a mirror")
        if self.limit_bytes == 0:
            raise ValueError("cache_limit must not be 0: there is always a cache, in memory where cache= is left out")

    @property
    def path(self) -> Path | None:
        """The folder, absolute; None for memory."""
        return None if self.folder is None else local_folder(self.folder, what="cache")

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes."""
        return None if self.limit is None else parse_size(self.limit, name="cache_limit")

    def open(self, *, is_temporary: bool = False) -> Store:
        """Return the store of the folder, which is made if it is not there; see `Store`.

        Raises:
            ValueError: No client knows the mirror's URL, or takes its options.
        """
        assert self.path is not None
        mirror = None if self.mirror is None else Mirror(self.mirror, options=self.mirror_options)
        if mirror is not None:
            mirror.connect()
        return Store(
            self.path,
            limit_bytes=self.limit_bytes,
            is_temporary=is_temporary,
            is_shared=self.is_shared,
            verify=self.verify,
            mirror=mirror,
        )


@dataclass(slots=True, kw_only=True)
class Chunk:
    """An open chunk: a descriptor to map or read, and what the file says about itself. Maps of the file outlive it.

    Attributes:
        fd: Open for reading.
        header: What lies where.
        path: Where the file lies.
        is_kept: Whether it is in the cache folder, and not only in memory.
        version: Which file it is: inode, time of writing and size.
        was_read: Whether all of it was just read, to be verified.
    """

    fd: int
    header: ChunkHeader
    path: Path
    is_kept: bool
    version: FileVersion
    was_read: bool

    def detach(self) -> int:
        """Return the descriptor, which the caller closes."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Close the descriptor. Harmless when called again."""
        if self.fd >= 0:
            os.close(self.detach())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class StoreCounts:
    """What a store has done since it was opened.

    Attributes:
        num_built: Chunks published, or kept in memory.
        num_reused: Uses of chunks that were in the folder when they were asked for.
        num_missed: Uses of others.
        num_mended: Chunks published in place of corrupt ones.
        num_evicted: Chunks removed to make room.
        num_substituted: Chunks for whose rows others stand in.
        num_fetched: Chunks that came from the mirror.
        num_uploaded: Chunks put there.
        num_mirror_failures: Times it could not be used, and chunks of it that were not what they should be.
    """

    num_built: int = 0
    num_reused: int = 0
    num_missed: int = 0
    num_mended: int = 0
    num_evicted: int = 0
    num_substituted: int = 0
    num_fetched: int = 0
    num_uploaded: int = 0
    num_mirror_failures: int = 0


class _Disk:
    """A cache folder with all that belongs to it, as long as it is that folder."""

    def __init__(self, path: Path, files: Files, *, limit_bytes: int | None, is_shared: bool) -> None:
        self.pid = os.getpid()
        with contextlib.ExitStack() as stack:
            self.folder = Folder(path, files, is_shared=is_shared)
            stack.callback(self.folder.close)
            self.locks = Locks(self.folder)
            stack.callback(self.locks.close)
            self.verified = VerifiedFiles(self.folder.checked)
            stack.callback(self.verified.settle)
            self.manifests = Manifests(self.folder, self.locks)
            self.quota = Quota(self.folder, self.locks, self.manifests, limit_bytes=limit_bytes)
            stack.callback(self.quota.close)
            if self.locks.is_writable:
                self._sweep()
                if limit_bytes is not None:
                    self.quota.recount()
            self.close = stack.pop_all().close

    def _sweep(self) -> None:
        """Take this process's name as a writer, and remove what killed writers left."""
        self.locks.try_lock(self.folder.writer)
        for name in self.folder.list_temporary():
            lock = self.locks.try_lock(name.rpartition(".")[2].rpartition("-")[0])
            if lock is not None:
                with lock:
                    self.folder.files.remove(self.folder.tmp, name)


class Store:
    """Chunks by key, in a folder on a local disk.

    Any number of threads and processes may use the folder at once; each has its own store. Where the folder cannot take
    a chunk, for lack of room or because it is read-only, failing or gone, the chunk is kept in memory until it was
    used, and the next one is tried again.

    Args:
        path: The folder; made if it is not there.
        limit_bytes: Of all chunks in it; None is what the disk has.
        is_temporary: Whether it goes with this process: then nothing is noted for the next one.
        is_shared: Whether other users of its group use it, too.
        verify: When checksums are compared: once after the machine was started, or whenever a chunk is opened.
        mirror: Where chunks of other hosts may be; closed with this.
        files: What changes the disk; for tests.

    Raises:
        CacheError: The folder holds something else, is of another version or another user's, or cannot be used.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        limit_bytes: int | None = None,
        is_temporary: bool = False,
        is_shared: bool = False,
        verify: Verify = "boot",
        mirror: Mirror | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self._chunks_name = f"{self.path}/chunks/"
        self.limit_bytes = limit_bytes
        self.verify = verify
        self.mirror = mirror
        self._is_shared = is_shared
        self._is_temporary = is_temporary
        self._files = Files() if files is None else files
        self._memory = MemoryChunks(None if is_temporary else self.path, self._files)
        self._mutex = threading.Lock()
        self._warned: set[str] = set()
        self._datasets: list[tuple[str, str, Sequence[str], Callable[[], Sequence[str]]]] = []  # see `register`
        self._left: list[_Disk] = []  # folders that were removed or moved: their files may still be read
        self._counts = StoreCounts()
        self._missed: set[str] = set()
        self._corrupt: set[str] = set()
        self.is_refusing = False
        self._disk: _Disk | None = None
        try:
            self._disk = self._open_disk()
        except OSError as error:
            if error.errno not in (*NO_ROOM, errno.EIO):
                raise CacheError(
                    f"{self.path} cannot be used as a cache: {error.strerror}; give a folder that this user may write "
                    f"to",
                    path=self.path,
                ) from error
            self._warn(self._refusal(error))

    def _open_disk(self) -> _Disk:
        return _Disk(self.path, self._files, limit_bytes=self.limit_bytes, is_shared=self._is_shared)

    @property
    def disk(self) -> _Disk:
        """The folder, for those who look after it.

        Raises:
            CacheError: It cannot be used now.
        """
        if self._disk is None:
            raise CacheError(f"{self.path} cannot be used now: the disk is full or fails", path=self.path)
        return self._disk

    @property
    def is_writable(self) -> bool:
        """Whether the folder may take chunks; False on a disk that is read-only."""
        return self._disk is not None and self._disk.locks.is_writable

    # ------------------------------------------------------------------ finding

    def path_of(self, key: str) -> Path:
        """Return where the chunk lies, or would if it were kept."""
        return Path(self._chunks_name + key + SUFFIX)

    def name_of(self, key: str) -> bytes:
        """Return the name of a chunk's file, if it is kept: what the system is asked by."""
        return os.fsencode(self._chunks_name + key + SUFFIX)

    def size_of(self, key: str) -> int | None:
        """Return the size of a chunk in the folder in bytes, None where it is not there."""
        return None if self._disk is None else self._disk.folder.size_of(key)

    def has(self, key: str) -> bool:
        """Return whether the chunk is there, or in memory. Costs a file lookup or two, and does not look inside."""
        if self.size_of(key) is not None:
            return True
        self._missed.add(key)
        return self._memory.has(key)

    def open(self, key: str) -> Chunk:
        """Return the chunk, open for reading.

        The first time this process meets the file, every checksum is compared. A corrupt chunk is discarded, so that
        it is missing from then on.

        Raises:
            KeyError: It is not there; perhaps not any more.
            ChunkCorruptError: It was not what had been published. It has been discarded: build it again.
            CacheError: It cannot be opened.
        """
        try:
            chunk = self._open(key)
        except ChunkCorruptError:
            self._corrupt.add(key)
            raise
        if not chunk.is_kept:
            self._missed.add(key)
        return chunk

    def count_uses(self, num: int, keys: Iterable[str]) -> None:
        """Count uses of chunks, so many: which were in the folder when they were asked for, and which were not."""
        with self._mutex:
            missed = self._missed.intersection(keys) if self._missed else ()
            self._missed.difference_update(missed)
            counts = self._counts
            self._counts = replace(
                counts,
                num_reused=counts.num_reused + num - len(missed),
                num_missed=counts.num_missed + len(missed),
            )

    def _open(self, key: str) -> Chunk:
        disk = self._disk
        if disk is not None:
            try:
                fd, about = disk.folder.open_chunk(key)
            except FileNotFoundError:
                pass
            except OSError as error:
                path = self.path_of(key)
                raise CacheError(f"{path} cannot be opened: {error.strerror}", path=path) from error
            else:
                return self._checked(disk, key, fd, about)
        fd = self._memory.open(key) or -1
        if fd < 0:
            raise KeyError(key)
        path = Path(f"/proc/self/fd/{fd}")
        try:
            about = os.fstat(fd)
            header = read_header(fd, path=path, file_bytes=about.st_size)
        except BaseException:
            os.close(fd)
            self._memory.drop(key)
            raise
        return Chunk(fd=fd, header=header, path=path, is_kept=False, version=version_of(about), was_read=False)

    def _checked(self, disk: _Disk, key: str, fd: int, about: os.stat_result) -> Chunk:
        """Return a chunk, once it is known to be sound."""
        was_read, path = False, self.path_of(key)
        try:
            try:
                version = version_of(about)  # before it is read: what is written meanwhile is not what was verified
                known, header = _verified.get((*disk.folder.identity, key), (None, None))
                if known != version or header is None or self.verify == "always":
                    is_noted = self.verify != "always" and disk.verified.holds(key, about)
                    ahead = None if is_noted else Readahead(fd, about.st_size)
                    if ahead is not None:
                        ahead.reach(1)  # before the header is read, in pages that would stay small
                    header = read_header(fd, path=path, file_bytes=about.st_size)
                    if header.key != key:
                        raise ChunkCorruptError(f"it is the chunk {header.key or 'of nobody'}", path=path)
                    if ahead is not None:
                        check_arrays(fd, header, path=path, ahead=ahead)
                        disk.verified.set(key, about)
                        was_read = True
                    _note(disk, key, version, header)
            except (ChunkCorruptError, OSError) as error:
                self._discard_corrupt(disk, key, about)
                raise ChunkCorruptError(f"{path} is corrupt and was discarded: {error}", path=path) from error
        except BaseException:
            os.close(fd)
            raise
        return Chunk(fd=fd, header=header, path=path, is_kept=True, version=version, was_read=was_read)

    def _discard_corrupt(self, disk: _Disk, key: str, about: os.stat_result) -> None:
        """Remove a chunk, where the name still is the file that was opened: another process may have mended it."""
        if disk.locks.is_writable:
            with contextlib.suppress(OSError):
                now = os.stat(key + SUFFIX, dir_fd=disk.folder.chunks, follow_symlinks=False)
                if os.path.samestat(now, about):
                    self.discard(key)

    def discard(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there. Maps of it stay readable."""
        self._memory.drop(key)
        disk = self._disk
        if disk is None:
            return False
        disk.verified.drop(key)
        return disk.quota.remove(key)

    def discard_unless_used(self, fingerprint: str, keys: Iterable[str]) -> int:
        """Remove chunks of a data set that no other process uses, and return how many there were."""
        if self._disk is None or self._disk.locks.is_held(fingerprint, elsewhere=True):
            return 0
        return sum(self.discard(key) for key in list(keys))

    def try_lock(self, key: str) -> contextlib.AbstractContextManager[object] | None:
        """Return the lock under which the chunk is built, or None where another thread or process has it.

        Never waits. The system drops the lock when the process dies. Where the folder is read-only or gone, each builds
        for itself.
        """
        disk = self._disk
        if disk is None or not disk.locks.is_writable:
            return contextlib.nullcontext()
        return disk.locks.try_lock(key)

    # ------------------------------------------------------------------ data sets

    def register(self, fingerprint: str, *, name: str, urls: Sequence[str], keys: Callable[[], Sequence[str]]) -> None:
        """Say that this store uses a data set, until it is closed: as long as any process does, its chunks stay.

        Args:
            fingerprint: Of the data set; two with the same one have the same keys.
            name: What people call it.
            urls: Where it comes from.
            keys: Gives the keys of its chunks, in order.
        """
        self._datasets.append((fingerprint, name, urls, keys))
        if self._disk is not None:
            self._enter(self._disk, fingerprint, name, urls, keys)

    def _enter(
        self, disk: _Disk, fingerprint: str, name: str, urls: Sequence[str], keys: Callable[[], Sequence[str]]
    ) -> None:
        try:
            disk.manifests.enter(fingerprint, name, urls, keys)
            if disk.locks.is_writable:
                disk.quota.trim(fingerprint)
        except OSError as error:
            self._warn(self._refusal(error))

    def spec_of(self, keys: Iterable[str]) -> Spec | None:
        """Return what a sample of a data set is, as one of its first chunks says; None where none of them is there."""
        for key in itertools.islice(keys, _MOST_ASKED):
            if self.size_of(key) is not None:
                with contextlib.suppress(KeyError, CacheError), self._open(key) as chunk:
                    return chunk.header.spec
        return None

    # ------------------------------------------------------------------ publishing

    def publish(
        self,
        key: str,
        arrays: Packable,
        spec: Spec,
        *,
        num_samples: int,
        about: Mapping[str, object] | None = None,
        must_be_kept: bool = False,
    ) -> int:
        """Write a chunk, whole or not at all, and return its size in bytes.

        Args:
            key: Its name; everything that made it.
            arrays: The fields, each with N rows.
            spec: What a sample is.
            num_samples: N.
            about: What made it, for people: url, row groups, rows.
            must_be_kept: Whether it is not wanted where the folder cannot take it. Else it is kept in memory then.

        Raises:
            CacheFullError: It must be kept, and there is no room within the limit or on the disk.
            CacheError: It must be kept, and the folder cannot be written to; or memory has no room either.
            MismatchError: The arrays do not fit the spec.
            FieldError: Two fields would share the name of an array.
        """
        prepared = prepare_chunk(arrays, spec, num_samples=num_samples, about={**(about or {}), "key": key})
        is_mended = self._take(key, prepared, must_be_kept=must_be_kept)
        with self._mutex:
            counts = self._counts
            self._counts = replace(counts, num_built=counts.num_built + 1, num_mended=counts.num_mended + is_mended)
        self.put_into_mirror(key)
        return prepared.size_bytes

    def fetch(self, key: str, spec: Spec | None, *, num_samples: int, must_be_kept: bool = False) -> bool:
        """Publish a chunk that the mirror has, and return whether that could be done; arguments as of `publish`.

        Raises:
            CacheFullError: As `publish`, as for all others.
        """
        found = None if self.mirror is None else self.mirror.find(key, num_samples=num_samples, spec=spec)
        if found is None:
            return False
        try:
            is_mended = self._take(key, found, must_be_kept=must_be_kept)
        except UnfitError:
            return False
        with self._mutex:
            self._counts = replace(self._counts, num_mended=self._counts.num_mended + is_mended)
        return True

    def put_into_mirror(self, key: str) -> None:
        """Have a chunk put into the mirror, where there is one and it is not there."""
        if self.mirror is not None:
            self.mirror.put_later(key, lambda: self._proven_bytes(key))

    def _proven_bytes(self, key: str) -> bytes | None:
        """Return the file of a chunk, None where it is gone or damaged."""
        try:
            if self._disk is None:
                raise FileNotFoundError
            fd, _ = self._disk.folder.open_chunk(key)
        except OSError:
            fd = self._memory.open(key, is_use=False) or -1
        if fd < 0:
            return None
        with os.fdopen(fd, "rb") as file, contextlib.suppress(ChunkCorruptError, OSError):
            path = self.path_of(key)
            check_arrays(fd, read_header(fd, path=path), path=path)
            return file.read()
        return None

    def _take(self, key: str, prepared: PreparedChunk | MirroredChunk, *, must_be_kept: bool) -> bool:
        """Keep a chunk in the folder, or in memory, and return whether it takes the place of a corrupt one."""
        try:
            self._keep(key, prepared)
        except (OSError, CacheError) as error:
            refusal = self._refusal(error)
            if must_be_kept:
                raise refusal from error
            self.is_refusing = True
            if not isinstance(error, CacheFullError) or prepared.size_bytes > (self.limit_bytes or 0):
                self._warn(refusal)
            try:
                self._memory.put(key, lambda fd: prepared.write(fd, self._files))
            except OSError as memory_error:
                refusal.add_note(f"and it does not fit into memory: {memory_error.strerror}")
                raise refusal from memory_error
        else:
            self.is_refusing = False
        with self._mutex:
            is_mended = key in self._corrupt
            self._corrupt.discard(key)
        return is_mended

    def _keep(self, key: str, prepared: PreparedChunk | MirroredChunk) -> None:
        """Write a chunk into the folder.

        Raises:
            CacheError: The limit leaves no room, or the folder has become something else.
            OSError: The disk refuses.
        """
        disk = self._disk_in_place()
        try:
            self._write(disk, key, prepared)
        except OSError as error:
            if error.errno not in NO_ROOM or not disk.quota.make_room(prepared.size_bytes):
                raise
            self._write(disk, key, prepared)

    def _disk_in_place(self) -> _Disk:
        """Return the folder that can be written to; opened anew, where it was removed or moved since."""
        disk = self._disk
        if disk is None or disk.pid != os.getpid() or not disk.folder.is_in_place:
            with self._mutex:
                if self._disk is disk:
                    fresh = self._open_disk()
                    if disk is not None:
                        self._left.append(disk)
                        if disk.pid == fresh.pid:
                            self._warn(f"the cache {self.path} was removed or moved: it is made anew")
                    self._disk = fresh
                    for dataset in self._datasets:
                        self._enter(fresh, *dataset)
                disk = self._disk
            assert disk is not None
        if not disk.locks.is_writable:
            raise OSError(errno.EROFS, "it is read-only, or not this user's to write to")
        return disk

    def _write(self, disk: _Disk, key: str, prepared: PreparedChunk | MirroredChunk) -> None:
        aside = disk.folder.name_aside(key)
        fd = disk.quota.create(aside, prepared.size_bytes)
        try:
            try:
                # Its checksums were taken from what was written a moment ago: nothing to compare them with.
                header = prepared.write(fd, self._files)
                version = version_of(os.fstat(fd))
            finally:
                os.close(fd)
            disk.quota.place(aside, key)
        except BaseException:
            disk.quota.abandon(aside, prepared.size_bytes)
            raise
        _note(disk, key, version, header)
        if not self._is_temporary:
            disk.verified.set_later(key, self._chunks_name + key + SUFFIX, version)

    def _refusal(self, error: OSError | CacheError) -> CacheError:
        """Return what to say where the folder cannot take a chunk."""
        if isinstance(error, CacheError):
            return error
        if error.errno in NO_ROOM:
            with contextlib.suppress(OSError):
                about = os.statvfs(self.path)
                why = f"the disk of {self.path} is full"
                if error.errno == errno.EDQUOT:
                    why = f"this user's quota on the disk of {self.path} is used up"
                elif about.f_files and not about.f_favail:
                    why = f"the disk of {self.path} has no inodes left: it holds as many files as it can"
                return CacheFullError(
                    f"{why} ({about.f_bavail * about.f_frsize:,} bytes are free), and no chunk may be evicted; free "
                    f"it, or give a cache_limit that leaves room",
                    path=self.path,
                )
        return CacheError(f"the cache {self.path} cannot be written to: {error.strerror}", path=self.path)

    def _warn(self, what: CacheError | str) -> None:
        """Say once what keeps chunks from the folder."""
        text = str(what)
        if isinstance(what, CacheError):
            text += "; chunks are made each time they are needed until it takes them again"
        kind = text.partition("(")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s", text)

    def counts(self) -> StoreCounts:
        """Return what this store has done so far."""
        with self._mutex:
            num_evicted = sum(disk.quota.num_evicted for disk in (self._disk, *self._left) if disk is not None)
            counts = replace(self._counts, num_evicted=num_evicted)
        if (mirror := self.mirror) is None:
            return counts
        return replace(
            counts,
            num_fetched=mirror.num_fetched,
            num_uploaded=mirror.num_uploaded,
            num_mirror_failures=mirror.num_failures,
        )

    def close(self) -> None:
        """Give all locks back, and end what puts chunks into the mirror. Harmless when called again.

        Blocks: until one that is on its way is there, or was given up.
        """
        if self.mirror is not None:
            self.mirror.close()
        self._memory.close()
        for disk in (self._disk, *self._left):
            if disk is not None:
                disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _note(disk: _Disk, key: str, version: FileVersion, header: ChunkHeader) -> None:
    """Note that a file need not be verified: which one, and what it says about itself."""
    place = *disk.folder.identity, key
    _verified.pop(place, None)
    with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread lets go of the same one
        while len(_verified) >= _MAX_VERIFIED:
            del _verified[next(iter(_verified))]
    _verified[place] = (version, header)
