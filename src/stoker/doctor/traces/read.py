"""Reads a trace of torch.profiler in one pass; only events that matter take memory, whatever the file's size."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from stoker.doctor.traces.collect import Collector
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import NAMES, EventNames
from stoker.errors import StokerError

# Large enough that a call costs nothing beside its bytes, small enough that memory stays bounded.
_BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def read_trace(
    path: Path,
    *,
    names: EventNames = NAMES,
    on_bytes: Callable[[int, int], None] | None = None,
) -> ProfilerTrace:
    """Read a Chrome trace, as far as it goes.

    An object with "traceEvents", or a bare array; gzip or plain; events in any order. A file that ends too early gives
    what came before its end, and says so.

    Args:
        path: The file.
        names: What names mean; see `EventNames.extended`.
        on_bytes: Told how many bytes of the file were read, of how many.

    Raises:
        StokerError: It is not a Chrome trace.
        OSError: It cannot be read.
    """
    collector, begin = Collector(names), b""
    scanner, is_damaged = collector.scanner, False
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        for block in _blocks(path, file):
            if block is None:
                is_damaged = True
                break
            begin += block[: 80 - len(begin)]
            collector.take(np.frombuffer(block, np.uint8))
            if scanner.is_none:
                break
            if on_bytes is not None:
                on_bytes(file.tell(), size_bytes)
    collector.take(np.empty(0, np.uint8), is_last=True)
    if scanner.is_none:
        raise StokerError(
            f"{path} is not a Chrome trace: it begins with {begin.strip()[:20].decode(errors='replace')!r}. "
            "Unpack it first (gzip alone is read as it is), or write one with "
            "`prof.export_chrome_trace(path)` or `torch.profiler.tensorboard_trace_handler(folder)`"
        )
    is_cut = is_damaged or not scanner.has_end
    if not scanner.has_events and not is_cut:
        raise StokerError(f'{path} is JSON, but not a Chrome trace: it has no "traceEvents"')
    notes = []
    if not scanner.has_begun:
        notes.append("the file has nothing but white space" if size_bytes else "the file is empty: 0 bytes")
    header = {key: _parsed(value) for key, value in scanner.header.items()}
    return collector.finish(path=str(path), header=header, is_cut=is_cut, notes=notes)


def _blocks(path: Path, file: BufferedReader) -> Iterator[bytes | None]:
    """Yield the file's bytes, unpacked where it is gzip, and None where packed bytes are damaged or cut off."""
    has_any, is_gzip = False, file.peek(2).startswith(_GZIP)
    source = gzip.GzipFile(fileobj=file) if is_gzip else file
    while True:
        try:
            block = source.read1(_BLOCK_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            if not is_gzip:
                raise
            if not has_any:
                raise StokerError(f"{path} is damaged gzip ({error}): nothing of it can be read") from None
            # Bytes behind a whole member are padding in some archives, damage in others: neither is data.
            if not (isinstance(error, gzip.BadGzipFile) and "Not a gzipped" in str(error)):
                yield None
            return
        if not block:
            return
        has_any = True
        yield block


def _parsed(text: bytes) -> object:
    """Return a value of the header, as text where it is not JSON."""
    decoded = text.decode(errors="replace")
    try:
        return json.loads(decoded, strict=False)
    except (ValueError, RecursionError):
        return decoded.strip('"')
