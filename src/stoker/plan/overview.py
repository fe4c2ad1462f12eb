"""What the footers of a data set say about it, for people: row groups, sizes, nulls, lengths of lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.dataset.catalogue import Catalogue
from stoker.parquet.footers import Footer
from stoker.storage.each import for_each

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
    long = {field.name: _is_text(field.type) for field in catalogue.schema if _is_long(field.type)}
    # Of each file and column, values and the rows that have them.
    sums = np.zeros((len(catalogue.files), len(long), 2))

    def work(i: int) -> None:
        footer = catalogue.footer(i)
        rows, num_bytes = footer.numbers.groups["num_rows"], footer.numbers.groups["total_bytes"]
        groups[i] = np.stack([rows, num_bytes], axis=1)
        for k, (name, is_text) in enumerate(long.items()):
            value = dict(catalogue.listed[i].partition).get(name)
            if value is not None:
                sums[i, k] = len(value.encode("utf-8", "surrogateescape")) * rows.sum(), rows.sum()
            for leaf in footer.layout.leaves_of(name):
                values = _num_values(footer, leaf, is_text=is_text)
                sums[i, k] += values[values >= 0].sum(), rows[values >= 0].sum()

    for_each(len(groups), work, num_threads=num_threads)
    every = np.concatenate([np.empty((0, 2), np.int64), *groups])
    return SourceOverview(
        num_files=len(catalogue.files),
        size_bytes=catalogue.file_bytes,
        num_rows=int(every[:, 0].sum()),
        num_row_groups=len(every),
        rows_a_group=Spread.of(every[:, 0]),
        bytes_a_group=Spread.of(every[:, 1]),
        nulls={
            name: None if (counts < 0).any() else int(counts.sum()) for name, counts in catalogue.null_counts.items()
        },
        values_a_row={
            name: float(values / rows) for name, (values, rows) in zip(long, sums.sum(axis=0), strict=True) if rows
        },
    )


def _num_values(footer: Footer, leaf: int, *, is_text: bool) -> npt.NDArray[np.float64]:
    """Return about how many innermost values a leaf has in each row group, bytes of text; -1 where nobody knows."""
    chunks = footer.numbers.chunks[:, leaf]
    values = chunks["num_values"].astype(np.float64)
    if not is_text:
        return values
    plain = np.maximum(chunks["uncompressed_bytes"] - _LENGTH_BYTES * values, 0)
    # A dictionary has each word once, so its size says nothing; the first and the last word are two samples.
    ends = np.where(chunks["min_bytes"] >= 0, (chunks["min_bytes"] + chunks["max_bytes"]) / 2 * values, -1)
    told = np.where(chunks["dictionary_offset"] < 0, plain, ends)
    return np.where(chunks["unencoded_bytes"] >= 0, chunks["unencoded_bytes"], told)


def _is_long(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    kinds = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(kind) for check in (*kinds, types.is_binary, types.is_large_binary, types.is_binary_view))
