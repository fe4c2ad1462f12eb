"""A file written from front to back, a huge page at a time.

pieces   ┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆      as they are made, while they lie in the processor's cache
calls    ┆     2 MiB     ┆ 2 MiB     one each: for less, the page cache takes small pages
"""

from __future__ import annotations

import threading

import numpy as np

from stoker.cache.files import Files
from stoker.huge import HUGE_BYTES
from stoker.spec import Array

_kept = threading.local()


class Blocks:
    """Collects what is written until it fills a huge page.

    Args:
        fd: Open for writing.
        files: Writes.
        begin: Where the first byte goes. What lies before it is written as zeros, up to a huge page's border, until
            `close` is told what it is.

    Attributes:
        end: Where the next byte goes.
    """

    def __init__(self, fd: int, files: Files, *, begin: int) -> None:
        self._fd = fd
        self._files = files
        self._block = _block()
        self._written = begin // HUGE_BYTES * HUGE_BYTES
        self._block[: begin - self._written] = 0
        self.end = begin

    def add(self, data: bytes | memoryview) -> None:
        """Write bytes behind what there is."""
        rest = memoryview(data)
        while rest:
            at = self.end - self._written
            piece = rest[: HUGE_BYTES - at]
            self.end += len(piece)
            if at == 0 and len(piece) == HUGE_BYTES:
                self._files.write(self._fd, piece, offset=self._written)
                self._written = self.end
            else:
                self._block[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                if at + len(piece) == HUGE_BYTES:
                    self.flush()
            rest = rest[len(piece) :]

    def room(self) -> Array:
        """Return what is left of the huge page, to be filled in place: it is written once `fill` has said so.

        A view, good until the next call: bytes of earlier pages lie in it.
        """
        return self._block[self.end - self._written :]

    def fill(self, num_bytes: int) -> None:
        """Write so many bytes of `room` behind what there is."""
        self.end += num_bytes
        if self.end - self._written == HUGE_BYTES:
            self.flush()

    def skip_to(self, end: int) -> None:
        """Write zeros up to there."""
        self.add(bytes(end - self.end))

    def close(self, beginning: bytes) -> None:
        """Write what was collected, and last what lies before it all: in one call, where it shares a huge page.

        Args:
            beginning: The first bytes of the file, as many as `begin` left room for.
        """
        if self._written == 0:
            self._block[: len(beginning)] = np.frombuffer(beginning, dtype=np.uint8)
            self.flush()
        else:
            self.flush()
            self._files.write(self._fd, beginning, offset=0)

    def flush(self) -> None:
        """Write what was collected: what comes behind it in the same huge page gets small ones."""
        if self.end > self._written:
            self._files.write(self._fd, self._block.data[: self.end - self._written], offset=self._written)
            self._written = self.end


def _block() -> Array:
    """Return this thread's block: fresh memory costs more than filling it."""
    kept: Array | None = getattr(_kept, "block", None)
    if kept is None:
        kept = _kept.block = np.empty(HUGE_BYTES, dtype=np.uint8)
    return kept
