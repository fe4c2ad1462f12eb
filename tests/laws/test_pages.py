"""Pages decoded natively: whatever comes of them is what pyarrow gives, and a damaged file is never more than that.

The promise has two halves. Of columns that the decoder knows, in files as writers write them, it gives all (else a fast
path that never runs would pass). Of anything else it gives the same as pyarrow, or nothing.
"""

from __future__ import annotations

import io
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples, nested_table

from stoker import Dataset
from stoker._native import Column, ColumnReader, can_decompress, read_footer
from stoker.parquet.decode import _follow
from stoker.parquet.footer_numbers import read_numbers
from stoker.parquet.pages import NativeColumns, known_leaves
from stoker.parquet.schema import Layout
from stoker.storage.fetch import ByteRange
from stoker.testing import MemoryStorage

CODECS = ["NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4"]
KNOWN_CODECS = [
    name for name, number in {"NONE": 0, "SNAPPY": 1, "ZSTD": 6, "LZ4": 7}.items() if can_decompress(number)
]
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.binary(3), pa.binary(1)),
    *(pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin")),
    pa.bool_(),
]
WORDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


def values_of(rng: np.random.Generator, kind: pa.DataType, num: int, num_distinct: int) -> pa.Array:
    """Return `num` values, at most `num_distinct` of them different."""
    if kind in WORDS:
        pool = [rng.bytes(int(rng.integers(0, 7)) ** 2) for _ in range(num_distinct)]
        if kind in (pa.string(), pa.large_string()):
            pool = [word.hex() for word in pool]
        distinct = pa.array(pool, kind)
    else:
        width = -(-kind.bit_width // 8)
        distinct = pa.Array.from_buffers(kind, num_distinct, [None, pa.py_buffer(rng.bytes(num_distinct * width))])
    return distinct.take(pa.array(rng.integers(0, num_distinct, num)))


@st.composite
def columns(draw, num_rows: int, rng: np.random.Generator, *, with_nulls: bool = True):
    """One column of a type that the decoder knows."""
    kind = draw(st.sampled_from(NUMBERS + WORDS))
    shape = draw(st.sampled_from(["flat", "list", "large_list", "fixed"])) if kind not in WORDS else "flat"
    num_distinct = draw(st.sampled_from([1, 2, 3, 7, 200, 5_000]))
    is_required = draw(st.booleans())
    if shape == "flat":
        array = values_of(rng, kind, num_rows, num_distinct)
        if with_nulls and not is_required and draw(st.booleans()):
            mask = pa.array(rng.random(num_rows) < draw(st.sampled_from([0.01, 0.5, 1.0])))
            array = pa.compute.if_else(mask, pa.scalar(None, kind), array)
        return array, is_required
    if shape == "fixed":
        size = draw(st.sampled_from([1, 2, 8, 64]))
        return pa.FixedSizeListArray.from_arrays(values_of(rng, kind, num_rows * size, num_distinct), size), False
    longest = draw(st.sampled_from([0, 1, 5, 70]))
    least = draw(st.sampled_from([0, min(1, longest)]))
    offsets = np.concatenate([[0], np.cumsum(rng.integers(least, longest, num_rows, endpoint=True))])
    values = values_of(rng, kind, int(offsets[-1]), num_distinct)
    if shape == "large_list":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values), False
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values), False


def written(table: pa.Table, **options) -> tuple[bytes, pq.FileMetaData]:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    content = file.getvalue()
    return content, pq.read_metadata(pa.BufferReader(content))


def natively(content: bytes, metadata: pq.FileMetaData, group: int, *, numbers=None, **options) -> NativeColumns:
    """Return columns of a row group as the native decoder reads them."""
    layout = Layout.of(metadata)
    wanted = range(len(layout.paths)) if numbers is None else numbers
    return NativeColumns(
        InMemory(content),
        known_leaves(layout),
        numbers_of(content, metadata)[1][group],
        metadata.row_group(group).num_rows,
        {number: span_of(metadata, group, number) for number in wanted},
        **{"is_whole": True} | options,
    )


def read(content: bytes, metadata: pq.FileMetaData, group: int, number: int) -> pa.Array | None:
    """Return a column of a row group as the native decoder gives it."""
    try:
        found = natively(content, metadata, group, numbers=[number]).take(metadata.row_group(group).num_rows)
    except ValueError:  # pages with other values than the footer promises
        return None
    return next(iter(found.values()), None)


def numbers_of(content: bytes, metadata: pq.FileMetaData) -> tuple[np.ndarray, np.ndarray]:
    buffer = pa.py_buffer(b"PAR1" + content[-8 - int.from_bytes(content[-8:-4], "little") :])
    return read_numbers(buffer, metadata, Layout.of(metadata), url="x")


def span_of(metadata: pq.FileMetaData, group: int, number: int) -> ByteRange:
    column = metadata.row_group(group).column(number)
    dictionary, start = column.dictionary_page_offset or 0, column.data_page_offset
    start = dictionary if 0 < dictionary < start else start
    return ByteRange(start, start + column.total_compressed_size)


OPTIONS = {
    "compression": st.sampled_from(CODECS),
    "data_page_version": st.sampled_from(["1.0", "2.0"]),
    "data_page_size": st.sampled_from([64, 1_000, 1 << 20]),
    "dictionary_pagesize_limit": st.sampled_from([1 << 20, 300]),
    "write_batch_size": st.sampled_from([7, 100, 1024]),
    "write_page_checksum": st.booleans(),
    "use_dictionary": st.booleans(),
    "store_schema": st.booleans(),
}


def is_lost(found: pa.Array, num_rows: int) -> bool:
    """Whether pyarrow lost the row of a row group of one list of bools in a page of the second version, as 26 does."""
    return len(found) == 0 and num_rows == 1


def options_for(data, array: pa.Array) -> dict:
    """Draw how a column is written."""
    options = {name: data.draw(strategy, label=name) for name, strategy in OPTIONS.items()}
    value_type = getattr(array.type, "value_type", array.type)
    if value_type not in WORDS and data.draw(st.booleans(), label="encoded otherwise"):
        options["use_dictionary"] = False
        options["column_encoding"] = "RLE" if pa.types.is_boolean(value_type) else "BYTE_STREAM_SPLIT"
    return options


@examples(50)
@given(data=st.data(), num_rows=st.sampled_from([0, 1, 7, 8, 9, 100, 1_000, 3_000]), seed=st.integers(0, 2**32 - 1))
def test_columns_are_what_pyarrow_makes_of_them(data, num_rows, seed):
    array, is_required = data.draw(columns(num_rows, np.random.default_rng(seed)))
    schema = pa.schema([pa.field("x", array.type, nullable=not is_required)])
    options = options_for(data, array)
    group_rows = data.draw(st.sampled_from([max(1, num_rows), max(1, num_rows // 3)]))
    content, metadata = written(pa.Table.from_arrays([array], schema=schema), row_group_size=group_rows, **options)
    file = pq.ParquetFile(pa.BufferReader(content))
    for group in range(metadata.num_row_groups):
        expected = file.read_row_group(group, use_threads=False).column(0).combine_chunks()
        found = read(content, metadata, group, 0)
        if found is None:
            assert not num_rows or options["compression"] not in KNOWN_CODECS
            continue
        found.validate(full=True)
        if is_lost(expected, metadata.row_group(group).num_rows):
            assert found.to_pylist() == array.slice(group * group_rows, group_rows).to_pylist()
            continue
        assert found.type == expected.type
        assert found.null_count == expected.null_count
        assert same_bits(found, expected)


@pytest.mark.parametrize("is_coded", [False, True])
def test_strings_of_row_groups_with_and_without_a_dictionary_are_of_one_type(is_coded):
    words = [f"word {i % 3}" for i in range(3_000)] + [f"another word {i}" for i in range(3_000)]

    def types_of(some):
        table = pa.table({str(kind): pa.array(some).cast(kind) for kind in WORDS})
        content, _ = written(table, row_group_size=1_500, dictionary_pagesize_limit=2_000)
        catalogue = Dataset("a", storage=MemoryStorage({"a": content})).open()
        ((_, found),) = catalogue.read(0, coded=table.column_names if is_coded else ())
        assert all(column.cast(pa.string()).to_pylist() == some for column in found.columns)
        return found.schema.types

    assert types_of(words[:3_000]) == [pa.dictionary(pa.int32(), kind) if is_coded else kind for kind in WORDS]
    assert types_of(words) == WORDS


@examples(35)
@given(
    data=st.data(),
    num_rows=st.sampled_from([1, 7, 100, 1_000]),
    num_columns=st.integers(1, 6),
    num_damaged=st.sampled_from([0, 0, 1, 5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_columns_that_are_decoded_all_at_once_are_the_same(data, num_rows, num_columns, num_damaged, seed):
    rng = np.random.default_rng(seed)
    drawn = [data.draw(columns(num_rows, rng)) for _ in range(num_columns)]
    schema = pa.schema([pa.field(f"x{i}", a.type, nullable=not required) for i, (a, required) in enumerate(drawn)])
    options = {name: data.draw(strategy, label=name) for name, strategy in OPTIONS.items()}
    options["compression"] = data.draw(st.sampled_from(KNOWN_CODECS))
    content, metadata = written(pa.Table.from_arrays([array for array, _ in drawn], schema=schema), **options)
    damaged = bytearray(content)
    for _ in range(num_damaged):
        damaged[int(rng.integers(4, len(content) - 8 - int.from_bytes(content[-8:-4], "little")))] ^= 1 << int(
            rng.integers(0, 8)
        )
    try:
        found = natively(bytes(damaged), metadata, 0).take(num_rows)
    except ValueError:  # pages with other values than the footer promises
        assert num_damaged
        return
    assert num_damaged or len(found) == num_columns
    for leaf, array in found.items():
        if num_damaged:
            # By itself a column gives the same, or what is damaged is another one.
            assert same_bits(array, read(bytes(damaged), metadata, 0, leaf.number))
        else:
            expected = pq.read_table(pa.BufferReader(content), columns=[leaf.name]).column(0).combine_chunks()
            array.validate(full=True)
            assert is_lost(expected, num_rows) or (array.type == expected.type and same_bits(array, expected))


@examples(50)
@given(data=st.data(), num_rows=st.sampled_from([1, 7, 100, 1_000, 3_000]), seed=st.integers(0, 2**32 - 1))
def test_a_column_that_is_read_some_rows_at_a_time_is_the_same(data, num_rows, seed):
    rng = np.random.default_rng(seed)
    array, is_required = data.draw(columns(num_rows, rng))
    schema = pa.schema([pa.field("x", array.type, nullable=not is_required)])
    options = options_for(data, array)
    content, metadata = written(pa.Table.from_arrays([array], schema=schema), **options)
    borders = sorted({0, num_rows, *rng.integers(0, num_rows, data.draw(st.integers(0, 8))).tolist()})
    piece_bytes = data.draw(st.sampled_from([1, 50, 1_000, 1 << 18]))
    stream = natively(content, metadata, 0, is_whole=False, piece_bytes=piece_bytes)
    expected = pq.ParquetFile(pa.BufferReader(content)).read_row_group(0, use_threads=False).column(0).combine_chunks()
    if is_lost(expected, num_rows):
        return
    parts = []
    for begin, end in itertools.pairwise(borders):
        found = stream.take(end - begin)
        if options["compression"] not in KNOWN_CODECS:
            assert not found
            return
        (part,) = found.values()
        part.validate(full=True)
        assert same_bits(part, expected.slice(begin, end - begin))
        parts.append(part)
    # What was handed out before is still what it was.
    assert same_bits(pa.concat_arrays(parts), expected)


def test_strings_that_do_not_stand_in_the_dictionary_as_they_come_are_looked_up():
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "f", "d", "h", "b", "c", "d"]
    content, metadata = written(pa.table({"x": words}))
    stream = natively(content, metadata, 0, is_whole=False)
    # Of f, d, h the last one stands two behind the first one, as of b, c, d.
    parts = [next(iter(stream.take(num).values())) for num in (8, 3, 3)]
    assert [part.to_pylist() for part in parts] == [words[:8], words[8:11], words[11:]]


class InMemory:
    """Bytes as the file that a stream reads."""

    def __init__(self, content):
        self.content = content

    def get(self, start, stop):
        return self.content[start:stop]


def same_bits(a: pa.Array, b: pa.Array) -> bool:
    """Whether two arrays are equal, each NaN to itself alone."""
    if len(a) != len(b):
        return False
    if isinstance(a, pa.FixedSizeListArray):
        return same_bits(a.flatten(), b.flatten())
    if isinstance(a, pa.ListArray | pa.LargeListArray):
        lengths = [np.diff(np.asarray(one.offsets)) for one in (a, b)]
        return bool((lengths[0] == lengths[1]).all()) and same_bits(a.flatten(), b.flatten())
    if pa.types.is_floating(a.type):
        kind = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[a.type.bit_width]
        return bool(a.view(kind).equals(b.view(kind)))
    return bool(a.equals(b))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, 2], None, [], [3]] * 100, pa.list_(pa.int64())),
        pa.array([[1, None], [2]] * 100, pa.list_(pa.int64())),
        pa.array([{"a": 1, "b": [1]}] * 100),
        pa.array([[[1], []], []] * 100, pa.list_(pa.list_(pa.int32()))),
        pa.array([1, 2, None] * 100, pa.time64("us")),
        pa.array([b"a", b"bc"] * 100).dictionary_encode(),
        pa.array([None] * 100, pa.list_(pa.int8(), 3)),
        pa.array([1, 2] * 100, pa.decimal128(7, 2)),
    ],
    ids=lambda array: str(array.type),
)
def test_what_is_not_known_is_left_to_pyarrow(array):
    content, metadata = written(pa.table({"x": array}))
    assert read(content, metadata, 0, 0) is None


def test_an_encoding_that_is_not_known_is_left_to_pyarrow():
    array = pa.array(np.arange(1_000, dtype=np.int32))
    content, metadata = written(pa.table({"x": array}), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    assert read(content, metadata, 0, 0) is None


def test_a_page_that_is_not_what_its_checksum_says_is_left_to_pyarrow():
    array = pa.array(np.arange(10_000))
    content, metadata = written(pa.table({"x": array}), write_page_checksum=True, compression="none")
    assert read(content, metadata, 0, 0) is not None
    damaged = bytearray(content)
    damaged[metadata.row_group(0).column(0).data_page_offset + 1_000] ^= 1
    assert read(bytes(damaged), metadata, 0, 0) is None


@pytest.mark.parametrize("compression", [name for name in KNOWN_CODECS if name != "NONE"])
def test_threads_that_decode_at_once_do_not_share_what_decompresses(compression):
    rng = np.random.default_rng(0)
    arrays = [pa.array(rng.integers(0, 1 << 20, 50_000)) for _ in range(4)]
    files = [written(pa.table({"x": a}), compression=compression, use_dictionary=False) for a in arrays]
    # Any number of threads may decompress between two calls that hold the interpreter's lock.
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            found = list(pool.map(lambda file: read(*file, 0, 0), files))
            assert all(a is not None and a.equals(b) for a, b in zip(found, arrays, strict=True))


def field(delta: int, value: int) -> bytes:
    """Return a 32-bit field of a Thrift struct, as Parquet's headers have it."""
    number, content = value << 1, bytearray([delta << 4 | 5])  # zigzag, for what is not negative
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


@pytest.mark.parametrize("which", ["plain", "entries", "definition", "repetition"])
def test_a_header_with_a_number_beyond_those_of_the_format_is_no_header(which):
    def header(**beyond):
        numbers = {"plain": 16, "entries": 4, "definition": 0, "repetition": 0} | beyond
        start = field(1, 3) + field(1, numbers["plain"]) + field(1, 16)
        # The fields of a DataPageHeaderV2, which is field 8: values, nulls, rows, encoding, and bytes of levels.
        inner = field(1, numbers["entries"]) + field(1, 0) + field(1, 4) + field(1, 0)
        inner += field(1, numbers["definition"]) + field(1, numbers["repetition"])
        return start + bytes([5 << 4 | 12]) + inner + bytes([0, 0]) + bytes(16)

    assert num_entries(header()) == 4
    for number in (2**31, 2**61, 2**62 - 1):
        assert num_entries(header(**{which: number})) == 0


def num_entries(content: bytes) -> int:
    column = Column(
        width=4,
        full=0,
        empty=-1,
        is_list=False,
        is_bit=False,
        is_binary=False,
        value_bytes=4,
        is_large=False,
        list_size=-1,
    )
    most = 1 << 62
    reader = ColumnReader(column, codec=0, num_rows=most, num_values=most, most_bytes=most, most_page_values=most)
    reader.scan(np.frombuffer(content, np.uint8))
    return reader.num_entries


@examples(50)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_a_damaged_column_gives_what_pyarrow_gives_or_nothing(data, seed):
    rng = np.random.default_rng(seed)
    array, is_required = data.draw(columns(data.draw(st.sampled_from([9, 400])), rng))
    schema = pa.schema([pa.field("x", array.type, nullable=not is_required)])
    options = options_for(data, array)
    content, metadata = written(pa.Table.from_arrays([array], schema=schema), **options)
    start, stop = span_of(metadata, 0, 0)
    if stop == start:
        return
    damaged = bytearray(content)
    for _ in range(data.draw(st.sampled_from([1, 1, 1, 3, 20]))):
        at = start + int(rng.integers(0, min(stop - start, data.draw(st.sampled_from([40, 1 << 30])))))
        damaged[at] = int(rng.integers(0, 256))
    found = read(bytes(damaged), metadata, 0, 0)
    if found is None:
        return
    found.validate()  # full would ask whether bytes are text, which neither of the two looks at
    if options["compression"] == "ZSTD":
        return  # the system's and Arrow's own may be two releases, which make different bytes of a damaged frame
    try:
        file = pq.ParquetFile(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)
        table = file.read_row_group(0, use_threads=False)
        table.validate()
    except Exception:  # pyarrow looks at some things that change no value
        return
    if len(table) == len(found):
        assert same_bits(found, table.column(0).combine_chunks())


@pytest.mark.slow  # their values are looked at in every run, through a loader, by test_real_files.py
def test_columns_of_real_files_are_what_pyarrow_makes_of_them(shared_data):
    num_found = 0
    for path in sorted(shared_data.rglob("*.parquet")):
        content = path.read_bytes()
        try:
            metadata = pq.read_metadata(pa.BufferReader(content))
            layout = Layout.of(metadata)
            file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
            tables = [file.read_row_group(i, use_threads=False) for i in range(metadata.num_row_groups)]
        except Exception:  # bad on purpose, encrypted, or of a kind that pyarrow does not know
            continue
        for number, leaf in known_leaves(layout).items():
            for group, table in enumerate(tables):
                found = read(content, metadata, group, number)
                if found is not None:
                    num_found += 1
                    assert same_bits(found, table.column(leaf.name).combine_chunks()), f"{path} {leaf.name}"
    assert num_found > 100


@pytest.mark.parametrize(
    "options",
    [{}, {"write_page_index": True}, {"use_dictionary": False}, {"write_statistics": False}, {"version": "1.0"}],
)
def test_the_numbers_of_a_footer_are_those_that_pyarrow_reads(options):
    content, metadata = written(nested_table(100), row_group_size=30, compression="zstd", **options)
    groups, chunks = numbers_of(content, metadata)
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        assert groups[g].tolist() == (group.total_byte_size, group.num_rows)
        for leaf in range(metadata.num_columns):
            chunk, row = group.column(leaf), chunks[g, leaf]
            dictionary, statistics = chunk.dictionary_page_offset, chunk.statistics
            assert row["codec"] == 6
            assert row["data_offset"] == chunk.data_page_offset
            assert row["dictionary_offset"] == (-1 if dictionary is None else dictionary)
            assert row["compressed_bytes"] == chunk.total_compressed_size
            assert row["uncompressed_bytes"] == chunk.total_uncompressed_size
            assert row["num_values"] == chunk.num_values
            known = statistics is not None and statistics.has_null_count
            assert row["null_count"] == (statistics.null_count if known else -1)


@pytest.mark.parametrize(
    "field",
    [
        b"\x59\xf0\xff\xff\xff\xff\xff\xff\xff\x7f",  # a list of more elements than there are bytes
        b"\x59" + b"\xff" * 40,
        b"\x59" + b"\x19" * 4000,  # lists in lists
        b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x33",  # a map
        b"\x58\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length that would lead backwards
        b"\x56" + b"\xff" * 10,  # a number of more than 64 bits
        b"\x5c" + b"\x1c" * 100,  # structs in structs
    ],
)
def test_values_of_a_footer_that_never_end_are_refused(field):
    groups, chunks = np.zeros((0, 2), np.int64), np.zeros((0, 1, 16), np.int64)
    assert read_footer(np.frombuffer(b"\x15\x02\x00", np.uint8), groups, chunks)
    assert not read_footer(np.frombuffer(field, np.uint8), groups, chunks)


def test_a_dictionary_without_bytes_is_looked_at_where_no_page_is_behind_it():
    def look():
        header = yield 4, 18, True
        words = yield 18, 18, False
        return (len(header), len(words)) == (14, 0)

    following = _follow(look())
    next(following)
    with pytest.raises(StopIteration) as over:
        following.send((4, bytes(14)))
    assert over.value.value
