"""Fields before they are packed: their rows still lie where Arrow decoded them, and so do columns of a stacked one.

row groups      ┆ a a a ┆ b b ┆ c c c c ┆      three arrays, packed and written from where they are
stacked field   ┆ x x x ┆ x x ┆ x x x x ┆
                ┆ y y y ┆ y y ┆ y y y y ┆      side by side in a record

Joined, they would be copied once more, to memory that is new: of numbers that takes as long as to decode them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.columns.arrays import buffer_of
from stoker.columns.kinds import DType
from stoker.fields.offsets import Int64
from stoker.fields.spec import Array, Ragged

# Rows that are filled column by column before the next ones: their part of the result stays in the cache between two
# columns. Whole columns run at a quarter of the speed.
_BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class BatchColumns:
    """Columns of a batch that hold numbers of one dtype, none of them null: arrays where they are asked for.

    Attributes:
        batch: The batch.
        exported: The same by Arrow's C data interface; holds its memory.
        numbers: Of the columns in it. Shape [C].
        dtype: Of their values.
    """

    batch: pa.RecordBatch
    exported: ExportedBatch
    numbers: Int64
    dtype: DType

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Array:
        return buffer_of(self.batch.column(int(self.numbers[i])), self.dtype)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a field.

    Attributes:
        start: First row.
        columns: One contiguous array, or one a column of a stacked field, each with the same number of rows: in the
            dtype of the field, or in a narrower integer that it holds exactly.
    """

    start: int
    columns: Sequence[Array] | BatchColumns

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


@dataclass(frozen=True, eq=False)
class Pieces:
    """A field that lies in several arrays.

    Attributes:
        dtype: Of the field.
        shape: Of the field, N first.
        pieces: In the order of the rows, without a gap.
    """

    dtype: DType
    shape: tuple[int, ...]
    pieces: Sequence[Piece]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Pieces:
        """Return arrays, one or more that are alike but for how many rows they have, as the rows of one field."""
        if len({(array.dtype, array.shape[1:]) for array in arrays}) != 1:
            raise ValueError("the pieces of a field must be one or more, of one dtype and alike")
        first = arrays[0]
        starts = np.cumsum([0, *map(len, arrays)]).tolist()
        pieces = [Piece(start, (np.ascontiguousarray(array),)) for start, array in zip(starts, arrays, strict=False)]
        return cls(first.dtype, (starts[-1], *first.shape[1:]), pieces)

    @property
    def arrays(self) -> list[Array]:
        """Those of a field that is not stacked."""
        return [piece.columns[0] for piece in self.pieces]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows of a field that is not stacked; a view, where they are all of one array."""
        begin, end, _ = rows.indices(len(self))
        some = [piece for piece in self.pieces if piece.start < end and begin < piece.stop] or self.pieces[:1]
        parts = [piece.columns[0][max(begin - piece.start, 0) : max(end - piece.start, 0)] for piece in some]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def whole(self) -> Array:
        """Return the field as one new array."""
        whole = np.empty((len(self), int(np.prod(self.shape[1:], dtype=np.int64))), self.dtype)
        for piece in self.pieces:
            num_columns = len(piece.columns)
            width = whole.shape[1] // num_columns
            for start in range(piece.start, piece.stop, _BLOCK_ROWS):
                stop = min(start + _BLOCK_ROWS, piece.stop)
                for j, column in enumerate(piece.columns):
                    rows = column[start - piece.start : stop - piece.start]
                    whole[start:stop, j * width : (j + 1) * width] = rows.reshape(stop - start, width)
        return whole.reshape(self.shape)

    def changed(self, change: Callable[[Array, int, int], Array], dtype: DType, shape: Sequence[int]) -> Pieces:
        """Return what becomes of each array, which is told its column and first row.

        Args:
            change: What becomes of an array.
            dtype: Of the new field.
            shape: Of one row of it.
        """
        pieces = [
            Piece(piece.start, [np.ascontiguousarray(change(a, j, piece.start)) for j, a in enumerate(piece.columns)])
            for piece in self.pieces
        ]
        return Pieces(dtype, (len(self), *shape), pieces)


def in_pieces(array: Array | Pieces) -> Pieces:
    """Return an array as pieces; it is one of them where it is contiguous."""
    return array if isinstance(array, Pieces) else Pieces.of([array])


def joined(field: Any) -> Any:
    """Return a field with nothing in pieces: itself, where nothing was."""
    if isinstance(field, Pieces):
        return field.whole()
    if isinstance(field, Ragged):
        values = joined(field.values)
        return field if values is field.values else Ragged(values, field.offsets)
    return field


Packable: TypeAlias = Mapping[str, "Array | Ragged | Pieces"]
"""Fields by name, as `Converter` gives them; values of a `Ragged` may be `Pieces`, too, which end between lists."""
