"""Chunks that are held open: those of a window while it is read, and those of the window after it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stoker.cache.format import ChunkHeader
from stoker.errors import StokerError


class Held(NamedTuple):
    """A chunk that is held open.

    Attributes:
        fd: Open for reading.
        header: What lies where.
        missing_bytes: What of it is not in the page cache.
    """

    fd: int
    header: ChunkHeader
    missing_bytes: int


class HeldAhead:
    """Chunks that were opened before their window's turn came.

    To open a file takes microseconds, and to get the interpreter's lock back from threads that make batches, ten times
    as long: 3 to 5 ms for a window's files, in which a disk could read 9 MB. While the window before it is read, they
    take none of the disk's time.

    Safe to use from several threads.

    Args:
        hold: Opens a chunk.
    """

    def __init__(self, hold: Callable[[int], Held]) -> None:
        self._hold = hold
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._is_closed = False

    def holds_any(self, chunks: Iterable[int]) -> bool:
        """Return whether one of these chunks is held."""
        return not self._held.keys().isdisjoint(chunks)

    def take(self, chunk: int) -> Held | None:
        """Return a chunk that is held, to be closed by whoever takes it; None if it is not."""
        with self._lock:
            return self._held.pop(chunk, None)

    def fill(self, chunks: Iterable[int]) -> None:
        """Open chunks, up to the first that cannot be: its error belongs to its turn."""
        for chunk in chunks:
            if chunk in self._held:
                continue
            try:
                held = self._hold(chunk)
            except (KeyError, StokerError, OSError):
                return
            with self._lock:
                is_kept = not self._is_closed and self._held.setdefault(chunk, held) is held
            if not is_kept:
                os.close(held.fd)

    def close(self) -> None:
        """Close what is held, and hold nothing any more. Harmless when called again."""
        with self._lock:
            self._is_closed = True
            held, self._held = self._held, {}
        for one in held.values():
            os.close(one.fd)
