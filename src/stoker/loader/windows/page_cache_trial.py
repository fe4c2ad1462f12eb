"""Whether chunks that were pushed out of the page cache would stay there now: tried with one window of them.

    epoch     1            2             3
    windows   T r r r r    r r b b b     …           r: read past the page cache
              ↑            ↑ each of T's chunks was still there when its window came
              one window goes through it             b: brought back

Bringing a window back costs several times the processor time of reading past the page cache, and pushes out something
else where memory is short. Whatever took the memory may have ended, though. So one window shows whether all would stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

# So much of what was tried has to be found there again. Not all of it comes back to one of several ranks soon.
_ENOUGH = 1 / 4


class PageCacheTrial:
    """Says which windows are brought back into the page cache."""

    def __init__(self) -> None:
        self._num_gone: Counter[int] = Counter()  # times that a chunk was not there any more
        self._next = 1  # then 2, 4, 8, …: whatever empties the page cache every time costs less and less
        self._brought: set[int] = set()  # chunks that should be there: they were brought back
        self._num_tried = self._num_found = 0
        self._stays = False

    def see(self, chunks: Collection[int], gone: Collection[int]) -> None:
        """Look at a window's chunks.

        Args:
            chunks: Of the window.
            gone: Those of them that are not in the page cache.
        """
        self._num_gone.update(gone)
        seen = self._brought.intersection(chunks)
        if not seen.isdisjoint(gone):
            self._stays = False
            self._brought.clear()
        elif seen and not self._stays:
            self._num_found += len(seen)
            self._stays = self._num_found >= _ENOUGH * self._num_tried

    def is_due(self, gone: Collection[int]) -> bool:
        """Return whether to bring back a window of which these chunks are gone, if memory has room for all."""
        return self._stays or (
            not self._brought and min((self._num_gone[chunk] for chunk in gone), default=0) >= self._next
        )

    def bring_back(self, gone: Collection[int]) -> None:
        """Note that these chunks are brought back."""
        if not self._stays:
            self._num_tried, self._num_found = len(gone), 0
            self._next *= 2
        self._brought.update(gone)
