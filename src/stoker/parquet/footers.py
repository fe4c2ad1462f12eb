"""Parquet footers: read in parallel, each once, and kept for the next start.

A footer is handled as a Parquet file without its data, `PAR1 footer length PAR1`: pyarrow reads it like any other file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import SourceCorruptError, SourceError
from stoker.parquet.footer_numbers import read_numbers
from stoker.parquet.naming import named
from stoker.parquet.schema import Layout
from stoker.storage.failures import decoding
from stoker.storage.files import open_plain, write_aside
from stoker.storage.storage import ObjectInfo, Storage, read_of, version_reader

# One read gets the whole footer of nearly every file: footers take about 100 bytes a column and row group.
_TAIL_BYTES = 64 * 1024
# A file of this size from a store is read whole with its footer, as long as these bytes have room until they are
# decoded: another request would take longer than the bytes.
_WHOLE_BYTES = 256 * 1024
_WHOLE_ROOM_BYTES = 64 << 20
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_SIGNATURE_BYTES = 28
# Compressed footers that stay in memory where no folder keeps them; what is beyond is read again when needed.
_MEMORY_BYTES = 256 << 20
# Numbers of footers that stay behind opening: read again, they take pyarrow some microseconds for each column chunk.
_NUMBERS_BYTES = 32 << 20
# Parsed footers that stay: threads work on neighbouring fragments, which share few files.
_NUM_PARSED = 32
# pyarrow takes ten times a footer's bytes to read it. A larger one than this is a small part of a file that was
# written in earnest: of 10,000 columns in 100 row groups of 100 MB each it has 100 MB, and the file 10 GB.
_MOST_FOOTER_BYTES, _MOST_FOOTER_SHARE = 24 << 20, 16
# The file that keeps them has, of so many at a time, a list of files and sizes in JSON, which stands behind its length,
# and the footers, compressed.
_BATCH_FILES, _LENGTH_BYTES = 1024, 8
# One footer takes lz4 2 us and zstd 50 us, most of them to set up, for a quarter of the size.
_CODEC = "lz4"

# How files end -> the name that pyarrow has for a format which it reads; and others.
_FORMATS = {"csv": "csv", "orc": "orc", **dict.fromkeys(("json", "jsonl", "ndjson"), "json")}
_FORMATS |= dict.fromkeys(("arrow", "feather", "ipc"), "feather")
_OTHERS = {
    *("safetensors", "npy", "npz", "h5", "hdf5", "tfrecord", "tfrecords", "avro", "tar", "mds", "lance", "txt"),
    *("tsv", "xlsx", "pkl", "pickle", "pt", "zip", "lmdb", "zarr"),
}

_Packed: TypeAlias = tuple[pa.Buffer, int, int]
"""A footer: compressed, how large it is, and the checksum of what it becomes."""

_log = logging.getLogger("stoker")


@dataclass(frozen=True, kw_only=True, eq=False)
class Footer:
    """What planning and decoding need of a footer.

    `metadata` returns what pyarrow reads from it, which the native decoder does without; where it cannot be had any
    more, it raises a `SourceError`.
    """

    layout: Layout
    groups: npt.NDArray[np.void]  # checked, as `read_numbers` returns them
    chunks: npt.NDArray[np.void]
    digest: str
    metadata: Callable[[], pq.FileMetaData]
    survivors: dict[object, frozenset[int]] = field(default_factory=dict)
    """Partition of the file -> row groups that pass the filter; filled in by whoever asks."""


def read_footer(info: ObjectInfo, storage: Storage, *, tail_bytes: int) -> tuple[pa.Buffer, bytes]:
    """Return the footer of one file, and the end of it that was read: one read for footers up to 64 KiB, two beyond.

    What is no Parquet file, is cut off, or is encrypted, is a `SourceError`.
    """
    url, size = info.url, info.size_bytes
    if size < 12:
        raise SourceError(f"{url} is no Parquet file: it has {size} bytes{way_out(url, [url])}", url=url)
    tail_bytes = min(tail_bytes, size)
    tail = bytes(read_of(info, storage, size - tail_bytes, tail_bytes))
    magic = tail[-4:]
    if magic == _MAGIC_ENCRYPTED:
        raise SourceError(f"{url} is encrypted, footer and all: Stoker has no keys; decrypt it first", url=url)
    if magic != _MAGIC:
        raise SourceError(
            f"{url} is no Parquet file, or is cut off: it ends in {magic!r}, not {_MAGIC!r}{way_out(url, [url])}",
            url=url,
        )
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > size:
        raise SourceCorruptError(f"{url} is corrupt: a footer of {length:,} bytes in a file of {size:,}", url=url)
    if length > max(_MOST_FOOTER_BYTES, size // _MOST_FOOTER_SHARE):
        raise SourceError(
            f"{url} has a footer of {length:,} bytes in a file of {size:,}, which takes ten times as much to read: "
            "write it with larger row groups, or fewer columns",
            url=url,
        )
    if length + 8 > tail_bytes:
        missing = length + 8 - tail_bytes
        tail = bytes(read_of(info, storage, size - length - 8, missing)) + tail
    return pa.py_buffer(_MAGIC + tail[-(length + 8) :]), tail


def parse_footer(buffer: pa.Buffer, url: str) -> pq.FileMetaData:
    """Return what a footer says; a corrupt one is a `SourceError`."""
    with decoding(url, where=f"the footer of {url}"):
        try:
            metadata = pq.read_metadata(pa.BufferReader(buffer))
        except pa.ArrowNotImplementedError as error:
            if "more than 64 bits" not in str(error):
                raise
            raise SourceError(
                f"{url} has integers of 128 bits, which pyarrow cannot read, in {_wide_integers(buffer)}: write them "
                "as 64 bits, or as decimals or strings (in Polars: .cast(pl.Int64))",
                url=url,
            ) from error
    # A footer in plain text that is signed belongs to a file with encrypted columns. Asking pyarrow about such a
    # column does not raise but ends the process.
    if metadata.serialized_size == buffer.size - 12 - _SIGNATURE_BYTES:
        raise SourceError(f"{url} is encrypted, in its columns: Stoker has no keys; decrypt it first", url=url)
    return metadata


def _wide_integers(buffer: pa.Buffer) -> str:
    """Return the columns that may have integers of 128 bits: Polars stores 16 bytes, and notes beside what they are."""
    # A note under another name is one that pyarrow does not look at.
    schema = pq.read_metadata(pa.BufferReader(bytes(buffer).replace(b"ARROW:schema", b"-----:schema"))).schema
    leaves = [schema.column(i) for i in range(len(schema.names))]
    found = [repr(leaf.path) for leaf in leaves if leaf.length == 16 and leaf.logical_type.type == "NONE"]
    return f"column {' or '.join(found)}"


class Footers:
    """The footers of a data set, wherever they are: parsed, in memory, in the file at `path`, or in the source.

    Of files that belong to a table, `table` has its columns, and whether they are found by ids: see `naming`. With
    `refresh` they are read again though they are kept. Safe to use from several threads.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        path: Path | None,
        table: tuple[pa.Schema, bool] | None = None,
        refresh: bool = False,
    ) -> None:
        self._storage, self._path, self._table, self._refresh = storage, path, table, refresh
        self._lock = threading.Lock()
        self._packed: dict[ObjectInfo, _Packed] = {}
        self._whole: dict[ObjectInfo, bytes] = {}
        self._packed_bytes = self._whole_bytes = self._footer_bytes = 0
        self._kept: Mapping[ObjectInfo, _Packed] | None = None
        self._footers: OrderedDict[ObjectInfo, Footer] = OrderedDict()
        self._most_bytes = _MEMORY_BYTES
        self._parsed = lru_cache(_NUM_PARSED)(lambda info: parse_footer(self.bytes_of(info), info.url))
        self._layouts_lock = threading.Lock()
        self._layouts: list[tuple[pq.ParquetSchema, bytes, Layout]] = []

    def get(self, info: ObjectInfo) -> Footer:
        """Return the footer of one file, by one or two reads of the source where it was not kept."""
        with self._lock:
            found = self._footers.get(info)
            if found is not None:
                self._footers.move_to_end(info)
                return found
        buffer = self.bytes_of(info)
        metadata = parse_footer(buffer, info.url)
        with decoding(info.url, where=f"the schema of {info.url}"):
            layout = self._layout(metadata)
        groups, chunks = read_numbers(buffer, metadata, layout, url=info.url)
        made = Footer(
            layout=layout,
            groups=groups,
            chunks=chunks,
            digest=hashlib.blake2b(buffer, digest_size=16).hexdigest(),
            metadata=partial(self._parsed, info),
        )
        with self._lock:
            footer = self._footers.setdefault(info, made)
            self._footer_bytes += _num_bytes(made) if footer is made else 0
            self._drop_oldest()
        return footer

    def _drop_oldest(self) -> None:
        while self._footer_bytes > self._most_bytes and len(self._footers) > _NUM_PARSED:
            _, gone = self._footers.popitem(last=False)
            self._footer_bytes -= _num_bytes(gone)

    def forget(self) -> None:
        """Free what opening needs most of, where it is much."""
        with self._lock:
            self._most_bytes = _NUMBERS_BYTES
            self._drop_oldest()

    def _layout(self, metadata: pq.FileMetaData) -> Layout:
        arrow = (metadata.metadata or {}).get(b"ARROW:schema", b"")
        with self._layouts_lock:
            for schema, known, layout in self._layouts:
                if known == arrow and schema.equals(metadata.schema):
                    return layout
            layout = Layout.of(metadata)
            if self._table is not None:
                schema, by_id = self._table
                layout = replace(layout, members=named(list(layout.fields), list(schema), by_id=by_id))
            self._layouts.append((metadata.schema, arrow, layout))
        return layout

    def bytes_of(self, info: ObjectInfo) -> pa.Buffer:
        """Return the footer of one file, unparsed."""
        packed = self._find(info)
        if packed is not None:
            footer, num_bytes, checksum = packed
            with contextlib.suppress(OSError, ValueError):
                plain = pa.decompress(footer, min(max(num_bytes, 0), info.size_bytes), codec=_CODEC)
                if zlib.crc32(plain) == checksum:
                    return plain
            _log.warning("the kept footer of %s is damaged: it is read from the source again", info.url)
        buffer = self._read_footer(info)
        packed = (pa.Codec(_CODEC).compress(buffer), buffer.size, zlib.crc32(buffer))
        with self._lock:
            if self._path is not None or self._packed_bytes + packed[0].size <= _MEMORY_BYTES:
                self._packed[info] = packed
                self._packed_bytes += packed[0].size
        return buffer

    def _find(self, info: ObjectInfo) -> _Packed | None:
        """Return a footer that was read or kept."""
        with self._lock:
            if info in self._packed:
                return self._packed[info]
            if self._kept is None:
                self._kept = {} if self._path is None or self._refresh else _read_kept(self._path)
            return self._kept.get(info)

    def _read_footer(self, info: ObjectInfo) -> pa.Buffer:
        # Not of a storage that cannot prove which version it reads: then an object is looked up again behind the read.
        is_small = info.size_bytes <= _WHOLE_BYTES and version_reader(self._storage) is not None
        is_whole = is_small and self._whole_bytes < _WHOLE_ROOM_BYTES
        buffer, tail = read_footer(info, self._storage, tail_bytes=_WHOLE_BYTES if is_whole else _TAIL_BYTES)
        if is_whole:
            with self._lock:
                self._whole_bytes += len(tail) - len(self._whole.get(info, b""))
                self._whole[info] = tail
        return buffer

    def take_whole(self, info: ObjectInfo) -> memoryview | None:
        """Return a small file that was read with its footer, once; None where it is not in memory."""
        with self._lock:
            whole = self._whole.pop(info, None)
            self._whole_bytes -= len(whole or b"")
        return None if whole is None else memoryview(whole)

    def read(self, info: ObjectInfo, offset: int, num_bytes: int) -> bytes:
        """Read some bytes of a file beside its footer; fewer where it ends."""
        num_bytes = min(num_bytes, info.size_bytes - offset)
        return bytes(read_of(info, self._storage, offset, num_bytes)) if num_bytes > 0 else b""

    def keep(self, infos: Sequence[ObjectInfo]) -> None:
        """Write the footers of `infos` to the kept file, in place of what it held, and free their memory."""
        if self._path is None:
            return

        def write(sink: IO[bytes]) -> None:
            for start in range(0, len(infos), _BATCH_FILES):
                some = infos[start : start + _BATCH_FILES]
                found = [(info, *packed) for info in some if (packed := self._find(info)) is not None]
                rows = [(info.url, info.size_bytes, info.version, one.size, *rest) for info, one, *rest in found]
                listed = json.dumps(rows).encode()
                sink.write(len(listed).to_bytes(_LENGTH_BYTES, "little") + listed)
                for _, footer, *_ in found:
                    sink.write(footer)

        if write_aside(self._path, write):
            with self._lock:
                self._packed.clear()
                self._packed_bytes = 0
                self._kept = None
                self._refresh = False


def _num_bytes(footer: Footer) -> int:
    return footer.chunks.nbytes + footer.groups.nbytes  # the rest is what files share


def _read_kept(path: Path) -> dict[ObjectInfo, _Packed]:
    """Return the kept footers, which are mapped: another file in their place changes nothing."""
    found: dict[ObjectInfo, _Packed] = {}
    try:
        with os.fdopen(open_plain(path)[0], "rb") as kept:
            content = mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ)
        at = 0
        while at < len(content):
            begin = at + _LENGTH_BYTES
            at = begin + int.from_bytes(content[at:begin], "little")
            for url, size, version, footer_bytes, num_bytes, checksum in json.loads(content[begin:at]):
                footer = pa.py_buffer(content).slice(at, footer_bytes)
                info = ObjectInfo(url=str(url), size_bytes=int(size), version=str(version))
                found[info] = (footer, int(num_bytes), int(checksum))
                at += footer_bytes
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        _log.warning("the kept footers in %s cannot be read (%s): they are read from the source again", path, error)
        return {}
    return found


def way_out(where: str, urls: Iterable[str]) -> str:
    """Return how files become Parquet, in words, to follow what is wrong; "" where most of them may be Parquet."""
    (kind, _), *_ = [*Counter(_kind(url.rpartition("/")[2].lower()) for url in urls).most_common(1), ("", 0)]
    if not kind:
        return ""
    how = "write it as Parquet once, with pyarrow.parquet.write_table"
    if kind in _FORMATS.values():
        how = (
            "convert it once, with `import pyarrow.dataset as ds; "
            f"ds.write_dataset(ds.dataset({where!r}, format={kind!r}), 'parquet/', format='parquet')`"
        )
    return f"; Stoker reads Parquet, not {kind}: {how}"


def _kind(name: str) -> str:
    stem, _, end = name.removesuffix(".gz").removesuffix(".bz2").rpartition(".")
    return _FORMATS.get(end, end if end in _OTHERS else "") if stem else ""
