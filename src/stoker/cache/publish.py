"""Publishing a chunk: room is made, it is written aside and renamed, so that it is there whole or not at all.

Nothing is synced to disk. A killed process cannot harm a chunk: what it had written is in the kernel's hands, and the
rename comes last. A power failure can: the name may survive where the bytes did not. Length and checksums find that
when the chunk is first opened, and it is built again; syncing every chunk would cost every build what a power failure
costs once.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading

from stoker.cache.failures import sweep_failures
from stoker.cache.files import NO_ROOM
from stoker.cache.folder import file_size
from stoker.cache.ledger import Account
from stoker.cache.locks import Kind
from stoker.cache.look import version_of
from stoker.cache.opened import Opener
from stoker.cache.parts import Parts
from stoker.cache.write import PreparedChunk
from stoker.errors import CacheError, CacheFullError

_temporary_numbers = itertools.count()


class Publisher:
    """Writes chunks, each whole or not at all.

    Args:
        parts: Of the folder.
        opener: Is told what was published, which it need not check.
        is_temporary: Whether nothing is noted for the next process.
    """

    def __init__(self, parts: Parts, opener: Opener, *, is_temporary: bool) -> None:
        self._parts = parts
        self._opener = opener
        self._is_temporary = is_temporary
        self._mutex = threading.Lock()
        self._named = (-1, "")
        self._tmp = str(parts.folder.tmp)

    def publish(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        """Write a chunk; see `Store.publish`."""
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self._parts.unwritable(error) from error
            self._publish_on_full_disk(key, prepared, may_overflow=may_overflow)

    def check_writable(self) -> None:
        """Raise where chunks cannot be published; see `Store.check_writable`."""
        if not self._parts.locks.is_writable:
            path = self._parts.path
            raise CacheError(
                f"{path} is not writable and lacks a chunk; use a folder this user may write to, or fill it first",
                path=path,
            )

    def sweep(self) -> None:
        """Remove what killed processes left, and count what is kept, where that is limited.

        Elsewhere nobody asks how much it is, and thousands of chunks take longer to look at than the first batch takes.
        """
        parts = self._parts
        with parts.ledger.open() as account:
            for path in parts.folder.tmp.iterdir():
                lock = parts.locks.try_lock(Kind.TEMPORARY, path.stem.rpartition(".")[2].rpartition("-")[0])
                if lock is not None:
                    with lock:
                        parts.files.remove(path)
            for chunk in parts.folder.overflow_chunks():
                if parts.folder.kept_path(chunk.key).exists():  # killed between keeping it and this
                    parts.files.remove(chunk.path)
            sweep_failures(parts.folder.failed, parts.files)
            if parts.room.limit_bytes is None:
                with account.changing():
                    account.relist()
            else:
                account.recount(parts.manifests)

    def writer(self) -> str:
        """Return this process's name as a writer, locked: who finds a file of it without its lock knows it is dead."""
        with self._mutex:
            pid, name = self._named
            if pid != os.getpid():
                name = f"{os.getpid()}x{secrets.token_hex(4)}"
                lock = self._parts.locks.try_lock(Kind.TEMPORARY, name)
                assert lock is not None, "the name is new"
                self._named = os.getpid(), name
            return name

    def _publish_on_full_disk(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        """Make room on the disk and try once more."""
        parts = self._parts
        with parts.ledger.open() as account:
            num_free = parts.room.clear_disk(account, prepared.size_bytes)
        try:
            self._publish(key, prepared, may_overflow=may_overflow)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise parts.unwritable(error) from error
            raise CacheFullError(
                f"the disk of {parts.path} is full: a chunk needs {prepared.size_bytes:,} bytes, {num_free:,} are "
                f"free, and no chunk may be evicted; free the disk, or give a cache_limit that leaves room",
                path=parts.path,
            ) from error

    def _publish(self, key: str, prepared: PreparedChunk, *, may_overflow: bool) -> None:
        self.check_writable()
        parts = self._parts
        fd, aside, is_kept = parts.ledger.share(
            lambda account: self._begin(account, key, prepared.size_bytes, may_overflow=may_overflow)
        )
        try:
            try:
                # Its checksums were taken from what was written a moment ago: nothing to compare them with.
                header = prepared.write(fd, parts.files)
                version = version_of(os.fstat(fd))
                self._opener.note(key, version, header)
            finally:
                os.close(fd)
            parts.ledger.share(lambda account: self._place(account, key, aside, prepared.size_bytes, is_kept=is_kept))
        except BaseException:
            parts.files.remove(aside)
            raise
        if not self._is_temporary:
            parts.marks.set_later(key, parts.folder.kept_name(key), version)

    def _begin(self, account: Account, key: str, size_bytes: int, *, may_overflow: bool) -> tuple[int, str, bool]:
        """Return a new file for a chunk, open, where it lies, and whether it is to be kept."""
        is_kept = self._parts.room.admit(account, size_bytes, may_overflow=may_overflow)
        name = f"{key}.{self.writer()}-{next(_temporary_numbers)}{'.kept' if is_kept else '.overflow'}"
        aside = f"{self._tmp}/{name}"
        with account.growing(size_bytes):
            # Made at its full length, so that it counts for who lists the folder.
            return self._parts.files.create(aside, size_bytes=size_bytes), aside, is_kept

    def _place(self, account: Account, key: str, aside: str, size_bytes: int, *, is_kept: bool) -> None:
        folder, files = self._parts.folder, self._parts.files
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
