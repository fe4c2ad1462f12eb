"""A huge row group, some rows at a time: its columns side by side, each read from its beginning to its end.

    column a   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    column b   ┆ part 0 ┆ part 1 ┆ part 2 ┆      another one, where one has nothing better to do
    column c   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    tables         ▒        ▒        ▒

Parts are not made side by side: pages are as large as they are, and would be read several times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from stoker.parquet.decode import check_num_entries, check_num_rows, first_failure, num_entries, open_parquet
from stoker.parquet.decoded import decoded_bytes
from stoker.parquet.footer_numbers import Numbers
from stoker.parquet.footers import Footer
from stoker.parquet.instants import check_instants, int96_paths
from stoker.parquet.pages import TOGETHER_BYTES, Leaf, LeafStream, decoded_leaves, known_leaves, leaf_streams
from stoker.parquet.schema import Layout
from stoker.storage.failures import decoding
from stoker.storage.fetch import ByteRange, Ranges

# What pyarrow reads at once of each column; a page is decoded as a whole in any case.
STREAM_BUFFER_BYTES = 1 << 18
# Columns are dealt to threads by so many shares of about one size at most: few enough to cost nothing, and enough that
# threads which come and go end together.
_MOST_SHARES = 16
# A column chunk that is so small once decoded is a page, as most writers make them: see `_WholeReader`.
_SMALL_BYTES = 1 << 20

ShareOut: TypeAlias = Callable[[int, Callable[[int], None]], None]
"""Calls a function with every number below the first argument, in any threads, and returns when all is done."""

_Columns: TypeAlias = tuple[Sequence[str], Sequence[pa.Array | pa.ChunkedArray]]
_Parts: TypeAlias = Callable[[Sequence[str]], Iterator[pa.Table]]
_T = TypeVar("_T")


def one_by_one(num: int, work: Callable[[int], None]) -> None:
    """Call `work` with every number below `num`, in the calling thread."""
    for i in range(num):
        work(i)


def decode_parts(
    ranges: Ranges,
    footer: Footer,
    *,
    row_group: int,
    leaves: Sequence[int],
    spans: Sequence[ByteRange],
    part_rows: Sequence[int],
    coded: Collection[str] = (),
    share_out: ShareOut = one_by_one,
    where: str,
    url: str,
) -> Iterator[pa.Table]:
    """Yield consecutive parts of one row group while it is read from its beginning to its end.

    Args:
        ranges: The file, whose columns come in as they are asked for.
        footer: Its footer.
        row_group: The row group.
        leaves: Numbers of the Parquet leaf columns.
        spans: Where their column chunks lie.
        part_rows: Rows of each part.
        coded: Columns of strings that may come as Arrow's dictionary.
        share_out: Calls the function that decodes some of the columns of a part.
        where: The row group, for errors.
        url: The file, for errors.

    Raises:
        SourceError: The bytes are not what the footer says.
        FieldError: INT96 timestamps would wrap around.
    """
    group = _RowGroup(ranges, footer, row_group, tuple(part_rows), coded, where, url)
    places = {name: i for i, name in enumerate(footer.checked.layout.schema.names)}
    before: list[str] = []
    order: list[int] = []
    schema: pa.Schema | None = None
    with decoding(url, where=where):
        readers, shares, int96 = group.readers(dict(zip(leaves, spans, strict=True)))
    # This reader follows a part behind the first: what it needs was fetched a moment ago.
    in_seconds = group.arrow_parts(int96, in_seconds=True) if int96 else None
    for num_rows in part_rows:
        found: list[_Columns | None] = [None] * len(readers)
        _read_part(readers, shares, num_rows, found, share_out, where=where, url=url)
        names: list[str] = []
        columns: list[pa.Array | pa.ChunkedArray] = []
        for some_columns in found:
            if some_columns is None:
                return
            names += some_columns[0]
            columns += some_columns[1]
        del found, some_columns
        if names != before:  # as for the first part only
            before, order, schema = names, sorted(range(len(names)), key=lambda i: places[names[i]]), None
        columns = [columns[i] for i in order]
        if schema is not None:
            table = pa.Table.from_arrays(columns, schema=schema)
        else:
            table = pa.Table.from_arrays(columns, names=[names[i] for i in order])
            schema = None if coded else table.schema  # dictionaries may end midway; all else stays what it is
        del columns
        if in_seconds is not None:
            check_instants(table, next(in_seconds), where=where)
        yield table
        del table


@dataclass(frozen=True, eq=False)
class _RowGroup:
    """A row group that is read by parts; attributes as the arguments of `decode_parts`."""

    ranges: Ranges
    footer: Footer
    number: int
    part_rows: tuple[int, ...]
    coded: Collection[str]
    where: str
    url: str

    def readers(self, spans: Mapping[int, ByteRange]) -> tuple[list[_Reader], list[list[int]], list[str]]:
        """Return what reads all columns, shares of it by number, and the paths of INT96 columns.

        Args:
            spans: Where the column chunk of each leaf lies.
        """
        layout, numbers, leaves = self.footer.checked.layout, self.footer.checked.numbers, list(spans)
        here = slice(self.number, self.number + 1)
        sizes, is_vague = decoded_bytes(layout, Numbers(groups=numbers.groups[here], chunks=numbers.chunks[here]))
        # What may be large is not read at once.
        plain_bytes = dict(zip(leaves, np.where(is_vague[0], _SMALL_BYTES + 1, sizes[0])[leaves].tolist(), strict=True))
        known = known_leaves(layout)
        small = [leaf for leaf in leaves if leaf in known and plain_bytes[leaf] <= _SMALL_BYTES]
        large = {leaf: span for leaf, span in spans.items() if plain_bytes[leaf] > _SMALL_BYTES}
        streams = leaf_streams(
            self.ranges,
            layout,
            numbers,
            row_group=self.number,
            leaves=list(large),
            spans=list(large.values()),
            coded=self.coded,
        )
        native = {*small, *(stream.leaf.number for stream in streams)}
        rest = [leaf for leaf in leaves if leaf not in native]

        def size_of(some: Iterable[int]) -> int:
            return sum(spans[leaf].stop - spans[leaf].start for leaf in some)

        def paths_of(some: Iterable[int]) -> list[str]:
            return [layout.paths[leaf] for leaf in some]

        share_bytes = size_of(leaves) // _MOST_SHARES
        made: list[tuple[_Reader, int]] = []
        for columns in _dealt(_by_column(rest, layout.paths), size_of, share_bytes):
            some = [leaf for column in columns for leaf in column]
            made.append((_ArrowReader(self.arrow_parts(paths_of(some))), size_of(some)))
        for some in _dealt(small, plain_bytes.__getitem__, TOGETHER_BYTES // 2):
            whole = partial(self.whole, {leaf: spans[leaf] for leaf in some})
            made.append((_WholeReader(whole, self.arrow_parts, paths_of(some), layout), size_of(some)))
        for stream in streams:
            leaf = stream.leaf.number
            made.append((_NativeReader(stream, self.arrow_parts, layout.paths[leaf]), size_of([leaf])))
        if not made:
            made.append((_ArrowReader(self.arrow_parts([])), 0))
        shares = _dealt(range(len(made)), lambda i: made[i][1], share_bytes)
        int96 = list(int96_paths(self.footer.metadata, paths_of(rest))) if rest else []
        return [reader for reader, _ in made], shares, int96

    def whole(self, spans: Mapping[int, ByteRange]) -> tuple[list[Leaf], list[pa.Array]]:
        """Return those of some columns that the native decoder knows, and all rows of each."""
        known, (arrays,) = decoded_leaves(
            self.ranges,
            self.footer.checked.layout,
            self.footer.checked.numbers,
            row_groups=[self.number],
            leaves=list(spans),
            spans=list(spans.values()),
            coded=self.coded,
        )
        return known, arrays

    def arrow_parts(self, paths: Sequence[str], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        """Yield the parts of some columns as pyarrow decodes them."""
        return _parts(
            self.ranges,
            self.footer,
            row_group=self.number,
            paths=paths,
            part_rows=self.part_rows,
            where=self.where,
            url=self.url,
            in_seconds=in_seconds,
        )


def _read_part(
    readers: Sequence[_Reader],
    shares: Sequence[Sequence[int]],
    num_rows: int,
    found: list[_Columns | None],
    share_out: ShareOut,
    *,
    where: str,
    url: str,
) -> None:
    """Let all readers read on, and keep what they found by their number."""

    def read(s: int) -> None:
        with decoding(url, where=where):
            for i in shares[s]:
                found[i] = readers[i].next(num_rows)

    share_out(len(shares), read)


def _by_column(leaves: Sequence[int], paths: Sequence[str]) -> list[list[int]]:
    """Return leaves by the column that they are a part of, which one reader must read as a whole."""
    return [
        list(same)
        for _, same in itertools.groupby(
            sorted(leaves, key=lambda leaf: paths[leaf].partition(".")[0]),
            key=lambda leaf: paths[leaf].partition(".")[0],
        )
    ]


def _dealt(items: Sequence[_T], size_of: Callable[[_T], int], share_size: int) -> list[list[_T]]:
    """Return the items in shares of at least one size, but for the last one."""
    shares: list[list[_T]] = []
    have = share_size
    for item in items:
        if have >= share_size:
            shares.append([])
            have = 0
        shares[-1].append(item)
        have += size_of(item)
    return shares


class _Reader(Protocol):
    """Some columns of a row group, whose rows come part by part."""

    def next(self, num_rows: int, /) -> _Columns | None:
        """Return the next part; None where the file ends before it."""


class _ArrowReader:
    """Columns that pyarrow decodes.

    Args:
        tables: Its tables.
    """

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._arrow = tables

    def next(self, _: int, /) -> _Columns | None:
        """Return the next part; None where the file ends before it."""
        table = next(self._arrow, None)
        return None if table is None else (table.column_names, table.columns)


class _WholeReader:
    """Columns of a page or so, each of which is decoded as a whole in any case: all of them at once.

    Args:
        read: Reads those that the native decoder knows.
        parts: Makes pyarrow's of some paths.
        paths: Of the columns.
        layout: How the file lays out its columns.
    """

    def __init__(
        self,
        read: Callable[[], tuple[list[Leaf], list[pa.Array]]],
        parts: _Parts,
        paths: Sequence[str],
        layout: Layout,
    ) -> None:
        self._arrow: Iterator[pa.Table] | None = None
        self._read = read
        self._parts = parts
        self._paths = paths
        self._layout = layout
        self._batch: pa.RecordBatch | None = None
        self._at = 0

    def next(self, num_rows: int, /) -> _Columns | None:
        """Return the next part; None where the file ends before it."""
        if self._batch is None:
            known, arrays = self._read()
            self._batch = pa.RecordBatch.from_arrays(arrays, names=[leaf.name for leaf in known])
            here = {self._layout.paths[leaf.number] for leaf in known}
            if missing := [path for path in self._paths if path not in here]:
                self._arrow = self._parts(missing)
        part = self._batch.slice(self._at, num_rows)
        self._at += num_rows
        names, columns = part.schema.names, part.columns
        if self._arrow is not None:
            table = next(self._arrow, None)
            if table is None:
                return None
            names, columns = names + table.column_names, columns + table.columns
        return names, columns


class _NativeReader:
    """A column by the native decoder; from the first part that it does not know on, by pyarrow from the beginning.

    Args:
        stream: Ours.
        parts: Makes pyarrow's of some paths.
        path: Of the column.
    """

    def __init__(self, stream: LeafStream, parts: _Parts, path: str) -> None:
        self._arrow: Iterator[pa.Table] | None = None
        self._stream = stream
        self._parts = parts
        self._path = path
        self._num_parts = 0

    def next(self, num_rows: int, /) -> _Columns | None:
        """Return the next part; None where the file ends before it."""
        name = self._stream.leaf.name
        if self._arrow is None:
            array = self._stream.take(num_rows)
            if array is not None:
                self._num_parts += 1
                return [name], [array]
            self._arrow = self._parts([self._path])
            for _ in range(self._num_parts):
                next(self._arrow, None)
        table = next(self._arrow, None)
        return None if table is None else ([name], [table.column(0)])


def _parts(
    ranges: Ranges,
    footer: Footer,
    *,
    row_group: int,
    paths: Sequence[str],
    part_rows: Sequence[int],
    where: str,
    url: str,
    in_seconds: bool,
) -> Iterator[pa.Table]:
    checked = partial(
        decoding,
        url,
        where=where,
        look_closer=partial(
            first_failure,
            ranges,
            footer,
            row_groups=[row_group],
            paths=paths,
            url=url,
            buffer_size=STREAM_BUFFER_BYTES,
        ),
    )
    with checked():
        file = open_parquet(ranges, footer.metadata, buffer_size=STREAM_BUFFER_BYTES, in_seconds=in_seconds)
        batches = file.iter_batches(
            batch_size=max(part_rows), row_groups=[row_group], columns=list(paths), use_threads=False
        )
    have: list[pa.RecordBatch] = []
    num_have = 0
    num_total = 0
    entries = np.zeros(len(paths), np.int64)
    for p, num_rows in enumerate(part_rows):
        while num_have < num_rows:
            with checked():
                batch = next(batches, None)
                if batch is None:
                    check_num_rows(num_total, sum(part_rows))
                    return
            have.append(batch)
            num_have += batch.num_rows
            num_total += batch.num_rows
            entries += num_entries(batch)
        with checked():
            table = pa.Table.from_batches(have)
            table.validate()
        rest = table.slice(num_rows)
        have = rest.to_batches() if rest.num_rows else []
        num_have = rest.num_rows
        part = table.slice(0, num_rows)
        del table, rest
        if p == len(part_rows) - 1:  # before the last part is handed out: nobody asks for more
            with checked():
                check_num_rows(num_total, sum(part_rows))
                check_num_entries(entries, footer, row_groups=[row_group], paths=paths)
        yield part
        del part
