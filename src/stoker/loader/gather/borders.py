"""Where the lists of rows lie in a window's memory, for whoever copies parts of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stoker._native import Rows
from stoker.fields.offsets import Int64
from stoker.loader.windows.window import Window


class Borders(NamedTuple):
    """Where the lists of one field lie.

    Attributes:
        sources: First byte of each in the window's memory. Shape [B].
        offsets: Of the lists side by side, in values. Shape [B + 1].
    """

    sources: Int64
    offsets: Int64


def borders_of(window: Window, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie, of all fields that have one level of them.

    Args:
        window: Where they lie; its samples share nothing that has lists.
        slot: Chunk of each row, as its place in the window. Shape [B].
        row: Row of each, counted in its chunk. Shape [B].
    """
    table, found = window.tables[0], {}
    rows = Rows([(table.native, slot, row)])
    for number, group in enumerate(table.groups):
        if group[0].num_levels == 1:
            offsets = np.empty((len(group), len(row) + 1), dtype=np.int64)
            lists = rows.find(number, offsets)
            for f, entry in enumerate(group):
                found[entry.name] = Borders(np.empty(len(row), dtype=np.int64), offsets[f])
                lists.sources(f, window.bytes, found[entry.name].sources)
    return found
