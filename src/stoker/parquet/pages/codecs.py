"""The pages of a column chunk, or of what is there of one: found, held against checksums, decompressed and decoded.

The native decoder knows snappy, and zstd and lz4 by the system's libraries. All else is Arrow's, page by page. Never
`pyarrow.Codec.decompress`: it returns memory of the size that it was asked for, however little of it was written.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import Pages, Progress, Room, can_decompress, decompress
from stoker.parquet.pages.leaf import Leaf
from stoker.storage.storage import BytesLike

Bytes: TypeAlias = npt.NDArray[np.uint8]

# Numbers of the format, of codecs that Arrow reads as a stream, which ends where it ends: one that is cut short is an
# error.
_STREAMS = {2: "gzip", 4: "brotli", 6: "zstd"}


def scan(content: Bytes) -> Pages | None:
    """Return the pages that lie in `content` as a whole; None where one is not what its checksum says.

    Behind them may lie the beginning of another one, or what is no page: `end` says where.
    """
    pages = Pages(content)
    if pages.totals().has_checksums:
        for page in (pages[i] for i in range(len(pages))):
            if page.checksum >= 0 and zlib.crc32(content[page.at : page.at + page.stored_bytes].data) != page.checksum:
                return None
    return pages


def decode_pages(
    pages: Pages,
    leaf: Leaf,
    codec: int,
    room: Room,
    progress: Progress,
    *,
    first: int = 0,
    stop: int | None = None,
) -> bool:
    """Decode some pages, for which there is room; False where one is not what it should be, or not known.

    Args:
        pages: Has them.
        leaf: What the column is.
        codec: What pages are compressed with, as a number of the format.
        room: Where they go.
        progress: How far the column chunk is decoded; goes on from there.
        first: The first one.
        stop: Behind the last one; None for all that are left.
    """
    if can_decompress(codec) or not pages.totals(first, stop).is_packed:
        return pages.decode(leaf.column, codec, room, progress, first, stop)
    for i in range(first, len(pages) if stop is None else stop):
        plain = unpacked(pages, i, codec)
        if plain is None or not pages.decode_plain(i, plain, leaf.column, room, progress):
            return False
    return True


def unpacked(pages: Pages, i: int, codec: int) -> Bytes | None:
    """Return a page as it was before it was compressed; None where it cannot have been.

    Args:
        pages: Has it.
        i: Its number.
        codec: What it is compressed with, as a number of the format; 0 where it is not.
    """
    page = pages[i]
    begin, end = page.at, page.at + page.stored_bytes
    if not page.is_packed or not codec:
        return pages.content[begin:end]
    plain = np.empty(page.plain_bytes, np.uint8)
    levels = page.level_bytes
    plain[:levels] = pages.content[begin : begin + levels]
    return plain if _is_filled(pages.content[begin + levels : end], plain[levels:], codec) else None


def _is_filled(packed: Bytes, room: Bytes, codec: int) -> bool:
    """Decompress into `room`; False where what comes is not exactly as long, or nothing here knows the codec."""
    if can_decompress(codec) or not len(packed):
        return decompress(codec, packed, room)
    return codec in _STREAMS and is_inflated(packed, room, _STREAMS[codec])


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
