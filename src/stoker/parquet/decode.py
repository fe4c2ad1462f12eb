"""From bytes to Arrow: by the native decoder what it knows, all else by pyarrow, whose errors name the file.

    column a   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    column b   ┆ part 0 ┆ part 1 ┆ part 2 ┆      another one, where one has nothing better to do
    column c   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    tables         ▒        ▒        ▒

Whole row groups are one part. A huge one is read from its beginning to its end, and its parts are not made side by
side: pages are as large as they are, and would be read several times.

Checksums of pages are verified where a writer left them: without, pyarrow gives wrong values without a word.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker._native import read_page_sizes
from stoker.errors import SourceError
from stoker.parquet.instants import check_instants, int96_paths
from stoker.parquet.pages import MOST_DECODED_BYTES, Leaf, NativeColumns, known_leaves
from stoker.storage.failures import decoding
from stoker.storage.fetch import ByteRange, Ranges, RangesFile

if TYPE_CHECKING:
    from stoker.parquet.footers import Footer

# What pyarrow reads at once of each column where rows come by parts; a page is decoded as a whole in any case.
_STREAM_BUFFER_BYTES = 1 << 18
# A page header has some 20 to 60 bytes; with statistics of strings, as many as these have.
_HEADER_BYTES = (128, 1 << 16)
# Columns are dealt to threads by so many shares of about one size at most: few enough to cost nothing, and enough that
# threads which come and go end together.
_MOST_SHARES = 16

ShareOut: TypeAlias = Callable[[int, Callable[[int], None]], None]
"""Calls a function with every number below the first argument, in any threads, and returns when all is done."""


def one_by_one(num: int, work: Callable[[int], None]) -> None:
    """Call `work` with every number below `num`, in the calling thread."""
    for i in range(num):
        work(i)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """Columns of row groups of one file, to be decoded as a whole; or of one huge row group, by parts.

    Attributes:
        ranges: The file, with the columns in memory, or coming in as they are asked for.
        footer: Its footer.
        numbers: Of the row groups; one where there are several parts.
        spans: Where their column chunks lie: of each row group, leaf column -> place.
        part_rows: Rows of each part.
        coded: Columns of strings that may come as Arrow's dictionary.
        most_bytes: More than the strings of a column may take once they are decoded.
        where: The fragment or row group, for errors.
        url: The file, for errors.
    """

    ranges: Ranges
    footer: Footer
    numbers: Sequence[int]
    spans: Sequence[Mapping[int, ByteRange]]
    part_rows: Sequence[int]
    coded: Collection[str] = ()
    most_bytes: int = MOST_DECODED_BYTES
    where: str
    url: str

    def parts(self, share_out: ShareOut = one_by_one) -> Iterator[pa.Table]:
        """Yield the parts, in order.

        Args:
            share_out: Calls the function that decodes some of the columns of a part.

        Raises:
            SourceError: The bytes are not what the footer says.
            FieldError: INT96 timestamps would wrap around.
        """
        layout = self.footer.layout
        with self._decoding():
            shares = [_Share(self, leaves) for leaves in self._shares()]
        in_seconds: Iterator[pa.Table] | None = None
        for num_rows in self.part_rows:
            found: list[_Rows | None] = [None] * len(shares)

            def read(s: int, num_rows: int = num_rows, found: list[_Rows | None] = found) -> None:
                with self._decoding():
                    found[s] = shares[s].next(num_rows)

            share_out(len(shares), read)
            with self._decoding():
                table = _table([rows for rows in found if rows is not None], layout.schema, is_coded=bool(self.coded))
                check_num_rows(table.num_rows, num_rows)
            del found, read
            if in_seconds is None:
                int96 = int96_paths(layout, [path for share in shares for path in share.paths_by_arrow])
                in_seconds = self.by_arrow(int96, in_seconds=True) if int96 else iter(())
            for seconds in itertools.islice(in_seconds, 1):
                check_instants(table, seconds, where=self.where)
            yield table
            del table

    def _decoding(self) -> AbstractContextManager[None]:
        return decoding(self.url, where=self.where)

    def _shares(self) -> list[list[int]]:
        """Return the leaves in shares of about one size, all leaves of a column in one."""
        spans = self.spans[0]
        if len(self.part_rows) == 1:
            return [list(spans)]
        paths = self.footer.layout.paths
        share_bytes = sum(stop - start for start, stop in spans.values()) / _MOST_SHARES
        shares: list[list[int]] = []
        have = share_bytes
        for _, same in itertools.groupby(spans, key=lambda leaf: paths[leaf].partition(".")[0]):
            if have >= share_bytes:
                shares.append([])
                have = 0
            column = list(same)
            shares[-1] += column
            have += sum(spans[leaf].stop - spans[leaf].start for leaf in column)
        return shares

    def by_native(self, leaves: Collection[int]) -> list[NativeColumns]:
        """Return what decodes those of some leaves that the native decoder knows, for each row group."""
        numbers, is_whole = self.footer.numbers, len(self.part_rows) == 1
        # Once for all row groups: their columns are put together by these very objects.
        known = known_leaves(self.footer.layout)
        return [
            NativeColumns(
                self.ranges,
                known,
                numbers,
                group,
                {leaf: spans[leaf] for leaf in leaves},
                coded=self.coded,
                most_bytes=self.most_bytes,
                is_whole=is_whole,
            )
            for group, spans in zip(self.numbers, self.spans, strict=True)
        ]

    def by_arrow(self, paths: Sequence[str], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        """Yield the parts of some columns as pyarrow decodes them; INT96 timestamps in seconds where they are to be."""
        checked = partial(decoding, self.url, where=self.where, look_closer=lambda: self._first_failure(paths))
        pieces = self._pieces(paths, self.numbers, in_seconds=in_seconds)
        have: list[pa.Table] = []
        for p, num_rows in enumerate(self.part_rows):
            is_last = p == len(self.part_rows) - 1  # before it is handed out, all is checked: nobody asks for more
            with checked():
                while is_last or not have or sum(piece.num_rows for piece in have) < num_rows:
                    piece = next(pieces, None)
                    if piece is None:
                        break
                    have.append(piece)
                if not have:
                    return
                table = pa.concat_tables(have)
            have = [table.slice(num_rows)]
            part = table.slice(0, num_rows)
            del table
            yield part
            del part

    def _pieces(self, paths: Sequence[str], groups: Sequence[int], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        """Yield columns as they come: each row group as a whole, or some rows at a time.

        Raises behind the last where they have other rows than their footer says, and where lists hold more: pyarrow
        stops behind those that it expects, and says nothing.
        """
        self._check_page_sizes(paths, groups)
        is_whole = len(self.part_rows) == 1
        beginning = self.ranges.beginning
        file = pq.ParquetFile(
            pa.PythonFile(RangesFile(self.ranges), mode="r") if beginning is None else pa.BufferReader(beginning),
            metadata=self.footer.metadata,
            pre_buffer=False,  # the bytes are here, or come through windows
            buffer_size=0 if is_whole else _STREAM_BUFFER_BYTES,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="s" if in_seconds else None,
        )
        columns = list(paths)
        if is_whole:
            # One by one: a dictionary inside of a struct or a list is another one in each, which pyarrow cannot nest.
            pieces = (file.read_row_group(group, columns=columns, use_threads=False) for group in groups)
        else:
            batches = file.iter_batches(
                max(self.part_rows), row_groups=list(groups), columns=columns, use_threads=False
            )
            pieces = (pa.Table.from_batches([batch]) for batch in batches)
        num_rows, entries, names = 0, np.zeros(1, np.int64), list[str]()
        for piece in pieces:
            piece.validate()
            num_rows += piece.num_rows
            entries, names = entries + _num_entries(piece), piece.column_names
            yield piece
        numbers, leaves = self.footer.numbers, self._leaves_of(names, paths)
        check_num_rows(num_rows, int(numbers.groups["num_rows"][list(groups)].sum()))
        promised = numbers.chunks["num_values"][list(groups)][:, leaves].sum(axis=0)
        for i in np.flatnonzero(entries != promised).tolist() if names else ():
            raise ValueError(
                f"its rows hold {entries[i]:,} values and empty lists of column "
                f"{self.footer.layout.paths[leaves[i]]}, its footer promises {promised[i]:,}"
            )

    def _leaves_of(self, columns: Sequence[str], paths: Sequence[str]) -> list[int]:
        """Return the leaves of some columns that pyarrow took by their paths, in the order of the columns.

        Paths alone do not tell: a column "a.list.element" and the values of lists "a" have the same.
        """
        layout, wanted = self.footer.layout, set(paths)

        def is_taken(path: str) -> bool:
            ends = (end for end, character in enumerate(path + ".") if character == ".")
            return any(path[:end] in wanted for end in ends)

        return [leaf for name in columns for leaf in layout.leaves_by_column[name] if is_taken(layout.paths[leaf])]

    def _check_page_sizes(self, paths: Sequence[str], groups: Sequence[int]) -> None:
        """Raise where a page claims far more than what is stored of it: pyarrow takes the memory before it looks.

        Not where a stream goes through a column once, ahead of its reader.
        """
        wanted = set(paths) if self.ranges.may_jump else ()
        leaves = [leaf for leaf, path in enumerate(self.footer.layout.paths) if path in wanted]
        spans = [spans for group, spans in zip(self.numbers, self.spans, strict=True) if group in groups]
        for leaf, of_group in itertools.product(leaves, spans):
            path, (at, stop) = self.footer.layout.paths[leaf], of_group.get(leaf, (0, 0))
            while at < stop:
                found = None
                for num_bytes in _HEADER_BYTES:
                    content = self.ranges.get(at, min(at + num_bytes, stop))
                    found = found or read_page_sizes(np.frombuffer(content, np.uint8))
                if found is None:
                    break  # pyarrow says what is wrong
                header_bytes, stored_bytes, plain_bytes, is_inflated = found
                if is_inflated:
                    raise ValueError(
                        f"column {path}: a page of {stored_bytes:,} bytes claims to hold {plain_bytes:,}, which is not "
                        "believed; write the file with smaller pages, or leave the column out"
                    )
                at += max(header_bytes + stored_bytes, 1)

    def _first_failure(self, paths: Sequence[str]) -> SourceError | None:
        """Return the error of the first column chunk that pyarrow cannot decode: of many it does not say which."""
        for group, path in itertools.product(self.numbers, paths):
            try:
                with decoding(self.url, where=f"{self.url} row group {group}: column {path}"):
                    for _ in self._pieces([path], [group]):
                        pass
            except SourceError as error:
                return error
        return None


_Rows: TypeAlias = "tuple[list[dict[Leaf, pa.Array]], list[pa.Table]]"
"""The next rows of some columns: what the native decoder gave of each row group, and tables of pyarrow's."""


class _Share:
    """Some columns, whose rows come part by part.

    The native decoder reads what it knows; where it meets something else, pyarrow reads on.

    Args:
        groups: Have them.
        leaves: Their leaf columns.

    Attributes:
        paths_by_arrow: Of the leaf columns that pyarrow decodes.
    """

    def __init__(self, groups: RowGroups, leaves: Sequence[int]) -> None:
        self.paths_by_arrow: list[str] = []
        self._groups = groups
        self._leaves = leaves
        self._native = groups.by_native(leaves)
        self._arrow: list[Iterator[pa.Table]] = []
        self._num_parts = 0

    def next(self, num_rows: int) -> _Rows:
        """Return the next part."""
        rows_of = self._groups.footer.numbers.groups["num_rows"]
        is_one = len(self._native) == 1
        found = [
            native.take(num_rows if is_one else int(rows_of[group]))
            for group, native in zip(self._groups.numbers, self._native, strict=True)
        ]
        known = {leaf.number for leaf in found[0]}.intersection(*({leaf.number for leaf in rows} for rows in found[1:]))
        if lost := [leaf for leaf in self._leaves if leaf not in known]:
            paths = [self._groups.footer.layout.paths[leaf] for leaf in lost]
            self._arrow.append(itertools.islice(self._groups.by_arrow(paths), self._num_parts, None))
            self.paths_by_arrow += paths
            self._leaves = [leaf for leaf in self._leaves if leaf in known]
        self._num_parts += 1
        found = [{leaf: array for leaf, array in rows.items() if leaf.number in known} for rows in found]
        return found, [next(tables) for tables in self._arrow]


def _table(shares: Sequence[_Rows], schema: pa.Schema, *, is_coded: bool) -> pa.Table:
    """Return all columns of a part, in the order of a schema."""
    tables = [table for _, by_arrow in shares for table in by_arrow]
    of_groups = zip(*(native for native, _ in shares), strict=True)
    groups = [{leaf: array for some in of_shares for leaf, array in some.items()} for of_shares in of_groups]
    if is_coded:
        _make_alike(groups)
    if not tables and not is_coded:
        # A fifth of what thousands of columns take one by one.
        leaves = tuple(sorted(groups[0], key=lambda leaf: leaf.number))
        kind = _schema_of(leaves)
        batches = [pa.RecordBatch.from_arrays([group[leaf] for leaf in leaves], schema=kind) for group in groups]
        return pa.Table.from_batches(batches, schema=kind)
    columns = {leaf.name: pa.chunked_array([group[leaf] for group in groups]) for leaf in groups[0]}
    for table in tables:
        columns |= zip(table.column_names, table.columns, strict=True)
    return pa.table({name: columns[name] for name in schema.names if name in columns})


def _make_alike(groups: Sequence[dict[Leaf, pa.Array]]) -> None:
    """Make strings of a dictionary's values, where another row group has no dictionary."""
    for leaf in groups[0]:
        if leaf.column.is_binary and len({group[leaf].type for group in groups}) > 1:
            for group in groups:
                if pa.types.is_dictionary(group[leaf].type):
                    group[leaf] = group[leaf].dictionary_decode()


@lru_cache(maxsize=64)
def _schema_of(leaves: tuple[Leaf, ...]) -> pa.Schema:
    """Return the schema of some columns: one object, since a new one is compared field by field wherever it comes."""
    return pa.schema([(leaf.name, leaf.type) for leaf in leaves])


def check_num_rows(decoded: int, promised: int) -> None:
    """Raise where a file holds other rows than its footer says: inside of `decoding`, which says where."""
    if decoded != promised:
        raise ValueError(f"it holds {decoded:,} rows, its footer promises {promised:,}")


def _num_entries(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return how many entries the pages of each leaf column have: values, nulls and empty lists."""
    return np.array([n for column in rows.columns for n in _entries_of(column)], np.int64)


def _entries_of(array: pa.Array | pa.ChunkedArray) -> list[int]:
    kind = array.type
    if not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType):
        return [len(array)]
    if isinstance(array, pa.ChunkedArray):
        chunks = array.chunks or [pa.array([], kind)]
        return [sum(some) for some in zip(*(_entries_of(chunk) for chunk in chunks), strict=True)]
    if isinstance(kind, pa.BaseExtensionType):
        return _entries_of(array.storage)
    if pa.types.is_struct(kind):
        return [n for i in range(kind.num_fields) for n in _entries_of(array.field(i))]
    if isinstance(array, pa.ListArray | pa.LargeListArray):  # maps among them
        borders = np.asarray(array.offsets)
        values, num_empty = array.values[borders[0] : borders[-1]], np.count_nonzero(borders[1:] == borders[:-1])
    else:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        values, num_empty = array.flatten(), np.count_nonzero(lengths == 0)
    return [n + int(num_empty) for n in _entries_of(values)]
