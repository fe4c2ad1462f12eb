"""What a loader delivers of columns that a transform returns, and what a transform gets of files.

Arrow has more types and layouts than Parquet files: so what becomes of a column is asked by way of a transform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker import Dataset, Field, Loader, Spec
from stoker.testing import MemoryStorage, write_parquet

WHERE = "lake/a.parquet row group 0"  # as errors name it, where fragments are no smaller


def loader_of(
    columns: Any,
    fields: Mapping[str, Field] | None = None,
    *,
    num_rows: int | None = None,
    fragment_rows: int | None = None,
    **options: Any,
) -> Loader:
    """Return a loader whose batches have all rows, in order, of what the transform of its data set returns.

    That is `columns`, or what they give if they can be called with a table of `num_rows` in fragments of
    `fragment_rows`, whose column "row" counts from 0. Of a table, each fragment has its slice. `options` are more of
    those of the data set.
    """
    if num_rows is None:
        num_rows = columns.num_rows if hasattr(columns, "num_rows") else len(next(iter(columns.values())))

    def transform(table: pa.Table) -> Any:
        if callable(columns):
            return columns(table)
        first = table["row"][0].as_py() if table.num_rows else 0
        return columns if table.num_rows == num_rows else columns.slice(first, table.num_rows)

    storage = MemoryStorage()
    write_parquet(storage, {"row": np.arange(num_rows)}, url="lake/a.parquet", row_group_size=fragment_rows)
    if fragment_rows is not None:
        options["chunk_size"] = 8 * fragment_rows
    return Loader(
        Dataset("lake", storage=storage, transform=transform, transform_version="1", fields=fields, **options),
        batch_size=max(1, num_rows),
        shuffle=False,
        prefetch=0,
        num_threads=1,
    )


def delivered(columns: Any, fields: Mapping[str, Field] | None = None, **options: Any) -> dict[str, Any]:
    """Return the arrays of all rows that `loader_of` gives, one row or more; their dtypes and shapes are as planned."""
    with loader_of(columns, fields, **options) as loader:
        (batch,) = loader
        assert list(batch) == [entry.name for entry in loader.spec]
        for entry in loader.spec:
            array, num_levels = batch[entry.name], 0
            while hasattr(array, "offsets"):
                assert array.offsets.dtype == np.int64
                array, num_levels = array.values, num_levels + 1
            assert (array.dtype, array.shape[1:], num_levels) == (entry.dtype, entry.shape, entry.num_levels)
            assert array.dtype.isnative
        return batch


def spec_of(schema: Any, fields: Mapping[str, Field] | None = None) -> Spec:
    """Return what a sample of such columns is, by no row of them."""
    with loader_of(pa.Table.from_batches([], schema=pa.schema(schema)), fields) as loader:
        return loader.spec


def read(dataset: Dataset) -> pa.Table:
    """Return all rows, in order, as a transform gets them."""
    catalogue = dataset.open()
    firsts = [i for i in range(len(catalogue)) if catalogue.unit(i)[0] == i]
    return pa.concat_tables([table for i in firsts for _, table in catalogue.read(i)])
