"""Chunk files of a test's own, written as they are published and read back by their description alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from stoker import Ragged, Spec
from stoker.cache.folder import Files
from stoker.cache.format import ChunkHeader, array_names, check_arrays, read_header, strip_names, table_names
from stoker.cache.tables import STRIP_UNIT_BYTES, take_rows
from stoker.cache.write import prepare_chunk
from stoker.fields.offsets import offsets_of, ranges
from stoker.fields.spec import Array, Arrays, run_name


def write_chunk(target: Path | str | int, arrays, spec: Spec, **options) -> int:
    """Write a chunk file, at a path or into a descriptor, and return its size in bytes."""
    size_bytes, write = prepare_chunk(arrays, spec, **options)
    if isinstance(target, int):
        write(target, Files())
    else:
        with Path(target).open("xb") as file:
            write(file.fileno(), Files())
    return size_bytes


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Give a descriptor of a file, open for reading, for the length of a with block."""
    with Path(path).open("rb", buffering=0) as file:
        yield file.fileno()


def header_of(path: Path) -> ChunkHeader:
    """Return the header of a chunk file."""
    with opened(path) as fd:
        return read_header(fd, path=Path(path))


def content_of(path: Path) -> tuple[dict[str, Any], dict[str, Array], dict[str, int]]:
    """Return metadata, arrays and where these begin in a chunk file, by docs/reference/chunk-format.md alone."""
    data = np.fromfile(path, np.uint8)
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    metadata = header.pop("__metadata__")
    texts = {"spec", "record", "shared", "strips", "about", "checksums"} & metadata.keys()
    metadata |= {name: json.loads(metadata[name]) for name in texts}
    arrays, begins = {}, {}
    for name, item in header.items():
        begin, end = (start + offset for offset in item["data_offsets"])
        kind, bits = re.fullmatch(r"([A-Z]+)(\d*)", item["dtype"]).groups()
        dtype = "?" if kind == "BOOL" else f"<{kind.lower()}{int(bits) // 8}"
        arrays[name], begins[name] = data[begin:end].view(dtype).reshape(item["shape"]), begin
    return metadata, arrays, begins


def sealed(header: bytes) -> bytes:
    """Return a header with its own checksum."""
    at = header.index(b'"checksum":"') + 12
    blank = header[:at] + b"0" * 16 + header[at + 16 :]
    return blank[:at] + xxh3_64_hexdigest(blank).encode() + blank[at + 16 :]


def with_longer_header(chunk: bytes, num_bytes: int) -> bytes:
    """Return a chunk file whose header is filled up to so many bytes, as where pages are larger."""
    start = 8 + int.from_bytes(chunk[:8], "little")
    return sealed((num_bytes - 8).to_bytes(8, "little") + chunk[8:start].ljust(num_bytes - 8)) + chunk[start:]


def read_arrays(path: Path | str) -> Arrays:
    """Return all fields of a chunk file, checked; what samples share comes for each of them."""
    header = header_of(path)
    with opened(Path(path)) as fd:
        check_arrays(fd, header, path=Path(path))
    content = _content(Path(path).read_bytes(), header)
    own, *shared = header.spec.tables
    names = table_names(header.spec)
    found = _table(own, content, names[0], header.num_samples)
    for key, table, name in zip(header.spec.keys, shared, names[1:], strict=True):
        rows = found.pop(run_name(key)).astype(np.int64)
        num_runs = int(rows[-1]) + 1 if len(rows) else 0
        found |= {field: take_rows(array, rows) for field, array in _table(table, content, name, num_runs).items()}
    return {entry.name: found[entry.name] for entry in header.spec}


def _content(data: bytes, header: ChunkHeader) -> dict[str, Array]:
    return {
        name: np.frombuffer(data, place.dtype, int(np.prod(place.shape)), place.offset_bytes).reshape(place.shape)
        for name, place in header.arrays.items()
    }


def _table(spec: Spec, content: Mapping[str, Array], records: str, num_rows: int) -> Arrays:
    found: Arrays = {}
    if spec.record_bytes:
        rows = np.ascontiguousarray(content[records]).view(spec.record_dtype).reshape(num_rows)
    for entry in spec:
        if entry in spec.strip:
            continue
        if entry.is_ragged:
            *offsets, values = array_names(entry)
            found[entry.name] = content[values]
            for name in reversed(offsets):
                found[entry.name] = Ragged(found[entry.name], content[name])
        elif entry.value_bytes:
            found[entry.name] = np.ascontiguousarray(rows[entry.name])
        else:
            found[entry.name] = np.empty((num_rows, *entry.shape), dtype=entry.dtype)
    return found | (_lists_side_by_side(spec, content, records) if spec.strip else {})


def _lists_side_by_side(spec: Spec, content: Mapping[str, Array], records: str) -> Arrays:
    places, strips = (content[name] for name in strip_names(records))
    found: Arrays = {}
    begins = places[:, 0].astype(np.int64) * STRIP_UNIT_BYTES
    for i, entry in enumerate(spec.strip, start=1):
        counts = places[:, i].astype(np.int64)
        offsets = offsets_of(counts)
        chosen = ranges(begins, offsets_of(counts * entry.value_bytes))
        found[entry.name] = Ragged(strips[chosen].view(entry.dtype).reshape(-1, *entry.shape), offsets)
        begins = begins + counts * entry.value_bytes
    return found
