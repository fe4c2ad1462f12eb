"""From bytes to Arrow: by the native decoder what it knows, all else by pyarrow, whose errors name the file.

    column a   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    column b   ┆ part 0 ┆ part 1 ┆ part 2 ┆      another one, where one has nothing better to do
    column c   ┆ part 0 ┆ part 1 ┆ part 2 ┆      this thread
    tables         ▒        ▒        ▒

Whole row groups are one part. A huge one is read from its beginning to its end, and its parts are not made side by
side: pages are as large as they are, and would be read several times.

Checksums of pages are verified where a writer left them: without, pyarrow gives wrong values without a word. What a
page claims to become is held against what is stored of it, and strings that may take all memory are counted by their
dictionary before they are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker._native import PageHeader, longest_string, read_page_header, sum_of_deltas
from stoker.arrow import TIME_UNITS, around, parts_in, parts_of, plain_array
from stoker.errors import FieldError, SourceCorruptError, SourceError
from stoker.parquet.footer_numbers import DICTIONARY_PAGE
from stoker.parquet.pages import Leaf, NativeColumns, check_string_bytes, known_leaves, refuse_string_bytes
from stoker.parquet.schema import INT96, flatten
from stoker.storage.failures import decoding
from stoker.storage.fetch import SLACK_BYTES, ByteRange, Ranges, RangesFile
from stoker.storage.storage import BytesLike, ObjectInfo

if TYPE_CHECKING:
    from stoker.parquet.footers import Footer

# What pyarrow reads at once of each column where rows come by parts; a page is decoded as a whole in any case.
_STREAM_BUFFER_BYTES = 1 << 18
# A page header has some 20 to 60 bytes; with statistics of strings, as many as these have.
_HEADER_BYTES = (128, 1 << 16)
# Numbers of the format: codecs, a kind of page, and encodings: of strings by what they share with the one before, of
# places in a dictionary, and all with which pyarrow reads strings as a dictionary, those of levels too.
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_DATA_PAGE = 0
_DELTA_STRINGS = 7
_BY_DICTIONARY = {2, 8}
_AS_DICTIONARY = {0, 3, 4, *_BY_DICTIONARY}
# Strings that cannot be counted are refused where they would take so many times what they may, were all as long as the
# longest one.
_MOST_DOUBT = 4
# Columns are dealt to threads by so many shares of about one size at most: few enough to cost nothing, and enough that
# threads which come and go end together.
_MOST_SHARES = 16

ShareOut: TypeAlias = Callable[[int, Callable[[int], None]], None]
"""Calls a function with every number below the first argument, in any threads, and returns when all is done."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]

_Look: TypeAlias = Generator[tuple[int, int, bool], _Bytes, bool]
"""Asks for bytes [start, stop), of a header as many of them as it takes, and returns what it finds."""
_Following: TypeAlias = Generator[None, tuple[int, BytesLike], bool]


def one_by_one(num: int, work: Callable[[int], None]) -> None:
    """Call `work` with every number below `num`, in the calling thread."""
    for i in range(num):
        work(i)


def column_chunks(
    footer: Footer, groups: Sequence[int], leaves: Sequence[int], info: ObjectInfo
) -> list[dict[int, ByteRange]]:
    """Return where column chunks of a file lie, none of them outside of it: of each row group, leaf column -> place."""
    chunks, size = footer.chunks[groups][:, leaves], info.size_bytes
    start, dictionary, length = chunks["data_offset"], chunks["dictionary_offset"], chunks["compressed_bytes"]
    # An offset of 0 is what some writers put where there is no dictionary page.
    start = np.where((dictionary > 0) & (dictionary < start), dictionary, start)
    # Not by their sum, which may be more than a 64-bit number.
    is_within = (start >= 0) & (length >= 0) & (start <= size) & (length <= size - start)
    for g, i in np.argwhere(~is_within).tolist():
        first, num_bytes = int(start[g, i]), int(length[g, i])
        raise SourceCorruptError(
            f"{info.url} row group {groups[g]}: column {footer.layout.paths[leaves[i]]} is said to lie at bytes "
            f"{first:,} to {first + num_bytes:,} of a file of {size:,}: the footer is corrupt",
            url=info.url,
        )
    places = zip(start.tolist(), (start + length).tolist(), strict=True)
    return [dict(zip(leaves, map(ByteRange, *both), strict=True)) for both in places]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """Columns of row groups of one file, to be decoded as a whole; or of one huge row group, by parts."""

    ranges: Ranges  # the file, with the columns in memory, or coming in as they are asked for
    footer: Footer
    numbers: Sequence[int]  # of the row groups; one where there are several parts
    spans: Sequence[Mapping[int, ByteRange]]  # of each row group: leaf column -> where its column chunk lies
    part_rows: Sequence[int]
    coded: Collection[str]  # columns of strings that may come as Arrow's dictionary
    most_bytes: int  # more than the strings of a column may take once they are decoded
    where: str  # the fragment or row group, for errors
    url: str

    def parts(self, share_out: ShareOut = one_by_one) -> Iterator[pa.Table]:
        """Yield the parts, in order; `share_out` calls the function that decodes some of the columns of a part.

        Bytes that are not what the footer says are a `SourceError`; INT96 timestamps that wrap around, a `FieldError`.
        """
        layout = self.footer.layout
        with self._decoding():
            shares = [self._share(leaves) for leaves in self._shares()]
        int96 = [leaf for leaf in self.spans[0] if layout.physical_types[leaf] == INT96]
        in_seconds = self.by_arrow(int96, in_seconds=True) if int96 else None
        for num_rows in self.part_rows:
            found: dict[int, pa.Table] = {}

            def read(s: int, found: dict[int, pa.Table] = found) -> None:
                with self._decoding():
                    found[s] = next(shares[s])

            share_out(len(shares), read)
            with self._decoding():
                table = found[0] if len(shares) == 1 else _table([{}], list(found.values()), layout.schema)
                _check_num_rows(table.num_rows, num_rows)
            del found, read
            if in_seconds is not None:
                _check_instants(table, next(in_seconds), where=self.where)
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
        columns = [[*same] for _, same in itertools.groupby(spans, key=lambda leaf: paths[leaf].partition(".")[0])]
        ends = np.cumsum([sum(spans[leaf].stop - spans[leaf].start for leaf in column) for column in columns])
        shares: list[list[int]] = [[] for _ in range(_MOST_SHARES)]
        for column, end in zip(columns, ends.tolist(), strict=True):
            shares[max(0, end * _MOST_SHARES - 1) // max(1, int(ends[-1]))] += column
        return [share for share in shares if share]

    def _share(self, leaves: Sequence[int]) -> Iterator[pa.Table]:
        """Return the parts of some columns: by the native decoder; where it meets what it does not know, by pyarrow."""
        footer, is_whole = self.footer, len(self.part_rows) == 1
        known = known_leaves(footer.layout)  # once: the columns of row groups are put together by these very objects
        readers = [
            NativeColumns(
                self.ranges,
                known,
                footer.chunks[group],
                int(footer.groups["num_rows"][group]),
                {leaf: spans[leaf] for leaf in leaves},
                coded=self.coded,
                most_bytes=self.most_bytes,
                is_whole=is_whole,
            )
            for group, spans in zip(self.numbers, self.spans, strict=True)
        ]
        left, by_arrow = list(leaves), list[Iterator[pa.Table]]()

        def take(p: int, num_rows: int) -> pa.Table:
            found = [reader.take(num_rows if len(readers) == 1 else reader.num_left) for reader in readers]
            if any(len(rows) < len(left) for rows in found):
                native = set.intersection(*({leaf.number for leaf in rows} for rows in found))
                lost = [leaf for leaf in left if leaf not in native]
                by_arrow.append(itertools.islice(self.by_arrow(lost), p, None))
                left[:] = [leaf for leaf in left if leaf in native]
                found = [{leaf: array for leaf, array in rows.items() if leaf.number in native} for rows in found]
            tables = [next(pieces) for pieces in by_arrow]
            return _table(found, tables, footer.layout.schema, is_coded=bool(self.coded))

        return map(take, itertools.count(), self.part_rows)

    def by_arrow(self, leaves: Sequence[int], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        """Yield the parts of some leaf columns as pyarrow decodes them; INT96 in seconds where it is to be."""
        checked = partial(decoding, self.url, where=self.where, look_closer=lambda: self._first_failure(leaves))
        pieces = self._pieces(leaves, self.numbers, in_seconds=in_seconds)
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

    def _pieces(self, leaves: Sequence[int], groups: Sequence[int], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        """Yield columns as they come: each row group as a whole, or some rows at a time.

        Raises behind the last where they have other rows than their footer says, and where lists hold more: pyarrow
        stops behind those that it expects, and says nothing.
        """
        layout, chunks = self.footer.layout, self.footer.chunks
        leaves = sorted(leaves)  # as their columns come
        coded = [leaf for leaf in leaves if sum(self._may_fill_memory(leaf, group) for group in groups)]
        is_whole = len(self.part_rows) == 1
        beginning = self.ranges.beginning
        passing = None
        if not self.ranges.may_jump:  # it is one row group
            looks = (self._look_at_pages(leaf, groups[0], is_coded=leaf in coded) for leaf in leaves)
            passing = _as_they_pass(zip([self.spans[0][leaf] for leaf in leaves], looks, strict=True))
        stream = RangesFile(self.ranges, passing)
        file = pq.ParquetFile(
            pa.PythonFile(stream, mode="r") if beginning is None else pa.BufferReader(beginning),
            metadata=self.footer.metadata(),
            read_dictionary=[layout.paths[leaf] for leaf in coded],
            pre_buffer=False,  # the bytes are here, or come through windows
            buffer_size=0 if is_whole else _STREAM_BUFFER_BYTES,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="s" if in_seconds else None,
        )
        # Leaves by their numbers: a column "a.list.element" and the values of lists "a" have the same path.
        options = {"column_indices": leaves, "use_threads": False}
        if is_whole:
            # One by one: a dictionary inside of a struct or a list is another one in each, which pyarrow cannot nest.
            pieces = (file.reader.read_row_group(group, **options) for group in groups)
        else:
            batches = file.reader.iter_batches(max(self.part_rows), row_groups=list(groups), **options)
            pieces = (pa.Table.from_batches([batch]) for batch in batches)
        num_rows, entries = 0, np.zeros(len(leaves), np.int64)
        for piece in pieces:
            piece.validate()
            num_rows += piece.num_rows
            entries += [n for column in piece.columns for n in _num_entries(column)]
            yield self._without_dictionaries(piece) if coded else piece
        _check_num_rows(num_rows, int(self.footer.groups["num_rows"][list(groups)].sum()))
        promised = chunks["num_values"][list(groups)][:, leaves].sum(axis=0)
        for i in np.flatnonzero(entries != promised).tolist():
            raise ValueError(
                f"its rows hold {entries[i]:,} values and empty lists of column {layout.paths[leaves[i]]}, "
                f"its footer promises {promised[i]:,}"
            )

    def _may_fill_memory(self, leaf: int, group: int) -> bool:
        """Return whether the strings of a column chunk may take more memory than they may, by what is in a dictionary.

        Of a stream the footer alone tells; its pages are looked at as they pass by. Raises as `_look_at_pages`.
        """
        if self.ranges.may_jump:
            look = self._look_at_pages(leaf, group)
            try:
                start, stop, _ = next(look)
                while True:
                    start, stop, _ = look.send(np.frombuffer(self.ranges.get(start, stop), np.uint8))
            except StopIteration as over:
                return bool(over.value)
        chunk = self.footer.chunks[group, leaf]
        most, known = int(chunk["uncompressed_bytes"]) * int(chunk["num_values"]), self._known(chunk)
        is_by_dictionary = bool(known & _BY_DICTIONARY) and known <= _AS_DICTIONARY
        return bool(is_by_dictionary and self.footer.layout.is_text[leaf] and most > self.most_bytes)

    def _look_at_pages(self, leaf: int, group: int, *, is_coded: bool = True) -> _Look:
        """Ask for bytes of a column chunk, and return whether its strings may take too much, by a dictionary.

        Raises where a page claims far more than what is stored of it, and where strings that share their beginnings
        take too much: pyarrow takes the memory before it looks. So does it where strings take too much by a dictionary,
        unless they will be read as one (`is_coded`).
        """
        chunk, path = self.footer.chunks[group, leaf], self.footer.layout.paths[leaf]
        is_text = is_codable = bool(self.footer.layout.is_text[leaf])
        must_fit = not is_coded and self._known(chunk) <= _AS_DICTIONARY
        longest = num_values = num_shared = 0
        at, stop = self.spans[list(self.numbers).index(group)][leaf]
        while at < stop:
            for num_bytes in _HEADER_BYTES:
                page = read_page_header((yield at, min(at + num_bytes, stop), True))
                if page is not None:
                    break
            if page is None:
                break  # pyarrow says what is wrong
            if page.is_inflated:
                raise ValueError(
                    f"column {path}: a page of {page.stored_bytes:,} bytes claims to hold {page.plain_bytes:,}, which "
                    "is not believed; write the file with smaller pages, or leave the column out"
                )
            begin, at = at + page.at, at + page.at + max(page.stored_bytes, 0)
            if at > stop + SLACK_BYTES:
                raise ValueError(
                    f"column {path}: a page claims to be stored in {page.stored_bytes:,} bytes, and {stop - begin:,} "
                    "are left of its column chunk"
                )
            if page.kind == DICTIONARY_PAGE:
                if is_text and at <= stop:
                    values = self._values((yield begin, at, False), page, leaf, int(chunk["codec"]))
                    longest = max(longest, page.plain_bytes if values is None else longest_string(values))
            elif page.encoding in _BY_DICTIONARY:
                num_values += page.num_entries
                if must_fit:  # its footer promised less
                    refuse_string_bytes(path, num_values, num_values * longest, self.most_bytes)
            elif page.encoding not in _AS_DICTIONARY:
                is_codable = False  # pyarrow does not read such strings as a dictionary
                if is_text and page.encoding == _DELTA_STRINGS and at <= stop:
                    values = self._values((yield begin, at, False), page, leaf, int(chunk["codec"]))
                    num_shared = num_shared if len(self.part_rows) == 1 else 0
                    num_shared += page.plain_bytes if values is None else sum_of_deltas(values)
                    refuse_string_bytes(path, page.num_entries, num_shared, self.most_bytes)
        if is_text and not is_codable and len(self.part_rows) == 1:
            # How often the longest string comes is not known before all of them are made.
            refuse_string_bytes(path, num_values, num_values * longest, _MOST_DOUBT * self.most_bytes)
        return is_codable and num_values * longest > self.most_bytes

    @staticmethod
    def _known(chunk: np.void) -> set[int]:
        """Return the encodings of a column chunk, as its footer has them."""
        return {number for number in range(62) if int(chunk["encodings"]) >> number & 1}

    def _values(self, content: _Bytes, page: PageHeader, leaf: int, codec: int) -> _Bytes | None:
        """Return what stands behind the levels of a page, decompressed; None where its codec is not known."""
        content = content[max(page.level_bytes, 0) :]
        if codec != 0 and page.is_packed:
            if codec not in _CODECS:
                return None
            num_bytes = page.plain_bytes - page.level_bytes if len(content) else 0
            if num_bytes <= 0:
                return content[:0]
            content = np.frombuffer(pa.decompress(content, num_bytes, codec=_CODECS[codec]), np.uint8)
        layout = self.footer.layout
        for most in (layout.max_repetition_levels[leaf], layout.max_definition_levels[leaf]):
            if most and page.kind == _DATA_PAGE:  # levels of pages of the first version, behind their length
                content = content[4 + int.from_bytes(content[:4], "little") :]
        return content

    def _without_dictionaries(self, table: pa.Table) -> pa.Table:
        """Return columns with the strings that dictionaries stand for, where these do not take all memory."""
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            kind = self.footer.layout.schema.field(name).type
            check = partial(check_string_bytes, name=name, most_bytes=self.most_bytes)
            chunks = map(plain_array, column.chunks or [pa.nulls(0, column.type)])
            columns.append(pa.chunked_array([_without_dictionary(chunk, kind, check) for chunk in chunks]))
        return pa.table(columns, names=table.column_names)

    def _first_failure(self, leaves: Sequence[int]) -> SourceError | None:
        """Return the error of the first column chunk that pyarrow cannot decode: of many it does not say which."""
        for group, leaf in itertools.product(self.numbers, leaves):
            column = self.footer.layout.paths[leaf]
            try:
                with decoding(self.url, where=f"{self.url} row group {group}: column {column}"):
                    for _ in self._pieces([leaf], [group]):
                        pass
            except SourceError as error:
                return error
        return None


def _follow(look: _Look) -> _Following:
    """Give what looks at a column chunk its bytes as they pass, with the place of each lot; return what it finds."""
    rest = b""
    try:
        start, stop, is_header = next(look)
        while True:
            begin, data = yield
            end = begin + len(data)
            if start >= end:
                continue
            rest = rest + bytes(data) if start < begin else bytes(memoryview(data)[start - begin :])
            # What is wanted may have no bytes where all others end: a dictionary without words, and no page behind it.
            while start < end or stop == end:
                at = len(rest) - (end - start)
                content = np.frombuffer(rest[at : at + stop - start], np.uint8)
                if stop > end and not (is_header and read_page_header(content)):
                    rest = rest[at:]
                    break
                start, stop, is_header = look.send(content)
    except StopIteration as over:
        return bool(over.value)


def _as_they_pass(looks: Iterable[tuple[ByteRange, _Look]]) -> Callable[[int, BytesLike], None]:
    """Return what looks at column chunks while somebody reads them from the beginning on: before they are decoded."""
    by_end: dict[int, list[_Following]] = {}  # by where the bytes end that have passed
    for span, look in looks:
        following = _follow(look)
        with suppress(StopIteration):
            next(following)
            by_end.setdefault(span.start, []).append(following)

    def see(start: int, data: BytesLike) -> None:
        for following in by_end.pop(start, ()) if len(data) else ():
            with suppress(StopIteration):  # it has seen enough
                following.send((start, data))
                by_end.setdefault(start + len(data), []).append(following)

    return see


def _table(
    groups: Sequence[Mapping[Leaf, pa.Array | pa.ChunkedArray]],
    tables: Sequence[pa.Table],
    schema: pa.Schema,
    *,
    is_coded: bool = False,
) -> pa.Table:
    """Return columns in the order of a schema: those that the native decoder gave of each row group, and of tables."""
    is_cut = any(isinstance(array, pa.ChunkedArray) for group in groups for array in group.values())
    if not tables and not is_coded and not is_cut:
        # A fifth of what thousands of columns take one by one.
        leaves = tuple(groups[0])
        kind = _schema_of(leaves)
        batches = [pa.RecordBatch.from_arrays([group[leaf] for leaf in leaves], schema=kind) for group in groups]
        return pa.Table.from_batches(batches, schema=kind)
    columns: dict[str, pa.ChunkedArray] = {}
    for leaf in groups[0]:
        arrays = [group[leaf] for group in groups]
        if len({array.type for array in arrays}) > 1:  # not every row group has a dictionary
            arrays = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in arrays]
        columns[leaf.name] = pa.chunked_array([one for array in arrays for one in getattr(array, "chunks", [array])])
    for table in tables:
        columns |= zip(table.column_names, table.columns, strict=True)
    return pa.table({name: columns[name] for name in schema.names if name in columns})


@lru_cache(maxsize=64)
def _schema_of(leaves: tuple[Leaf, ...]) -> pa.Schema:
    """Return the schema of some columns: one object, since a new one is compared field by field wherever it comes."""
    return pa.schema([(leaf.name, leaf.type) for leaf in leaves])


def _check_num_rows(decoded: int, promised: int) -> None:
    """Raise where a file holds other rows than its footer says: inside of `decoding`, which says where."""
    if decoded != promised:
        raise ValueError(f"it holds {decoded:,} rows, its footer promises {promised:,}")


def _num_entries(array: pa.Array | pa.ChunkedArray) -> list[int]:
    """Return how many entries the pages of each leaf of a column have: values, nulls and empty lists."""
    kind = array.type
    if not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType):
        return [len(array)]
    if isinstance(array, pa.ChunkedArray):
        chunks = array.chunks or [pa.array([], kind)]
        return [sum(some) for some in zip(*map(_num_entries, chunks), strict=True)]
    if isinstance(array, pa.StructArray | pa.ExtensionArray):
        return [n for part in parts_in(array) for n in _num_entries(part)]
    if isinstance(array, pa.ListArray | pa.LargeListArray):  # maps among them
        borders = np.asarray(array.offsets)
        values, num_empty = array.values[borders[0] : borders[-1]], np.count_nonzero(borders[1:] == borders[:-1])
    else:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        values, num_empty = array.flatten(), np.count_nonzero(lengths == 0)
    return [n + int(num_empty) for n in _num_entries(values)]


def _without_dictionary(array: pa.Array, kind: pa.DataType, check: Callable[[pa.DictionaryArray], None]) -> pa.Array:
    """Return an array with the strings that checked dictionaries stand for, but for those of its type in the file."""
    if pa.types.is_dictionary(array.type):
        check(array)
        return array if pa.types.is_dictionary(kind) else array.dictionary_decode()
    is_struct = pa.types.is_struct(kind)  # of which only some members may be there
    kinds = [kind.field(member.name).type for member in array.type] if is_struct else parts_of(kind)
    return around(array, [_without_dictionary(*pair, check) for pair in zip(parts_in(array), kinds, strict=True)])


def _check_instants(table: pa.Table, seconds: pa.Table, *, where: str) -> None:
    """Raise a `FieldError` that names the columns whose timestamps are not what they are in seconds.

    INT96, the old timestamps of Spark, Hive and Impala, reach further than the nanoseconds that pyarrow makes of them:
    9999-12-31 comes as 1816-03-29 without a word. In seconds nothing wraps, so such columns are decoded twice.
    """
    found, true = flatten(table.select(seconds.column_names)), flatten(seconds)
    wrong = [
        name
        for name, column in zip(true.column_names, true.columns, strict=True)
        if any((a != b).any() for a, b in _instants(found.column(name).combine_chunks(), column.combine_chunks()))
    ]
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
    a_second: int = 1000 ** TIME_UNITS.index(array.type.unit)
    return values // a_second
