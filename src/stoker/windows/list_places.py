"""Where the lists of chunks lie in a region, by chunk: what a gather looks up for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.cache.chunk import ChunkHeader
from stoker.cache.layout import array_names, list_names, strip_names
from stoker.huge import PAGE_BYTES
from stoker.spec import Array, Spec

Index = npt.NDArray[np.int64]


class Fields(NamedTuple):
    """Where the lists of all ragged fields of a table lie in a region, an item a slot.

        one field     borders      words[first_place + row], and the next one: places among the values
                      values       first_byte
        several       places       halves[first_place + (1 + F) * row], and F numbers behind it: see `cache.strips`
                      strips       first_byte

    Attributes:
        words: The region as int64, for the borders of one field.
        halves: The region as uint32, for the places of strips.
        memory: The region as uint8.
        first_place: What to add to a slot's row, as above. Shape [K].
        first_byte: Where each slot's values or strips begin in `memory`. Shape [K].
        value_bytes: Bytes of a value of each field, none of them 0, in the order of a strip. Shape [F].
    """

    words: Index
    halves: npt.NDArray[np.uint32]
    memory: Array
    first_place: Index
    first_byte: Index
    value_bytes: Index


@dataclass(frozen=True)
class Levels:
    """Where the arrays of a ragged field lie that lies by itself, an item a slot, shape [K] each.

    Attributes:
        offsets: Of the offsets arrays, outermost first, counted in int64: what to add to a row to get its place.
            Outermost rows are counted through the window, as `Window.first_row` does; inner ones in their chunk.
        values: First byte of the values.
    """

    offsets: tuple[Index, ...]
    values: Index


@dataclass(frozen=True)
class StripPlaces:
    """Where the strips of a table lie, an item a slot, shape [K] each.

    Attributes:
        places: Of their places, counted in uint32: what to add to a row's number, times the numbers of a row.
        strips: First byte of the strips.
    """

    places: Index
    strips: Index


@dataclass(frozen=True)
class ListPlaces:
    """Where all lists of a table lie.

    Attributes:
        levels: Of each field that lies by itself.
        strips: Of those that lie side by side; None without any.
    """

    levels: dict[str, Levels]
    strips: StripPlaces | None

    @classmethod
    def empty(cls, spec: Spec, num_slots: int) -> ListPlaces:
        """Return those of so many chunks, filled with zeros."""

        def zeros() -> Index:
            return np.zeros(num_slots, dtype=np.int64)

        levels = {
            entry.name: Levels(offsets=tuple(zeros() for _ in range(entry.num_levels)), values=zeros())
            for entry in spec.apart
        }
        return cls(levels, StripPlaces(zeros(), zeros()) if spec.strip else None)

    def of(self, slots: Index) -> ListPlaces:
        """Return those of some chunks, in their order."""
        levels = {
            name: Levels(offsets=tuple(level[slots] for level in found.offsets), values=found.values[slots])
            for name, found in self.levels.items()
        }
        strips = self.strips
        return ListPlaces(levels, strips and StripPlaces(strips.places[slots], strips.strips[slots]))

    def note(self, spec: Spec, table: str, slot: int, header: ChunkHeader, *, first_row: Index, shift: int) -> None:
        """Note where the lists of a chunk lie.

        Args:
            spec: Of the table.
            table: Its name in a chunk file.
            slot: Of the chunk.
            header: Of the chunk.
            first_row: Of each slot. Shape [K].
            shift: What to add to a place in the file to get the place in the region.
        """
        if self.strips is not None:
            places, strips = (shift + header.arrays[name].offset_bytes for name in strip_names(table))
            self.strips.places[slot] = places // 4 - first_row[slot] * (1 + len(spec.strip))
            self.strips.strips[slot] = strips
        for entry in spec.apart:
            *offsets, values = (shift + header.arrays[name].offset_bytes for name in array_names(entry))
            found = self.levels[entry.name]
            for level, at in zip(found.offsets, offsets, strict=True):
                level[slot] = at // 8
            found.offsets[0][slot] -= first_row[slot]
            found.values[slot] = values


def rest_offset(spec: Spec, header: ChunkHeader) -> int:
    """Return where in a chunk file its lists begin, rounded down to a page; everything up to its end is theirs."""
    first = min(header.arrays[name].offset_bytes for name in list_names(spec))
    return first // PAGE_BYTES * PAGE_BYTES
