"""An array that still lies in several, one for each batch that was decoded.

row groups   ┆ a a a ┆ b b ┆ c c c c ┆      three arrays, packed and written from where they are
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stoker.columns.kinds import DType
from stoker.fields.spec import Array, Ragged


class Pieces:
    """Arrays whose rows are those of one, behind each other.

    Joined, they would be copied once more, to memory that is new: of numbers that takes as long as to decode them.

    Args:
        arrays: One or more, C-contiguous, of one dtype, alike but for how many rows they have. Shapes [n, ...].

    Attributes:
        arrays: Those.
        starts: The first row of each, and behind the last one.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = tuple(arrays)
        if len({(array.dtype, array.shape[1:]) for array in self.arrays}) != 1:
            raise ValueError("the pieces of an array must be one or more, of one dtype and alike")
        # Whoever packs reads them by address.
        if not all(array.flags.c_contiguous for array in self.arrays):
            raise ValueError("the pieces of an array must be contiguous")
        starts = [0]
        for array in self.arrays:
            starts.append(starts[-1] + len(array))
        self.starts = tuple(starts)

    @property
    def dtype(self) -> DType:
        """Of all of them."""
        return self.arrays[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all of them together."""
        return (len(self), *self.arrays[0].shape[1:])

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows; a view, where they are all of one array."""
        begin, end, _ = rows.indices(len(self))
        first = min(bisect_right(self.starts, begin), len(self.arrays)) - 1
        if end <= self.starts[first + 1]:
            return self.arrays[first][begin - self.starts[first] : max(begin, end) - self.starts[first]]
        return np.concatenate(
            [
                array[max(begin - start, 0) : max(end - start, 0)]
                for start, array in zip(self.starts, self.arrays, strict=False)
            ]
        )

    def whole(self) -> Array:
        """Return one new array."""
        return np.concatenate(self.arrays)

    def changed(self, change: Callable[[Array, int], Array]) -> Pieces:
        """Return what becomes of each array, which is told its first row."""
        return Pieces(
            [np.ascontiguousarray(change(array, start)) for array, start in zip(self.arrays, self.starts, strict=False)]
        )


def in_pieces(array: Array | Pieces) -> Pieces:
    """Return an array as pieces; it is one of them where it is contiguous."""
    return array if isinstance(array, Pieces) else Pieces([np.ascontiguousarray(array)])


def joined(field: Any) -> Any:
    """Return a field with nothing in pieces: itself, where nothing was."""
    if isinstance(field, Pieces):
        return field.whole()
    if isinstance(field, Ragged):
        values = joined(field.values)
        return field if values is field.values else Ragged(values, field.offsets)
    return field
