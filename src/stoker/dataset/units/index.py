"""What a counting pass found, as a few arrays: kept in one file, mapped when it is there and whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.dataset.kept import keep, kept
from stoker.fields.offsets import Int64

# Raise it when the same rows and the same question give other arrays, or these are kept in another form.
FORMAT_VERSION = 2

_MAGIC = b"STKUNT02"


@dataclass(frozen=True, kw_only=True)
class Index:
    """The units of a data set. K is the number of its fragments.

    Attributes:
        row_starts: Where each fragment's rows begin among all that pass, and the end. Shape [K + 1].
        arrays: What else finds the rows of a unit; which arrays, the kind of unit says.
        numbers: What was counted on the way, for reports.
    """

    row_starts: Int64
    arrays: Mapping[str, Int64] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def keep_index(path: Path, index: Index) -> None:
    """Write `index` to one file; a disk that does not take it is a warning."""
    arrays = {"row_starts": index.row_starts, **index.arrays}
    numbers = pa.schema([], {"numbers": json.dumps(dict(index.numbers))}).empty_table()
    keep(path, _MAGIC, [numbers, *(pa.table({name: pa.array(array)}) for name, array in arrays.items())])


def kept_index(path: Path) -> Index | None:
    """Return what `keep_index` wrote, mapped; None where nothing is kept, or what is kept is damaged."""
    tables = kept(path, _MAGIC, "units are counted again")
    if tables is None:
        return None
    numbers, *columns = tables
    arrays = {one.column_names[0]: _mapped(one.column(0)) for one in columns}
    return Index(
        row_starts=arrays.pop("row_starts"), arrays=arrays, numbers=json.loads(numbers.schema.metadata[b"numbers"])
    )


def _mapped(column: pa.ChunkedArray) -> Int64:
    """Return a column of one chunk, or none, as an array."""
    return column.chunk(0).to_numpy() if column.num_chunks else np.empty(0, np.int64)
