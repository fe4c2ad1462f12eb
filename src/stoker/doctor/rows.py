"""What a data set's rows say of themselves: which column is the widest, which features repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.catalogue import Catalogue

# Rows that are compared with the one before, and of lists, which are compared as Python objects, fewer.
_NUM_ROWS, _NUM_LISTS = 4_096, 512
# A column repeats when this share of its rows is like the row before: labels and flags are alike by chance.
_REPEATS = 0.7


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """What the rows say; see `DataFacts`."""

    repeated_share: float
    widest_column: str
    widest_share: float
    source_bytes: float
    arrow_bytes: float


def row_facts(catalogue: Catalogue, table: pa.Table, unit: range) -> RowFacts:
    """Return what one chunk's rows say.

    Args:
        catalogue: The data set.
        table: Rows of one of its units.
        unit: That unit.
    """
    sizes = {name: table.column(name).nbytes for name in table.column_names}
    total = sum(sizes.values()) or 1
    repeated = {name: _repeated(table.column(name)) for name in table.column_names}
    at_source = _source_bytes(catalogue, table.column_names, unit) or sizes
    widest = max(at_source, key=lambda name: at_source[name], default="")
    return RowFacts(
        repeated_share=sum(sizes[name] * share for name, share in repeated.items() if share >= _REPEATS) / total,
        widest_column=widest,
        widest_share=at_source.get(widest, 0) / (sum(at_source.values()) or 1),
        source_bytes=sum(at_source.values()) / max(1, int(catalogue.num_rows[unit.start : unit.stop].sum())),
        arrow_bytes=total / max(1, len(table)),
    )


def _repeated(column: pa.ChunkedArray) -> float:
    """Return the share of rows that are like the row before."""
    values = pa.concat_arrays(column.slice(0, _NUM_ROWS).chunks) if column.num_chunks else pa.array([], column.type)
    if len(values) < 2:
        return 0.0
    if pa.types.is_fixed_size_list(values.type) and pa.types.is_primitive(values.type.value_type):
        rows = values.flatten().to_numpy(zero_copy_only=False).reshape(-1, values.type.list_size)
        return float((rows[1:] == rows[:-1]).all(axis=1).mean()) if len(rows) > 1 else 0.0
    if pa.types.is_nested(values.type):
        items = values.slice(0, _NUM_LISTS).to_pylist()
        return float(np.mean([a == b for a, b in zip(items[1:], items, strict=False)]))
    try:
        same_as_before = pc.equal(values.slice(1), values.slice(0, len(values) - 1))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return 0.0
    return float(pc.mean(pc.fill_null(same_as_before, False)).as_py() or 0.0)


def _source_bytes(catalogue: Catalogue, columns: list[str], unit: range) -> dict[str, int]:
    """Return the compressed bytes of each column in the unit's row groups, as the footer says."""
    fragment = catalogue.fragments[unit[0]]
    number = next((i for i, info in enumerate(catalogue.files) if info.url == fragment.url), None)
    if number is None:
        return {}
    footer = catalogue.footer(number)
    chunks = footer.numbers.chunks[fragment.row_groups.start : fragment.row_groups.stop]
    leaves = {name: footer.layout.leaves_of(name) for name in columns}
    return {name: int(chunks[:, own]["compressed_bytes"].sum()) for name, own in leaves.items() if own}
