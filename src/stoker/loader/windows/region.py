"""One range of addresses, in which files lie side by side: mapped, or read."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from stoker.fields.spec import Array
from stoker.host.huge import ADVICE, HUGE_BYTES, PAGE_BYTES
from stoker.host.maps import MADV_POPULATE_READ, MAP_FIXED, libc, map_at, memory_at
from stoker.loader.windows.memory import Memories
from stoker.loader.windows.reading import FilePart, read

# Entered in one call: some 2 milliseconds where it lies in memory, which is how long whoever stops it may wait.
_PIECE_BYTES = 64 << 20
# Pages looked at to see whether all of a range lies in memory, and at most in one file of it.
NUM_SAMPLED, _NUM_SAMPLED_EACH = 64, 4
# Gaps between files that are entered with them: one call is cheaper than what a gap costs.
_MAX_GAP_BYTES = 64 << 10

CAN_MAP_SIDE_BY_SIDE = sys.platform in ("linux", "darwin")


def next_place(behind: int, size_bytes: int, *, is_mapped: bool = True) -> int:
    """Return where a file goes: the first place not before `behind` at which its huge pages stay huge, if it has any.

    Places are counted from a huge page's border.
    """
    step = HUGE_BYTES if is_mapped and size_bytes >= HUGE_BYTES else PAGE_BYTES
    return -(-behind // step) * step


@cache
def _mincore() -> Any:
    """Return the call that looks at a page, which keeps the interpreter's lock: to get it back takes longer.

    In a loop that lets go of torch tensors even much longer: it gives the lock up for each tensor, and takes it again
    before anybody else is awake.
    """
    mincore = ctypes.PyDLL(None).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return mincore


class Region:
    """A range of addresses that files are placed in; seen as one array of bytes.

        reserve   ┆ . . . . . . . . . . . . . . . . ┆   addresses without memory, zero where read
        place     ┆ chunk 7 ┆ . chunk 2    ┆ chunk 5 ┆   the page cache itself, nothing is copied

    Stitched like this, random rows of many files are one `np.take` on one array. Where files cannot be mapped at a
    given address, or shall not be, the range is plain memory and `place` reads into it: the same layout. A descriptor
    that reads past the page cache (`O_DIRECT`) is read from as such.

    Whoever holds `bytes` or a view of it must let go before `close`: afterwards the addresses lead nowhere, or to
    other files.

    Args:
        size_bytes: Size of the range, rounded up to whole pages.
        is_mapped: False for plain memory; None for what the platform can.
        memories: Where plain memory comes from, and goes when it is closed.
    """

    def __init__(self, size_bytes: int, *, is_mapped: bool | None = None, memories: Memories | None = None) -> None:
        self.size_bytes = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
        # A page more: loops that copy lists by whole lines read up to 64 bytes behind a list, which may be the last.
        with_room = self.size_bytes + PAGE_BYTES
        self.is_mapped = CAN_MAP_SIDE_BY_SIDE if is_mapped is None else is_mapped
        self._placed: list[tuple[int, int]] = []
        self._memories = Memories() if memories is None else memories
        self._memory: Array | None = None
        self._address = 0
        self.bytes: Array
        if self.is_mapped:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            # Readable, as zeros: pages that are only read cost no memory and are not accounted for.
            # Places are counted from a huge page's border.
            self._reserved_bytes = with_room + (HUGE_BYTES if self.size_bytes >= HUGE_BYTES else 0)
            self._reserved = map_at(None, self._reserved_bytes, mmap.PROT_READ, flags, -1, 0)
            self._address = self._reserved
            if self._reserved_bytes > with_room:
                self._address = -(-self._reserved // HUGE_BYTES) * HUGE_BYTES
            self.bytes = memory_at(self._address, self.size_bytes)
        else:
            self._memory = self._memories.take(with_room)
            self.bytes = self._memory[: self.size_bytes]

    def place(self, parts: Sequence[FilePart], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Put parts of open files where they belong in the range.

        The file descriptors may be closed afterwards, and the files removed: what is mapped stays readable. What
        follows in the last page, in the file as in the range, is written too.

        Args:
            parts: Of files; `at` counts from the beginning of the range.
            meanwhile: Called once while they are read; not where they are mapped.

        Raises:
            OSError: The system refused (too many maps, an I/O error, ...).
        """
        parts = [part for part in parts if part.num_bytes]
        for _, offset, num_bytes, at in parts:
            if offset % PAGE_BYTES or at % PAGE_BYTES or at + num_bytes > self.size_bytes:
                raise ValueError(f"cannot place {num_bytes} bytes from {offset} at {at} of {self.size_bytes}")
        if not self.is_mapped:
            read(parts, self.bytes, meanwhile)
            return
        for fd, offset, num_bytes, at in parts:
            map_at(self._address + at, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, fd, offset)
            self._placed.append((at, num_bytes))
            if num_bytes >= HUGE_BYTES and ADVICE is not None:
                # What has to come from the disk comes in huge pages, too.
                libc().madvise(self._address + at, num_bytes, ADVICE)

    def is_in_memory(self) -> bool:
        """Return whether what was placed seems to lie in memory, by a look at some of its pages."""
        return self.are_in_memory(self._placed)

    def are_in_memory(self, extents: list[tuple[int, int]]) -> bool:
        """Return whether some placed files seem to lie in memory.

        Args:
            extents: Where each begins in the range, and its bytes.
        """
        if not self.is_mapped:
            return True
        seen = ctypes.create_string_buffer(1)
        mincore = _mincore()
        num_each = max(1, min(_NUM_SAMPLED_EACH, NUM_SAMPLED // max(1, len(extents))))
        for i in range(0, len(extents), -(-len(extents) // NUM_SAMPLED) or 1):
            at, num_bytes = extents[i]
            last = -(-num_bytes // PAGE_BYTES) - 1
            for page in {j * last // max(1, num_each - 1) for j in range(num_each)}:
                if mincore(self._address + at + page * PAGE_BYTES, PAGE_BYTES, seen) or not ord(seen.raw) & 1:
                    return False
        return True

    def settle(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Read what was placed into memory and enter its pages, so that nobody has to stop at them later.

        Costs about 25 milliseconds a gigabyte that lies in memory already. Threads may read meanwhile.

        Args:
            goes_on: Asked every few milliseconds; False ends it early.
        """
        self.enter(self._placed, goes_on)

    def enter(self, extents: list[tuple[int, int]], goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Read some placed files into memory, and return whether it was not ended early; see `settle`.

        Args:
            extents: Where each begins in the range, and its bytes.
            goes_on: As there.
        """
        if not self.is_mapped:
            return True
        for first, last in _joined(extents):
            for begin in range(first, last, _PIECE_BYTES):
                if not goes_on():
                    return False
                piece = min(_PIECE_BYTES, last - begin)
                if libc().madvise(self._address + begin, piece, MADV_POPULATE_READ):
                    libc().madvise(self._address + begin, piece, mmap.MADV_WILLNEED)  # an older system: read, at least
        return True

    def close(self) -> None:
        """Give the addresses back. Harmless when called again."""
        self.bytes = np.empty(0, dtype=np.uint8)
        if self._address:
            libc().munmap(self._reserved, self._reserved_bytes)
            self._address = 0
        if self._memory is not None:
            self._memories.give(self._memory)
            self._memory = None


def _joined(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return first bytes and ends of ranges, small gaps included: each is one call to the system or more."""
    joined: list[tuple[int, int]] = []
    for at, num_bytes in sorted(extents):
        end = at + -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        if joined and at - joined[-1][1] <= _MAX_GAP_BYTES:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((at, end))
    return joined
