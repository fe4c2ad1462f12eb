"""Fields before they are packed: the columns of a stacked one still lie where Arrow decoded them, rows in pieces.

row groups   ┆ a a a ┆ b b ┆ c c c c ┆      three arrays, packed and written from where they are
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.columns.kinds import DType
from stoker.columns.numeric import buffer_of
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


# Rows that are filled column by column before the next ones: their part of the result stays in the cache between two
# columns. Whole columns run at a quarter of the speed.
_BLOCK_ROWS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """What there is to know of all columns of a batch without looking into them. C is their number.

    Attributes:
        batch: The batch.
        exported: The same by Arrow's C data interface; holds its memory.
        nulls: Of each column; -1 where nobody has counted them. Shape [C].
    """

    batch: pa.RecordBatch
    exported: ExportedBatch
    nulls: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Outline:
        """Return the outline of a batch."""
        exported, nulls = ExportedBatch(batch.__arrow_c_array__()[1]), np.empty(batch.num_columns, np.int64)
        exported.count_nulls(nulls)
        return cls(batch=batch, exported=exported, nulls=nulls)


@dataclass(frozen=True, eq=False)
class BatchColumns:
    """Columns of a batch that hold numbers of one dtype, none of them null: arrays where they are asked for.

    Attributes:
        outline: Of the batch.
        numbers: Of the columns in it. Shape [C].
        dtype: Of their values.
    """

    outline: Outline
    numbers: npt.NDArray[np.int64]
    dtype: DType

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Array:
        return buffer_of(self.outline.batch.column(int(self.numbers[i])), self.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class StackPiece:
    """Some rows of a stacked field.

    Attributes:
        start: First row.
        columns: One contiguous array a column, each with the same number of rows: in the dtype of the field, or in a
            narrower integer that it holds exactly. Numbers, or rows of them where there is one column alone.
    """

    start: int
    columns: tuple[Array, ...] | BatchColumns

    def __post_init__(self) -> None:
        # Whoever packs reads them by address.
        if not isinstance(self.columns, BatchColumns) and any(
            len(column) != len(self.columns[0]) or not column.flags.c_contiguous for column in self.columns
        ):
            raise ValueError("the columns of a piece must be contiguous and of one length")

    @property
    def stop(self) -> int:
        """Last row + 1."""
        return self.start + len(self.columns[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """Columns that make one field `[N, ...]` side by side; laying them there is left to whoever packs records.

    Attributes:
        dtype: Of the field.
        shape: Of the field, N first; the rest has one place a column.
        pieces: In the order of the rows, without a gap.
    """

    dtype: DType
    shape: tuple[int, ...]
    pieces: Sequence[StackPiece]

    def whole(self) -> Array:
        """Return the field as one new array."""
        num_columns = int(np.prod(self.shape[1:], dtype=np.int64))
        stacked = np.empty((self.shape[0], num_columns), self.dtype)
        for piece in self.pieces:
            for start in range(piece.start, piece.stop, _BLOCK_ROWS):
                stop = min(start + _BLOCK_ROWS, piece.stop)
                for j, column in enumerate(piece.columns):
                    stacked[start:stop, j] = column[start - piece.start : stop - piece.start]
        return stacked.reshape(self.shape)


Packable: TypeAlias = Mapping[str, "Array | Ragged | Stack | Pieces"]
"""Fields by name, as `Converter` gives them; values of a `Ragged` may be `Pieces`, too, which end between lists."""
