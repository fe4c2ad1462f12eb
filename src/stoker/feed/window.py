"""The chunks of one window, stitched together in one address range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker.cache.chunk import ChunkHeader
from stoker.cache.layout import RECORDS, array_names
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


class Window:
    """Samples of K chunks behind one array of records, whatever files they lie in.

        region   ┆ records 0 ┆ . ┆ records 1 ┆ . ┆ rest 0 ┆ rest 1 ┆      rest: offsets and values of ragged fields
                   0 1 2 ...       7 8 9 ...                              rows of `records`: first_row[slot] + row

    Each chunk's records begin at a multiple of both the page and the record, so that a row number counts through all
    of them. What lies between is address space without memory.

    Args:
        spec: Spec of the samples.
        num_samples: Of each chunk, shape [K].
        size_bytes: Of each chunk's file, shape [K].
        is_mapped: False reads the files into memory instead of mapping them; None for what the platform can.
    """

    def __init__(
        self, spec: Spec, *, num_samples: Sequence[int], size_bytes: Sequence[int], is_mapped: bool | None = None
    ) -> None:
        self.spec = spec
        self.num_slots = len(num_samples)
        step = math.lcm(PAGE_BYTES, spec.record_bytes or 1)
        records_end = 0
        self._records_at: list[int] = []
        for num in num_samples:
            self._records_at.append(records_end)
            records_end += -(-num * spec.record_bytes // step) * step
        rest_end = records_end
        self._rest_at: list[int] = []
        for size in size_bytes:
            self._rest_at.append(rest_end)
            rest_end += -(-size // PAGE_BYTES) * PAGE_BYTES if spec.ragged else 0
        self._region = Region(rest_end, is_mapped=is_mapped)
        self._records_bytes = records_end
        self.first_row = np.array(self._records_at, dtype=np.int64) // max(1, spec.record_bytes)
        self.levels = {
            entry.name: Levels(
                offsets=tuple(np.zeros(self.num_slots, dtype=np.int64) for _ in range(entry.num_levels)),
                values=np.zeros(self.num_slots, dtype=np.int64),
            )
            for entry in spec.ragged
        }

    def place(self, slot: int, fd: int, header: ChunkHeader) -> None:
        """Put a chunk in its slot. Its file may be closed and removed afterwards.

        Raises:
            OSError: The system could not map or read it.
        """
        if self.spec.record_bytes:
            records = header.arrays[RECORDS]
            num_bytes = header.num_samples * self.spec.record_bytes
            self._region.place(fd, offset=records.offset_bytes, num_bytes=num_bytes, at=self._records_at[slot])
        if not self.spec.ragged:
            return
        first = min(header.arrays[name].offset_bytes for entry in self.spec.ragged for name in array_names(entry))
        begin = first // PAGE_BYTES * PAGE_BYTES
        self._region.place(fd, offset=begin, num_bytes=header.size_bytes - begin, at=self._rest_at[slot])
        for entry in self.spec.ragged:
            *offsets, values = (
                self._rest_at[slot] + header.arrays[name].offset_bytes - begin for name in array_names(entry)
            )
            levels = self.levels[entry.name]
            for level, at in zip(levels.offsets, offsets, strict=True):
                level[slot] = at // 8
            levels.offsets[0][slot] -= self.first_row[slot]
            levels.values[slot] = values

    @cached_property
    def records(self) -> Array:
        """All records, uint8, shape [rows of the region, record_bytes]; row `first_row[slot] + row`."""
        return self.bytes[: self._records_bytes].reshape(-1, self.spec.record_bytes)

    @cached_property
    def words(self) -> Index:
        """The region as int64, for offsets."""
        return self.bytes.view(np.int64)

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
        for view in ("records", "words"):
            self.__dict__.pop(view, None)
        self._region.close()
