"""Opening a chunk: the file is read in whole the first time a process meets it, and every checksum compared."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Self

from stoker.cache.ahead import Ahead
from stoker.cache.chunk import ChunkHeader, check_arrays, read_header
from stoker.cache.locks import Kind, Lock
from stoker.cache.look import Version, version_of
from stoker.cache.parts import Parts
from stoker.errors import CacheError, ChunkCorruptError

# Checked files by folder and key: which version, and its header. By process, not by store: a second loader need not
# check again, and parsing a header costs as much as all else about opening a chunk.
_checked: dict[tuple[int, int, str], tuple[Version, ChunkHeader]] = {}
# A header takes some 2 kB. Whoever has more chunks than this reads headers again; the oldest are let go first.
_MAX_CHECKED = 16384


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


class Opener:
    """Opens chunks, and discards those that are not what had been published.

    Args:
        parts: Of the folder.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        about = parts.path.stat()
        self._device, self._inode = about.st_dev, about.st_ino

    def open(self, key: str) -> Chunk:
        """Return the chunk, open for reading.

        Raises:
            KeyError: It is not there.
            ChunkCorruptError: It was not what had been published. It has been discarded.
            CacheError: The system cannot open it.
        """
        folder = self._parts.folder
        kept = folder.kept_name(key)
        try:
            fd = os.open(kept, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unreadable(Path(kept), error) from error
        else:
            return self._checked(key, fd, kept, None)
        # Pinned before it is opened: between the two it could be evicted.
        pin = pin_of(self._parts, key)
        overflow = folder.overflow_name(key)
        try:
            fd = os.open(overflow, os.O_RDONLY | os.O_CLOEXEC)
            return self._checked(key, fd, overflow, pin)
        except FileNotFoundError:
            pin.release()
            raise KeyError(key) from None
        except OSError as error:
            pin.release()
            raise _unreadable(Path(overflow), error) from error
        except BaseException:
            pin.release()
            raise

    def note(self, key: str, version: Version, header: ChunkHeader) -> None:
        """Note that a file need not be checked: which one, and what it says about itself."""
        place = self._device, self._inode, key
        _checked.pop(place, None)
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread lets go of the same one
            while len(_checked) >= _MAX_CHECKED:
                del _checked[next(iter(_checked))]
        _checked[place] = (version, header)

    def _checked(self, key: str, fd: int, name: str, pin: Lock | None) -> Chunk:
        was_read = False
        marks = self._parts.marks
        try:
            try:
                about = os.fstat(fd)  # before it is read: what is written meanwhile is not what was checked
                version = version_of(about)
                known, header = _checked.get((self._device, self._inode, key), (None, None))
                if known != version or header is None:
                    ahead = None if marks.holds(key, about) else Ahead(fd, about.st_size)
                    if ahead is not None:
                        ahead.reach(1)  # before the header is read, in pages that would stay small
                    header = read_header(fd, file_bytes=about.st_size)
                    if ahead is not None:
                        check_arrays(fd, header, path=Path(name), ahead=ahead)
                        marks.set(key, about)
                        was_read = True
                    self.note(key, version, header)
            except (ChunkCorruptError, OSError) as error:
                path = Path(name)
                self.discard_corrupt(key, fd, path)
                raise ChunkCorruptError(f"{path} is corrupt and was discarded: {error}", path=path) from error
        except BaseException:
            os.close(fd)
            raise
        return Chunk(fd, header, name, pin, version=version, was_read=was_read)

    def discard_corrupt(self, key: str, fd: int, path: Path) -> None:
        """Remove a chunk, where the name still is the file that `fd` has open: another process may have mended it."""
        parts = self._parts
        if not parts.locks.is_writable:
            return
        parts.marks.drop(key)
        with parts.ledger.open() as account:
            if path.exists() and os.path.samestat(path.stat(), os.fstat(fd)):
                parts.room.discard(account, path)


def pin_of(parts: Parts, key: str) -> Lock:
    """Return a new pin of a chunk; see `Store.pin`."""
    pin = parts.locks.try_lock(Kind.PIN, key, is_shared=True)
    assert pin is not None, "nobody locks a pin exclusively"
    return pin


def _unreadable(path: Path, error: OSError) -> CacheError:
    return CacheError(f"{path} cannot be opened: {error.strerror}", path=path)
