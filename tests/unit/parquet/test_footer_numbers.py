"""What we read from a footer ourselves, against what pyarrow reads."""

from __future__ import annotations

import contextlib
import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import SourceError, _native
from stoker.parquet.footer_numbers import read_numbers
from stoker.parquet.footers import parse_footer, read_footer
from stoker.parquet.schema import Layout
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
    return read_footer(storage.stat("f"), storage)[0]


def numbers_of(content):
    buffer = footer_of(content)
    metadata = parse_footer(buffer, "f")
    return read_numbers(buffer, metadata, Layout.of(metadata), url="f"), metadata


@pytest.mark.parametrize(
    "options",
    [{}, {"write_page_index": True}, {"use_dictionary": False}, {"write_statistics": False}, {"version": "1.0"}],
)
def test_numbers_are_those_that_pyarrow_reads(options):
    found, metadata = numbers_of(written(**options))
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        assert found.groups[g].tolist() == (group.total_byte_size, group.num_rows)
        for leaf in range(metadata.num_columns):
            chunk = group.column(leaf)
            row = found.chunks[g, leaf]
            statistics = chunk.statistics
            assert row["data_offset"] == chunk.data_page_offset
            dictionary = chunk.dictionary_page_offset
            assert row["dictionary_offset"] == (-1 if dictionary is None else dictionary)
            assert row["compressed_bytes"] == chunk.total_compressed_size
            assert row["uncompressed_bytes"] == chunk.total_uncompressed_size
            known = statistics is not None and statistics.has_null_count
            assert row["null_count"] == (statistics.null_count if known else -1)


def test_a_footer_larger_than_the_tail_is_read_in_two():
    content = written(num_rows=3000, row_group_size=10)
    storage = MemoryStorage({"f": content})
    buffer, _ = read_footer(storage.stat("f"), storage)
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


def test_flipped_bits_raise_or_are_read_but_never_end_the_process():
    """pyarrow's own accessors abort on some of these; a footer that passes here is safe to decode with."""
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
            read_numbers(buffer, metadata, layout, url="f")


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
def test_values_that_never_end_are_refused(field):
    groups, chunks = np.zeros((0, 2), np.int64), np.zeros((0, 1, 16), np.int64)
    assert _native.read_footer(np.frombuffer(b"\x15\x02\x00", np.uint8), groups, chunks)
    assert not _native.read_footer(np.frombuffer(field, np.uint8), groups, chunks)
