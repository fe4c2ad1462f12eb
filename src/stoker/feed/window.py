"""The chunks of one window, stitched together in one address range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker.cache.chunk import ChunkHeader
from stoker.cache.layout import array_names, table_names
from stoker.feed.region import PAGE_BYTES, Region
from stoker.spec import Array, Spec

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Levels:
    """Where one ragged field's arrays lie, an item a slot, shape [K] each.

    Attributes:
        offsets: Of the offsets arrays, outermost first, counted in int64: what to add to a row to get its place.
            Outermost rows are counted through the window, as `Window.first_row` does; inner ones in their chunk.
        values: First byte of the values.
    """

    offsets: tuple[Index, ...]
    values: Index


class Rows:
    """Rows of one table of the chunks of a window, whatever files they lie in: what is gathered from.

    Attributes:
        spec: What a row is.
        first_row: Where each slot's rows begin, counted through the window. Shape [K].
        levels: Where each ragged field's arrays lie.
    """

    def __init__(self, region: Region, spec: Spec, *, places: Sequence[int], end: int, bounds: Sequence[int]) -> None:
        self._region = region
        self._span = slice(places[0] if places else end, end)
        self.spec = spec
        num_slots = len(places)
        if spec.record_bytes:
            self.first_row = (np.array(places, dtype=np.int64) - self._span.start) // spec.record_bytes
        else:  # numbers of rows are different ones in any case
            self.first_row = np.cumsum([0, *bounds], dtype=np.int64)[:-1]
        self.levels = {
            entry.name: Levels(
                offsets=tuple(np.zeros(num_slots, dtype=np.int64) for _ in range(entry.num_levels)),
                values=np.zeros(num_slots, dtype=np.int64),
            )
            for entry in spec.ragged
        }

    @cached_property
    def records(self) -> Array:
        """All records, uint8, shape [rows of the region, record_bytes]; row `first_row[slot] + row`."""
        return self._region.bytes[self._span].reshape(-1, self.spec.record_bytes)

    @cached_property
    def words(self) -> Index:
        """The region as int64, for offsets."""
        return self._region.bytes.view(np.int64)

    @property
    def bytes(self) -> Array:
        """The region as uint8, for values."""
        return self._region.bytes

    def forget(self) -> None:
        """Let go of all views of the region."""
        for view in ("records", "words"):
            self.__dict__.pop(view, None)


class Window:
    """Samples of K chunks behind one array of records, whatever files they lie in.

        region   ┆ records 0 ┆ . ┆ records 1 ┆ . ┆ rest 0 ┆ rest 1 ┆      rest: offsets and values of ragged fields
                   0 1 2 ...       7 8 9 ...                              rows of `records`: first_row[slot] + row

    Each chunk's records begin at a multiple of both the page and the record, so that a row number counts through all
    of them. What lies between is address space without memory. Records of what samples share lie behind in the same
    way, as rows of their own.

    Args:
        spec: Spec of the samples.
        num_samples: Of each chunk, shape [K].
        size_bytes: Of each chunk's file, shape [K].
        is_mapped: False reads the files into memory instead of mapping them; None for what the platform can.

    Attributes:
        spec: As given.
        num_slots: K.
        tables: The samples' own rows, and those of what they share by each key.
    """

    def __init__(
        self, spec: Spec, *, num_samples: Sequence[int], size_bytes: Sequence[int], is_mapped: bool | None = None
    ) -> None:
        self.spec = spec
        self.num_slots = len(num_samples)
        self._names = table_names(spec)
        self._records_at: list[list[int]] = []
        ends: list[int] = []
        end = 0
        for table in spec.tables:
            step = math.lcm(PAGE_BYTES, table.record_bytes or 1)
            end = -(-end // step) * step
            places = []
            for num, size in zip(num_samples, size_bytes, strict=True):
                places.append(end)
                # As many runs as samples at most, and no more than the file holds: only its header knows.
                end += -(-min(num * table.record_bytes, size) // step) * step
            self._records_at.append(places)
            ends.append(end)
        rest_end = -(-end // PAGE_BYTES) * PAGE_BYTES
        self._rest_at: list[int] = []
        for size in size_bytes:
            self._rest_at.append(rest_end)
            rest_end += -(-size // PAGE_BYTES) * PAGE_BYTES if spec.ragged else 0
        self._region = Region(rest_end, is_mapped=is_mapped)
        self.tables = tuple(
            Rows(self._region, table, places=places, end=end, bounds=num_samples)
            for table, places, end in zip(spec.tables, self._records_at, ends, strict=True)
        )

    def place(self, slot: int, fd: int, header: ChunkHeader) -> None:
        """Put a chunk in its slot. Its file may be closed and removed afterwards.

        Raises:
            OSError: The system could not map or read it.
        """
        for name, rows, places in zip(self._names, self.tables, self._records_at, strict=True):
            if rows.spec.record_bytes:
                records = header.arrays[name]
                self._region.place(fd, offset=records.offset_bytes, num_bytes=records.size_bytes, at=places[slot])
        if not self.spec.ragged:
            return
        first = min(header.arrays[name].offset_bytes for entry in self.spec.ragged for name in array_names(entry))
        begin = first // PAGE_BYTES * PAGE_BYTES
        self._region.place(fd, offset=begin, num_bytes=header.size_bytes - begin, at=self._rest_at[slot])
        for rows in self.tables:
            for entry in rows.spec.ragged:
                *offsets, values = (
                    self._rest_at[slot] + header.arrays[name].offset_bytes - begin for name in array_names(entry)
                )
                levels = rows.levels[entry.name]
                for level, at in zip(levels.offsets, offsets, strict=True):
                    level[slot] = at // 8
                levels.offsets[0][slot] -= rows.first_row[slot]
                levels.values[slot] = values

    @property
    def first_row(self) -> Index:
        """Where each slot's samples begin, counted through the window. Shape [K]."""
        return self.tables[0].first_row

    @property
    def levels(self) -> dict[str, Levels]:
        """Where the arrays of each ragged field lie that samples have for themselves."""
        return self.tables[0].levels

    @property
    def records(self) -> Array:
        """The samples' own records; see `Rows.records`."""
        return self.tables[0].records

    @property
    def words(self) -> Index:
        """The region as int64, for offsets."""
        return self.tables[0].words

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
        for rows in self.tables:
            rows.forget()
        self._region.close()
