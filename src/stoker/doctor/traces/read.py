"""Reads a trace of torch.profiler, in one pass and in memory of about a tenth of its size."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stoker._native import TraceScanner, find_trace_event, skip_json_value
from stoker.doctor.traces.collect import Collector
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import NAMES, EventNames
from stoker.errors import StokerError

# Values of the header that are of use; others can be large ("stackFrames") and are skipped.
_HEADER = {"deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
_MAX_HEADER_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
# A broken event is given up on when its end is not found within so many bytes.
_MAX_EVENT_BYTES = 32 << 20
# Large enough that a call costs nothing beside its bytes, small enough that memory stays bounded.
_BLOCK_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"

OnBytes = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


def read_trace(path: Path, *, names: EventNames = NAMES, on_bytes: OnBytes | None = None) -> ProfilerTrace:
    """Read a Chrome trace, as far as it goes.

    An object with "traceEvents", or a bare array; gzip or plain; events in any order. A file that ends too early gives
    what came before its end, and says so.

    Args:
        path: The file.
        names: What names mean; see `EventNames.extended`.
        on_bytes: Told of progress.

    Raises:
        StokerError: It is not a Chrome trace.
        OSError: It cannot be read.
    """
    with closing(ByteWindow(path, on_bytes=on_bytes)) as window:
        return _read(window, Collector(names))


def _read(window: ByteWindow, collector: Collector) -> ProfilerTrace:
    path = window.path
    header: dict[str, object] = {}
    if window.peek(len(_BOM)) == _BOM:
        window.at += len(_BOM)
    first = window.next_char()
    if first == b"":
        what = "is empty: 0 bytes" if window.size_bytes == 0 else "has nothing but white space"
        return collector.finish(path=str(path), header=header, is_cut=True, notes=(f"the file {what}",))
    if first == b"[":
        window.at += 1
        has_ended = read_array(window, collector)
        # The closing bracket of a bare array is optional: writers that cannot end cleanly leave it out.
        is_cut = window.is_damaged or (not has_ended and not window.is_empty)
        return collector.finish(path=str(path), header=header, is_cut=is_cut)
    if first != b"{":
        begin = window.peek(20).decode("utf-8", errors="replace")
        raise StokerError(
            f"{path} is not a Chrome trace: it begins with {begin!r}, not with an object or an array. "
            "Unpack it first (gzip alone is read as it is), or write one with `prof.export_chrome_trace(path)` or "
            "`torch.profiler.tensorboard_trace_handler(folder)`"
        )
    window.at += 1
    has_events, has_end = _read_members(window, header, collector)
    is_cut = window.is_damaged or not has_end
    if not has_events and not is_cut:
        raise StokerError(f'{path} is JSON, but not a Chrome trace: it has no "traceEvents"')
    return collector.finish(path=str(path), header=header, is_cut=is_cut)


def _read_members(window: ByteWindow, header: dict[str, object], collector: Collector) -> tuple[bool, bool]:
    """Read the members of the outermost object; return whether there were events, and whether it had its end."""
    has_events = False
    while True:
        char = window.next_char(also=b",")
        if char in (b"", b"}"):
            return has_events, char == b"}"
        if char != b'"':
            return has_events, False
        key = window.take_value(limit=_MAX_HEADER_BYTES)
        if key is None or window.next_char() != b":":
            return has_events, False
        window.at += 1
        if key == b'"traceEvents"' and window.next_char() == b"[":
            window.at += 1
            has_events = True
            if not read_array(window, collector):
                return True, False
            continue
        window.next_char()
        value = window.take_value(limit=_MAX_HEADER_BYTES)
        if value is None:
            return has_events, False
        name = key.strip(b'"').decode("utf-8", errors="replace")
        if name in _HEADER:
            header[name] = _parsed(value)


def _parsed(text: bytes) -> object:
    """Return a value of the header, as text where it is not JSON."""
    decoded = text.decode("utf-8", errors="replace")
    try:
        return json.loads(decoded, strict=False)
    except (ValueError, RecursionError):
        return decoded.strip('"')


def read_array(window: ByteWindow, collector: Collector) -> bool:
    """Read events up to the end of their array, or of the file; return whether the array had its end."""
    while True:
        window.at, why = collector.take(window.data, window.at, window.stop)
        if why == TraceScanner.ENDED:
            return True
        if why != TraceScanner.MORE or (window.stop - window.at <= _MAX_EVENT_BYTES and window.more()):
            continue
        if window.is_empty:
            return False
        # Here is an event that does not end, or is none: go to the next one.
        collector.num_damaged += 1
        found = find_trace_event(window.data, window.at + 1, window.stop)
        if found < 0:
            return False
        window.at = found


class ByteWindow:
    """Bytes `[at, stop)` of `data`, and more on demand; gzip is known by its first bytes, not by the file's name.

    Args:
        path: The file.
        on_bytes: Told how many of the file's bytes were read, of how many.
        block_bytes: Bytes taken in at once.

    Attributes:
        is_damaged: Whether compressed data ended before its own end, or could not be read on.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, on_bytes: OnBytes | None = None, block_bytes: int = _BLOCK_BYTES) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self.is_damaged = False
        self.data: npt.NDArray[np.uint8] = np.empty(2 * block_bytes, np.uint8)
        self.at = 0
        self.stop = 0
        self._on_bytes = on_bytes
        self._block_bytes = block_bytes
        self._is_over = False
        self._file = path.open("rb")
        is_gzip = self._file.peek(2).startswith(_GZIP)
        self._source = gzip.GzipFile(fileobj=self._file) if is_gzip else self._file

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        self._file.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left: here, and in the file as far as it was read."""
        return self.at >= self.stop

    def _next(self) -> bytes:
        try:
            return b"" if self._is_over else self._source.read1(self._block_bytes)
        except (EOFError, OSError, zlib.error) as error:
            if self._source is self._file:
                raise
            if not self.stop:
                raise StokerError(f"{self.path} is damaged gzip ({error}): nothing of it can be read") from None
            # Bytes behind a whole member are padding in some archives, damage in others: neither is data.
            self.is_damaged = not (isinstance(error, gzip.BadGzipFile) and "Not a gzipped" in str(error))
            self._is_over = True
            return b""

    def more(self) -> bool:
        """Take one more block in; False where there is none."""
        block = self._next()
        if not block:
            return False
        if self._on_bytes is not None:
            self._on_bytes(self._file.tell(), self.size_bytes)
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
