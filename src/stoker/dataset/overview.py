"""What the footers of a data set say about it, for people: row groups, sizes, nulls, lengths of lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.dataset.catalogue import Catalogue
from stoker.storage.each import for_each

# Lengths are estimated from so many row groups, evenly spread: enough for two digits, and quick for any data set.
_SAMPLED_GROUPS = 256
# In front of each value where strings lie plainly in a page.
_LENGTH_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Minimum, median and maximum of some numbers; zeros where there are none."""

    minimum: int
    median: int
    maximum: int

    @classmethod
    def of(cls, values: npt.NDArray[np.int64]) -> Spread:
        """Return the spread of these values."""
        if not values.size:
            return cls(minimum=0, median=0, maximum=0)
        return cls(minimum=int(values.min()), median=int(np.median(values)), maximum=int(values.max()))


@dataclass(frozen=True, kw_only=True)
class SourceOverview:
    """What lies at the source, all of it, whatever is filtered out.

    Attributes:
        num_files: Files.
        size_bytes: Their bytes, compressed, all columns.
        num_rows: Their rows.
        num_row_groups: Their row groups.
        rows_a_group: Rows of a row group.
        bytes_a_group: Bytes of a row group before compression, all columns.
        nulls: Column -> nulls in it, None where the footers do not say. Only those of row groups that are read, and
            without columns that lie in the paths.
        values_a_row: Column of lists or strings -> mean number of innermost values in a row, an estimate; strings
            count bytes. Columns whose footers say too little are missing.
    """

    num_files: int
    size_bytes: int
    num_rows: int
    num_row_groups: int
    rows_a_group: Spread
    bytes_a_group: Spread
    nulls: dict[str, int | None]
    values_a_row: dict[str, float]


def overview(catalogue: Catalogue, *, num_threads: int = 8) -> SourceOverview:
    """Return what the footers say; they are read from the source only where opening did not keep them.

    Raises:
        SourceError: A footer cannot be read.
    """
    groups: list[npt.NDArray[np.int64]] = [np.empty((0, 2), np.int64)] * len(catalogue.files)

    def work(i: int) -> None:
        metadata = catalogue.metadata(i)
        found = (metadata.row_group(g) for g in range(metadata.num_row_groups))
        groups[i] = np.array([(g.num_rows, g.total_byte_size) for g in found], np.int64).reshape(-1, 2)

    for_each(len(groups), work, num_threads=num_threads)
    every = np.concatenate([np.empty((0, 2), np.int64), *groups])
    return SourceOverview(
        num_files=len(catalogue.files),
        size_bytes=sum(info.size_bytes for info in catalogue.files),
        num_rows=int(every[:, 0].sum()),
        num_row_groups=len(every),
        rows_a_group=Spread.of(every[:, 0]),
        bytes_a_group=Spread.of(every[:, 1]),
        nulls={
            name: None if (counts < 0).any() else int(counts.sum()) for name, counts in catalogue.null_counts.items()
        },
        values_a_row=_values_a_row(catalogue, [len(g) for g in groups]),
    )


def _values_a_row(catalogue: Catalogue, num_groups: Sequence[int]) -> dict[str, float]:
    wanted = {field.name: _is_text(field.type) for field in catalogue.schema if _is_long(field.type)}
    places = [(file, group) for file, num in enumerate(num_groups) for group in range(num)]
    every = max(1, len(places) // _SAMPLED_GROUPS)
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for file, group in places[::every] if wanted else []:
        row_group = catalogue.metadata(file).row_group(group)
        if row_group.num_rows:
            for i in range(row_group.num_columns):
                column = row_group.column(i)
                name = next((n for n in wanted if column.path_in_schema == n or _is_below(column, n)), None)
                if name is not None and (mean := _mean_values(column, is_text=wanted[name])) is not None:
                    found[name].append(mean / row_group.num_rows)
    for name in wanted:
        if not found[name] and (sizes := _partition_sizes(catalogue, name)):
            found[name] = sizes
    return {name: sum(means) / len(means) for name, means in found.items() if means}


def _partition_sizes(catalogue: Catalogue, name: str) -> list[float]:
    """Return the bytes of a column's value in the path of each file: `.../name=value/...`."""
    value = re.compile(f"/{re.escape(quote(name))}=([^/]*)/")
    return [float(len(unquote(found[1]).encode())) for info in catalogue.files if (found := value.search(info.url))]


def _is_below(column: pq.ColumnChunkMetaData, name: str) -> bool:
    return bool(column.path_in_schema.startswith(name + "."))


def _mean_values(column: pq.ColumnChunkMetaData, *, is_text: bool) -> float | None:
    """Return how many innermost values a column chunk holds, bytes of text where it is text; None if unknown."""
    if not is_text:
        return float(column.num_values)
    if not column.has_dictionary_page:
        return float(max(0, column.total_uncompressed_size - _LENGTH_BYTES * column.num_values))
    # Each word lies there once, so sizes say nothing; the first and the last word in the alphabet are two samples.
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        words = [statistics.min, statistics.max]
    except (pa.ArrowException, ValueError):  # statistics that this column's type cannot have
        return None
    sizes = [len(word.encode() if isinstance(word, str) else word) for word in words if isinstance(word, str | bytes)]
    return float(median(sizes)) * column.num_values if sizes else None


def _is_long(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    return any(check(kind) for check in checks)
