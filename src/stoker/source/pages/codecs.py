"""What decompresses pages: loops of ours and the system's zstd, without a call of Python's; else Arrow's codecs."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stoker.source.pages.numbers import (
    AT,
    DEFINITION,
    IS_PACKED,
    PLAIN_BYTES,
    REPETITION,
    SNAPPY_LOOP,
    STORED_BYTES,
    Bytes,
    Numbers,
)

UNCOMPRESSED, SNAPPY, ZSTD = 0, 1, 6
# Numbers of the format. The LZ4 of old (5) is written in three ways that nothing tells apart: pyarrow knows them.
_ARROW = {SNAPPY: "snappy", 2: "gzip", 4: "brotli", ZSTD: "zstd", 7: "lz4_raw"}
_LIBRARY = "libzstd.1.dylib" if sys.platform == "darwin" else "libzstd.so.1"

_kept = threading.local()


def arrow_codec(number: int) -> pa.Codec | None:
    """Return Arrow's codec of a number of the format, this thread's own; None where there is none.

    Its gzip keeps a state between calls, and gives the interpreter's lock up while it uses that.
    """
    codecs: dict[int, pa.Codec | None] | None = getattr(_kept, "codecs", None)
    if codecs is None:
        codecs = _kept.codecs = {}
    if number not in codecs:
        name = _ARROW.get(number)
        codecs[number] = pa.Codec(name) if name is not None and pa.Codec.is_available(name) else None
    return codecs[number]


def unpacked(content: Bytes, page: Numbers, codec: pa.Codec) -> Bytes:
    """Return a page as it was before it was compressed; nothing where it cannot have been.

    Args:
        content: Where it lies.
        page: Its numbers.
        codec: Arrow's.
    """
    begin, levels = int(page[AT]), int(page[DEFINITION] + page[REPETITION])
    end = begin + int(page[STORED_BYTES])
    if not page[IS_PACKED]:
        return content[begin:end]
    try:
        rest = codec.decompress(pa.py_buffer(content[begin + levels : end]), int(page[PLAIN_BYTES]) - levels)
    except (OSError, ValueError):
        return np.zeros(0, np.uint8)
    plain = np.frombuffer(rest, np.uint8)
    return np.concatenate([content[begin : begin + levels], plain]) if levels else plain


@dataclass(frozen=True)
class Unpacker:
    """A function that decompresses a page, by its address, and its first argument; both 0 where there is none.

    Not an address, but a number of the loops, where these do it by themselves.
    """

    function: int
    context: int


NO_UNPACKER = Unpacker(0, 0)
_SNAPPY = Unpacker(SNAPPY_LOOP, 0)


def is_loops(number: int) -> bool:
    """Whether compiled loops decompress pages of a codec by themselves, or need not."""
    return number == UNCOMPRESSED or unpacker_of(number).function != 0


def unpacker_of(number: int) -> Unpacker:
    """Return what a compiled loop decompresses pages with, in this thread."""
    if number == SNAPPY:
        return _SNAPPY
    library = _zstd() if number == ZSTD else None
    if library is None:
        return NO_UNPACKER
    kept: Unpacker | None = getattr(_kept, "zstd", None)
    if kept is None:
        context = library.ZSTD_createDCtx()
        if not context:
            return NO_UNPACKER
        _kept.owner = _Owner()
        # Not at the interpreter's end: a thread may still be decompressing then.
        weakref.finalize(_kept.owner, library.ZSTD_freeDCtx, context).atexit = False
        function = ctypes.cast(library.ZSTD_decompressDCtx, ctypes.c_void_p).value or 0
        kept = _kept.zstd = Unpacker(function, context)
    return kept


class _Owner:
    """Goes with its thread."""


@functools.cache
def _zstd() -> ctypes.CDLL | None:
    """Return the system's zstd, which nearly every one has: its package manager needs it."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_createDCtx.argtypes = []
        library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
        library.ZSTD_freeDCtx.restype = ctypes.c_size_t
        _ = library.ZSTD_decompressDCtx
    except (OSError, AttributeError):
        return None
    return library
