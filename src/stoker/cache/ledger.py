"""The bytes of a cache as a few numbers in a file, under one lock: publishing a chunk does not list the folder."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar, cast

from stoker.cache.files import Files
from stoker.cache.folder import Folder
from stoker.cache.locks import Locks
from stoker.cache.manifest import Manifests
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

    def __init__(self, folder: Folder, files: Files, locks: Locks, manifests: Manifests) -> None:
        self._folder = folder
        self._files = files
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
            account = Account(self._fd, self._files, self._folder, self._manifests)
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

    def __init__(self, fd: int, files: Files, folder: Folder, manifests: Manifests) -> None:
        self._fd = fd
        self._files = files
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
        self._files.write(self._fd, data, offset=0)
