"""The chunk file: reading its header, its arrays, and whether it is what was published. `write` makes it.

A chunk file is a safetensors file with more order in it: see `layout` for the places and
docs/reference/chunk-format.md for the description.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.cache.ahead import Ahead
from stoker.cache.layout import (
    CHECKSUM_AT,
    DTYPES,
    FORMAT_VERSION,
    SHARED_FORMAT_VERSION,
    STRIPS_FORMAT_VERSION,
    array_names,
    header_checksum,
    list_names,
    record_names,
    strip_names,
    table_names,
)
from stoker.errors import ChunkCorruptError
from stoker.spec import Array, Entry, Spec

_NUMPY_DTYPES = {theirs: np.dtype(ours) for ours, theirs in DTYPES.items()}
_VERSIONS = (str(FORMAT_VERSION), str(SHARED_FORMAT_VERSION), str(STRIPS_FORMAT_VERSION))
# Most headers fit, and one read of this size costs hardly more than a read of 8 bytes.
_FIRST_READ_BYTES = 16384
# As safetensors: a length beyond it is garbage.
_MAX_HEADER_BYTES = 100_000_000
# Read and checked while it is in the processor's own cache: 14 GB/s, 256 KiB to 1 MiB alike, 9.7 at 4 MiB.
_CHECK_BYTES = 1 << 20


@dataclass(frozen=True)
class ArrayPlace:
    """Where an array lies in a chunk file.

    Attributes:
        offset_bytes: From the beginning of the file.
        dtype: Of its items.
        shape: Of the whole array.
        checksum: XXH3 (64 bit) of its bytes, 16 hex digits.
    """

    offset_bytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its items."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class ChunkHeader:
    """What a chunk file says about itself.

    Attributes:
        num_samples: Samples in it.
        spec: What a sample is.
        arrays: Where each array lies, without padding.
        size_bytes: Of the whole file.
        about_json: What made it, for people: see `about`.
    """

    num_samples: int
    spec: Spec
    arrays: Mapping[str, ArrayPlace]
    size_bytes: int
    about_json: str

    @property
    def about(self) -> Mapping[str, Any]:
        """What made it: url, row groups, rows, key."""
        about: Mapping[str, Any] = json.loads(self.about_json)
        return about


def read_header(file: Path | str | int, *, file_bytes: int | None = None) -> ChunkHeader:
    """Return the header of a chunk file, after checking its own checksum and the length of the file.

    Bytes of arrays are not looked at: `check_arrays` does that.

    Args:
        file: Path, or a descriptor open for reading.
        file_bytes: How long the file is, for who has just asked.

    Raises:
        ChunkCorruptError: It is no chunk file, one of another format version, cut short, or damaged in the header.
        OSError: It cannot be read.
    """
    if isinstance(file, int):
        try:
            return _read_header(file, os.fstat(file).st_size if file_bytes is None else file_bytes)
        except _Damage as error:
            path = Path(f"/dev/fd/{file}")
            raise ChunkCorruptError(f"{path} {error}", path=path) from error.__cause__
    with opened(Path(file)) as fd:
        return _read_header_of(fd, Path(file))


class _Damage(Exception):  # noqa: N818  (never leaves this module)
    """What is wrong with a header; the file's name belongs in front."""


def _read_header_of(fd: int, path: Path) -> ChunkHeader:
    try:
        return _read_header(fd, os.fstat(fd).st_size)
    except _Damage as error:
        raise ChunkCorruptError(f"{path} {error}", path=path) from error.__cause__


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Give a descriptor of the file at `path`, open for reading, for the length of a with block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_header(fd: int, file_bytes: int) -> ChunkHeader:
    head = os.pread(fd, _FIRST_READ_BYTES, 0)
    num_bytes = 8 + int.from_bytes(head[:8], "little")
    if len(head) < 8 or num_bytes > min(file_bytes, _MAX_HEADER_BYTES):
        raise _Damage(f"is no chunk file or is cut short: {file_bytes} bytes")
    if num_bytes > len(head):
        head += os.pread(fd, num_bytes - len(head), len(head))
    head = head[:num_bytes]
    if head[CHECKSUM_AT : CHECKSUM_AT + 16] != header_checksum(head):
        raise _Damage("is no chunk file or is damaged: the header's checksum differs")
    try:
        content = json.loads(head[8:])
        metadata = content["__metadata__"]
        version = metadata["format_version"]
        if version not in _VERSIONS:
            raise _Damage(f"has chunk format {version}, this version of Stoker reads {', '.join(_VERSIONS)}")
        checksums = json.loads(metadata["checksums"])
        arrays = {name: _place(num_bytes, content[name], checksum) for name, checksum in checksums.items()}
        ends = [item["data_offsets"][1] for name, item in content.items() if name != "__metadata__"]
        spec, names = _parse_spec(metadata["spec"])
        if arrays.keys() != names:
            raise _Damage(f"keeps lists as chunk format {version} did, which this version of Stoker does not read")
        header = ChunkHeader(
            num_samples=int(metadata["num_samples"]),
            spec=spec,
            arrays=arrays,
            size_bytes=num_bytes + max(ends, default=0),
            about_json=str(metadata["about"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _Damage(f"cannot be read as a chunk: {error!r}") from error
    if header.size_bytes != file_bytes:
        raise _Damage(f"has {file_bytes} bytes, its header says {header.size_bytes}")
    return header


def _place(data_start: int, item: Mapping[str, Any], checksum: str) -> ArrayPlace:
    begin, end = item["data_offsets"]
    place = ArrayPlace(data_start + begin, _NUMPY_DTYPES[item["dtype"]], tuple(item["shape"]), checksum)
    if place.size_bytes != end - begin:
        raise ValueError(f"an array of {place.size_bytes} bytes in {end - begin}")
    return place


@lru_cache(maxsize=256)
def _parse_spec(text: str) -> tuple[Spec, frozenset[str]]:
    """Return the spec of a header and which arrays it takes; the chunks of a data set share them."""
    spec = Spec.from_json(json.loads(text))
    return spec, frozenset([*record_names(spec), *list_names(spec)])


_buffers = threading.local()


def check_arrays(fd: int, header: ChunkHeader, *, path: Path, ahead: Ahead | None = None) -> None:
    """Read all arrays and compare their checksums. One buffer a thread is kept for it.

    Read, not mapped: a disk that fails is then an error here, where a map would end the process.

    Args:
        fd: Open for reading.
        header: Of the file.
        path: Of the file, for errors.
        ahead: Brings in what is read; None leaves that to the system.

    Raises:
        ChunkCorruptError: An array is not what was published; it names the array.
    """
    buffer: bytearray | None = getattr(_buffers, "check", None)
    if buffer is None:
        buffer = _buffers.check = bytearray(_CHECK_BYTES)
    view = memoryview(buffer)
    for name, place in header.arrays.items():
        digest = xxhash.xxh3_64()
        at, end = place.offset_bytes, place.offset_bytes + place.size_bytes
        while at < end:
            piece = view[: min(end - at, _CHECK_BYTES)]
            if ahead is not None:
                ahead.reach(at + len(piece))
            try:
                num_bytes = os.preadv(fd, [piece], at)
            except OSError as error:
                raise ChunkCorruptError(f"{path} cannot be read: {error}", path=path) from error
            if num_bytes == 0:
                raise ChunkCorruptError(f"{path} ends inside of {name!r}", path=path)
            digest.update(piece[:num_bytes])
            at += num_bytes
        if digest.hexdigest() != place.checksum:
            raise ChunkCorruptError(f"{path} is damaged: the checksum of {name!r} differs", path=path)


def read_lengths(fd: int, header: ChunkHeader, entry: Entry) -> npt.NDArray[np.int64]:
    """Return how many values, or inner lists, a ragged field has in each row of its table; values are not read.

    Args:
        fd: Open for reading.
        header: Of the file.
        entry: The field, as the header has it.
    """
    for name, table in zip(table_names(header.spec), header.spec.tables, strict=True):
        for i, one in enumerate(table.strip, start=1):
            if one.name == entry.name:
                places = _read_array(fd, header.arrays[strip_names(name)[0]])
                return places[:, i].astype(np.int64)
    return np.diff(_read_array(fd, header.arrays[array_names(entry)[0]]))


def _read_array(fd: int, place: ArrayPlace) -> Array:
    array = np.empty(place.shape, dtype=place.dtype)
    rest, at = array.data.cast("B") if array.nbytes else memoryview(b""), place.offset_bytes
    while rest:
        num_bytes = os.preadv(fd, [rest], at)
        rest, at = rest[num_bytes:], at + num_bytes
    return array
