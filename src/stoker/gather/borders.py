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


def borders_of(rows: Rows, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie, of all fields that have one level of them.

    Args:
        rows: Of a window.
        slot: Chunk of each row, as its place in the window. Shape [B].
        row: The rows, counted through the window. Shape [B].
    """
    found: dict[str, Borders] = {}
    places, strip = rows.places.strips, rows.spec.strip
    if places is not None:
        value_bytes = np.array([entry.value_bytes for entry in strip], dtype=np.int64)
        lists = strip_extents(rows.halves, places.places, places.strips, value_bytes, slot, row)
        found = {entry.name: Borders(*borders) for entry, *borders in zip(strip, *lists, strict=True)}
    for entry in rows.spec.apart:
        if entry.num_levels == 1:
            found[entry.name] = inner_borders(rows, entry.name, slot, row)
    return found


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
