"""Where all columns of a batch lie, asked at once: one by one, thousands cost more than to pack what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import ExportedBatch
from stoker.source.columns.kinds import DType
from stoker.source.columns.numeric import buffer_of
from stoker.spec import Array


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
