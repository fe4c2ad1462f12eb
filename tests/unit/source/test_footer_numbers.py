"""What we read from a footer ourselves, against what pyarrow reads."""

from __future__ import annotations

import contextlib
import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import loops
from stoker.errors import SourceError
from stoker.source import footer_numbers, thrift
from stoker.source.footer_numbers import COMPILE_FROM_CHUNKS, has_compiled_reader, read_numbers
from stoker.source.footers import parse_footer, read_footer
from stoker.source.schema import Layout
from stoker.testing import MemoryStorage


def written(*, num_rows=100, row_group_size=30, **options):
    table = pa.table(
        {
            "a": range(num_rows),
            "s": [None if i % 7 == 0 else str(i % 5) for i in range(num_rows)],
            "l": [[i] * (i % 3) for i in range(num_rows)],
            "u": [{"x": float(i), "y": i % 2 == 0} for i in range(num_rows)],
            "f": pa.array([b"12345"] * num_rows, pa.binary(5)),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


def footer_of(content):
    storage = MemoryStorage({"f": content})
    return read_footer(storage.stat("f"), storage)


def numbers_of(content, *, is_compiled=False):
    buffer = footer_of(content)
    metadata = parse_footer(buffer, "f")
    return read_numbers(buffer, metadata, Layout.of(metadata), url="f", is_compiled=is_compiled), metadata


@pytest.mark.parametrize(
    "options",
    [{}, {"write_page_index": True}, {"use_dictionary": False}, {"write_statistics": False}, {"version": "1.0"}],
)
def test_numbers_are_those_that_pyarrow_reads(options):
    found, metadata = numbers_of(written(**options))
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        assert found.groups[g].tolist() == [group.total_byte_size, group.num_rows]
        for leaf in range(metadata.num_columns):
            chunk = group.column(leaf)
            row = found.chunks[g, leaf]
            statistics = chunk.statistics
            assert row[thrift.DATA_OFFSET] == chunk.data_page_offset
            dictionary = chunk.dictionary_page_offset
            assert row[thrift.DICTIONARY_OFFSET] == (-1 if dictionary is None else dictionary)
            assert row[thrift.COMPRESSED] == chunk.total_compressed_size
            assert row[thrift.UNCOMPRESSED] == chunk.total_uncompressed_size
            known = statistics is not None and statistics.has_null_count
            assert row[thrift.NULL_COUNT] == (statistics.null_count if known else -1)


def test_the_compiled_reader_reads_the_same():
    pytest.importorskip("numba")
    assert has_compiled_reader(COMPILE_FROM_CHUNKS)
    content = written(write_page_index=True)
    plain, compiled = numbers_of(content)[0], numbers_of(content, is_compiled=True)[0]
    assert np.array_equal(plain.groups, compiled.groups)
    assert np.array_equal(plain.chunks, compiled.chunks)


def test_a_footer_larger_than_the_tail_is_read_in_two():
    content = written(num_rows=3000, row_group_size=10)
    storage = MemoryStorage({"f": content})
    buffer = read_footer(storage.stat("f"), storage)
    assert storage.num_reads == 2
    assert parse_footer(buffer, "f").num_row_groups == 300


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"x" * 100, "no Parquet file"),
        (b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", "corrupt"),
        (b"PAR1" + bytes(8) + b"\x08\0\0\0PARE", "encrypted"),
        (b"PAR1" + b"junkjunk" + b"\x08\0\0\0PAR1", "cannot be decoded"),
    ],
)
def test_what_is_no_footer_is_an_error_that_names_the_file(content, says):
    with pytest.raises(SourceError, match=says) as caught:
        parse_footer(footer_of(content), "f")
    assert caught.value.url == "f"


def test_a_column_of_another_type_than_the_schema_says_is_found():
    buffer = footer_of(written())
    metadata = parse_footer(buffer, "f")
    layout = Layout.of(metadata)
    layout.physical_types[0] = 5
    with pytest.raises(SourceError, match="row group 0 describes column a otherwise"):
        read_numbers(buffer, metadata, layout, url="f")


@pytest.mark.parametrize("is_compiled", [False, True])
def test_flipped_bits_raise_or_are_read_but_never_end_the_process(is_compiled):
    """pyarrow's own accessors abort on some of these; a footer that passes here is safe to decode with."""
    if is_compiled:
        pytest.importorskip("numba")
        has_compiled_reader(COMPILE_FROM_CHUNKS)
    content = bytearray(footer_of(written(write_page_index=True)).to_pybytes())
    rng = random.Random(7)
    for _ in range(400):
        broken = bytearray(content)
        broken[rng.randrange(4, len(broken) - 8)] ^= 1 << rng.randrange(8)
        buffer = pa.py_buffer(bytes(broken))
        try:
            metadata = parse_footer(buffer, "f")
            layout = Layout.of(metadata)
        except (SourceError, pa.ArrowException, OSError, ValueError):
            continue
        with contextlib.suppress(SourceError):
            read_numbers(buffer, metadata, layout, url="f", is_compiled=is_compiled)


def test_lists_that_never_end_are_refused():
    with pytest.raises(ValueError, match="corrupt"):
        thrift.skip(b"\xf0\xff\xff\xff\xff\xff\xff\xff\x7f", 0, 9)
    with pytest.raises((ValueError, IndexError)):
        thrift.skip(b"\xff" * 40, 0, 9)
    with pytest.raises((ValueError, IndexError)):
        thrift.skip(b"\x19" * 4000, 0, 9)
    assert footer_numbers.COMPILE_FROM_CHUNKS > 0


@pytest.mark.parametrize(
    ("num_chunks", "is_loaded", "is_used"),
    [(COMPILE_FROM_CHUNKS, False, True), (1, True, True), (COMPILE_FROM_CHUNKS - 1, False, False)],
)
def test_the_compiled_reader_is_loaded_for_many_and_used_where_it_is_there(monkeypatch, num_chunks, is_loaded, is_used):
    pytest.importorskip("numba")
    monkeypatch.setattr(loops, "is_at_hand", lambda _name: is_loaded)
    assert has_compiled_reader(num_chunks) == is_used
