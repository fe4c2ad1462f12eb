"""Where all columns of a batch lie, asked at once: one by one, thousands cost more than to pack what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._native import read_columns
from stoker.source.columns.kinds import DType
from stoker.source.columns.numeric import buffer_of
from stoker.spec import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """What there is to know of all columns of a batch without looking into them. C is their number.

    Attributes:
        batch: The batch, which holds their memory.
        nulls: Of each; -1 where nobody has counted them. Shape [C].
        offsets: The value with which each begins in its buffer. Shape [C].
        addresses: Of the second buffer of each, which has the values where they are numbers; 0 for none. Shape [C].
    """

    batch: pa.RecordBatch
    nulls: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Outline | None:
        """Return the outline of a batch; None where Arrow exports something else than one struct for each column."""
        nulls, offsets, addresses = np.empty((3, batch.num_columns), np.int64)
        _, exported = batch.__arrow_c_array__()  # the capsule lets go of it when it is dropped
        if not read_columns(exported, nulls, offsets, addresses):
            return None
        return cls(batch=batch, nulls=nulls, offsets=offsets, addresses=addresses)


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

    @property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Where the first value of each column is. Shape [C]."""
        outline = self.outline
        found: npt.NDArray[np.int64] = (
            outline.addresses[self.numbers] + outline.offsets[self.numbers] * self.dtype.itemsize
        )
        return found

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Array:
        return buffer_of(self.outline.batch.column(int(self.numbers[i])), self.dtype)
