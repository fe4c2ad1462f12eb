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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from stoker._native import cached_bytes
from stoker.arguments import explain_arguments, flag
from stoker.cache.disk import Disk
from stoker.cache.folder import NO_ROOM, SUFFIX, Files, FileVersion, version_of
from stoker.cache.format import Chunk, ChunkHeader, NewChunk, Readahead, check_arrays, read_header
from stoker.cache.memory import MemoryChunks
from stoker.cache.mirror import Mirror, mirror_url
from stoker.cache.write import prepare_chunk
from stoker.columns import Packable
from stoker.errors import CacheError, CacheFullError, ChunkCorruptError
from stoker.fields.spec import Spec, parse_size
from stoker.storage.urls import local_folder

# Verified files by folder and key: which version, and its header. By process, not by store: a second loader need not
# verify again, and parsing a header costs as much as all else about opening a chunk.
_verified: dict[tuple[int, int, str], tuple[FileVersion, ChunkHeader]] = {}
# A header takes some 2 kB. Whoever has more chunks than this reads headers again; the oldest are let go first.
_MAX_VERIFIED = 16384
# Chunks of a data set that are looked for, at most, to find one that says what a sample is.
_MOST_ASKED = 64
# Pause between two rounds of the store that scrubs; the others look this often whether nobody does any more.
_SCRUB_PAUSE_S = 10.0

_log = logging.getLogger("stoker")

Verify: TypeAlias = Literal["boot", "always"]


class Store:
    """Chunks by key, in a folder on a local disk.

    Any number of threads and processes may use the folder at once; each has its own store. Where the folder cannot take
    a chunk, for lack of room or because it is read-only, failing or gone, the chunk is kept in memory until it was
    used, and the next one is tried again: until it is taken, `is_refusing` says so.

    Arguments are those of `Cache`, and errors those of `Folder`; the mirror is closed with this. A folder that is
    temporary goes with this process: nothing is noted for the next one. `files` makes all changes to the disk; tests
    give another one.
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
        scrub_bytes_s: int | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self._chunks_name = f"{self.path}/chunks/"
        self.limit_bytes, self.verify, self.mirror, self.is_refusing = limit_bytes, verify, mirror, False
        self._is_temporary, self._files = is_temporary, files or Files()
        self._open_disk = partial(Disk, self.path, self._files, limit_bytes=limit_bytes, is_shared=is_shared)
        self._memory = MemoryChunks(None if is_temporary else self.path)
        self._mutex = threading.Lock()
        self._warned: set[str] = set()
        self._entering: list[Callable[[Disk], None]] = []  # see `register`
        self._left: list[Disk] = []  # folders that were removed or moved: their files may still be read
        self._num: Counter[str] = Counter()  # see `counts`
        self._missed: set[str] = set()
        self._corrupt: set[str] = set()
        self._damaged: dict[str, FileVersion] = {}  # files that could not be removed, and count as not there
        self._closing = threading.Event()
        self._disk: Disk | None = None
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
        self._scrubber: threading.Thread | None = None
        if scrub_bytes_s is not None:
            self._scrubber = threading.Thread(
                target=self._scrub, args=(scrub_bytes_s,), name="stoker-scrub", daemon=True
            )
            self._scrubber.start()

    @property
    def disk(self) -> Disk:
        """The folder, for those who look after it; a `CacheError` where it cannot be used now."""
        if (disk := self._disk) is None:
            raise CacheError(f"{self.path} cannot be used now: the disk is full or fails", path=self.path)
        return disk

    # ------------------------------------------------------------------ finding

    def path_of(self, key: str) -> Path:
        """Return where the chunk lies, or would if it were kept."""
        return Path(self._chunks_name + key + SUFFIX)

    def size_of(self, key: str) -> int | None:
        """Return the size of a chunk in the folder in bytes, None where it is not there."""
        about = None if self._disk is None else self._disk.folder.status(key)
        return None if about is None or self._damaged.get(key) == version_of(about) else about.st_size

    def has(self, key: str) -> bool:
        """Return whether the chunk is there, or in memory. Costs a file lookup or two, and does not look inside."""
        if self.size_of(key) is not None:
            return True
        self._missed.add(key)
        return self._memory.has(key)

    def open(self, key: str, *, num_samples: int | None = None, spec: Spec | None = None) -> Chunk:
        """Return the chunk, open for reading, which has these samples, where that is known.

        The first time this process meets the file, every checksum is compared.

        Raises:
            KeyError: It is not there; perhaps not any more.
            ChunkCorruptError: It was not what had been published. It has been discarded: build it again.
            CacheError: It cannot be opened.
        """
        fd, about, disk = self._file_of(key)
        path = Path(f"/proc/self/fd/{fd}") if disk is None else self.path_of(key)
        version = version_of(about)  # before it is read: what is written meanwhile is not what was verified
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            try:
                header, was_read = self._proven(disk, key, fd, about)
                header.check(key, num_samples=num_samples, spec=spec, path=path)
            except (ChunkCorruptError, OSError) as error:
                self._discard_corrupt(disk, key, about)
                raise ChunkCorruptError(f"{path} is corrupt and was discarded: {error}", path=path) from error
            stack.pop_all()
        if disk is None:
            self._missed.add(key)
        return Chunk(fd=fd, header=header, path=path, is_kept=disk is not None, version=version, was_read=was_read)

    def count_uses(self, num: int, keys: Iterable[str]) -> None:
        """Count `num` uses of chunks, those apart that were not in the folder when they were asked for."""
        with self._mutex:
            missed = self._missed.intersection(keys) if self._missed else ()
            self._missed.difference_update(missed)
            self._num["num_reused"] += num - len(missed)
            self._num["num_missed"] += len(missed)

    def _file_of(self, key: str, *, is_use: bool = True) -> tuple[int, os.stat_result, Disk | None]:
        """Return the file of a chunk, open for reading, and whose folder it is in; None for one in memory."""
        disk = self._disk
        if disk is not None:
            try:
                found = disk.folder.open_chunk(key)
                if self._damaged.get(key) != version_of(found[1]):
                    return *found, disk
                os.close(found[0])
            except FileNotFoundError:
                pass
            except OSError as error:
                path = self.path_of(key)
                raise CacheError(f"{path} cannot be opened: {error.strerror}", path=path) from error
        fd = self._memory.open(key, is_use=is_use)
        if fd is None:
            raise KeyError(key)
        return fd, os.fstat(fd), None

    def _proven(self, disk: Disk | None, key: str, fd: int, about: os.stat_result) -> tuple[ChunkHeader, bool]:
        """Return the header of a chunk that is known to be sound, and whether all of it was read to find that out."""
        path, version = self.path_of(key), version_of(about)
        if disk is None:
            return read_header(fd, path=path, file_bytes=about.st_size), False
        known, header = _verified.get((*disk.folder.identity, key), (None, None))
        looks = self.verify == "always"
        if header is not None and known == version and not looks:
            return header, False
        ahead = Readahead(fd, about.st_size) if looks or not disk.folder.was_verified(key, about) else None
        if ahead is not None:
            ahead.reach(1)  # before the header is read, in pages that would stay small
        header = read_header(fd, path=path, file_bytes=about.st_size)
        if ahead is not None:
            check_arrays(fd, header, path=path, ahead=ahead)
            disk.folder.note_verified(key, about)
        _note(disk, key, version, header)
        return header, ahead is not None

    def find_damage(self, key: str, *, removes: bool = False) -> str | None:
        """Return what is wrong with a chunk in the folder, if anything; it is removed then, where that is asked for.

        What is read for it alone does not stay in the page cache.
        """
        path, disk, is_cached = self.path_of(key), self.disk, True
        try:
            fd, about = disk.folder.open_chunk(key)
        except FileNotFoundError:  # evicted since it was listed
            return None
        try:
            is_cached = cached_bytes(fd, about.st_size) > 0
            header = read_header(fd, path=path)
            header.check(key, path=path)
            check_arrays(fd, header, path=path)
        except (ChunkCorruptError, OSError) as error:
            if removes:
                self._discard_corrupt(disk, key, about)
            return str(error)
        finally:
            if not is_cached and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        return None

    def _scrub(self, bytes_s: int) -> None:
        """Look for damage in all chunks, over and over, until this is closed; one store of the folder at a time."""
        while True:
            with contextlib.suppress(CacheError, OSError):  # removed or failing: it may be there again later
                disk, lock = self.disk, self.try_lock("scrub")
                with lock or contextlib.nullcontext():
                    for key, size_bytes in disk.folder.list_chunks().items() if lock is not None else ():
                        if self.size_of(key) is None:  # it went since, or is known to be damaged and cannot be removed
                            continue
                        if self._closing.wait(size_bytes / bytes_s):
                            return
                        if (reason := self.find_damage(key, removes=True)) is not None:
                            what = "was" if disk.folder.status(key) is None else "cannot be"
                            _log.warning("%s; it %s removed, and is made again when it is needed", reason, what)
            if self._closing.wait(_SCRUB_PAUSE_S):
                return

    def _discard_corrupt(self, disk: Disk | None, key: str, about: os.stat_result) -> None:
        """Remove a chunk, where the name still is the file that was opened: another process may have mended it.

        In a folder that cannot be written to, it is not looked at any more: what is built instead is in memory.
        """
        self._corrupt.add(key)
        self._memory.drop(key)
        with contextlib.suppress(OSError):
            now = None if disk is None else disk.folder.status(key)
            if disk is not None and now is not None and os.path.samestat(now, about):
                self._damaged[key] = version_of(about)
                if disk.locks.is_writable and disk.remove(key):
                    self._damaged.pop(key, None)

    def discard(self, key: str) -> bool:
        """Remove a chunk, and return whether it was there. Maps of it stay readable."""
        self._memory.drop(key)
        return self._disk is not None and self._disk.remove(key)

    def discard_unless_used(self, fingerprint: str, keys: Iterable[str]) -> int:
        """Remove chunks of a data set that no other process uses, and return how many there were."""
        if self._disk is None or self._disk.locks.is_held(fingerprint, elsewhere=True):
            return 0
        return sum(self.discard(key) for key in list(keys))

    def try_lock(self, key: str) -> contextlib.ExitStack | None:
        """Return the lock under which the chunk is built, or None where another thread or process has it; never waits.

        Where the folder is read-only or gone, each builds for itself.
        """
        disk = self._disk
        if disk is None or not disk.locks.is_writable:
            return contextlib.ExitStack()
        return disk.locks.try_lock(key)

    # ------------------------------------------------------------------ data sets

    def register(
        self, fingerprint: str, *, name: object, urls: Sequence[str], keys: Callable[[], Sequence[str]]
    ) -> None:
        """Say that this store uses a data set, until it is closed, see `Disk.enter`."""

        def enter(disk: Disk) -> None:
            try:
                disk.enter(fingerprint, name, urls, keys)
                if disk.locks.is_writable:
                    disk.trim(fingerprint)
            except OSError as error:
                self._warn(self._refusal(error))

        self._entering.append(enter)
        if self._disk is not None:
            enter(self._disk)

    def spec_of(self, keys: Iterable[str]) -> Spec | None:
        """Return what a sample of a data set is, as one of its first chunks says; None where none of them is there."""
        for key in itertools.islice(keys, _MOST_ASKED):
            if self.size_of(key) is not None:
                with contextlib.suppress(KeyError, CacheError), self.open(key) as chunk:
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
        """Write a chunk, whole or not at all, and return its size in bytes; `about` tells people what made it.

        What the folder cannot take is kept in memory, or raises a `CacheError` where it must be kept or memory has no
        room either. Errors are those of `prepare_chunk`, too.
        """
        chunk = prepare_chunk(arrays, spec, num_samples=num_samples, about={**(about or {}), "key": key})
        self._take(key, chunk, must_be_kept=must_be_kept)
        with self._mutex:
            self._num["num_built"] += 1
        self.put_into_mirror(key)
        return chunk[0]

    def fetch(self, key: str, spec: Spec | None, *, num_samples: int, must_be_kept: bool = False) -> bool:
        """Publish a chunk that the mirror has, as `publish` does, and return whether that could be done."""
        found = None if self.mirror is None else self.mirror.find(key, num_samples=num_samples, spec=spec)
        with contextlib.suppress(KeyError):  # it did not come
            if found is not None:
                self._take(key, found, must_be_kept=must_be_kept)
                return True
        return False

    def put_into_mirror(self, key: str) -> None:
        """Have a chunk put into the mirror, where there is one and it is not there."""
        if self.mirror is not None:
            self.mirror.put_later(key, partial(self._proven_bytes, key))

    def _proven_bytes(self, key: str) -> bytes | None:
        """Return the file of a chunk, None where it is gone or damaged."""
        with contextlib.suppress(KeyError, CacheError, OSError):
            fd, _, _ = self._file_of(key, is_use=False)
            path = self.path_of(key)
            with os.fdopen(fd, "rb") as file:
                check_arrays(fd, read_header(fd, path=path), path=path)
                file.seek(0)  # in memory, all that open it share their place in it
                return file.read()
        return None

    def _take(self, key: str, chunk: NewChunk, *, must_be_kept: bool) -> None:
        """Keep a chunk in the folder, or in memory, and count it where it takes the place of a corrupt one."""
        size_bytes, write = chunk
        try:
            self._keep(key, size_bytes, write)
            self.is_refusing = False
        except (OSError, CacheError) as error:
            refusal = self._refusal(error)
            if must_be_kept or self._closing.is_set():
                raise refusal from error
            self.is_refusing = True
            if not isinstance(error, CacheFullError) or size_bytes > (self.limit_bytes or 0):
                self._warn(refusal)
            try:
                self._memory.put(key, lambda fd: write(fd, self._files))
            except OSError as memory_error:
                refusal.add_note(f"and it does not fit into memory: {memory_error.strerror}")
                raise refusal from memory_error
        with self._mutex:
            self._num["num_mended"] += key in self._corrupt
            self._corrupt.discard(key)

    def _keep(self, key: str, size_bytes: int, write: Callable[[int, Files], ChunkHeader]) -> None:
        """Write a chunk into the folder; an error says why that cannot be done."""
        disk = self._disk_in_place()
        for is_again in (False, True):
            try:
                with disk.writing(key, size_bytes) as fd:
                    # Not verified: its checksums were computed from what is written here.
                    header = write(fd, self._files)
                    # To the nanosecond, where the disk's clock ticks every 10 ms: what is written later has another
                    # time.
                    os.utime(fd, ns=(now_ns := time.time_ns(), now_ns))
                    version = version_of(os.fstat(fd))
                break
            except OSError as error:
                if is_again or error.errno not in NO_ROOM or not disk.make_room(size_bytes):
                    raise
        _note(disk, key, version, header)
        about = disk.folder.status(key)
        if about is not None and version_of(about) == version and not self._is_temporary:
            disk.folder.note_verified(key, about, is_new=True)

    def _disk_in_place(self) -> Disk:
        """Return the folder that can be written to; opened anew, where it was removed or moved since.

        Raises:
            CacheError: This was closed.
        """
        disk = self._disk
        if self._closing.is_set() or disk is None or not disk.folder.is_in_place:
            with self._mutex:
                if self._closing.is_set():
                    raise CacheError(f"the cache {self.path} was closed", path=self.path)
                if self._disk is disk:
                    fresh = self._open_disk()
                    if disk is not None:
                        self._left.append(disk)
                        self._warn(f"the cache {self.path} was removed or moved, or a folder in it: it is made anew")
                    self._disk = fresh
                    for enter in self._entering:
                        enter(fresh)
                disk = self._disk
            assert disk is not None
        if not disk.locks.is_writable:
            raise OSError(errno.EROFS, "it is read-only, or not this user's to write to")
        return disk

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
        reason = error.strerror
        if error.errno == errno.EFBIG:
            reason = (
                "it holds no file as large as a chunk, or this process may write none: raise `ulimit -f`, or lower the "
                "data set's chunk_size"
            )
        return CacheError(f"the cache {self.path} cannot be written to: {reason}", path=self.path)

    def _warn(self, what: CacheError | str) -> None:
        """Say once what keeps chunks from the folder, whatever numbers are in it."""
        text = str(what)
        if isinstance(what, CacheError):
            text += "; chunks are made each time they are needed until it takes them again"
        kind = "".join(letter for letter in text if letter not in "0123456789,")
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s", text)

    def counts(self) -> Counter[str]:
        """Return what this store has done so far, by the names that `LoaderStats` has for it."""
        with self._mutex:
            evicted = sum(disk.num_evicted for disk in (self._disk, *self._left) if disk)
            return self._num + Counter(num_evicted=evicted) + (self.mirror.counts if self.mirror else Counter())

    def close(self) -> None:
        """Give all locks back, and end what scrubs and what puts chunks into the mirror. Harmless when called again.

        Blocks: until a chunk on its way to the mirror is there or given up, and one being scrubbed has been read.
        """
        self._closing.set()
        if self._scrubber is not None:
            self._scrubber.join()
        if self.mirror is not None:
            self.mirror.close()
        self._memory.close()
        with self._mutex:  # whoever opens the folder anew has done so before, or does not
            disks = [disk for disk in (self._disk, *self._left) if disk is not None]
        for disk in disks:
            disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _note(disk: Disk, key: str, version: FileVersion, header: ChunkHeader) -> None:
    """Note that a file need not be verified: which one, and what it says about itself."""
    place = *disk.folder.identity, key
    _verified.pop(place, None)
    with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread lets go of the same one
        while len(_verified) >= _MAX_VERIFIED:
            del _verified[next(iter(_verified))]
    _verified[place] = (version, header)


@explain_arguments({})
@dataclass(frozen=True)
class Cache:
    """A folder that keeps transformed chunks, and how it is used; give it to a loader as `cache=`.

    Args:
        folder: On a fast local disk; made if it is not there. None keeps chunks in memory, for one loader alone.
        limit: Most bytes in that folder, such as "500GB", or a number; None means as much as the disk has.
        is_shared: Whether other users of the folder's group use it, too. They may then write to its files and folders,
            and what they put there is trusted. Otherwise files and folders belong to this user alone, and those of
            another user are refused.
        verify: When the checksums of a chunk are compared: "boot" means when it is first opened after the machine
            started, and again if its file changed since; "always" means whenever a window opens it.
        mirror: Where hosts leave the chunks that they have built for each other, such as "s3://bucket/stoker": an
            object store, or a folder that all of them reach. A chunk that it has is fetched and verified instead of
            being built. Training goes on without a mirror that cannot be reached. No chunk is ever removed from it.
        mirror_options: Options of that store's client, as the `storage_options` of a `Dataset`.
        scrub: Bytes a second, such as "20MB", at which a thread compares the checksums of all chunks in the folder,
            over and over: a damaged one is removed, and built again when needed. None means no such thread.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The folder is not local, the limit or `scrub` is 0, `verify` is neither of the two words, or
            `mirror` may contain credentials.
    """

    folder: Path | str | None
    _: KW_ONLY
    limit: int | str | None = None
    is_shared: bool = False
    verify: Verify = "boot"
    mirror: Path | str | None = None
    mirror_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    scrub: int | str | None = None

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
        if self.scrub_bytes_s == 0:
            raise ValueError("scrub must not be 0 bytes a second; leave it out to compare none")

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes."""
        return None if self.limit is None else parse_size(self.limit, name="cache_limit")

    @property
    def scrub_bytes_s(self) -> int | None:
        """Bytes a second whose checksums are compared; None for no scrubbing."""
        return None if self.scrub is None else parse_size(self.scrub, name="scrub")

    def open(self, *, is_temporary: bool = False) -> Store:
        """Return the store of the folder, which is made if it is not there; see `Store`.

        Raises:
            ValueError: No client knows the mirror's URL, or takes its options.
        """
        assert self.folder is not None
        mirror = None if self.mirror is None else Mirror(self.mirror, options=self.mirror_options)
        if mirror is not None:
            mirror.connect()
        return Store(
            local_folder(self.folder, what="cache"),
            limit_bytes=self.limit_bytes,
            is_temporary=is_temporary,
            is_shared=self.is_shared,
            verify=self.verify,
            mirror=mirror,
            scrub_bytes_s=None if is_temporary else self.scrub_bytes_s,
        )
