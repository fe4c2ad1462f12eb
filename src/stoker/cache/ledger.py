"""The bytes of a cache as a few numbers in a file, under one lock: publishing a chunk does not list the folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.cache.files import Files
from stoker.cache.folder import Folder
from stoker.cache.locks import Locks
from stoker.cache.manifest import Manifests
from stoker.errors import CacheFullError

# A crash may leave the first half of it: what is kept, and whether that is wrong. The bounds are raised by a write of
# their own before they have to be higher.
_USAGE = struct.Struct("<qqqq")


class Ledger:
    """How many bytes are kept, exactly, and how many may be needed beside them, at most.

    Before a kept chunk appears or goes, the file says that the number is about to be wrong; whoever comes after a crash
    in between lists the folder once. The bounds only have to be high enough: what a crash leaves in them goes when the
    folder is listed next.
    """

    def __init__(self, folder: Folder, files: Files, locks: Locks, manifests: Manifests) -> None:
        self._folder = folder
        self._files = files
        self._locks = locks
        self._manifests = manifests

    @contextmanager
    def open(self) -> Iterator[Account]:
        """Hold the ledger, for moments.

        Blocks: while another thread or process holds it.
        """
        with self._locks.ledger():
            try:
                fd = os.open(self._folder.usage, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise CacheFullError(f"{self._folder.usage}: {error.strerror}", path=self._folder.path) from error
            try:
                data = os.pread(fd, _USAGE.size, 0)
                is_whole = len(data) == _USAGE.size
                kept_bytes, is_wrong, loose_bytes, reserve_bytes = _USAGE.unpack(data) if is_whole else (0, 1, 0, 0)
                account = Account(fd, self._files, kept_bytes, loose_bytes, reserve_bytes)
                if is_wrong:
                    account.recount(self._folder, self._manifests)
                yield account
            finally:
                os.close(fd)


class Account:
    """The ledger while it is held.

    Attributes:
        kept_bytes: Bytes of all kept chunks.
        loose_bytes: Chunks being written and in overflow have no more than these.
        reserve_bytes: The reserves of all data sets are no more than these.
    """

    def __init__(self, fd: int, files: Files, kept_bytes: int, loose_bytes: int, reserve_bytes: int) -> None:
        self.kept_bytes = kept_bytes
        self.loose_bytes = loose_bytes
        self.reserve_bytes = reserve_bytes
        self._fd = fd
        self._files = files

    @contextmanager
    def changing(self, change_bytes: int, *, loose_bytes: int = 0) -> Iterator[None]:
        """Account for a kept chunk that appears or goes within the with block, from so many loose bytes."""
        self._write(is_wrong=True)
        yield
        self.kept_bytes += change_bytes
        self.loose_bytes -= loose_bytes
        self._write(is_wrong=False)

    def add_loose(self, num_bytes: int) -> None:
        """Account for a file that is about to be made beside the kept chunks."""
        self.loose_bytes += num_bytes
        self._write(is_wrong=False)

    def drop_loose(self, num_bytes: int) -> None:
        """Account for a file beside the kept chunks that is gone."""
        self.add_loose(-num_bytes)

    def set_reserve(self, num_bytes: int) -> None:
        """Account for the reserves of all data sets, before they are written down if they are more."""
        if num_bytes != self.reserve_bytes:
            self.reserve_bytes = num_bytes
            self._write(is_wrong=False)

    def recount(self, folder: Folder, manifests: Manifests) -> None:
        """List the folder and write down what is there."""
        self.kept_bytes = sum(chunk.size_bytes for chunk in folder.kept_chunks())
        self.relist(folder)
        self.reserve_bytes = sum(manifest.reserve_bytes for manifest in manifests)
        self._write(is_wrong=False)

    def relist(self, folder: Folder) -> None:
        """List what lies beside the kept chunks; the next change writes it down."""
        self.loose_bytes = sum(chunk.size_bytes for chunk in (*folder.temporary(), *folder.overflow_chunks()))

    def _write(self, *, is_wrong: bool) -> None:
        data = _USAGE.pack(self.kept_bytes, is_wrong, self.loose_bytes, self.reserve_bytes)
        self._files.write(self._fd, data, offset=0)
