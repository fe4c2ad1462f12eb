"""Token ranges of many documents copied into rows of one length, and where each document stands in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stoker import loops
from stoker.errors import FieldMismatchError
from stoker.feed.units.expand import Segments
from stoker.gather.borders import Borders
from stoker.gather.buffers import BufferPool
from stoker.offsets import ranges
from stoker.order.plain import Int64
from stoker.source.units.asked import Pack
from stoker.spec import Array, Entry, unit_dtype
from stoker.windows.window import Window

Int32 = npt.NDArray[np.int32]

_LOOPS = "stoker.feed.units.kernels"


class PackedPart(NamedTuple):
    """Packed rows of a batch that lie in one window.

    Attributes:
        window: Where they lie.
        slot: Chunk of each segment, as its place in the window. Shape [S].
        row: Row of each segment's document, counted through the window. Shape [S].
        segments: What the rows are made of.
        borders: Where the lists of these documents lie, by field.
        chunks: Texts that name the chunk of a slot, for errors.
    """

    window: Window
    slot: Int64
    row: Int64
    segments: Segments
    borders: Mapping[str, Borders]
    chunks: Sequence[str]

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.segments.offsets) - 1


def fill_places(segments: Segments, length: int, ids: Int32, positions: Int32, *, compiled: bool = True) -> None:
    """Write each token's segment, counted from 1 in its packed row, and its place in that segment; 0 is padding.

    Args:
        segments: What B packed rows are made of.
        length: Tokens of a row.
        ids: Shape [B, length].
        positions: Shape [B, length].
        compiled: False keeps to NumPy.
    """
    kernels = loops.find(_LOOPS) if compiled else None
    if kernels is not None:
        outs = (out.reshape(-1).view(np.uint8) for out in (ids, positions))
        first = np.zeros_like(segments.first)  # a document that goes on from another row begins anew
        kernels.fill_places(first, segments.num, segments.at, segments.offsets, length, *outs)
        return
    ids[...] = positions[...] = 0
    counts = np.diff(segments.offsets)
    unit = np.repeat(np.arange(len(counts)), counts)
    ends = np.concatenate([[0], np.cumsum(segments.num)])
    target = ranges(unit * length + segments.at, ends)
    rank = np.arange(len(unit)) - np.repeat(segments.offsets[:-1], counts) + 1
    ids.reshape(-1)[target] = np.repeat(rank, segments.num)
    positions.reshape(-1)[target] = ranges(np.zeros_like(segments.first), ends)


def sequences_of(ids: Int32) -> dict[str, Any]:
    """Return what attention over packed rows as one sequence of B * length tokens is told of them.

    Args:
        ids: Each token's segment; 0 is padding. Shape [B, length].

    Returns:
        `cu_seqlens`, int32: where each segment, and each row's padding, begins, and the end. `max_seqlen`, int: the
        most tokens between two of them.
    """
    begins = np.ones(ids.shape, dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=begins[:, 1:])
    borders = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
    return {"cu_seqlens": borders, "max_seqlen": int(np.diff(borders).max(initial=0))}


def pack_field(asked: Pack, entry: Entry, parts: Sequence[PackedPart], pool: BufferPool) -> Array:
    """Return one field of packed rows, copied from where its values are mapped. Shape [B, length, ...].

    Args:
        asked: How they are packed.
        entry: The field.
        parts: The packed rows; all parts together are the batch.
        pool: Gives the memory.

    Raises:
        FieldMismatchError: A document has another number of values of this field than of tokens.
    """
    num_rows = sum(part.num_rows for part in parts)
    size = num_rows * asked.length
    memory = pool.take(size * entry.value_bytes)[: size * entry.value_bytes]
    out = memory.view(entry.dtype).reshape(size, *entry.shape)
    row = 0
    for part in parts:
        rows = out[row * asked.length : (row + part.num_rows) * asked.length]
        _pack_part(asked, entry, part, rows)
        row += part.num_rows
    return out.reshape(num_rows, asked.length, *entry.shape)


def _pack_part(asked: Pack, entry: Entry, part: PackedPart, out: Array) -> None:
    window, segments = part.window, part.segments
    sources, offsets = part.borders[entry.name]
    tokens = segments.lengths - asked.num_ends
    found = np.diff(offsets)
    if not np.array_equal(found, tokens):
        wrong = int(np.flatnonzero(found != tokens)[0])
        raise FieldMismatchError(
            f"{part.chunks[int(part.slot[wrong])]}: row {int(segments.row[wrong])} has {int(found[wrong]):,} values of "
            f"{entry.name!r} but {int(tokens[wrong]):,} of {asked.field!r}; they can only be packed together where "
            "every row has as many of both",
            fragment=part.chunks[int(part.slot[wrong])],
        )
    unit = np.repeat(np.arange(part.num_rows), np.diff(segments.offsets))
    target = unit * asked.length + segments.at
    num = np.minimum(segments.num, tokens - segments.first)
    copy_ranges(window.bytes, sources + segments.first * entry.value_bytes, entry.value_bytes, num, target, out)
    if asked.end is not None:
        out[(target + num)[num < segments.num]] = asked.end[entry.name]
    # Only what lies behind the last document of each row is written twice by nobody and once here.
    used = np.zeros(part.num_rows, dtype=np.int64)
    filled = np.flatnonzero(np.diff(segments.offsets))
    last = segments.offsets[filled + 1] - 1
    used[filled] = segments.at[last] + segments.num[last]
    room = np.concatenate([[0], np.cumsum(asked.length - used)])
    if room[-1]:
        out[ranges(np.arange(part.num_rows) * asked.length + used, room)] = asked.pad[entry.name]


def copy_ranges(
    memory: Array,
    sources: Int64,
    value_bytes: int,
    num: Int64,
    target: Int64,
    out: Array,
    *,
    compiled: bool = True,
) -> None:
    """Copy ranges of values to their places.

    Args:
        memory: A region as uint8.
        sources: First byte of each in `memory`. Shape [S].
        value_bytes: Bytes of a value.
        num: Its values. Shape [S].
        target: Where it goes, as a place in `out`. Shape [S].
        out: One item, or row of items, a value.
        compiled: False keeps to NumPy.
    """
    if not len(sources) or not value_bytes:
        return
    kernels = loops.find(_LOOPS) if compiled else None
    if kernels is not None:
        kernels.copy_ranges(memory, sources, num * value_bytes, target * value_bytes, out.reshape(-1).view(np.uint8))
        return
    unit = unit_dtype(value_bytes)
    per_value = value_bytes // unit.itemsize
    ends = np.concatenate([[0], np.cumsum(num * per_value)])
    flat = out.reshape(-1).view(unit)
    flat[ranges(target * per_value, ends)] = memory.view(unit)[ranges(sources // unit.itemsize, ends)]
