"""Reading a file ahead of whoever checks it, by huge pages, as long as these come cheaply.

What reads a file first decides in which pages it lies from then on, and the system's own reading ahead takes small
ones, the more so the less it reads ahead. So a cache that is used again after the machine was started would have lost
its huge pages (docs/decisions/0014).

    bring in   ┆     8 MiB     ┆     8 MiB     ┆
    read       ┆ 1 ┆ 1 ┆ 1 ┆ …                      how long the processor takes for these says what the pages cost
"""

from __future__ import annotations

import threading
import time

from stoker.huge import HUGE_BYTES, bring_in

_BLOCK_BYTES = 8 << 20
# Less of what was brought in is read a processor second where the host gives each page when it is first touched: 0.5
# GB/s there, 4 to 6 where pages are at hand. Small pages are cheaper then.
_LEAST_BYTES_S = 1.5e9

_costs_much = threading.Event()  # found out once a process


class Ahead:
    """The part of a file that has been brought in.

    Args:
        fd: Open for reading.
        size_bytes: Of the file.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self._size_bytes = size_bytes
        self._end = 0
        self._cpu_s = 0.0

    def reach(self, end: int) -> None:
        """Bring in what lies before `end`, if it has not been: called by the thread that reads, before it does."""
        while self._end < min(end, self._size_bytes) and self._size_bytes >= HUGE_BYTES and not _costs_much.is_set():
            if self._end and _LEAST_BYTES_S * (time.thread_time() - self._cpu_s) > _BLOCK_BYTES:
                _costs_much.set()
                return
            bring_in(self._fd, begin=self._end, num_bytes=min(_BLOCK_BYTES, self._size_bytes - self._end))
            self._end += _BLOCK_BYTES
            self._cpu_s = time.thread_time()
