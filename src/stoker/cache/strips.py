"""Strips: the lists of one sample, of all fields, side by side, so that a gather finds them at one place.

a       ┆ 1 1 1 │ 2 │ 3 3 ┆        places  ┆ 0 3 1 │ 4 1 2 │ 7 2 0 ┆      where, and how many values of each field
b       ┆ x │ y y │ ┆         ─►   strips  ┆ 1 1 1 x │ 2 y y │ 3 3 ┆
          one array a field                  one strip a sample
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker._native import ListPacker
from stoker.errors import FieldError
from stoker.offsets import offsets_of
from stoker.source.columns import Packable, in_pieces
from stoker.spec import Array, Entry, Ragged, Spec

# A strip begins at a multiple of it, and is counted in it: the widest number there is.
STRIP_UNIT_BYTES = 8
_MOST_NUMBER = 2**32 - 1

Places = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Strips:
    """The lists of N rows, of several fields, about to be laid side by side.

    Attributes:
        entries: The fields, in the order in which they lie in a strip.
        lists: Of each field; the values as `Pieces`.
        places: Of each row: where its strip begins, in units of 8 bytes, and how many values of each field it has.
            Shape [N, 1 + F].
        size_bytes: Of all strips.
    """

    entries: tuple[Entry, ...]
    lists: tuple[Ragged, ...]
    places: Places
    size_bytes: int

    @cached_property
    def _packer(self) -> ListPacker:
        packer = ListPacker()
        for entry, lists in zip(self.entries, self.lists, strict=True):
            packer.add_field(np.ascontiguousarray(lists.offsets), entry.value_bytes, lists.values.arrays)
        return packer

    @cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        """Where the strip of each row begins, and the last one ends, in units. Shape [N + 1]."""
        return np.append(self.places[:, 0], self.size_bytes // STRIP_UNIT_BYTES).astype(np.int64)

    def fitting(self, start: int, num_bytes: int) -> int:
        """Return the row up to which strips fit into so many bytes, from `start` on."""
        most = int(self._begins[start]) + num_bytes // STRIP_UNIT_BYTES
        return int(np.searchsorted(self._begins, most, side="right")) - 1

    def num_bytes(self, start: int, stop: int) -> int:
        """Return how many bytes the strips of rows [start, stop) take."""
        return int(self._begins[stop] - self._begins[start]) * STRIP_UNIT_BYTES

    def pieces(self, row: int, piece_bytes: int) -> Iterator[memoryview]:
        """Yield the strip of a row, its lists as they are, at most so many bytes at a time."""
        num_bytes = self.num_bytes(row, row + 1)
        for lists in self.lists:
            content = _bytes_of(lists.values[lists.offsets[row] : lists.offsets[row + 1]])
            num_bytes -= len(content)
            for begin in range(0, len(content), piece_bytes):
                yield content[begin : begin + piece_bytes].data
        yield memoryview(bytes(num_bytes))

    def lay(self, block: Array, start: int, stop: int) -> None:
        """Lay the strips of rows [start, stop) at the beginning of `block`, uint8."""
        self._packer.pack(block, self.places, start, stop)


def make_strips(spec: Spec, arrays: Packable) -> Strips | None:
    """Return the strips of a table; None where its lists do not lie side by side.

    Raises:
        FieldError: They are more than can be counted.
    """
    if not spec.strip:
        return None
    lists = []
    for entry in spec.strip:
        field = arrays[entry.name]
        assert isinstance(field, Ragged)
        lists.append(Ragged(in_pieces(field.values), field.offsets))
    counts = [np.diff(one.offsets) for one in lists]
    num_bytes = sum(count * entry.value_bytes for entry, count in zip(spec.strip, counts, strict=True))
    ends = offsets_of(-(-num_bytes // STRIP_UNIT_BYTES))
    if max(int(ends[-1]), *(int(count.max(initial=0)) for count in counts)) > _MOST_NUMBER:
        names = ", ".join(entry.name for entry in spec.strip)
        raise FieldError(
            f"the lists of one chunk take {int(ends[-1]) * STRIP_UNIT_BYTES:,} bytes in the fields {names}; 32 GiB are "
            "the most: make chunks smaller by chunk_size=",
            columns=[entry.name for entry in spec.strip],
        )
    places = np.stack([ends[:-1], *counts], axis=1).astype(np.uint32)
    return Strips(spec.strip, tuple(lists), places, int(ends[-1]) * STRIP_UNIT_BYTES)


def _bytes_of(values: Array) -> Array:
    """Return contiguous values as uint8."""
    if not values.nbytes:
        return np.empty(0, dtype=np.uint8)
    return values.reshape(-1).view(np.uint8)
