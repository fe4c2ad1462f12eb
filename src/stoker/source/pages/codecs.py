"""What decompresses pages, and proves that as many bytes came of one as its header promises.

Loops of ours and the system's zstd do so without a call of Python's. All else is called here, page by page. Never
`pyarrow.Codec.decompress`: it returns memory of the size that it was asked for, however little of it was written.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from dataclasses import dataclass
from types import ModuleType

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
from stoker.source.storage import BytesLike

# Numbers of the format. The LZ4 of old (5) is written in three ways that nothing tells apart: pyarrow knows them.
UNCOMPRESSED, SNAPPY, ZSTD, LZ4_RAW = 0, 1, 6, 7
# What Arrow reads as a stream, which ends where it ends: one that is cut short is an error.
_STREAMS = {2: "gzip", 4: "brotli", ZSTD: "zstd"}
_IS_MAC = sys.platform == "darwin"

_kept = threading.local()


def unpacked(kernels: ModuleType, content: Bytes, page: Numbers, codec: int) -> Bytes:
    """Return a page as it was before it was compressed; nothing where it cannot have been.

    Args:
        kernels: The compiled loops.
        content: Where it lies.
        page: Its numbers.
        codec: What it is compressed with, as a number of the format.
    """
    begin, levels = int(page[AT]), int(page[DEFINITION] + page[REPETITION])
    end = begin + int(page[STORED_BYTES])
    if not page[IS_PACKED]:
        return content[begin:end]
    plain = np.empty(int(page[PLAIN_BYTES]), np.uint8)
    plain[:levels] = content[begin : begin + levels]
    return plain if _is_filled(kernels, content[begin + levels : end], plain[levels:], codec) else plain[:0]


def _is_filled(kernels: ModuleType, packed: Bytes, room: Bytes, codec: int) -> bool:
    """Decompress into `room`; False where what comes is not exactly as long, or nothing here knows the codec."""
    if not len(packed):
        return not len(room)
    if codec in _STREAMS:
        return is_inflated(packed, room, _STREAMS[codec])
    if codec == SNAPPY:
        begin = packed.ctypes.data
        return bool(kernels.unsnap(begin, begin + len(packed), room.ctypes.data, len(room)) == len(room))
    library = _lz4() if codec == LZ4_RAW else None
    if library is None:
        return False
    num_bytes = library.LZ4_decompress_safe(packed.ctypes.data, room.ctypes.data, len(packed), len(room))
    return bool(num_bytes == len(room))


def is_inflated(packed: BytesLike | Bytes, room: Bytes, codec: str) -> bool:
    """Fill `room` with what comes of a compressed stream; False where that is not exactly as long.

    Args:
        packed: The stream.
        room: Filled.
        codec: Its name in Arrow.
    """
    if not pa.Codec.is_available(codec):
        return False
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec) as stream:
            # The byte behind the last one is asked for, since only what reaches the end sees what is wrong there.
            return stream.readinto(room) == len(room) and not stream.read(1)
    except OSError:
        return False


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
        library = ctypes.CDLL("libzstd.1.dylib" if _IS_MAC else "libzstd.so.1")
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_createDCtx.argtypes = []
        library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
        library.ZSTD_freeDCtx.restype = ctypes.c_size_t
        _ = library.ZSTD_decompressDCtx
    except (OSError, AttributeError):
        return None
    return library


@functools.cache
def _lz4() -> ctypes.CDLL | None:
    """Return the system's lz4; without it, pyarrow decodes what is compressed so, in twice the time."""
    try:
        library = ctypes.CDLL("liblz4.1.dylib" if _IS_MAC else "liblz4.so.1")
        library.LZ4_decompress_safe.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return library
