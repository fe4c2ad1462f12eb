"""The chunks of one window, stitched together in one address range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker.cache.chunk import ChunkHeader
from stoker.cache.layout import table_names
from stoker.huge import PAGE_BYTES
from stoker.spec import Array, Spec
from stoker.windows.list_places import Fields, Index, ListPlaces, rest_offset
from stoker.windows.memory import Memories
from stoker.windows.places import next_place, room_for
from stoker.windows.reading import Part
from stoker.windows.region import CAN_MAP_SIDE_BY_SIDE, Region


class Rows:
    """Rows of one table of the chunks of a window, whatever files they lie in: what is gathered from.

    Args:
        region: Where they lie.
        spec: What a row is.
        first_row: See below.
        places: See below.

    Attributes:
        spec: What a row is.
        first_row: Where each slot's rows begin, counted through the window: different ones, in any order. Shape [K].
        places: Where its lists lie.
        expected_bytes: What the lists of a row will probably take; see `expect`.
    """

    def __init__(self, region: Region, spec: Spec, *, first_row: Index, places: ListPlaces) -> None:
        self._region = region
        self.spec = spec
        self.first_row = first_row
        self.places = places
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

    @cached_property
    def halves(self) -> npt.NDArray[np.uint32]:
        """The region as uint32, for the places of strips."""
        return self._region.bytes.view(np.uint32)

    @property
    def bytes(self) -> Array:
        """The region as uint8, for values."""
        return self._region.bytes

    @cached_property
    def address(self) -> int:
        """Where the region begins."""
        return int(self._region.bytes.ctypes.data)

    @cached_property
    def lists(self) -> Fields | None:
        """Where the lists of all ragged fields lie; None where some hold lists of lists, or values without bytes."""
        spec, apart = self.spec, self.spec.apart
        if self.places.strips is not None:
            if apart:
                return None
            first_place, first_byte = self.places.strips.places, self.places.strips.strips
        elif len(apart) == 1 and apart[0].num_levels == 1 and apart[0].value_bytes:
            level = self.places.levels[apart[0].name]
            first_place, first_byte = level.offsets[0], level.values
        else:
            return None
        value_bytes = [entry.value_bytes for entry in spec.strip or apart]
        return Fields(
            words=self.words,
            halves=self.halves,
            memory=self.bytes,
            first_place=first_place,
            first_byte=first_byte,
            value_bytes=np.array(value_bytes, dtype=np.int64),
        )

    def expect(self, num_bytes: int, num_rows: int) -> None:
        """Expect lists as long as those that some rows had, and some more.

        So what varies by chance from batch to batch is not asked for twice.
        """
        self.expected_bytes = max(self.expected_bytes, 1.05 * num_bytes / max(1, num_rows))

    def forget(self) -> None:
        """Let go of all views of the region."""
        for view in ("records", "words", "halves", "address", "lists"):
            self.__dict__.pop(view, None)


class Window:
    """Samples of K chunks behind one array of records, whatever files they lie in.

        region   ┆ records 0 ┆ . ┆ records 1 ┆ . ┆ rest 0 ┆ rest 1 ┆      rest: the lists, and where they lie
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
                places=ListPlaces.empty(table, self.num_slots),
            )
            for table, places in zip(spec.tables, self._places, strict=True)
        )

    def place(self, files: Mapping[int, tuple[int, ChunkHeader]], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Put chunks in their slots. Their files may be closed and removed afterwards.

        Args:
            files: By slot: a descriptor, open for reading, and what lies where.
            meanwhile: Called once while they are read; not where they are mapped.

        Raises:
            OSError: The system could not map or read one.
        """
        parts = [part for slot, (fd, header) in files.items() for part in self._parts(slot, fd, header)]
        self._region.place(parts, meanwhile)

    def _parts(self, slot: int, fd: int, header: ChunkHeader) -> Iterator[Part]:
        """Note where a chunk will lie, and give the parts of its file that do."""
        for name, rows, places in zip(self._names, self.tables, self._places, strict=True):
            if width := rows.spec.record_bytes:
                records = header.arrays[name]
                part = self._part(places[slot], fd, records.offset_bytes, records.size_bytes, width)
                rows.first_row[slot] = part.at // width
                yield part
        if self.spec.ragged:
            begin = rest_offset(self.spec, header)
            part = self._part(self._rest_at[slot], fd, begin, header.size_bytes - begin, 1)
            for name, rows in zip(self._names, self.tables, strict=True):
                rows.places.note(rows.spec, name, slot, header, first_row=rows.first_row, shift=part.at - begin)
            yield part

    def _part(self, behind: int, fd: int, offset: int, num_bytes: int, record_bytes: int) -> Part:
        """Return where a part of a file lies in the room that begins at `behind`."""
        at = behind
        if self._region.is_mapped:
            at = next_place(behind, offset=offset, record_bytes=record_bytes, size_bytes=num_bytes)
        return Part(fd, offset, num_bytes, at)

    @property
    def is_mapped(self) -> bool:
        """Whether the files are mapped, not read."""
        return self._region.is_mapped

    @property
    def first_row(self) -> Index:
        """Where each slot's samples begin, counted through the window. Shape [K]."""
        return self.tables[0].first_row

    @property
    def records(self) -> Array:
        """The samples' own records; see `Rows.records`."""
        return self.tables[0].records

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
