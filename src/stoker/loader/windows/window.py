"""The chunks of one window, side by side in one range of addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker._native import Table
from stoker.cache.format import ChunkHeader, array_names, strip_names, table_names
from stoker.fields.spec import Array, Entry, Spec
from stoker.loader.windows.memory import Memories
from stoker.loader.windows.reading import FilePart
from stoker.loader.windows.region import CAN_MAP_SIDE_BY_SIDE, Region, next_place

Index = npt.NDArray[np.int64]


class WindowTable:
    """Rows of one table of a window's chunks: what is gathered from. Each row is counted in its chunk.

    Args:
        region: What the chunks lie in.
        spec: What a row is.
        begins: See below.

    Attributes:
        spec: What a row is.
        begins: Where in the region each chunk's arrays begin, in the order of `table_array_names`. Shape [K, A].
        groups: The ragged fields, those together whose lists are found together.
        expected_bytes: What the lists of a row will probably take; see `expect`.
    """

    def __init__(self, region: Region, spec: Spec, begins: Index) -> None:
        self.spec = spec
        self.begins = begins
        self.groups: tuple[tuple[Entry, ...], ...] = (
            *((spec.strip,) if spec.strip else ()),
            *((entry,) for entry in spec.apart),
        )
        self.expected_bytes = 0.0
        self._region = region

    @cached_property
    def native(self) -> Table:
        """Where all of it lies, for native code; made when all chunks are there."""
        table = Table(self._region.bytes, self.begins, self.spec.record_bytes)
        for group in self.groups:
            if group is self.spec.strip:
                table.add_strips([entry.value_bytes for entry in group])
            else:
                table.add_field(group[0].value_bytes, group[0].num_levels == 2)
        return table

    def records(self, slot: int, num_rows: int) -> Array:
        """Return the records of a chunk, uint8, shape [num_rows, record_bytes]: a view."""
        begin, width = int(self.begins[slot, 0]), self.spec.record_bytes
        return self._region.bytes[begin : begin + num_rows * width].reshape(num_rows, width)

    @property
    def bytes(self) -> Array:
        """The region as uint8."""
        return self._region.bytes

    def expect(self, num_bytes: int, num_rows: int) -> None:
        """Expect lists as long as those that some rows had, and some more.

        So what varies by chance from batch to batch is not asked for twice.
        """
        self.expected_bytes = max(self.expected_bytes, 1.05 * num_bytes / max(1, num_rows))

    def forget(self) -> None:
        """Let go of the region."""
        self.__dict__.pop("native", None)


def table_array_names(spec: Spec) -> list[list[str]]:
    """Return the names of the arrays of each table in a chunk: of its records, strips, and fields that lie apart."""
    names = []
    for name, table in zip(table_names(spec), spec.tables, strict=True):
        names.append([name] if table.record_bytes else [])
        names[-1] += strip_names(name) if table.strip else ()
        names[-1] += (array for entry in table.apart for array in array_names(entry))
    return names


class Window:
    """Samples of K chunks.

        region   ┆ chunk 0 ┆ . ┆ chunk 1 ┆ . ┆ chunk 2 ┆      whole files; what lies between is address space

    Args:
        spec: Spec of the samples.
        size_bytes: Of each chunk's file, shape [K].
        is_mapped: False reads the files into memory instead of mapping them; None for what the platform can.
        memories: Where the memory comes from that they are read into.

    Attributes:
        spec: As given.
        num_slots: K.
        tables: The samples' own rows, and those of what they share by each key.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        size_bytes: Sequence[int],
        is_mapped: bool | None = None,
        memories: Memories | None = None,
    ) -> None:
        self.spec = spec
        self.num_slots = len(size_bytes)
        self._at: list[int] = []
        end = 0
        is_mapped = CAN_MAP_SIDE_BY_SIDE if is_mapped is None else is_mapped
        for size in size_bytes:
            self._at.append(next_place(end, size, is_mapped=is_mapped))
            end = self._at[-1] + size
        self._region = Region(end, is_mapped=is_mapped, memories=memories)
        self._names = table_array_names(spec)
        self.tables = tuple(
            WindowTable(self._region, table, np.zeros((self.num_slots, len(names)), dtype=np.int64))
            for table, names in zip(spec.tables, self._names, strict=True)
        )

    def place(self, files: Mapping[int, tuple[int, ChunkHeader]], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Put chunks in their slots. Their files may be closed and removed afterwards.

        Args:
            files: By slot: a descriptor, open for reading, and what lies where.
            meanwhile: Called once while they are read; not where they are mapped.

        Raises:
            OSError: The system could not map or read one.
        """
        for slot, (_, header) in files.items():
            for table, names in zip(self.tables, self._names, strict=True):
                table.begins[slot] = [self._at[slot] + header.arrays[name].offset_bytes for name in names]
        parts = [FilePart(fd, 0, header.size_bytes, self._at[slot]) for slot, (fd, header) in files.items()]
        self._region.place(parts, meanwhile)

    @property
    def is_mapped(self) -> bool:
        """Whether the files are mapped, not read."""
        return self._region.is_mapped

    @property
    def bytes(self) -> Array:
        """The region as uint8, for values."""
        return self._region.bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether its pages lie in memory already, as far as a look at a few of them tells."""
        return self._region.is_in_memory()

    def settle(self, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Read the chunks into memory; see `Region.settle`."""
        self._region.settle(goes_on=goes_on)

    def close(self) -> None:
        """Give the addresses back; nobody may gather from the window any more."""
        for table in self.tables:
            table.forget()
        self._region.close()
