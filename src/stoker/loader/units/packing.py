"""Token ranges of many documents copied into rows of one length, and where each document stands in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stoker._native import FoundLists, Rows, pack_values
from stoker.dataset.units.kinds import Pack
from stoker.errors import FieldMismatchError
from stoker.fields.offsets import Int32, Int64
from stoker.fields.spec import Array, Entry
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.windows.window import Window
from stoker.sampling.units import Segments


class DocumentLists(NamedTuple):
    """Where the lists of one field lie, those of some rows.

    Attributes:
        group: The lists, found together with those of other fields.
        field: Which of these it is.
        lengths: Values of each list. Shape [S].
    """

    group: FoundLists
    field: int
    lengths: Int64


class PackedPart(NamedTuple):
    """Packed rows of a batch that lie in one window.

    Attributes:
        window: Where they lie.
        slot: Chunk of each segment, as its place in the window. Shape [S].
        row: Row of each segment's document. Shape [S].
        segments: What the rows are made of.
        lists: Those of these documents, by field; see `lists_of`.
        chunks: Texts that name the chunk of a slot, for errors.
    """

    window: Window
    slot: Int64
    row: Int64
    segments: Segments
    lists: Mapping[str, DocumentLists]
    chunks: Sequence[str]

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.segments.offsets) - 1


def lists_of(window: Window, slot: Int64, row: Int64) -> dict[str, DocumentLists]:
    """Return the lists of some rows, of all fields that have one level of them.

    Args:
        window: Where they lie; its samples share nothing that has lists.
        slot: Chunk of each row, as its place in the window. Shape [S].
        row: Row of each, counted in its chunk. Shape [S].
    """
    found: dict[str, DocumentLists] = {}
    rows = Rows([(window, 0, slot, row)])
    for number, group in enumerate(window.layout.groups[0]):
        if group[0].num_levels == 1:
            offsets = np.empty((len(group), len(row) + 1), dtype=np.int64)
            lists = rows.find(number, offsets)
            lengths = np.diff(offsets)
            found |= {entry.name: DocumentLists(lists, f, lengths[f]) for f, entry in enumerate(group)}
    return found


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


def pack_field(unit: Pack, entry: Entry, parts: Sequence[PackedPart], pool: BufferPool) -> Array:
    """Return one field of packed rows, copied from where its values are mapped. Shape [B, length, ...].

    Args:
        unit: How they are packed.
        entry: The field.
        parts: The packed rows; all parts together are the batch.
        pool: Gives the memory.

    Raises:
        FieldMismatchError: A document has another number of values of this field than of tokens.
    """
    num_rows = sum(part.num_rows for part in parts)
    size = num_rows * unit.length
    memory = pool.take(size * entry.value_bytes)[: size * entry.value_bytes]
    out = memory.view(entry.dtype).reshape(size, *entry.shape)
    end, pad = (_one(entry, values[entry.name]) for values in (unit.end or unit.pad, unit.pad))
    row = 0
    for part in parts:
        segments = part.segments
        tokens, lists = _checked_tokens(unit, entry, part), part.lists[entry.name]
        num_values = np.minimum(segments.num, tokens - segments.first)
        rows = out[row * unit.length : (row + part.num_rows) * unit.length].reshape(-1).view(np.uint8)
        values = (lists.group, lists.field, segments.first, num_values)
        pack_values(segments.num, segments.offsets, unit.length, *values, end, pad, rows)
        row += part.num_rows
    return out.reshape(num_rows, unit.length, *entry.shape)


def _one(entry: Entry, value: float) -> npt.NDArray[np.uint8]:
    """Return the bytes of one value of a field."""
    return np.full(entry.shape, value, entry.dtype).reshape(-1).view(np.uint8)


def _checked_tokens(unit: Pack, entry: Entry, part: PackedPart) -> Int64:
    """Return how many tokens each segment's document has, without its end: as many as values. Shape [S]."""
    segments = part.segments
    tokens = segments.lengths - unit.num_ends
    found = part.lists[entry.name].lengths
    if not np.array_equal(found, tokens):
        wrong = int(np.flatnonzero(found != tokens)[0])
        raise FieldMismatchError(
            f"{part.chunks[int(part.slot[wrong])]}: row {int(segments.row[wrong])} has {int(found[wrong]):,} values of "
            f"{entry.name!r} but {int(tokens[wrong]):,} of {unit.field!r}; they can only be packed together where "
            "every row has as many of both",
            fragment=part.chunks[int(part.slot[wrong])],
        )
    return tokens
