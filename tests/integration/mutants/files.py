"""Sound files with one column, taken apart into pages and Thrift fields, and put together again."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.integration.mutants.thrift_tree import Struct, read_struct, set_value, value_of, written

NUM_ROWS = 60
_MAGIC = b"PAR1"
# Numbers of fields in parquet.thrift.
_ROW_GROUPS, _COLUMNS, _METADATA, _CODEC, _NUM_VALUES, _COMPRESSED, _DATA, _DICTIONARY = 4, 1, 3, 4, 5, 7, 9, 11
_SIZES = 16
PLAIN_BYTES, STORED_BYTES, CRC, DATA_V2, DEFINITION_BYTES, REPETITION_BYTES = 2, 3, 4, 8, 5, 6

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4", "lz4_hadoop")


def columns() -> dict[str, tuple[pa.Array, dict[str, object]]]:
    """Columns of every kind that is decoded in its own way, and how each is written."""
    i = np.arange(NUM_ROWS)
    nulls = [None if k % 5 == 2 else k for k in i.tolist()]
    words = pa.array([f"word {k % 7}" * (k % 4) for k in i])
    lists = pa.array([list(range(k % 4)) for k in i.tolist()], pa.list_(pa.int32()))
    plain: dict[str, object] = {"use_dictionary": False}
    return {
        "int64 by dictionary": (pa.array(i % 9), {}),
        "int64": (pa.array(i * 1_000_003), plain),
        "float32 with nulls": (pa.array(nulls, pa.float32()), plain),
        "bool with nulls": (pa.array([None if k is None else k % 3 == 0 for k in nulls]), plain),
        "int32 of null alone": (pa.array([None] * NUM_ROWS, pa.int32()), {}),
        "binary(3)": (pa.array([bytes([k, 1, 2]) for k in i.tolist()], pa.binary(3)), plain),
        "float64 by streams": (pa.array(i / 3), plain | {"column_encoding": "BYTE_STREAM_SPLIT"}),
        "strings by dictionary": (words, {}),
        "strings": (words, plain),
        "lists": (lists, plain),
        "lists by dictionary": (lists, {}),
        "int64 by differences": (pa.array(i * 7), plain | {"column_encoding": "DELTA_BINARY_PACKED"}),
        "strings by differences": (words, plain | {"column_encoding": "DELTA_BYTE_ARRAY"}),
        "lists of strings": (pa.array([["a", "bc"][: k % 3] for k in i.tolist()], pa.list_(pa.string())), {}),
        "strings by lengths": (words, plain | {"column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}),
        "int32 by streams": (pa.array(nulls, pa.int32()), plain | {"column_encoding": "BYTE_STREAM_SPLIT"}),
        "lists with nulls": (pa.array([None if k is None else [k, None][: k % 3] for k in nulls]), plain),
        "lists of one length": (pa.array([[k, k + 1] for k in i.tolist()], pa.list_(pa.int16(), 2)), plain),
        "lists of lists": (pa.array([[[k], []][: k % 3] for k in i.tolist()], pa.list_(pa.list_(pa.int64()))), {}),
    }


class Sound(NamedTuple):
    """What names a sound file."""

    column: str
    codec: str
    version: str
    has_checksums: bool

    def __str__(self) -> str:
        return f"{self.column}, {self.codec}, version {self.version}{', checksums' if self.has_checksums else ''}"


@dataclass
class Page:
    """A page: its header, and what lies behind it."""

    header: Struct
    body: bytes

    @property
    def num_level_bytes(self) -> int:
        """Bytes of levels that stand before what is compressed."""
        inner = value_of(self.header, DATA_V2)
        return (inner and value_of(inner, DEFINITION_BYTES) + value_of(inner, REPETITION_BYTES)) or 0


@dataclass
class Parts:
    """A file: its footer, and pages by row group and column."""

    footer: Struct
    chunks: list[list[Page]]

    def put_together(self) -> bytes:
        """Return the file; where its column chunks lie is noted anew."""
        content = bytearray(_MAGIC)
        for metadata, pages in zip(_metadata(self.footer), self.chunks, strict=True):
            start = len(content)
            data = start
            for page in pages:
                if value_of(page.header, 1) == 2:
                    data += len(written(page.header)) + len(page.body)
                content += written(page.header) + page.body
            set_value(metadata, len(content) - start, _COMPRESSED)
            set_value(metadata, data, _DATA)
            if data > start:
                set_value(metadata, start, _DICTIONARY)
        return with_footer(bytes(content), self.footer)


def with_footer(content: bytes, footer: Struct) -> bytes:
    """Return a file of pages that lie as the footer says, or do not."""
    end = written(footer)
    return content + end + len(end).to_bytes(4, "little") + _MAGIC


def _metadata(footer: Struct) -> list[Struct]:
    groups = value_of(footer, _ROW_GROUPS).values
    return [value_of(column, _METADATA) for group in groups for column in value_of(group, _COLUMNS).values]


def make(sound: Sound) -> bytes:
    """Return a sound file: two row groups of several pages each."""
    array, options = columns()[sound.column]
    file = io.BytesIO()
    is_required = array.null_count == 0 and not pa.types.is_list(array.type)
    schema = pa.schema([pa.field("x", array.type, nullable=not is_required)])
    pq.write_table(
        pa.Table.from_arrays([array], schema=schema),
        file,
        row_group_size=NUM_ROWS // 2,
        data_page_size=64,
        write_batch_size=10,
        compression="lz4" if sound.codec == "lz4_hadoop" else sound.codec,
        data_page_version=sound.version,
        write_page_checksum=sound.has_checksums,
        **options,
    )
    content = file.getvalue()
    return as_hadoop(content) if sound.codec == "lz4_hadoop" else content


def take_apart(content: bytes) -> Parts:
    """Return the parts of a sound file."""
    length = int.from_bytes(content[-8:-4], "little")
    footer, _ = read_struct(content, len(content) - 8 - length)
    chunks = []
    for metadata in _metadata(footer):
        at = value_of(metadata, _DICTIONARY) or value_of(metadata, _DATA)
        stop = at + value_of(metadata, _COMPRESSED)
        pages = []
        while at < stop:
            header, at = read_struct(content, at)
            size = value_of(header, STORED_BYTES)
            pages.append(Page(header, content[at : at + size]))
            at += size
        chunks.append(pages)
    return Parts(footer, chunks)


def as_hadoop(content: bytes) -> bytes:
    """Return a file of raw LZ4 blocks with Hadoop's sizes before each, as parquet-mr wrote them for years."""
    parts = take_apart(content)
    for metadata in _metadata(parts.footer):
        set_value(metadata, 5, _CODEC)
    for pages in parts.chunks:
        for page in pages:
            if is_packed(page, "lz4"):
                levels = page.num_level_bytes
                block = page.body[levels:]
                sizes = (value_of(page.header, PLAIN_BYTES) - levels, len(block))
                page.body = page.body[:levels] + b"".join(size.to_bytes(4, "big") for size in sizes) + block
                set_value(page.header, len(page.body), STORED_BYTES)
    return parts.put_together()


def without_sizes(content: bytes) -> bytes:
    """Return a file that does not say how large its strings are once decoded."""
    parts = take_apart(content)
    for metadata in _metadata(parts.footer):
        metadata[:] = [field for field in metadata if field.number != _SIZES]
    return parts.put_together()


def is_packed(page: Page, codec: str) -> bool:
    """Whether what stands behind the levels of a page is compressed."""
    inner = value_of(page.header, DATA_V2)
    is_plain = inner is not None and any(field.number == 7 and field.kind == 2 for field in inner)
    return codec != "none" and not is_plain and len(page.body) > page.num_level_bytes


def unpacked(page: Page, codec: str) -> bytes:
    """Return what stands behind the levels of a sound page, as it was before it was compressed."""
    body = page.body[page.num_level_bytes :]
    if not is_packed(page, codec):
        return body
    size = value_of(page.header, PLAIN_BYTES) - page.num_level_bytes
    name = "lz4_raw" if codec.startswith("lz4") else codec
    return pa.Codec(name).decompress(body[8:] if codec == "lz4_hadoop" else body, size, asbytes=True)


def packed(plain: bytes, codec: str, *, promised: int) -> bytes:
    """Return a page compressed.

    Args:
        plain: What stands behind its levels.
        codec: One of `CODECS`.
        promised: How many bytes a codec says it has that says so.
    """
    name = "lz4_raw" if codec.startswith("lz4") else codec
    block = pa.Codec(name).compress(plain, asbytes=True)
    return promised.to_bytes(4, "big") + len(block).to_bytes(4, "big") + block if codec == "lz4_hadoop" else block
