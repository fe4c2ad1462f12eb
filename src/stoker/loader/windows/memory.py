"""Memory for windows that are read instead of mapped: taken from the system once, used by one window after the other.

window    0   1   2   3   4   5
memory    a   b   a   b   a   b       each is read while the one before it is used

A page that is touched for the first time costs the processor as much as reading it ten times (8 to 10 microseconds on
machines that get their memory from a host), a page that is used again costs nothing.
"""

from __future__ import annotations

import threading

from stoker.fields.spec import Array
from stoker.host import huge

# Memories that are in use at one time where nobody is slow: one window is used, the next one read.
_NUM_WANTED = 2
# How long to wait for one of them before another is taken. The window before the last one is given back a few batches
# after the last one is first used; a loop that takes longer for these does not wait for windows.
_WAIT_S = 0.05
# Windows in a row that needed no memory, after which what is free goes back: where only some of a data set lies in the
# page cache, windows that are mapped and windows that are read take turns.
_MAX_UNUSED = 16
# Windows differ in size. Addresses beyond what is read cost nothing.
_ROOM = 1.25


class Memories:
    """Gives memory, and takes it back to give it again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: list[Array] = []
        self._num_given = 0
        self._num_needed = 0
        self._num_unused = 0

    def take(self, size_bytes: int) -> Array:
        """Return memory of at least so many bytes: uint8, from a page's border on, with whatever lay there before.

        Blocks: for moments, where as much as is wanted at one time is given already.
        """
        with self._changed:
            self._num_unused = 0
            if self._num_given >= _NUM_WANTED and not self._free:
                self._changed.wait(_WAIT_S)
            self._num_given += 1
            self._num_needed = max(self._num_needed, self._num_given)
            fitting = [memory for memory in self._free if len(memory) >= size_bytes]
            if fitting:
                # Not `list.remove`, which would compare arrays.
                self._free = [memory for memory in self._free if memory is not fitting[0]]
                return fitting[0]
            self._free.clear()  # too small for what is needed now
        # Read into whole huge pages, a disk gives 2.1 to 2.6 GB/s here, into pages of 4 KiB 1.3 to 1.8.
        return huge.memory(int(size_bytes * _ROOM))

    def give(self, memory: Array) -> None:
        """Take memory back; nobody may look at it any more."""
        with self._changed:
            self._num_given -= 1
            # As many as were ever in use at one time: one that were let go of would be missed soon, and cost its pages.
            if self._num_given + len(self._free) < self._num_needed:
                self._free.append(memory)
            self._changed.notify()

    def rest(self) -> None:
        """Say that a window needed none: after many in a row, the system gets it back."""
        with self._changed:
            self._num_unused += 1
            if self._num_unused >= _MAX_UNUSED:
                self._free.clear()

    def clear(self) -> None:
        """Give the system back what is not in use."""
        with self._changed:
            self._free.clear()

    @property
    def num_free(self) -> int:
        """Memories that wait to be used again."""
        return len(self._free)
