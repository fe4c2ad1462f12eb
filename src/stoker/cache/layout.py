"""Where everything lies in a chunk file: decided by the spec, the number of samples and the lengths of ragged fields.

    0        8                    P               P·m                    64·n
    ┆ length ┆ JSON header, blanks ┆ records, zeros ┆ places, zeros ┆ strips ┆ offsets, zeros ┆ values ┆
               a whole number of pages P; so are the records, and those of runs behind them

docs/reference/chunk-format.md is the description for readers of other programs; a change here is another
FORMAT_VERSION.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from stoker.cache.strips import Strips, make_strips
from stoker.errors import FieldError
from stoker.source.columns import Packable, Pieces
from stoker.spec import CACHE_LINE_BYTES, Array, Entry, Ragged, Spec

# Chunks are of the first version that knows what they hold: those that share nothing, and have no lists side by side,
# are what they were before there were such things.
FORMAT_VERSION = 1
SHARED_FORMAT_VERSION = 2
STRIPS_FORMAT_VERSION = 3
RECORDS = "records"
STRIPS = "strips"
# Records are mapped at page borders. Larger pages (16 KiB on Apple's processors, 64 KiB on some ARM servers) are
# taken where the file is written, which is where it is read.
PAGE_BYTES = max(4096, mmap.PAGESIZE)

DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""NumPy's names and those of safetensors."""

_NO_CHECKSUM = "0" * 16
# The header's own checksum stands first, at a place that is known before the JSON is read.
_HEAD = b'{"__metadata__":{"checksum":"'
_CHECKSUMS_KEY = b'"checksums":'
CHECKSUM_AT = 8 + len(_HEAD)


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Some fields of a chunk, with rows of their own.

    Attributes:
        name: Of the array of its records.
        spec: What a row is.
        num_rows: Samples of the chunk, or runs of them that share values.
        arrays: The fields.
        strips: Its lists that lie side by side; None without any.
    """

    name: str
    spec: Spec
    num_rows: int
    arrays: Packable
    strips: Strips | None


def make_table(name: str, spec: Spec, *, num_rows: int, arrays: Packable) -> Table:
    """Return a table of a chunk: its arrays fit its spec.

    Raises:
        FieldError: The lists of it are more than a chunk can hold.
    """
    return Table(name=name, spec=spec, num_rows=num_rows, arrays=arrays, strips=make_strips(spec, arrays))


def table_names(spec: Spec) -> list[str]:
    """Return the names of the records of `spec.tables`, as they are in a chunk file."""
    return [RECORDS, *(f"{key}.{RECORDS}" for key in spec.keys)]


def strip_names(table: str) -> tuple[str, str]:
    """Return the names of the arrays that say where a table's strips lie, and that hold them."""
    strips = table.removesuffix(RECORDS) + STRIPS
    return f"{strips}.places", strips


def list_names(spec: Spec) -> list[str]:
    """Return the names of all arrays of a chunk that hold lists, in the order of the file."""
    names: list[str] = []
    for name, table in zip(table_names(spec), spec.tables, strict=True):
        names += strip_names(name) if table.strip else ()
        names += (array for entry in table.apart for array in array_names(entry))
    return names


def record_names(spec: Spec) -> list[str]:
    """Return the names of all arrays of a chunk that hold records, in the order of the file."""
    return [name for name, table in zip(table_names(spec), spec.tables, strict=True) if table.record_bytes]


def format_version(spec: Spec) -> int:
    """Return the version of chunks with such samples."""
    if any(table.strip for table in spec.tables):
        return STRIPS_FORMAT_VERSION
    return SHARED_FORMAT_VERSION if spec.keys else FORMAT_VERSION


@dataclass(frozen=True)
class PlannedArray:
    """One array of a chunk file.

    Attributes:
        name: Its name there.
        dtype: Of its items.
        shape: Of the whole array.
        offset_bytes: Where it begins, counted from the end of the header.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its items."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything lies.

    Attributes:
        arrays: In the order of the file.
        padding: The gaps between them: names and borders, counted from the end of the header.
        data_bytes: From the end of the header to the end of the file.
        page_bytes: What the header is rounded up to.
    """

    arrays: tuple[PlannedArray, ...]
    padding: tuple[tuple[str, int, int], ...]
    data_bytes: int
    page_bytes: int

    def header(self, metadata: Mapping[str, str]) -> bytes:
        """Return the bytes before the data: length, JSON and blanks; without checksums, which `sealed` writes in.

        Args:
            metadata: What else to keep, as texts.
        """
        blank = _checksums_text(dict.fromkeys((array.name for array in self.arrays), _NO_CHECKSUM))
        content: dict[str, object] = {
            "__metadata__": {"checksum": _NO_CHECKSUM, **metadata, "checksums": blank},
        }
        for array in self.arrays:
            content[array.name] = {
                "dtype": DTYPES[array.dtype.name],
                "shape": array.shape,
                "data_offsets": [array.offset_bytes, array.offset_bytes + array.size_bytes],
            }
        for name, begin, end in self.padding:
            content[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        text = json_text(content).encode()
        assert text.startswith(_HEAD)
        size = round_up(8 + len(text), self.page_bytes)
        return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)


def sealed(header: bytes, checksums: Mapping[str, str]) -> bytes:
    """Return a header with the checksums of the arrays, and its own.

    Args:
        header: As `Layout.header` gives it.
        checksums: Of each array by name, in the order of the file.
    """
    # Quotes within texts are escaped, so this stands nowhere else.
    before = _CHECKSUMS_KEY + json_text(_checksums_text(dict.fromkeys(checksums, _NO_CHECKSUM))).encode()
    after = _CHECKSUMS_KEY + json_text(_checksums_text(checksums)).encode()
    begin = header.index(before)
    whole = header[:begin] + after + header[begin + len(before) :]
    return whole[:CHECKSUM_AT] + xxhash.xxh3_64_hexdigest(whole).encode() + whole[CHECKSUM_AT + 16 :]


def _checksums_text(checksums: Mapping[str, str]) -> str:
    return json_text(dict(checksums))


def header_checksum(header: bytes) -> bytes:
    """Return the checksum that a header, from its length to its last blank, should carry at CHECKSUM_AT."""
    digest = xxhash.xxh3_64(header[:CHECKSUM_AT])
    digest.update(_NO_CHECKSUM.encode())
    digest.update(memoryview(header)[CHECKSUM_AT + 16 :])
    return digest.hexdigest().encode()


def json_text(content: object) -> str:
    """Return content as JSON without blanks, as chunks keep it."""
    return _encoder.encode(content)


# `json.dumps` makes one for each call that does not want blanks.
_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


def round_up(size: int, step: int) -> int:
    """Return the first multiple of `step` that is not below `size`."""
    return -(-size // step) * step


def array_names(entry: Entry) -> list[str]:
    """Return the names of the arrays of a ragged field that lies apart: offsets from the outermost on, then values."""
    prefixes = [entry.name + ".values" * level for level in range(entry.num_levels)]
    return [f"{prefix}.offsets" for prefix in prefixes] + [f"{prefixes[-1]}.values"]


def ragged_arrays(entry: Entry, ragged: Ragged) -> list[Array | Pieces]:
    """Return the arrays of a ragged field in the order of `array_names`."""
    arrays: list[Array | Pieces] = []
    values: Any = ragged
    for _ in range(entry.num_levels):
        arrays.append(values.offsets)
        values = values.values
    return [*arrays, values]


def check_names(spec: Spec) -> None:
    """Raise where two fields would share the name of an array.

    Raises:
        FieldError: As "a", a list of lists, and "a.values", a list, do.
    """
    owners: dict[str, str] = {}
    for entry in spec.ragged:
        for name in array_names(entry):
            if name in owners:
                raise FieldError(
                    f"the fields {owners[name]!r} and {entry.name!r} would both be kept as {name!r}; rename one",
                    columns=[owners[name], entry.name],
                )
            owners[name] = entry.name


def plan_layout(tables: Sequence[Table], *, page_bytes: int = PAGE_BYTES) -> Layout:
    """Return where everything of a chunk lies; nothing is looked at but shapes.

    Args:
        tables: What is kept once a sample, then what is kept once a run.
        page_bytes: Records begin at a multiple of it and fill a multiple of it.
    """
    shapes: list[tuple[str, np.dtype[Any], Sequence[int]]] = []
    shapes += [
        (table.name, np.dtype(np.uint8), (table.num_rows, table.spec.record_bytes))
        for table in tables
        if table.spec.record_bytes
    ]
    num_paged = len(shapes)
    strips = {strip_names(table.name)[1] for table in tables}
    for table in tables:
        if table.strips is not None:
            places, content = strip_names(table.name)
            shapes.append((places, np.dtype(np.uint32), table.strips.places.shape))
            shapes.append((content, np.dtype(np.uint8), (table.strips.size_bytes,)))
        for entry in table.spec.apart:
            ragged = table.arrays[entry.name]
            assert isinstance(ragged, Ragged)
            for name, array in zip(array_names(entry), ragged_arrays(entry, ragged), strict=True):
                shapes.append((name, array.dtype, array.shape))
    planned: list[PlannedArray] = []
    padding: list[tuple[str, int, int]] = []
    end = 0
    for i, (name, dtype, shape) in enumerate(shapes):
        item = PlannedArray(name, dtype, tuple(int(k) for k in shape), end)
        planned.append(item)
        stop = end + item.size_bytes
        # Of lists side by side whole lines are read, the last one from anywhere inside of them.
        behind = CACHE_LINE_BYTES if name in strips else 0
        end = round_up(stop + behind, page_bytes if i < num_paged else CACHE_LINE_BYTES)
        if end > stop:
            padding.append((f"padding.{len(padding)}", stop, end))
    return Layout(arrays=tuple(planned), padding=tuple(padding), data_bytes=end, page_bytes=page_bytes)
