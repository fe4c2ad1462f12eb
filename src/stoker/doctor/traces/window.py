"""A stretch of a file in memory that moves on, for a reader that may need more before it can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from stoker._native import skip_json_value
from stoker.doctor.traces.inflate import TraceBytes

# Two blocks of the source: what is left of one, and the next.
_ROOM_BYTES = 8 << 20


class ByteWindow:
    """Bytes `[at, stop)` of `data`, and more on demand.

    Args:
        source: Where they come from.
        on_bytes: Told how many of the file's bytes were read, of how many.
    """

    def __init__(self, source: TraceBytes, *, on_bytes: Callable[[int, int], None] | None = None) -> None:
        self._source = source
        self._blocks: Iterator[bytes] = iter(source)
        self._on_bytes = on_bytes
        self.data: npt.NDArray[np.uint8] = np.empty(_ROOM_BYTES, np.uint8)
        self.at = 0
        self.stop = 0
        self.is_last = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left: here, and in the file as far as it was read."""
        return self.at >= self.stop

    def more(self) -> bool:
        """Take one more block in; False where there is none."""
        if self.is_last:
            return False
        block = next(self._blocks, None)
        if block is None:
            self.is_last = True
            return False
        if self._on_bytes is not None:
            self._on_bytes(self._source.read_bytes, self._source.size_bytes)
        left = self.stop - self.at
        if self.at and left + len(block) > self.data.size - self.stop:
            self.data[:left] = self.data[self.at : self.stop].copy()
            self.at, self.stop = 0, left
        if self.stop + len(block) > self.data.size:
            grown = np.empty(max(2 * self.data.size, self.stop + len(block)), np.uint8)
            grown[: self.stop] = self.data[: self.stop]
            self.data = grown
        self.data[self.stop : self.stop + len(block)] = np.frombuffer(block, np.uint8)
        self.stop += len(block)
        return True

    def peek(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end, and stay."""
        while self.stop - self.at < num_bytes and self.more():
            pass
        return self.data[self.at : min(self.at + num_bytes, self.stop)].tobytes()

    def skip(self, num_bytes: int) -> None:
        """Go on by bytes that `peek` or `next_char` has shown."""
        self.at += num_bytes

    def next_char(self, *, also: bytes = b"") -> bytes:
        """Go to the next character that is not white space (or one of `also`) and return it, b"" at the end."""
        space = b" \t\r\n" + also
        while True:
            while self.at < self.stop:
                char = self.data[self.at]
                if char not in space:
                    return bytes([char])
                self.at += 1
            if not self.more():
                return b""

    def skip_to_next_line(self) -> bool:
        """Go behind damage, False at the end."""
        while True:
            here = np.flatnonzero(self.data[self.at : self.stop] == ord("\n"))
            if here.size:
                self.at += int(here[0]) + 1
                return True
            self.at = self.stop
            if not self.more():
                return False

    def take_value(self, *, limit: int) -> bytes | None:
        """Return the JSON value here and go behind it; None where it does not end.

        A value of more than `limit` bytes is skipped and comes back empty.
        """
        while True:
            stop = skip_json_value(self.data, self.at, self.stop)
            if stop >= 0:
                text = self.data[self.at : stop].tobytes() if stop - self.at <= limit else b""
                self.at = stop
                return text
            if stop == -2 or not self.more():
                return None
