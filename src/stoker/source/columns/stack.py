"""Fields before they are packed: the columns of a stacked one still lie where Arrow decoded them, rows in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from stoker.source.columns.batch import BatchColumns
from stoker.source.columns.kinds import DType
from stoker.source.columns.pieces import Pieces
from stoker.spec import Array, Ragged

# Rows that are filled column by column before the next ones: their part of the result stays in the cache between two
# columns. Whole columns run at a quarter of the speed.
_BLOCK_ROWS = 4096


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
