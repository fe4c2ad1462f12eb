"""What opening a data set found out, in small files of the cache folder: Arrow tables behind a digest.

┆ magic ┆ digest of all that follows ┆ a table as an Arrow stream ┆ the next table ┆ ...
  8       16
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from stoker.fields.offsets import Int64
from stoker.storage.files import open_small, write_aside

_log = logging.getLogger("stoker")
# Raise it when the same rows and the same question give other arrays, or these are kept in another form.
FORMAT_VERSION = 2

_INDEX_MAGIC = b"STKUNT02"
_MAGIC_BYTES, _DIGEST_BYTES = 8, 16
_START = _MAGIC_BYTES + _DIGEST_BYTES


def keep(path: Path, magic: bytes, tables: Sequence[pa.Table], *, compression: str | None = None) -> None:
    """Write tables to one file; a disk that does not take it is a warning.

    Args:
        path: The file.
        magic: 8 bytes that name what it holds, and in which form.
        tables: What to keep.
        compression: Codec; what is not compressed is mapped when it is read.
    """
    # More than 2**31 rows need lengths of 64 bits.
    options = ipc.IpcWriteOptions(compression=compression, allow_64bit=True)

    def write(file: IO[bytes]) -> None:
        file.write(magic.ljust(_START, b"\0"))
        for table in tables:
            with ipc.new_stream(file, table.schema, options=options) as writer:
                writer.write_table(table)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = _digest_of(content)
        file.seek(_MAGIC_BYTES)
        file.write(digest)

    write_aside(path, write)


def kept(path: Path, magic: bytes, what: str) -> list[pa.Table] | None:
    """Return what `keep` wrote, mapped; None where nothing is kept, or what is kept is damaged.

    Args:
        path: The file.
        magic: As for `keep`.
        what: What is done without it, for the warning: "the data set is looked through again".
    """
    try:
        with open_small(path) as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: an empty file
        _log.warning("%s cannot be read (%s): %s", path, error, what)
        return None
    if content[:_MAGIC_BYTES] != magic or content[_MAGIC_BYTES:_START] != _digest_of(content):
        content.close()
        _log.warning("%s is damaged: %s", path, what)
        return None
    source = pa.BufferReader(pa.py_buffer(content).slice(_START))
    tables = []
    while source.tell() < source.size():
        tables.append(ipc.open_stream(source).read_all())
    return tables


def _digest_of(content: mmap.mmap) -> bytes:
    with memoryview(content) as view, view[_START:] as told:
        return hashlib.blake2b(told, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, kw_only=True)
class Index:
    """The units of a data set. K is the number of its fragments.

    Attributes:
        row_starts: Where each fragment's rows begin among all that pass, and the end. Shape [K + 1].
        arrays: What else finds the rows of a unit; which arrays, the kind of unit says.
        numbers: What was counted on the way, for reports.
    """

    row_starts: Int64
    arrays: Mapping[str, Int64] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def keep_index(path: Path, index: Index) -> None:
    """Write `index` to one file; a disk that does not take it is a warning."""
    arrays = {"row_starts": index.row_starts, **index.arrays}
    numbers = pa.schema([], {"numbers": json.dumps(dict(index.numbers))}).empty_table()
    keep(path, _INDEX_MAGIC, [numbers, *(pa.table({name: pa.array(array)}) for name, array in arrays.items())])


def kept_index(path: Path) -> Index | None:
    """Return what `keep_index` wrote, mapped; None where nothing is kept, or what is kept is damaged."""
    tables = kept(path, _INDEX_MAGIC, "units are counted again")
    if tables is None:
        return None
    numbers, *columns = tables
    arrays = {one.column_names[0]: _mapped(one.column(0)) for one in columns}
    return Index(
        row_starts=arrays.pop("row_starts"), arrays=arrays, numbers=json.loads(numbers.schema.metadata[b"numbers"])
    )


def _mapped(column: pa.ChunkedArray) -> Int64:
    """Return a column of one chunk, or none, as an array."""
    return column.chunk(0).to_numpy() if column.num_chunks else np.empty(0, np.int64)
