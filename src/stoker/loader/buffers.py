"""Memory that batches are gathered into: blocks, of which a batch takes a run, used again once nobody looks at it.

    block 0   ▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒········████████████········
    block 1   ░░░░░░░░░░··································

Batches differ in size: those with lists do, and an epoch begins with one batch at a time and goes on with several. Out
of blocks each takes what it needs, and the least of memory is ever touched: a run begins at the first gap it fits in.
"""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.fields.spec import CACHE_LINE_BYTES, Array
from stoker.host.huge import memory as memory_in_huge_pages

# A block holds a few groups of batches, which are 24 MiB at most: one with its lists left a quarter of 32 MiB unused. A
# batch that is kept keeps its block, and nothing else.
_BLOCK_BYTES = 64 << 20
# Of memory that a device copies from, where groups are larger, blocks are, too; but the first batch waits for the first
# block, all of which is touched when it is pinned: 0.2 ms a MiB.
_TIMES_PINNED, _FIRST_PINNED = 2, 0.5
# From one look for blocks that nobody needs to the next. Thousands of batches: an epoch may begin with more batches on
# their way than it goes on with, and its beginning should find the memory of the last one.
_TAKES_PER_SWEEP = 1024
# Up to so many bytes the C library has memory that was touched already.
_SMALL_BYTES = 32 << 10


_Place: TypeAlias = tuple[int, int, int]  # number of a block, first byte in it, and behind the last one


class _Block:
    """One piece of memory for many runs, or for one alone, and the gaps in it: ascending, and no two touch."""

    def __init__(self, memory: Array, *, is_shared: bool) -> None:
        self.memory, self.view, self.is_shared = memory, memory.data, is_shared
        self.is_needed = True  # since the last sweep
        self._gaps = [(0, memory.nbytes)]

    def cut(self, num_bytes: int) -> int | None:
        """Take a run from the first gap that is large enough, and return where it begins; None where there is none."""
        for i, (begin, end) in enumerate(self._gaps):
            if end - begin >= num_bytes:
                self._gaps[i : i + 1] = [(begin + num_bytes, end)] if end - begin > num_bytes else []
                return begin
        return None

    def give_back(self, begin: int, end: int) -> None:
        """Make a run a gap, together with those that it touches."""
        i = bisect_left(self._gaps, (begin, end))
        if i < len(self._gaps) and self._gaps[i][0] == end:
            end = self._gaps.pop(i)[1]
        if i and self._gaps[i - 1][1] == begin:
            i -= 1
            begin = self._gaps.pop(i)[0]
        self._gaps.insert(i, (begin, end))


class BufferPool:
    """Memory for batches: a run comes back by itself when the last view of it is gone.

    Every array cut from a buffer, and every torch tensor made of one, holds a reference to it, so the buffer's end says
    that nobody can see it any more. A caller who keeps batches keeps their memory, and the pool makes more; a caller
    who lets them go gets the same, already touched memory again. Fresh memory costs more than the gather itself:
    1.8 million rows/s instead of 7.8 (624-byte rows, design measurements).

    Where its memory is pinned, small buffers must lie in blocks, too. Else these are the C library's, which are faster,
    and one that is kept keeps nothing else. A block has `block_bytes`, twice as many of pinned memory; once in
    `takes_per_sweep` takes, blocks that nobody needs go.
    """

    def __init__(
        self,
        allocate: Callable[[int], Array] = memory_in_huge_pages,
        *,
        is_pinned: bool = False,
        block_bytes: int = _BLOCK_BYTES,
        takes_per_sweep: int = _TAKES_PER_SWEEP,
    ) -> None:
        self._allocate, self._takes_per_sweep = allocate, takes_per_sweep
        self._least_bytes = 0 if is_pinned else _SMALL_BYTES
        self._block_bytes = block_bytes * _TIMES_PINNED if is_pinned else block_bytes
        self._first_bytes = int(block_bytes * _FIRST_PINNED) if is_pinned else block_bytes
        self._lock = threading.Lock()
        self._blocks: dict[int, _Block] = {}
        self._num_made = 0
        self._num_takes = 0  # since the last sweep
        # Runs in use, by the id of a weak reference to the buffer of each, which must live to tell its end.
        self._runs: dict[int, tuple[weakref.ref[Array], _Place]] = {}
        # What came back. Whoever lets go of the last view of a run, in whatever thread, perhaps with the lock in hand,
        # leaves a note here and no more.
        self._returned: deque[weakref.ref[Array]] = deque()
        self._note_return = self._returned.append

    def take(self, num_bytes: int) -> Array:
        """Return a buffer of at least `num_bytes` that nobody else sees, uint8, its content undefined."""
        if num_bytes < self._least_bytes:
            memory = np.empty(num_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
            address = addressof(c_char.from_buffer(memory.data))  # `memory.ctypes.data` takes three times as long
            begin = -address % CACHE_LINE_BYTES
            return memory[begin : begin + num_bytes]
        # In steps of a thirty-second to a sixty-fourth, so that what is nearly alike fits into the same gaps.
        step = max(CACHE_LINE_BYTES, 1 << num_bytes.bit_length() >> 6)
        size = -(-max(num_bytes, 1) // step) * step
        with self._lock:
            self._num_takes += 1
            if self._num_takes > self._takes_per_sweep:
                self._sweep()
            place = self._take_back(size) or self._cut(size)
            number, begin, end = place
            block = self._blocks[number]
            block.is_needed = True
            # By way of a memoryview: views of a plain slice would refer to the whole block, and not to the slice.
            buffer: Array = np.frombuffer(block.view[begin:end], dtype=np.uint8)
            run = weakref.ref(buffer, self._note_return)
            self._runs[id(run)] = run, place
            return buffer

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike = np.uint8) -> Array:
        """Return an array in a buffer that nobody else sees, its content undefined."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.take(num_bytes)[:num_bytes].view(dtype).reshape(shape)

    def _take_back(self, size: int) -> _Place | None:
        """Make gaps of what came back; if that is one run of this size, return it, which is as good as new."""
        is_lone = len(self._returned) == 1
        while self._returned:
            found = self._runs.pop(id(self._returned.popleft()), None)
            if found is None:  # its block was let go of
                continue
            number, begin, end = place = found[1]
            if is_lone and end - begin == size:
                return place
            self._blocks[number].give_back(begin, end)
        return None

    def _cut(self, size: int) -> _Place:
        shares = size <= self._block_bytes // 2
        for number, block in self._blocks.items():
            # A block for one run alone is not for small ones, which would keep the next large one from it.
            suits = block.is_shared if shares else not block.is_shared and block.memory.nbytes <= 2 * size
            begin = block.cut(size) if suits else None
            if begin is not None:
                return number, begin, begin + size
        # A little more than one run needs: the next of its kind may be a little larger.
        block_bytes = self._block_bytes if self._num_made or size > self._first_bytes else self._first_bytes
        number, self._num_made = self._num_made, self._num_made + 1
        memory = self._allocate(block_bytes if shares else size + size // 16)
        self._blocks[number] = block = _Block(memory, is_shared=shares)
        block.cut(size)
        return number, 0, size

    def _sweep(self) -> None:
        """Let go of blocks that nobody looks at and that no run was taken of since the last sweep."""
        self._num_takes = 0
        self._take_back(0)
        in_use = {place[0] for _, place in self._runs.values()}
        for number, block in list(self._blocks.items()):
            if number not in in_use and not block.is_needed:
                del self._blocks[number]
            block.is_needed = False

    def release(self) -> None:
        """Let go of all memory but what somebody looks at, which ends with its last view. There may be takes after."""
        with self._lock:
            self._blocks.clear()
            self._runs.clear()
            self._returned.clear()
