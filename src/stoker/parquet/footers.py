"""Parquet footers: read in parallel, each once, and kept for the next start.

A footer is handled as a Parquet file without its data, `PAR1 footer length PAR1`: pyarrow reads it like any other file.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from stoker.errors import SourceError
from stoker.parquet.footer_numbers import Numbers, read_numbers
from stoker.parquet.naming import named
from stoker.parquet.other_formats import way_out
from stoker.parquet.schema import Layout
from stoker.storage.failures import decoding
from stoker.storage.files import open_small, write_aside
from stoker.storage.storage import ObjectInfo, Storage
from stoker.storage.urls import name_bytes, name_of

# One read gets the whole footer of nearly every file: footers take about 100 bytes a column and row group.
TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_SIGNATURE_BYTES = 28
# Compressed footers that stay in memory where no folder keeps them; what is beyond is read again when needed.
_MEMORY_BYTES = 256 << 20
# Numbers of footers that stay behind opening: read again, they take pyarrow some microseconds for each column chunk.
_NUMBERS_BYTES = 32 << 20
# Parsed footers that stay: threads work on neighbouring fragments, which share few files.
_MAX_PARSED = 32
_BATCH_FILES = 1024
# One footer takes lz4 2 us and zstd 50 us, most of them to set up, for a quarter of the size.
_CODEC = "lz4"

_log = logging.getLogger("stoker")

_KEPT = pa.schema(
    [
        ("url", pa.binary()),
        ("size_bytes", pa.int64()),
        ("version", pa.string()),
        ("footer", pa.large_binary()),
        ("footer_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What planning needs of a footer.

    Attributes:
        layout: How the file lays out its columns.
        numbers: Sizes, places and counts, checked.
        digest: Hash of the footer.
        survivors: Partition of the file -> row groups that pass the filter; filled in by whoever asks.
    """

    layout: Layout
    numbers: Numbers
    digest: str
    survivors: dict[object, frozenset[int]] = field(default_factory=dict)


class Footer:
    """What decoding needs of a footer.

    Args:
        checked: What planning needs of it.
        parse: Has pyarrow read it.
        metadata: What pyarrow read from it, if it did already.

    Attributes:
        checked: As given.
    """

    def __init__(
        self, checked: Checked, parse: Callable[[], pq.FileMetaData], metadata: pq.FileMetaData | None = None
    ) -> None:
        self.checked = checked
        self._parse = parse
        self._metadata = metadata

    @property
    def metadata(self) -> pq.FileMetaData:
        """What pyarrow reads from it: read when it is asked for, since the native decoder does without.

        Raises:
            SourceError: It is corrupt, or cannot be had any more.
        """
        if self._metadata is None:
            self._metadata = self._parse()
        return self._metadata


def read_footer(info: ObjectInfo, storage: Storage) -> pa.Buffer:
    """Return the footer of one file; one read for footers up to 64 KiB, two beyond.

    Raises:
        SourceError: It is no Parquet file, is cut off, or is encrypted.
    """
    url, size = info.url, info.size_bytes
    if size < 12:
        raise SourceError(f"{url} is no Parquet file: it has {size} bytes{way_out(url, [url])}", url=url)
    tail_bytes = min(TAIL_BYTES, size)
    tail = bytes(memoryview(storage.read(url, size - tail_bytes, tail_bytes)).cast("B"))
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
        raise SourceError(f"{url} is corrupt: a footer of {length:,} bytes in a file of {size:,}", url=url)
    if length + 8 > tail_bytes:
        missing = length + 8 - tail_bytes
        tail = bytes(memoryview(storage.read(url, size - length - 8, missing)).cast("B")) + tail
    return pa.py_buffer(_MAGIC + tail[-(length + 8) :])


def parse_footer(buffer: pa.Buffer, url: str) -> pq.FileMetaData:
    """Return what a footer says.

    Raises:
        SourceError: It is corrupt.
    """
    with decoding(url, where=f"the footer of {url}"):
        metadata = pq.read_metadata(pa.BufferReader(buffer))
    # A footer in plain text that is signed belongs to a file with encrypted columns. Asking pyarrow about such a
    # column does not raise but ends the process.
    if metadata.serialized_size == buffer.size - 12 - _SIGNATURE_BYTES:
        raise SourceError(f"{url} is encrypted, in its columns: Stoker has no keys; decrypt it first", url=url)
    return metadata


class Footers:
    """The footers of a data set, wherever they are: parsed, in memory, in a kept file, or in the source.

    Safe to use from several threads.

    Args:
        storage: Where the files are.
        path: File that keeps the footers, or None.
        table: Columns of the table that the files belong to, and whether they are found by ids: see `naming`. None
            where the files are no table's.
        refresh: Whether to read them again though they are kept.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        path: Path | None,
        table: tuple[pa.Schema, bool] | None = None,
        refresh: bool = False,
    ) -> None:
        self._storage = storage
        self._path = path
        self._table = table
        self._refresh = refresh
        self._lock = threading.Lock()
        self._packed: dict[ObjectInfo, tuple[pa.Buffer, int]] = {}
        self._packed_bytes = 0
        self._checked: dict[ObjectInfo, Checked] = {}
        self._checked_bytes = 0
        self._parsed: OrderedDict[ObjectInfo, Footer] = OrderedDict()
        self._layouts: list[tuple[pq.ParquetSchema, bytes, Layout]] = []
        self._index: dict[ObjectInfo, tuple[int, int]] | None = None
        self._file: ipc.RecordBatchFileReader | None = None

    def get(self, info: ObjectInfo) -> Footer:
        """Return the footer of one file, for decoding.

        Blocks: on one or two reads of the source where it was not kept.

        Raises:
            SourceError: It cannot be read, or is corrupt.
        """
        with self._lock:
            found = self._parsed.get(info)
            if found is not None:
                self._parsed.move_to_end(info)
                return found
            checked = self._checked.get(info)
        metadata = None
        if checked is None:
            buffer = self.bytes_of(info)
            metadata = parse_footer(buffer, info.url)
            checked = self._check(buffer, metadata, info.url)
        footer = Footer(checked, lambda: parse_footer(self.bytes_of(info), info.url), metadata)
        with self._lock:
            footer = self._parsed.setdefault(info, footer)
            while len(self._parsed) > _MAX_PARSED:
                self._parsed.popitem(last=False)
        return footer

    def check(self, info: ObjectInfo) -> Checked:
        """Return what planning needs of one file's footer.

        Blocks: on one or two reads of the source where it was not kept.

        Raises:
            SourceError: It cannot be read, or is corrupt.
        """
        with self._lock:
            checked = self._checked.get(info)
        if checked is not None:
            return checked
        buffer = self.bytes_of(info)
        checked = self._check(buffer, parse_footer(buffer, info.url), info.url)
        num_bytes = checked.numbers.chunks.nbytes + checked.numbers.groups.nbytes
        with self._lock:
            if self._checked_bytes + num_bytes <= _MEMORY_BYTES:
                checked = self._checked.setdefault(info, checked)
                self._checked_bytes += num_bytes
        return checked

    def read(self, info: ObjectInfo, offset: int, num_bytes: int) -> bytes:
        """Return some bytes of a file beside its footer; fewer where it ends.

        Blocks: on one read of the source.

        Raises:
            SourceError: It cannot be read.
        """
        num_bytes = min(num_bytes, info.size_bytes - offset)
        return bytes(memoryview(self._storage.read(info.url, offset, num_bytes)).cast("B")) if num_bytes > 0 else b""

    def load(self, infos: Collection[ObjectInfo]) -> None:
        """Read what is kept of `infos` in one go: opening needs all of it, and one by one it takes 0.5 ms each."""
        if self._path is None or self._refresh or not self._path.exists() or self._path.stat().st_size > _MEMORY_BYTES:
            return
        wanted = set(infos)
        try:
            batches = ipc.open_file(pa.BufferReader(self._path.read_bytes()))
            for b in range(batches.num_record_batches):
                batch = batches.get_batch(b)
                names = (batch[name].to_pylist() for name in ("url", "size_bytes", "version", "footer_bytes"))
                for footer, url, size, version, num_bytes in zip(batch["footer"], *names, strict=True):
                    info = ObjectInfo(url=name_of(url), size_bytes=size, version=version)
                    if info in wanted:
                        self._packed[info] = (footer.as_buffer(), num_bytes)
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            _log.warning("the kept footers in %s cannot be read (%s): they are read again", self._path, error)

    def forget(self) -> None:
        """Free what opening needs most of, where it is much."""
        with self._lock:
            if self._checked_bytes > _NUMBERS_BYTES:
                self._checked.clear()
                self._checked_bytes = 0

    def _check(self, buffer: pa.Buffer, metadata: pq.FileMetaData, url: str) -> Checked:
        with decoding(url, where=f"the schema of {url}"):
            layout = self._layout(metadata)
        numbers = read_numbers(buffer, metadata, layout, url=url)
        digest = hashlib.blake2b(buffer, digest_size=16).hexdigest()
        return Checked(layout=layout, numbers=numbers, digest=digest)

    def _layout(self, metadata: pq.FileMetaData) -> Layout:
        arrow = (metadata.metadata or {}).get(b"ARROW:schema", b"")
        for schema, known, layout in tuple(self._layouts):
            if known == arrow and schema.equals(metadata.schema):
                return layout
        layout = Layout.of(metadata)
        if self._table is not None:
            schema, by_id = self._table
            layout = replace(layout, members=named(list(layout.fields), list(schema), by_id=by_id))
        with self._lock:
            for schema, known, same in self._layouts:
                if known == arrow and schema.equals(metadata.schema):
                    return same
            self._layouts.append((metadata.schema, arrow, layout))
        return layout

    def bytes_of(self, info: ObjectInfo) -> pa.Buffer:
        """Return the footer of one file, unparsed."""
        packed = self._packed.get(info) or self._kept(info)
        if packed is not None and 0 < packed[1] <= info.size_bytes:
            room = np.empty(packed[1], np.uint8)
            if _is_inflated(packed[0], room):
                return pa.py_buffer(room)
            _log.warning("the kept footer of %s is damaged: it is read from the source again", info.url)
        buffer = read_footer(info, self._storage)
        packed = (pa.Codec(_CODEC).compress(buffer), buffer.size)
        with self._lock:
            if self._path is not None or self._packed_bytes + packed[0].size <= _MEMORY_BYTES:
                self._packed[info] = packed
                self._packed_bytes += packed[0].size
        return buffer

    def _kept(self, info: ObjectInfo) -> tuple[pa.Buffer, int] | None:
        if self._path is None or self._refresh:
            return None
        with self._lock:
            if self._index is None:
                self._file, self._index = self._read_index(self._path)
            place = self._index.get(info)
            file = self._file
        if place is None or file is None:
            return None
        # What another process has put in its place since leaves this file as it is, for whoever has it mapped.
        batch, row = file.get_batch(place[0]), place[1]
        packed = pa.py_buffer(batch["footer"][row].as_buffer().to_pybytes())
        return packed, batch["footer_bytes"][row].as_py()

    @staticmethod
    def _read_index(path: Path) -> tuple[ipc.RecordBatchFileReader | None, dict[ObjectInfo, tuple[int, int]]]:
        """Return the kept footers, mapped, and where each of them lies."""
        index: dict[ObjectInfo, tuple[int, int]] = {}
        try:
            # Not pyarrow's own map: it takes paths in UTF-8 alone.
            with open_small(path) as kept:
                file = ipc.open_file(pa.py_buffer(mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ)))
            for b in range(file.num_record_batches):
                batch = file.get_batch(b)
                columns = (batch[name].to_pylist() for name in ("url", "size_bytes", "version"))
                _ = batch["footer"], batch["footer_bytes"]
                for row, (url, size, version) in enumerate(zip(*columns, strict=True)):
                    index[ObjectInfo(url=name_of(url), size_bytes=size, version=version)] = (b, row)
        except FileNotFoundError:
            return None, {}
        except (OSError, ValueError, KeyError) as error:
            _log.warning("the kept footers in %s cannot be read (%s): they are read from the source again", path, error)
            return None, {}
        return file, index

    def keep(self, infos: Sequence[ObjectInfo]) -> None:
        """Write the footers of `infos` to the kept file, in place of what it held, and free their memory."""
        if self._path is None:
            return

        def write(sink: IO[bytes]) -> None:
            with ipc.new_file(sink, _KEPT) as writer:
                for start in range(0, len(infos), _BATCH_FILES):
                    some = infos[start : start + _BATCH_FILES]
                    packed = [self._packed.get(info) or self._kept(info) for info in some]
                    rows = [(info, p) for info, p in zip(some, packed, strict=True) if p is not None]
                    writer.write_batch(
                        pa.record_batch(
                            [
                                pa.array([name_bytes(info.url) for info, _ in rows], pa.binary()),
                                pa.array([info.size_bytes for info, _ in rows], pa.int64()),
                                pa.array([info.version for info, _ in rows], pa.string()),
                                pa.array([footer.to_pybytes() for _, (footer, _) in rows], pa.large_binary()),
                                pa.array([size for _, (_, size) in rows], pa.int64()),
                            ],
                            schema=_KEPT,
                        )
                    )

        if write_aside(self._path, write):
            with self._lock:
                self._packed.clear()
                self._packed_bytes = 0
                self._index = self._file = None
                self._refresh = False


def _is_inflated(packed: pa.Buffer, room: npt.NDArray[np.uint8]) -> bool:
    """Fill `room` with what was compressed; False where that is not exactly as long.

    Not by `pyarrow.Codec.decompress`: it returns memory of the size that it was asked for, however little was written.
    """
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), _CODEC) as stream:
            # The byte behind the last one is asked for: only what reaches the end sees what is wrong there.
            return stream.readinto(room) == len(room) and not stream.read(1)
    except OSError:
        return False
