"""The chunks of one window: a map each, and a table that says where in them the rows lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stoker._native import ChunkMap, TableLayout, WindowChunks
from stoker.cache.format import ChunkHeader, array_names, strip_names, table_names
from stoker.fields.offsets import Int64
from stoker.fields.spec import Entry, Spec

# Entered in one call: some 2 milliseconds where it lies in memory, which is how long whoever stops it may wait.
_ENTERED_BYTES = 64 << 20


class WindowLayout:
    """What the chunks of a data set hold, and how native code is told of it.

    Args:
        spec: Of the samples.

    Attributes:
        spec: As given.
        groups: Of each table, the samples' own first: its ragged fields, those together whose lists are found together.
        tables: The same tables, for native code.
        names: Of the arrays of a chunk, table by table. [A].
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.groups: list[list[tuple[Entry, ...]]] = []
        self.tables: list[TableLayout] = []
        self.names: list[str] = []
        for name, table in zip(table_names(spec), spec.tables, strict=True):
            self.groups.append([*([table.strip] if table.strip else ()), *((entry,) for entry in table.apart)])
            layout = TableLayout(table.record_bytes)
            self.names += [name] if table.record_bytes else []
            if table.strip:
                layout.add_strips([entry.value_bytes for entry in table.strip])
                self.names += strip_names(name)
            for entry in table.apart:
                layout.add_field(entry.value_bytes, entry.num_levels == 2)
                self.names += array_names(entry)
            self.tables.append(layout)

    def places(self, headers: Sequence[ChunkHeader]) -> Int64:
        """Return where the arrays of chunks lie in their files: first byte, and bytes. Shape [K, A, 2]."""
        places = [
            (place.offset_bytes, place.size_bytes)
            for header in headers
            for place in map(header.arrays.__getitem__, self.names)
        ]
        return np.array(places, dtype=np.int64).reshape(len(headers), len(self.names), 2)


class Window(WindowChunks):
    """Samples of K chunks, which stay in memory until the window is closed and nobody gathers from it any more.

    Args:
        layout: What a chunk holds.
        maps: The chunks. [K].
        places: Where their arrays lie; see `WindowLayout.places`.

    Attributes:
        layout: As given.
        expected_bytes: Of each table, what the lists of a row will probably take; see `expect`.
    """

    def __init__(self, layout: WindowLayout, maps: list[ChunkMap], places: Int64) -> None:
        super().__init__(maps, places, layout.tables)
        self.layout = layout
        self.expected_bytes = [0.0] * len(layout.tables)

    def expect(self, table: int, num_bytes: int, num_rows: int) -> None:
        """Expect lists as long as those that some rows had, and some more.

        So what varies by chance from batch to batch is not asked for twice.
        """
        self.expected_bytes[table] = max(self.expected_bytes[table], 1.05 * num_bytes / max(1, num_rows))

    def settle(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Read the chunks into memory and enter their pages, so that nobody has to stop at them later.

        Threads may gather meanwhile.

        Args:
            goes_on: Asked every few milliseconds; False ends it early.
        """
        while goes_on() and not self.enter(_ENTERED_BYTES):
            pass
