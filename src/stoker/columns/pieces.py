"""Fields before they are packed: their rows still lie where Arrow decoded them, and so do columns of a stacked one.

row groups      ┆ a a a ┆ b b ┆ c c c c ┆      three arrays, packed and written from where they are
stacked field   ┆ x x x ┆ x x ┆ x x x x ┆
                ┆ y y y ┆ y y ┆ y y y y ┆      side by side in a record

Joined, they would be copied once more, to memory that is new: of numbers that takes as long as to decode them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.columns.arrays import buffer_of
from stoker.columns.kinds import DType
from stoker.fields.offsets import Int64
from stoker.fields.spec import Array, Ragged
from stoker.host.forks import cached_property

# Rows that are filled column by column before the next ones: their part of the result stays in the cache between two
# columns. Whole columns run at a quarter of the speed.
_BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class BatchColumns(Sequence[Array]):
    """Columns of a batch that hold numbers of one dtype, none of them null: arrays where they are asked for."""

    batch: pa.RecordBatch
    exported: ExportedBatch  # the same by Arrow's C data interface; holds its memory
    numbers: Int64  # of the columns in it
    dtype: DType

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Array:  # type: ignore[override]  # one at a time
        return buffer_of(self.batch.column(int(self.numbers[i])), self.dtype)


@dataclass(frozen=True, eq=False)
class Pieces:
    """A field that lies in several arrays.

    Each part has some rows, in their order: one contiguous array, or one a column of a stacked field, all of one length
    and in the dtype of the field, or in a narrower integer that it holds exactly.
    """

    dtype: DType
    shape: tuple[int, ...]  # of the field, N first
    parts: Sequence[Sequence[Array]]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Pieces:
        """Return arrays, one or more that are alike but for how many rows they have, as the rows of one field."""
        first = arrays[0]
        parts = [(np.ascontiguousarray(array),) for array in arrays]
        return cls(first.dtype, (sum(map(len, arrays)), *first.shape[1:]), parts)

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each part, and the end."""
        return list(accumulate((len(columns[0]) for columns in self.parts), initial=0))

    @property
    def arrays(self) -> list[Array]:
        """Those of a field that is not stacked."""
        return [columns[0] for columns in self.parts]

    def __len__(self) -> int:
        return self.shape[0]

    def whole(self) -> Array:
        """Return the field as one new array."""
        whole = np.empty((len(self), int(np.prod(self.shape[1:], dtype=np.int64))), self.dtype)
        for columns, first, end in zip(self.parts, self.starts, self.starts[1:], strict=False):
            width = whole.shape[1] // len(columns)
            for start in range(first, end, _BLOCK_ROWS):
                stop = min(start + _BLOCK_ROWS, end)
                for j, column in enumerate(columns):
                    rows = column[start - first : stop - first]
                    whole[start:stop, j * width : (j + 1) * width] = rows.reshape(stop - start, width)
        return whole.reshape(self.shape)

    def changed(self, change: Callable[[Array, int, int], Array], dtype: DType, shape: Sequence[int]) -> Pieces:
        """Return a field of what becomes of each array, given its column and first row; `shape` is of one row of it."""
        parts = [
            [np.ascontiguousarray(change(array, j, start)) for j, array in enumerate(columns)]
            for columns, start in zip(self.parts, self.starts, strict=False)
        ]
        return Pieces(dtype, (len(self), *shape), parts)


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
