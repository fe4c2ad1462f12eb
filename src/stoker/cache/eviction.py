"""Who gets room in a cache: decided on disk alone, under one lock, so that any number of processes agree.

    ├───────────── limit ──────────────────────────────┤
    │ kept: a fixed set         │ reserve: overflow    │

What is kept stays while its data set is in use, whatever comes: where the order is known and every chunk is needed once
an epoch, keeping a fixed set hits as often as its share of the data, and making room for the newest would hit never.
A chunk beyond it is still needed to train on; it goes to the overflow, and leaves it when room is needed and nobody has
it pinned. Room is made, in this order, from

    1. chunks that belong to no data set in use, that of the least recently opened data set first
    2. overflow that nobody has pinned, oldest first

What is there is written down as a few numbers, so that to publish a chunk lists nothing where there is plenty of room:
of many threads that publish small chunks, all would wait for the one that lists.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

from stoker.cache.folder import ChunkFile, Folder, file_size
from stoker.cache.locks import Kind, Locks
from stoker.cache.manifests import Manifests
from stoker.errors import CacheFullError

# Whether they are wrong comes last: of a write that a crash cuts short, it is what is not written.
_USAGE = struct.Struct("<qqqq")
T = TypeVar("T")


class Ledger:
    """How many bytes are kept, exactly, and how many may be needed beside them, at most.

    Before a file appears or goes, the ledger says that its numbers are about to be wrong; whoever comes after a crash
    in between lists the folder once.

    Threads that come while it is held are served together by the first of them, as databases commit in groups: each
    call of the system gives the GIL up, and where many threads want that, one after another would wait for it a dozen
    times with the lock in hand.

        thread 1   ▓▓ a ▓▓
        thread 2     ~~~~~~▓▓ b c d ▓▓
        thread 3      ~~~~~~~~~~~~~~~~     c is done by thread 2
        thread 4        ~~~~~~~~~~~~~~     d too
    """

    def __init__(self, folder: Folder, locks: Locks, manifests: Manifests) -> None:
        self._folder = folder
        self._locks = locks
        self._manifests = manifests
        self._queue = _Queue()
        self._fd: int | None = None  # of the numbers, once they were looked at
        self._mutex = threading.Lock()  # while it is used

    @contextmanager
    def open(self) -> Iterator[Account]:
        """Hold the ledger, for moments.

        Blocks: while another thread or process holds it.
        """
        with self._locks.ledger(), self._mutex:
            if self._fd is None:
                try:
                    self._fd = os.open(self._folder.usage, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                except OSError as error:
                    raise CacheFullError(f"{self._folder.usage}: {error.strerror}", path=self._folder.path) from error
            account = Account(self._fd, self._folder, self._manifests)
            yield account
            account.settle()

    def close(self) -> None:
        """Close the file. Harmless when called again."""
        with self._mutex:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def share(self, work: Callable[[Account], T]) -> T:
        """Return what `work` returns, done while the ledger is held: by this thread, or by one that does it for many.

        Blocks: while another thread or process holds the ledger.

        Raises:
            BaseException: Whatever `work` raises.
        """
        turn = _Turn(work)
        mine = cast("_Turn[object]", turn)
        if self._queue.pid != os.getpid():  # a forked child has nobody of its parent's queue
            self._queue = _Queue()
        if not self._queue.enter(mine):
            turn.wait()
        if not turn.is_over:
            self._lead(self._queue, mine)
        return turn.result()

    def _lead(self, queue: _Queue, mine: _Turn[object]) -> None:
        """Hold the ledger for all who wait for it."""
        turns = queue.take()
        try:
            with self.open() as account:
                for turn in turns:
                    turn.take(account)
        finally:
            # Where the ledger could not be held, each finds that out for itself.
            following = queue.leave([turn for turn in turns if not (turn.is_over or turn is mine)])
            for turn in (*(turn for turn in turns if turn.is_over), *following):
                turn.wake()


class _Queue:
    """The threads of a process that want the ledger while another of them has it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._mutex = threading.Lock()
        self._turns: list[_Turn[object]] = []
        self._is_led = False

    def enter(self, turn: _Turn[object]) -> bool:
        """Take a place, and return whether this thread is to hold the ledger."""
        with self._mutex:
            self._turns.append(turn)
            leads, self._is_led = not self._is_led, True
            return leads

    def take(self) -> list[_Turn[object]]:
        """Return all who wait, and let them out."""
        with self._mutex:
            turns, self._turns = self._turns, []
            return turns

    def leave(self, rest: list[_Turn[object]]) -> list[_Turn[object]]:
        """Put back who was not served, and return who is to hold the ledger next, if anybody waits."""
        with self._mutex:
            self._turns[:0] = rest
            self._is_led = bool(self._turns)
            return self._turns[:1]


class _Turn(Generic[T]):
    """What one thread wants done while the ledger is held."""

    def __init__(self, work: Callable[[Account], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self._waking = threading.Lock()
        self._waking.acquire()
        self.is_over = False

    def take(self, account: Account) -> None:
        """Do it."""
        try:
            self._result = self._work(account)
        except BaseException as error:  # it belongs to the thread that asked
            self._error = error
        self.is_over = True

    def wait(self) -> None:
        """Wait until it is over, or until this is who holds the ledger next."""
        self._waking.acquire()

    def wake(self) -> None:
        """Let whoever waits go on."""
        if self._waking.locked():
            self._waking.release()

    def result(self) -> T:
        """Return what came of it."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class Account:
    """The ledger while it is held.

    Attributes:
        kept_bytes: Bytes of all kept chunks.
        loose_bytes: Chunks being written and in overflow have no more than these.
        reserve_bytes: The reserves of all data sets are no more than these.
    """

    def __init__(self, fd: int, folder: Folder, manifests: Manifests) -> None:
        self._fd = fd
        self._folder = folder
        self._is_changing = self._is_lost = False
        data = os.pread(fd, _USAGE.size, 0)
        is_whole = len(data) == _USAGE.size
        kept_bytes, loose_bytes, reserve_bytes, is_wrong = _USAGE.unpack(data) if is_whole else (0, 0, 0, 1)
        self.kept_bytes: int = kept_bytes
        self.loose_bytes: int = loose_bytes
        self.reserve_bytes: int = reserve_bytes
        if is_wrong:
            self.recount(manifests)

    @contextmanager
    def changing(self, kept_bytes: int = 0, *, loose_bytes: int = 0) -> Iterator[None]:
        """Account for files that appear or go within the with block, by how many bytes that changes both numbers."""
        if not self._is_changing:
            self._write(is_wrong=True)
            self._is_changing = True
        try:
            yield
        except BaseException:
            self._is_lost = True  # what became of them is found out by whoever comes next
            raise
        self.kept_bytes += kept_bytes
        self.loose_bytes += loose_bytes

    @contextmanager
    def growing(self, loose_bytes: int) -> Iterator[None]:
        """Account for a file that appears within the with block beside the kept ones: so many bytes at most.

        They are written down before it is there. After a crash in between they are more than there are, which is
        allowed, so these numbers are never wrong.
        """
        self.loose_bytes += loose_bytes
        self._write(is_wrong=self._is_changing)
        try:
            yield
        except BaseException:
            self.loose_bytes -= loose_bytes
            with contextlib.suppress(OSError):
                self._write(is_wrong=self._is_changing)
            raise

    def set_reserve(self, num_bytes: int) -> None:
        """Account for the reserves of all data sets, which are about to be written down."""
        with self.changing():
            self.reserve_bytes = num_bytes

    def recount(self, manifests: Manifests) -> None:
        """List the folder and write down what is there."""
        self.kept_bytes = self._folder.kept_bytes()
        self.reserve_bytes = sum(manifest.reserve_bytes for manifest in manifests)
        self.relist()
        self._is_lost = False
        self._write(is_wrong=False)

    def relist(self) -> None:
        """List what lies beside the kept chunks; the next change writes it down."""
        self.loose_bytes = sum(
            chunk.size_bytes for chunk in (*self._folder.temporary(), *self._folder.overflow_chunks())
        )

    def settle(self) -> None:
        """Write the numbers down, if they have changed; on a disk that refuses, the next one counts."""
        if self._is_changing and not self._is_lost:
            with contextlib.suppress(OSError):
                self._write(is_wrong=False)

    def _write(self, *, is_wrong: bool) -> None:
        data = _USAGE.pack(self.kept_bytes, self.loose_bytes, self.reserve_bytes, is_wrong)
        self._folder.files.write(self._fd, data, offset=0)


@dataclass
class _Candidates:
    """What may go because no data set in use has it, and the data sets in use at the time of looking."""

    in_use: frozenset[str]
    chunks: deque[ChunkFile]


class Quota:
    """Admits chunks, and evicts others for them. Every method needs the account, that is, the ledger's lock.

    Attributes:
        folder: What lies where.
        locks: Who uses what.
        manifests: The data sets.
        limit_bytes: Of everything in the folder; None is what the disk has.
        num_evicted: Chunks removed to make room.
    """

    def __init__(self, folder: Folder, locks: Locks, manifests: Manifests, *, limit_bytes: int | None) -> None:
        self.folder = folder
        self.locks = locks
        self.manifests = manifests
        self.limit_bytes = limit_bytes
        self.num_evicted = 0
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
        return beside <= free_bytes(self.folder.path)

    def _make_room(self, account: Account, size_bytes: int, *, may_overflow: bool) -> bool:
        if self.limit_bytes is not None and size_bytes > self.limit_bytes:
            raise CacheFullError(
                f"a chunk of {size_bytes:,} bytes can never fit: {self.folder.path} is limited to "
                f"{self.limit_bytes:,} bytes; raise cache_limit, or lower the data set's chunk_size",
                path=self.folder.path,
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
                rank.update(dict.fromkeys(self.manifests.keys(fingerprint), i))
            kept = sorted(self.folder.kept_chunks(), key=lambda chunk: (rank.get(chunk.key, -1), chunk.key))
            self._evict(account, kept, excess)

    def clear_disk(self, account: Account, size_bytes: int) -> int:
        """Evict what may go until the disk has `size_bytes` free, and return how many bytes it has then."""
        self._candidates = None
        for victims in (self._unused(), self._released()):
            lacking = size_bytes - free_bytes(self.folder.path)
            if lacking > 0:
                self._evict(account, victims, lacking)
        return free_bytes(self.folder.path)

    def in_use(self) -> frozenset[str]:
        """Return the data sets that a living process has in use."""
        return frozenset(name for name in self.manifests.fingerprints() if self.locks.is_held(Kind.DATASET, name))

    def discard(self, account: Account, path: Path) -> bool:
        """Remove a chunk file, kept or overflow, and return whether it was there."""
        size_bytes = file_size(path)
        if size_bytes is None:
            return False
        if path.is_relative_to(self.folder.chunks):
            with account.changing(-size_bytes):
                return self.folder.files.remove(path)
        with account.changing(loose_bytes=-size_bytes):
            return self.folder.files.remove(path)

    def _kept_excess(self, account: Account, size_bytes: int) -> int:
        """Return by how many bytes the kept chunks and one more would reach into the reserves."""
        reserve = sum(m.reserve_bytes for name in self.in_use() if (m := self.manifests.get(name)) is not None)
        temporary = self.folder.temporary()
        overflow = sum(chunk.size_bytes for chunk in self.folder.overflow_chunks())
        # On the disk the files being written already have some of their bytes; those still to come are spoken for.
        excess = size_bytes + max(0, reserve - overflow) + _unwritten(temporary) - free_bytes(self.folder.path)
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
        return (chunk for chunk in self.folder.overflow_chunks() if not self.locks.is_held(Kind.PIN, chunk.key))

    def _unused(self) -> Iterator[ChunkFile]:
        """Yield chunks of no data set in use. The listing is kept between calls while the same ones are in use."""
        in_use = self.in_use()
        if self._candidates is None or self._candidates.in_use != in_use:
            self._candidates = _Candidates(in_use, deque(self._find_unused(in_use)))
        while self._candidates.chunks:
            yield self._candidates.chunks.popleft()

    def _find_unused(self, in_use: frozenset[str]) -> list[ChunkFile]:
        needed = {key for fingerprint in in_use for key in self.manifests.keys(fingerprint)}
        opened: dict[str, int] = {}
        for manifest in self.manifests:
            if manifest.fingerprint not in in_use:
                for key in self.manifests.keys(manifest.fingerprint):
                    opened[key] = max(opened.get(key, 0), manifest.opened_ns)
        unused = [chunk for chunk in self.folder.kept_chunks() if chunk.key not in needed]
        # Chunks that no manifest knows were never opened.
        return sorted(unused, key=lambda chunk: (opened.get(chunk.key, 0), chunk.key))

    def _full(self, size_bytes: int, beside: str) -> CacheFullError:
        limit = "" if self.limit_bytes is None else f", limited to {self.limit_bytes:,} bytes,"
        return CacheFullError(
            f"{self.folder.path}{limit} has no room for a chunk of {size_bytes:,} bytes {beside} "
            f"(disk: {free_bytes(self.folder.path):,} bytes free); raise cache_limit, free the disk, or use a "
            f"smaller window",
            path=self.folder.path,
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
