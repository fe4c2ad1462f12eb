"""The chunks of one window, stitched together in one address range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.cache.chunk import ChunkHeader
from stoker.cache.layout import array_names, table_names
from stoker.huge import PAGE_BYTES
from stoker.spec import Array, Spec
from stoker.windows.memory import Memories
from stoker.windows.places import next_place, room_for
from stoker.windows.region import CAN_MAP_SIDE_BY_SIDE, Region

Index = npt.NDArray[np.int64]


class Fields(NamedTuple):
    """Where the lists of several ragged fields lie in a region, an item a slot.

    Attributes:
        words: The region as int64.
        memory: The region as uint8.
        first_word: What to add to a slot's row to get where its list begins, in `words`. Shape [F, K].
        first_byte: Where each slot's values begin in `memory`. Shape [F, K].
        value_bytes: Bytes of a value of each field, none of them 0. Shape [F].
    """

    words: Index
    memory: Array
    first_word: Array
    first_byte: Array
    value_bytes: Index


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

    Args:
        region: Where they lie.
        spec: What a row is.
        first_row: See below.
        levels: See below.

    Attributes:
        spec: What a row is.
        first_row: Where each slot's rows begin, counted through the window: different ones, in any order. Shape [K].
        levels: Where each ragged field's arrays lie.
        expected_bytes: What the lists of a row have taken so far, at most; set by whoever gathers.
    """

    def __init__(self, region: Region, spec: Spec, *, first_row: Index, levels: Mapping[str, Levels]) -> None:
        self._region = region
        self.spec = spec
        self.first_row = first_row
        self.levels = dict(levels)
        self.expected_bytes = 0.0

    @cached_property
    def records(self) -> Array:
        """The region as records, uint8, shape [rows of the region, record_bytes]; row `first_row[slot] + row`."""
        width = self.spec.record_bytes
        return self._region.bytes[: self._region.size_bytes // width * width].reshape(-1, width)

    @cached_property
    def words(self) -> Index:
        """The region as int64, for offsets."""
        return self._region.bytes.view(np.int64)

    @property
    def bytes(self) -> Array:
        """The region as uint8, for values."""
        return self._region.bytes

    @cached_property
    def lists(self) -> Fields | None:
        """Where the lists of all ragged fields lie; None where some hold lists of lists, or values without bytes."""
        if not self.levels or not all(entry.num_levels == 1 and entry.value_bytes for entry in self.spec.ragged):
            return None
        levels = [self.levels[entry.name] for entry in self.spec.ragged]
        return Fields(
            words=self.words,
            memory=self.bytes,
            first_word=np.stack([level.offsets[0] for level in levels]),
            first_byte=np.stack([level.values for level in levels]),
            value_bytes=np.array([entry.value_bytes for entry in self.spec.ragged], dtype=np.int64),
        )

    def forget(self) -> None:
        """Let go of all views of the region."""
        for view in ("records", "words", "lists"):
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
        num_samples: Sequence[int],
        size_bytes: Sequence[int],
        is_mapped: bool | None = None,
        memories: Memories | None = None,
    ) -> None:
        self.spec = spec
        self.num_slots = len(num_samples)
        self._names = table_names(spec)
        self._places: list[list[int]] = []
        end = 0
        is_mapped = CAN_MAP_SIDE_BY_SIDE if is_mapped is None else is_mapped
        for table in spec.tables:
            places = []
            for num, size in zip(num_samples, size_bytes, strict=True):
                # As many runs as samples at most, and no more than the file holds: only its header knows.
                most_bytes = min(num * table.record_bytes, size)
                place, end = _reserved(end, most_bytes, table.record_bytes or 1, is_mapped=is_mapped)
                places.append(place)
            self._places.append(places)
        self._rest_at: list[int] = []
        for size in size_bytes:
            place, end = _reserved(end, size if spec.ragged else 0, 1, is_mapped=is_mapped)
            self._rest_at.append(place)
        self._region = Region(end, is_mapped=is_mapped, memories=memories)
        self.tables = tuple(
            Rows(
                self._region,
                table,
                first_row=_first_rows(table, places, num_samples),
                levels=empty_levels(table, self.num_slots),
            )
            for table, places in zip(spec.tables, self._places, strict=True)
        )

    def place(self, slot: int, fd: int, header: ChunkHeader) -> None:
        """Put a chunk in its slot. Its file may be closed and removed afterwards.

        Several threads may place chunks at once.

        Raises:
            OSError: The system could not map or read it.
        """
        for name, rows, places in zip(self._names, self.tables, self._places, strict=True):
            if width := rows.spec.record_bytes:
                records = header.arrays[name]
                at = self._place(places[slot], fd, records.offset_bytes, records.size_bytes, width)
                rows.first_row[slot] = at // width
        if self.spec.ragged:
            begin = rest_offset(self.spec, header)
            at = self._place(self._rest_at[slot], fd, begin, header.size_bytes - begin, 1)
            for rows in self.tables:
                set_levels(rows.levels, rows.spec, rows.first_row, slot, header, shift=at - begin)

    def _place(self, behind: int, fd: int, offset: int, num_bytes: int, record_bytes: int) -> int:
        """Put a part of a file into the room that begins at `behind`, and return where."""
        at = behind
        if self._region.is_mapped:
            at = next_place(behind, offset=offset, record_bytes=record_bytes, size_bytes=num_bytes)
        self._region.place(fd, offset=offset, num_bytes=num_bytes, at=at)
        return at

    @property
    def is_mapped(self) -> bool:
        """Whether the files are mapped, not read."""
        return self._region.is_mapped

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


def empty_levels(spec: Spec, num_slots: int) -> dict[str, Levels]:
    """Return tables for the lists of `num_slots` chunks, filled with zeros."""
    return {
        entry.name: Levels(
            offsets=tuple(np.zeros(num_slots, dtype=np.int64) for _ in range(entry.num_levels)),
            values=np.zeros(num_slots, dtype=np.int64),
        )
        for entry in spec.ragged
    }


def rest_offset(spec: Spec, header: ChunkHeader) -> int:
    """Return where in a chunk file its lists begin, rounded down to a page; everything up to its end is theirs."""
    first = min(header.arrays[name].offset_bytes for entry in spec.ragged for name in array_names(entry))
    return first // PAGE_BYTES * PAGE_BYTES


def set_levels(
    levels: Mapping[str, Levels], spec: Spec, first_row: Index, slot: int, header: ChunkHeader, *, shift: int
) -> None:
    """Note where the lists of a chunk lie.

    Args:
        levels: Tables to write to.
        spec: Of the table.
        first_row: Of each slot. Shape [K].
        slot: Of the chunk.
        header: Of the chunk.
        shift: What to add to a place in the file to get the place in the region.
    """
    for entry in spec.ragged:
        *offsets, values = (shift + header.arrays[name].offset_bytes for name in array_names(entry))
        found = levels[entry.name]
        for level, at in zip(found.offsets, offsets, strict=True):
            level[slot] = at // 8
        found.offsets[0][slot] -= first_row[slot]
        found.values[slot] = values


def _reserved(end: int, size_bytes: int, record_bytes: int, *, is_mapped: bool) -> tuple[int, int]:
    """Return where the room behind `end` begins for so many bytes of records, and where it ends.

    Addresses cost nothing: a map gets as many as it takes to keep huge pages. Memory is not left empty for that.
    """
    if is_mapped:
        return end, end + room_for(size_bytes, record_bytes=record_bytes)
    step = math.lcm(PAGE_BYTES, record_bytes)
    place = -(-end // step) * step
    return place, place + -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _first_rows(spec: Spec, places: Sequence[int], num_samples: Sequence[int]) -> Index:
    if spec.record_bytes:
        return np.array(places, dtype=np.int64) // spec.record_bytes
    # Numbers of rows are different ones in any case.
    return np.cumsum([0, *num_samples], dtype=np.int64)[:-1]
