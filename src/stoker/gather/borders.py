"""Where lists lie in a region: looked up for rows, field by field."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stoker.gather.take import extents, strip_extents
from stoker.offsets import Int64
from stoker.windows.window import Rows


class Borders(NamedTuple):
    """Where the lists of one field lie.

    Attributes:
        sources: First byte of each in the region. Shape [B].
        offsets: Of the lists side by side, in values. Shape [B + 1].
    """

    sources: Int64
    offsets: Int64


class Strips(NamedTuple):
    """Where the lists of several fields lie, those of a row side by side.

    Attributes:
        sources: First byte of each in the region. Shape [F, B].
        offsets: Of each field's lists side by side, in values. Shape [F, B + 1].
        value_bytes: Bytes of a value of each field. Shape [F].
    """

    sources: Int64
    offsets: Int64
    value_bytes: Int64


def strip_borders(rows: Rows, slot: Int64, row: Int64) -> Strips | None:
    """Return where the lists of some rows lie that lie side by side; None where none do.

    Args:
        rows: Of a window.
        slot: Chunk of each row, as its place in the window. Shape [B].
        row: The rows, counted through the window. Shape [B].
    """
    places = rows.places.strips
    if places is None:
        return None
    value_bytes = np.array([entry.value_bytes for entry in rows.spec.strip], dtype=np.int64)
    sources, offsets = strip_extents(rows.halves, places.places, places.strips, value_bytes, slot, row)
    return Strips(sources, offsets, value_bytes)


def borders_of(rows: Rows, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie, of all fields that have one level of them; see `strip_borders`."""
    found: dict[str, Borders] = {}
    strips = strip_borders(rows, slot, row)
    if strips is not None:
        lists = zip(rows.spec.strip, strips.sources, strips.offsets, strict=True)
        found = {entry.name: Borders(sources, offsets) for entry, sources, offsets in lists}
    return found | borders_apart(rows, slot, row)


def borders_apart(rows: Rows, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie of those fields that lie by themselves; see `borders_of`."""
    return {
        entry.name: inner_borders(rows, entry.name, slot, row) for entry in rows.spec.apart if entry.num_levels == 1
    }


def inner_borders(rows: Rows, name: str, slot: Int64, row: Int64) -> Borders:
    """Return where the innermost lists of a field lie that lies by itself.

    Args:
        rows: Of a window.
        name: The field.
        slot: Chunk of each list, as its place in the window. Shape [B].
        row: The lists: rows, counted through the window; with outer lists, counted in the chunk. Shape [B].
    """
    levels, value_bytes = rows.places.levels[name], rows.spec[name].value_bytes
    starts, offsets = extents(rows.words, levels.offsets[-1], slot, row)
    return Borders(levels.values[slot] + starts * value_bytes, offsets)
