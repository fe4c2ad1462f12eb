"""INT96, the old timestamps of Spark, Hive and Impala, reach further than the nanoseconds that pyarrow makes of them.

    9999-12-31 as INT96  ──►  1816-03-29 in nanoseconds      wrapped around without a word

In seconds nothing wraps, so such columns are decoded once more in seconds, and the two must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.errors import FieldError
from stoker.parquet.schema import Layout, flatten

_INT96 = 3  # the number of the type in the format
_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def int96_paths(layout: Layout, paths: Sequence[str]) -> list[str]:
    """Return those of the Parquet leaf columns `paths` that hold INT96."""
    found = {path for path, kind in zip(layout.paths, layout.physical_types.tolist(), strict=True) if kind == _INT96}
    return [path for path in paths if path in found]


def check_instants(table: pa.Table, seconds: pa.Table, *, where: str) -> None:
    """Raise where timestamps of `table` are not what they are in seconds.

    Args:
        table: Rows as they are delivered, structs as structs.
        seconds: The INT96 columns of the same rows, decoded in seconds.
        where: The fragment, for errors.

    Raises:
        FieldError: Columns hold instants that their type cannot say; it names each.
    """
    flat = flatten(table.select(seconds.column_names))
    wrong = []
    for name, column in zip(flatten(seconds).column_names, flatten(seconds).columns, strict=True):
        pairs = _instants(flat.column(name).combine_chunks(), column.combine_chunks())
        if any((found != true).any() for found, true in pairs):
            wrong.append(name)
    if wrong:
        names = "; ".join(f"column {name!r}" for name in wrong)
        raise FieldError(
            f"{names}: INT96 timestamps in {where} lie outside of the years 1677 to 2262, which nanoseconds can say. "
            "Leave such columns out (columns= without them), or write them in microseconds (in Spark: "
            "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS)",
            columns=wrong,
        )


def _instants(found: pa.Array, true: pa.Array) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the instants of both in seconds, one pair a leaf of `true`, which may have fewer leaves."""
    if pa.types.is_struct(true.type):
        for i in range(true.type.num_fields):
            yield from _instants(found.field(true.type.field(i).name), true.field(i))
    elif pa.types.is_timestamp(true.type):
        yield _seconds(found), _seconds(true)
    else:  # a list of some kind, or a map, which is a list of structs
        yield from _instants(found.flatten(), true.flatten())


def _seconds(array: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values // _A_SECOND[array.type.unit]
