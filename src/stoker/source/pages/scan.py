"""The pages of a column chunk, or of what is there of one: found, held against their checksums, and decoded."""

from __future__ import annotations

import zlib

from stoker._native import Pages, Progress, Room, can_decompress
from stoker.source.pages.codecs import Bytes, unpacked
from stoker.source.pages.leaf import Leaf


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
