"""Reads a trace of torch.profiler, in one pass and in memory of about a tenth of its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stoker.doctor.traces.collect import Collector
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.inflate import TraceBytes
from stoker.doctor.traces.window import ByteWindow
from stoker.errors import StokerError

# Values of the header that are worth keeping; others can be large ("stackFrames") and are skipped.
_HEADER = {
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "displayTimeUnit",
    "traceName",
    "host_name",
    "hostname",
    "cuda_runtime_version",
    "cuda_driver_version",
    "with_stack",
    "record_shapes",
    "profile_memory",
}
_MAX_HEADER_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
OnBytes = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


def read_trace(path: Path, *, on_bytes: OnBytes | None = None) -> ProfilerTrace:
    """Read a Chrome trace, as far as it goes.

    An object with "traceEvents", or a bare array; gzip or plain; events in any order. A file that ends too early gives
    what came before its end, and says so.

    Args:
        path: The file.
        on_bytes: Told of progress.

    Raises:
        StokerError: It is not a Chrome trace.
        OSError: It cannot be read.
    """
    with closing(TraceBytes(path)) as source:
        return _read(source, on_bytes)


def _read(source: TraceBytes, on_bytes: OnBytes | None) -> ProfilerTrace:
    path = source.path
    window = ByteWindow(source, on_bytes=on_bytes)
    collector = Collector()
    header: dict[str, object] = {}
    if window.peek(len(_BOM)) == _BOM:
        window.skip(len(_BOM))
    first = window.next_char()
    if first == b"":
        what = "is empty: 0 bytes" if source.size_bytes == 0 else "has nothing but white space"
        return collector.finish(path=str(path), header=header, is_cut=True, notes=(f"the file {what}",))
    if first == b"[":
        window.skip(1)
        collector.read_array(window)
        # The closing bracket of a bare array is optional: writers that cannot end cleanly leave it out.
        is_cut = source.is_cut or (not collector.has_ended and not window.is_empty)
        return collector.finish(path=str(path), header=header, is_cut=is_cut, notes=())
    if first != b"{":
        raise StokerError(
            f"{path} is not a Chrome trace: it begins with {_shown(window.peek(20))}, not with an object or an array. "
            "Write one with `prof.export_chrome_trace(path)` or `torch.profiler.tensorboard_trace_handler(folder)`"
        )
    window.skip(1)
    has_events, has_end = _read_members(window, header, collector)
    is_cut = source.is_cut or not has_end
    if not has_events and not is_cut:
        keys = ", ".join(sorted(header)[:5]) or "none"
        raise StokerError(f'{path} is JSON, but not a Chrome trace: it has no "traceEvents" (known keys: {keys})')
    return collector.finish(path=str(path), header=header, is_cut=is_cut, notes=())


def _read_members(window: ByteWindow, header: dict[str, object], collector: Collector) -> tuple[bool, bool]:
    """Read the members of the outermost object; return whether there were events, and whether it had its end."""
    has_events = False
    while True:
        char = window.next_char(also=b",")
        if char == b"":
            return has_events, False
        if char == b"}":
            return has_events, True
        if char != b'"':
            if not window.skip_to_next_line():
                return has_events, False
            continue
        key_text = window.take_value(limit=_MAX_HEADER_BYTES)
        if key_text is None or window.next_char() != b":":
            return has_events, False
        window.skip(1)
        key = _parsed(key_text)
        if key == "traceEvents" and window.next_char() == b"[":
            window.skip(1)
            has_events = True
            collector.read_array(window)
            if not collector.has_ended:
                return True, False
            continue
        window.next_char()
        value = window.take_value(limit=_MAX_HEADER_BYTES)
        if value is None:
            return has_events, False
        if isinstance(key, str) and key in _HEADER:
            header[key] = _parsed(value)


def _parsed(text: bytes) -> object:
    """Return a value of the header, as text where it is not JSON."""
    decoded = text.decode("utf-8", errors="replace")
    try:
        return json.loads(decoded, strict=False)
    except (ValueError, RecursionError):
        return decoded.strip('"')


def _shown(data: bytes) -> str:
    return repr(data.decode("utf-8", errors="replace"))
