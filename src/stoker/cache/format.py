"""The chunk file: names and places of its arrays, its header written and read, its checksums compared.

    0        8                    P               P·m                    64·n
    ┆ length ┆ JSON header, blanks ┆ records, zeros ┆ places, zeros ┆ strips ┆ offsets, zeros ┆ values ┆
               a whole number of pages P; so are the records, and those of runs behind them

A safetensors file with more order in it. docs/reference/chunk-format.md is the description for readers of other
programs; a change here is another FORMAT_VERSION. `write` decides the places and writes the file.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from stoker._native import bring_in
from stoker.cache.folder import Files, FileVersion
from stoker.errors import ChunkCorruptError, FieldError
from stoker.fields.spec import Array, Entry, Spec, run_name
from stoker.host.huge import HUGE_BYTES

FORMAT_VERSION = 4
RECORDS = "records"
STRIPS = "strips"
# The strip of a row begins at a multiple of so many bytes, and its place is counted in them: the width of the widest
# number there is.
STRIP_UNIT_BYTES = 8
# Records are mapped at page borders. Larger pages (16 KiB on Apple's processors, 64 KiB on some ARM servers) are
# taken where the file is written, which is where it is read.
PAGE_BYTES = max(4096, mmap.PAGESIZE)

_KINDS = (("int", "I", (8, 16, 32, 64)), ("uint", "U", (8, 16, 32, 64)), ("float", "F", (16, 32, 64)))
DTYPES = {"bool": "BOOL"} | {f"{name}{size}": f"{letter}{size}" for name, letter, sizes in _KINDS for size in sizes}
"""NumPy's names and those of safetensors."""

_NUMPY_DTYPES = {theirs: np.dtype(ours) for ours, theirs in DTYPES.items()}
# Most headers fit, and one read of this size costs hardly more than a read of 8 bytes.
_FIRST_READ_BYTES = 16384
# Of more than 100,000 fields. A length beyond it is garbage; parsed as JSON, it would take some twenty times as much
# memory.
MAX_HEADER_BYTES = 16 << 20
# Read and checked while it is in the processor's own cache: 14 GB/s, 256 KiB to 1 MiB alike, 9.7 at 4 MiB.
_CHECK_BYTES = 1 << 20

NO_CHECKSUM = "0" * 16
# The header's own checksum stands first, at a place that is known before the JSON is read.
_HEAD = b'{"__metadata__":{"checksum":"'
_CHECKSUM_AT = 8 + len(_HEAD)


@dataclass(frozen=True)
class ArrayPlace:
    """Where an array lies in a chunk file, and the XXH3 (64 bit) of its bytes as 16 hex digits."""

    offset_bytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its items."""
        return self.dtype.itemsize * math.prod(self.shape)


def table_names(spec: Spec) -> list[str]:
    """Return the names of the records of `spec.tables`, as they are in a chunk file."""
    return [RECORDS, *(f"{key}.{RECORDS}" for key in spec.keys)]


def strip_names(table: str) -> tuple[str, str]:
    """Return the names of the arrays that say where a table's strips lie, and that hold them."""
    strips = table.removesuffix(RECORDS) + STRIPS
    return f"{strips}.places", strips


def chunk_arrays(spec: Spec) -> list[str]:
    """Return the names of all arrays of a chunk, in the order of the file: records, then lists."""
    tables = [*zip(table_names(spec), spec.tables, strict=True)]
    names = [name for name, table in tables if table.record_bytes]
    for name, table in tables:
        names += strip_names(name) if table.strip else ()
        names += (array for entry in table.apart for array in array_names(entry))
    return names


def header_bytes(
    arrays: Mapping[str, ArrayPlace],
    data_bytes: int,
    metadata: Mapping[str, str],
    page_bytes: int,
    checksums: Mapping[str, str],
) -> bytes:
    """Return the bytes before the data: length, JSON and blanks; as many whatever the checksums are.

    Arrays, in the order of the file, have offsets that count from the end of the header, and end at `data_bytes`.
    """
    checked = {"checksum": NO_CHECKSUM, **metadata, "checksums": json_text(dict(checksums))}
    content: dict[str, object] = {"__metadata__": checked}
    stops = []
    for name, array in arrays.items():
        stops.append(array.offset_bytes + array.size_bytes)
        offsets = [array.offset_bytes, stops[-1]]
        content[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": offsets}
    begins = [*(array.offset_bytes for array in arrays.values()), data_bytes][1:]
    gaps = [gap for gap in zip(stops, begins, strict=True) if gap[0] < gap[1]]
    for i, (begin, end) in enumerate(gaps):  # in a safetensors file, every byte is that of an array
        content[f"padding.{i}"] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    text = json_text(content).encode()
    assert text.startswith(_HEAD)
    size = round_up(8 + len(text), page_bytes)
    header = (size - 8).to_bytes(8, "little") + text.ljust(size - 8)
    return header[:_CHECKSUM_AT] + _header_checksum(header) + header[_CHECKSUM_AT + 16 :]


def _header_checksum(header: bytes) -> bytes:
    """Return the checksum that a header, from its length to its last blank, should carry at _CHECKSUM_AT."""
    digest = xxhash.xxh3_64(header[:_CHECKSUM_AT])
    digest.update(NO_CHECKSUM.encode())
    digest.update(memoryview(header)[_CHECKSUM_AT + 16 :])
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
    name, names = entry.name, list[str]()
    for _ in range(entry.num_levels):
        names.append(f"{name}.offsets")
        name += ".values"
    return [*names, name]


def check_names(spec: Spec) -> None:
    """Raise where two fields would share the name of an array, as "a", a list of lists, and "a.values", a list, do.

    Raises:
        FieldError: Two of them would.
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


@dataclass(frozen=True)
class ChunkHeader:
    """What a chunk file says about itself; its key is empty where no store has written it."""

    key: str
    num_samples: int
    spec: Spec
    arrays: Mapping[str, ArrayPlace]
    size_bytes: int

    def check(self, key: str, *, path: Path, num_samples: int | None = None, spec: Spec | None = None) -> None:
        """Raise a `ChunkCorruptError` where this is not the chunk that is looked for, as far as that is known."""
        what = None
        if self.key != key:
            what = f"is the chunk {self.key or 'of nobody'}"
        elif num_samples not in (None, self.num_samples):
            what = f"has {self.num_samples:,} samples, where {num_samples:,} belong"
        elif spec is not None and spec.json_text != self.spec.json_text and spec != self.spec:  # as text it takes less
            what = "has other fields than the data set"
        if what is not None:
            raise ChunkCorruptError(f"{path} {what}", path=path)


NewChunk: TypeAlias = tuple[int, Callable[[int, Files], ChunkHeader]]
"""Bytes of a chunk's file that is to be written, and what writes it into a descriptor and returns its header."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """An open chunk: a descriptor to map or read, and what the file says about itself. Maps of the file outlive it."""

    fd: int
    header: ChunkHeader
    path: Path
    is_kept: bool  # in the cache folder, and not only in memory
    version: FileVersion
    was_read: bool  # all of it, just now, to be verified

    def close(self) -> None:
        """Close the descriptor. Harmless when called again."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_header(fd: int, *, path: Path, file_bytes: int | None = None) -> ChunkHeader:
    """Return the header of a chunk file whose own checksum and length are right, else raise `ChunkCorruptError`.

    Bytes of arrays are not looked at: `check_arrays` does that.
    """
    file_bytes = os.fstat(fd).st_size if file_bytes is None else file_bytes
    head = _read_on(fd, b"", min(_FIRST_READ_BYTES, file_bytes))
    num_bytes = 8 + int.from_bytes(head[:8], "little")
    if num_bytes <= min(file_bytes, MAX_HEADER_BYTES):
        head = _read_on(fd, head, num_bytes)
    return parse_header(head, path=path, file_bytes=file_bytes)


def _read_on(fd: int, head: bytes, num_bytes: int) -> bytes:
    """Return the first bytes of a file, of which some are read: as many as asked for, unless it ends before."""
    while len(head) < num_bytes and (more := os.pread(fd, num_bytes - len(head), len(head))):
        head += more
    return head


def parse_header(head: bytes, *, path: Path, file_bytes: int) -> ChunkHeader:
    """Return the header that the first bytes of a chunk file are, as `read_header` does."""

    def damaged(what: str) -> ChunkCorruptError:
        return ChunkCorruptError(f"{path} {what}", path=path)

    num_bytes = 8 + int.from_bytes(head[:8], "little")
    if len(head) < 8 or num_bytes > min(len(head), file_bytes, MAX_HEADER_BYTES):
        raise damaged(f"is no chunk file or is cut short: {file_bytes} bytes")
    head = head[:num_bytes]
    if head[_CHECKSUM_AT : _CHECKSUM_AT + 16] != _header_checksum(head):
        raise damaged("is no chunk file or is damaged: the header's checksum differs")
    try:
        content = json.loads(head[8:])
        metadata = content["__metadata__"]
        version = metadata["format_version"]
        if version != str(FORMAT_VERSION):
            raise damaged(f"has chunk format {version}, this version of Stoker reads {FORMAT_VERSION}")
        checksums = json.loads(metadata["checksums"])
        arrays = {name: _place(num_bytes, content[name], checksum) for name, checksum in checksums.items()}
        ends = [item["data_offsets"][1] for name, item in content.items() if name != "__metadata__"]
        spec, names = _parse_spec(metadata["spec"])
        if arrays.keys() != names:
            raise ValueError("its arrays are not those of its fields")
        num_samples = int(metadata["num_samples"])
        _num_rows(spec, arrays, num_samples)
        header = ChunkHeader(
            key=str(json.loads(metadata["about"]).get("key", "")),
            num_samples=num_samples,
            spec=spec,
            arrays=arrays,
            size_bytes=num_bytes + max(ends, default=0),
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise damaged(f"cannot be read as a chunk: {error!r}") from error
    if header.size_bytes != file_bytes:
        raise damaged(f"has {file_bytes} bytes, its header says {header.size_bytes}")
    return header


def _place(data_start: int, item: Mapping[str, Any], checksum: str) -> ArrayPlace:
    begin, end = item["data_offsets"]
    place = ArrayPlace(data_start + begin, _NUMPY_DTYPES[item["dtype"]], tuple(map(index, item["shape"])), checksum)
    if begin < 0 or min(place.shape, default=0) < 0 or place.size_bytes != end - begin:
        raise ValueError(f"an array of {place.size_bytes} bytes from {begin} to {end}")
    return place


@lru_cache(maxsize=256)
def _parse_spec(text: str) -> tuple[Spec, frozenset[str]]:
    """Return the spec of a header and which arrays it takes; the chunks of a data set share them."""
    spec = Spec.from_json(json.loads(text))
    if strange := [str(entry) for entry in spec if entry.dtype.name not in DTYPES]:
        raise ValueError(f"a chunk has no field {strange[0]}")
    return spec, frozenset(chunk_arrays(spec))


def _num_rows(spec: Spec, arrays: Mapping[str, ArrayPlace], num_samples: int) -> list[int | None]:
    """Return how many rows each table of a chunk has, as all of its arrays must say; None where it has no arrays."""

    def is_any(name: str, dtype: Any, *shape: int) -> bool:
        return arrays[name].dtype == dtype and len(arrays[name].shape) > 0 and arrays[name].shape[1:] == shape

    found: list[int | None] = []
    for table_name, table in zip(table_names(spec), spec.tables, strict=True):
        by_row: list[tuple[str, int]] = []  # arrays, and how many items more than rows each has
        fits = True
        if table.record_bytes:
            by_row.append((table_name, 0))
            fits &= is_any(table_name, np.uint8, table.record_bytes)
        if table.strip:
            places, strips = strip_names(table_name)
            by_row.append((places, 0))
            fits &= is_any(places, np.uint32, 1 + len(table.strip)) and is_any(strips, np.uint8)
        for entry in table.apart:
            *offsets, values = array_names(entry)
            by_row.append((offsets[0], 1))
            fits &= all(is_any(name, np.int64) for name in offsets) and is_any(values, entry.dtype, *entry.shape)
        counts = {arrays[name].shape[0] - more for name, more in by_row} if fits else {-1}
        counts |= {num_samples} if table_name == RECORDS else set()
        if len(counts) > 1 or min(counts, default=0) < 0:
            raise ValueError(f"the arrays of {table_name} do not fit its fields, or each other")
        found.append(next(iter(counts), None))
    return found


_BLOCK_BYTES = 8 << 20
# If a second of processor time reads fewer bytes of what was brought in, pages cost much: the host of this machine
# gives each when it is first touched. 0.5 GB/s there, 4 to 6 where pages are at hand. Small pages are cheaper then.
_LEAST_BYTES_S = 1.5e9

_costs_much = threading.Event()  # found out once a process


class Readahead:
    """The part of a file that has been brought in ahead of whoever verifies it, by huge pages while they come cheaply.

    What reads a file first decides in which pages it lies from then on, and the system's own reading ahead takes small
    ones, the more so the less it reads ahead. So a cache that is used again after the machine was started would have
    lost its huge pages (docs/decisions/0014).

        bring in   ┆     8 MiB     ┆     8 MiB     ┆
        read       ┆ 1 ┆ 1 ┆ 1 ┆ …                      how long the processor takes for these says what the pages cost
    """

    def __init__(
        self,
        fd: int,
        size_bytes: int,
        *,
        bring_in: Callable[[int, int, int], None] = bring_in,
        cpu_s: Callable[[], float] = time.thread_time,
        costs_much: threading.Event = _costs_much,
    ) -> None:
        self._fd, self._size_bytes = fd, size_bytes
        self._bring_in, self._cpu_s, self._costs_much = bring_in, cpu_s, costs_much
        self._end, self._since_s = 0, 0.0

    def reach(self, end: int) -> None:
        """Bring in what lies before `end`, if it has not been: called by the thread that reads, before it does."""
        if self._size_bytes < HUGE_BYTES:
            return
        while self._end < min(end, self._size_bytes) and not self._costs_much.is_set():
            if self._end and _LEAST_BYTES_S * (self._cpu_s() - self._since_s) > _BLOCK_BYTES:
                self._costs_much.set()
                return
            self._bring_in(self._fd, self._end, min(_BLOCK_BYTES, self._size_bytes - self._end))
            self._end += _BLOCK_BYTES
            self._since_s = self._cpu_s()


_of_thread = threading.local()


def check_arrays(fd: int, header: ChunkHeader, *, path: Path, ahead: Readahead | None = None) -> None:
    """Raise a `ChunkCorruptError` where an array has another checksum, or a number that leads to what is not there.

    Read, not mapped: a disk that fails is then an error here, where a map would end the process. One buffer a thread is
    kept for it.
    """
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(bytearray(_CHECK_BYTES))
    try:
        for name, place in header.arrays.items():
            digest = xxhash.xxh3_64()
            at, end = place.offset_bytes, place.offset_bytes + place.size_bytes
            while at < end:
                piece: memoryview = _of_thread.buffer[: end - at]
                if ahead is not None:
                    ahead.reach(at + len(piece))
                num_bytes = _read(fd, piece, at)
                digest.update(piece[:num_bytes])
                at += num_bytes
            if digest.hexdigest() != place.checksum:
                raise ValueError(f"the checksum of {name!r} differs")
        if (astray := _find_astray(fd, header)) is not None:
            raise ValueError(f"{astray!r} leads to values that are not there")
    except OSError as error:
        raise ChunkCorruptError(f"{path} cannot be read: {error}", path=path) from error
    except ValueError as error:
        raise ChunkCorruptError(f"{path} is damaged: {error}", path=path) from error


def _find_astray(fd: int, header: ChunkHeader) -> str | None:
    """Return the name of an array with a number that leads to what is not there: a gather follows it unchecked."""
    arrays, spec = header.arrays, header.spec
    num_runs = _num_rows(spec, arrays, header.num_samples)[1:]
    for key, num in zip(spec.keys, num_runs, strict=True):
        at = spec.tables[0].record_offsets[run_name(key)]
        for records in _blocks(fd, arrays[RECORDS]):
            runs = np.ascontiguousarray(records[:, at : at + 4]).view(np.uint32)
            if num is not None and (runs >= num).any():
                return run_name(key)
    for name, table in zip(table_names(spec), spec.tables, strict=True):
        if table.strip:
            places, strips = strip_names(name)
            widths = np.array([STRIP_UNIT_BYTES, *(entry.value_bytes for entry in table.strip)], dtype=np.float64)
            for block in _blocks(fd, arrays[places]):
                if (block @ widths > arrays[strips].size_bytes).any():
                    return places
        for entry in table.apart:
            names = array_names(entry)
            for offsets, inner in pairwise(names):
                num, last = arrays[inner].shape[0] - (inner != names[-1]), 0
                for block in _blocks(fd, arrays[offsets]):
                    if block[0] < last or block[-1] > num or (block[1:] < block[:-1]).any():
                        return offsets
                    last = block[-1]
    return None


def _blocks(fd: int, place: ArrayPlace) -> Iterator[Any]:
    """Yield an array some rows at a time, about a megabyte of them."""
    num_rows = place.shape[0]
    step = max(1, _CHECK_BYTES * num_rows // max(1, place.size_bytes))
    for begin in range(0, num_rows, step):
        shape = min(step, num_rows - begin), *place.shape[1:]
        offset_bytes = place.offset_bytes + place.size_bytes // num_rows * begin
        yield _read_array(fd, replace(place, shape=shape, offset_bytes=offset_bytes))


def read_lengths(fd: int, header: ChunkHeader, entry: Entry) -> npt.NDArray[np.int64]:
    """Return how many values, or inner lists, a ragged field has in each row of its table; values are not read."""
    for name, table in zip(table_names(header.spec), header.spec.tables, strict=True):
        for i, one in enumerate(table.strip, start=1):
            if one.name == entry.name:
                places = _read_array(fd, header.arrays[strip_names(name)[0]])
                return places[:, i].astype(np.int64)
    return np.diff(_read_array(fd, header.arrays[array_names(entry)[0]]))


def _read_array(fd: int, place: ArrayPlace) -> Array:
    array = np.empty(place.shape, dtype=place.dtype)
    view, begin = array.reshape(-1).view(np.uint8).data, 0
    while begin < len(view):
        begin += _read(fd, view[begin:], place.offset_bytes + begin)
    return array


def _read(fd: int, view: memoryview, at: int) -> int:
    """Read into `view`, and return how many bytes; at least one, or an error."""
    num_bytes = os.preadv(fd, [view], at)
    if num_bytes == 0:
        raise OSError(errno.EIO, f"the file ends inside of an array, at {at:,} bytes")
    return num_bytes
