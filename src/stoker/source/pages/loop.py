"""Pages through the compiled loop, whatever they were compressed with."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from stoker.source.pages.codecs import NO_UNPACKER, UNCOMPRESSED, Unpacker, unpacked, unpacker_of
from stoker.source.pages.leaf import Leaf
from stoker.source.pages.numbers import AT, DONE, NUM_STATE_NUMBERS, STORED_BYTES, Bytes, Numbers
from stoker.source.pages.scan import Pages

# What is kept of a thread's scratch: the largest page that is usual, several times.
_KEPT_BYTES = 16 << 20
NO_BYTES, NO_NUMBERS = np.zeros(0, np.uint8), np.zeros(0, np.int64)


@dataclass(eq=False)
class Target:
    """Where the values of a column chunk go, and how far it was decoded.

    Attributes:
        words: Room for its dictionary, or for words that come without one.
        values: Of all rows, uint8.
        valid: Of each row, whether it has a value.
        offsets: Of lists.
        state: How far; see `numbers`.
    """

    words: Bytes
    values: Bytes
    valid: Bytes
    offsets: Numbers
    state: Numbers

    @classmethod
    def empty(cls) -> Target:
        """Return one without room."""
        return cls(NO_BYTES, NO_BYTES, NO_BYTES, NO_NUMBERS, np.zeros(NUM_STATE_NUMBERS, np.int64))


def decode_pages(
    kernels: ModuleType,
    leaf: Leaf,
    codec: int,
    pages: Pages,
    target: Target,
    *,
    first: int = 0,
    stop: int | None = None,
) -> bool:
    """Decode some pages, for which there is room; False where one is not what it should be, or not known.

    Args:
        kernels: The compiled loops.
        leaf: What the column is.
        codec: What pages are compressed with, as a number of the format.
        pages: Has them.
        target: Where they go.
        first: The first one.
        stop: Behind the last one; None for all that are left.
    """
    table = pages.table[first:stop]
    if codec == UNCOMPRESSED or not pages.is_packed:
        return _decoded(kernels, leaf, pages.content, table, NO_UNPACKER, NO_BYTES, target)
    unpacker = unpacker_of(codec)
    if unpacker.function:
        return _decoded(kernels, leaf, pages.content, table, unpacker, scratch(pages.most_bytes + 8), target)
    for page in table:
        plain = unpacked(kernels, pages.content, page, codec)
        one = page[None].copy()
        one[0, AT], one[0, STORED_BYTES] = 0, len(plain)
        if not _decoded(kernels, leaf, plain, one, NO_UNPACKER, NO_BYTES, target):
            return False
    return True


def _decoded(
    kernels: ModuleType, leaf: Leaf, content: Bytes, table: Numbers, unpacker: Unpacker, room: Bytes, target: Target
) -> bool:
    done = kernels.decode(
        table,
        content,
        unpacker.function,
        unpacker.context,
        leaf.form,
        room,
        target.words,
        target.values,
        target.valid,
        target.offsets,
        target.state,
    )
    return bool(done == DONE)


_kept = threading.local()


def scratch(num_bytes: int) -> Bytes:
    """Return so many bytes that this thread uses again: fresh memory costs more than filling it."""
    if num_bytes > _KEPT_BYTES:
        return np.empty(num_bytes, np.uint8)
    kept: Bytes | None = getattr(_kept, "page", None)
    if kept is None or len(kept) < num_bytes:
        kept = _kept.page = np.empty(max(num_bytes, 1 << 16), np.uint8)
    return kept
