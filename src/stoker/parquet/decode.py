"""From bytes to Arrow: by the native decoder what it knows, all else by pyarrow, whose errors name the file.

Checksums of pages are verified where a writer left them: without, pyarrow gives wrong values without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.errors import SourceError
from stoker.parquet.instants import check_instants, int96_paths
from stoker.parquet.pages import Leaf, decoded_leaves
from stoker.storage.failures import decoding
from stoker.storage.fetch import ByteRange, Ranges, RangesFile

if TYPE_CHECKING:
    from stoker.parquet.footers import Footer


def open_parquet(
    ranges: Ranges, metadata: pq.FileMetaData, *, buffer_size: int = 0, in_seconds: bool = False
) -> pq.ParquetFile:
    """Return a file as pyarrow reads it: a reader of its own, with a place of its own in the file.

    Args:
        ranges: The file.
        metadata: Its footer.
        buffer_size: What is read at once of each column; 0 reads a column chunk as a whole.
        in_seconds: Whether INT96 timestamps come in seconds.
    """
    beginning = ranges.beginning
    return pq.ParquetFile(
        pa.PythonFile(RangesFile(ranges), mode="r") if beginning is None else pa.BufferReader(beginning),
        metadata=metadata,
        pre_buffer=False,  # the bytes are here, or come through windows
        buffer_size=buffer_size,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="s" if in_seconds else None,
    )


def decode_row_groups(
    ranges: Ranges,
    footer: Footer,
    *,
    row_groups: Sequence[int],
    leaves: Sequence[int],
    spans: Sequence[ByteRange],
    num_rows: int,
    coded: Collection[str] = (),
    where: str,
    url: str,
) -> pa.Table:
    """Return columns of whole row groups, in the calling thread.

    Args:
        ranges: The file, with the columns in memory.
        footer: Its footer.
        row_groups: Numbers of the row groups.
        leaves: Numbers of the Parquet leaf columns.
        spans: Where their column chunks lie, row group by row group.
        num_rows: How many rows the footer promises.
        coded: Columns of strings that may come as Arrow's dictionary.
        where: The fragment, for errors.
        url: The file, for errors.

    Raises:
        SourceError: The bytes are not what the footer says.
        FieldError: INT96 timestamps would wrap around.
    """
    layout = footer.checked.layout
    int96: list[str] = []
    with decoding(url, where=where):
        known, groups = decoded_leaves(
            ranges,
            layout,
            footer.checked.numbers,
            row_groups=row_groups,
            leaves=leaves,
            spans=spans,
            coded=coded,
        )
        if known and len(known) == len(leaves):
            # Leaves ascend, as columns do. A fifth of what thousands take one by one.
            is_coded = any(leaf.name in coded for leaf in known)
            naming: dict[str, object] = (
                {"names": [leaf.name for leaf in known]} if is_coded else {"schema": _schema_of(tuple(known))}
            )
            table = pa.Table.from_batches([pa.RecordBatch.from_arrays(arrays, **naming) for arrays in groups])
        else:
            columns = {leaf.name: pa.chunked_array([arrays[k] for arrays in groups]) for k, leaf in enumerate(known)}
            here = {leaf.number for leaf in known}
            paths = [layout.paths[leaf] for leaf in leaves if leaf not in here]
            int96 = int96_paths(footer.metadata, paths)
            look_closer = partial(first_failure, ranges, footer, row_groups=row_groups, paths=paths, url=url)
            with decoding(url, where=where, look_closer=look_closer):
                rest = _read_by_arrow(open_parquet(ranges, footer.metadata), row_groups, paths)
                rest.validate()
                check_num_rows(rest.num_rows, num_rows)
                check_num_entries(num_entries(rest), footer, row_groups=row_groups, paths=paths)
            columns |= zip(rest.column_names, rest.columns, strict=True)
            table = pa.table({name: columns[name] for name in layout.schema.names if name in columns})
        check_num_rows(table.num_rows, num_rows)
    if int96:
        with decoding(url, where=where):
            seconds = open_parquet(ranges, footer.metadata, in_seconds=True).read_row_groups(
                list(row_groups), columns=int96, use_threads=False
            )
        check_instants(table, seconds, where=where)
    return table


def _read_by_arrow(file: pq.ParquetFile, row_groups: Sequence[int], paths: Sequence[str]) -> pa.Table:
    """Return columns of some row groups as pyarrow decodes them."""
    try:
        return file.read_row_groups(list(row_groups), columns=paths, use_threads=False)
    except pa.ArrowNotImplementedError:
        if len(row_groups) < 2:
            raise
    # A dictionary inside of a struct or a list comes in a piece for each row group, which pyarrow cannot nest.
    tables = [file.read_row_group(group, columns=paths, use_threads=False) for group in row_groups]
    return pa.concat_tables(tables)


@lru_cache(maxsize=64)
def _schema_of(leaves: tuple[Leaf, ...]) -> pa.Schema:
    """Return the schema of some columns: one object, since a new one is compared field by field wherever it comes."""
    return pa.schema([(leaf.name, leaf.type) for leaf in leaves])


def check_num_rows(decoded: int, promised: int) -> None:
    """Raise where a file holds other rows than its footer says: inside of `decoding`, which says where."""
    if decoded != promised:
        raise ValueError(f"it holds {decoded:,} rows, its footer promises {promised:,}")


def check_num_entries(
    decoded: npt.NDArray[np.int64], footer: Footer, *, row_groups: Sequence[int], paths: Sequence[str]
) -> None:
    """Raise where lists hold more rows than their footer says: pyarrow stops behind those, and says nothing.

    Args:
        decoded: What `num_entries` says of all rows.
        footer: Of the file.
        row_groups: Numbers of the row groups.
        paths: Of the leaf columns that were decoded, as they were asked for: pyarrow keeps the order.
    """
    layout, numbers = footer.checked.layout, footer.checked.numbers
    places = {path: leaf for leaf, path in enumerate(layout.paths)}
    leaves = [places[path] for path in paths]
    promised = numbers.chunks[row_groups]["num_values"][:, leaves].sum(axis=0)
    for i in np.flatnonzero(decoded != promised).tolist():
        raise ValueError(
            f"its rows hold {decoded[i]:,} values and empty lists of column {layout.paths[leaves[i]]}, "
            f"its footer promises {promised[i]:,}"
        )


def num_entries(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return how many entries the pages of each leaf column have: values, nulls and empty lists."""
    return np.array([n for column in rows.columns for n in _num_entries(column)], np.int64)


def _num_entries(array: pa.Array | pa.ChunkedArray) -> list[int]:
    kind = array.type
    if not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType):
        return [len(array)]
    if isinstance(array, pa.ChunkedArray):
        chunks = array.chunks or [pa.array([], kind)]
        return [sum(some) for some in zip(*(_num_entries(chunk) for chunk in chunks), strict=True)]
    if isinstance(kind, pa.BaseExtensionType):
        return _num_entries(array.storage)
    if pa.types.is_struct(kind):
        return [n for i in range(kind.num_fields) for n in _num_entries(array.field(i))]
    if isinstance(array, pa.ListArray | pa.LargeListArray):  # maps among them
        borders = array.offsets.to_numpy()
        values, num_empty = array.values[borders[0] : borders[-1]], np.count_nonzero(borders[1:] == borders[:-1])
    else:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        values, num_empty = array.flatten(), np.count_nonzero(lengths == 0)
    return [n + int(num_empty) for n in _num_entries(values)]


def first_failure(
    ranges: Ranges, footer: Footer, *, row_groups: Sequence[int], paths: Sequence[str], url: str, buffer_size: int = 0
) -> SourceError | None:
    """Return the error of the first column chunk that pyarrow cannot decode by itself: of many it does not say which.

    Args:
        ranges: The file.
        footer: Its footer.
        row_groups: Numbers of the row groups.
        paths: Of the columns.
        url: The file, for errors.
        buffer_size: As of `open_parquet`.
    """
    # A page with more values than it should have is seen where another row group follows.
    tries = [*([group] for group in row_groups), *([row_groups] if len(row_groups) > 1 else [])]
    for groups in tries:
        where = f"{url} row groups {groups[0]}-{groups[-1]}" if len(groups) > 1 else f"{url} row group {groups[0]}"
        promised = int(footer.checked.numbers.groups["num_rows"][groups].sum())
        for path in paths:
            try:
                with decoding(url, where=f"{where}: column {path}"):
                    num_rows, entries = 0, np.zeros(1, np.int64)
                    file = open_parquet(ranges, footer.metadata, buffer_size=buffer_size)
                    for batch in file.iter_batches(row_groups=list(groups), columns=[path], use_threads=False):
                        batch.validate()
                        num_rows += batch.num_rows
                        entries += num_entries(batch)
                    check_num_rows(num_rows, promised)
                    check_num_entries(entries, footer, row_groups=groups, paths=[path])
            except SourceError as error:
                return error
    return None
