"""Reads a trace of torch.profiler, in one pass and in memory of about a tenth of its size."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from stoker.doctor.traces.collect import Collector
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import NAMES, EventNames
from stoker.doctor.traces.source import ByteWindow, OnBytes
from stoker.errors import StokerError

# Values of the header that are of use; others can be large ("stackFrames") and are skipped.
_HEADER = {"deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
_MAX_HEADER_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


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
        collector.read_array(window)
        # The closing bracket of a bare array is optional: writers that cannot end cleanly leave it out.
        is_cut = window.is_damaged or (not collector.has_ended and not window.is_empty)
        return collector.finish(path=str(path), header=header, is_cut=is_cut)
    if first != b"{":
        begin = window.peek(20).decode("utf-8", errors="replace")
        raise StokerError(
            f"{path} is not a Chrome trace: it begins with {begin!r}, not with an object or an array. "
            "Write one with `prof.export_chrome_trace(path)` or `torch.profiler.tensorboard_trace_handler(folder)`"
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
            collector.read_array(window)
            if not collector.has_ended:
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
