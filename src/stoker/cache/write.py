"""Writing a chunk file: fields packed into records, a block of rows at a time, each byte checked and written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xxhash

from stoker.cache.blocks import Blocks
from stoker.cache.chunk import ArrayPlace, ChunkHeader
from stoker.cache.files import Files
from stoker.cache.layout import (
    PAGE_BYTES,
    Layout,
    Table,
    array_names,
    check_names,
    format_version,
    json_text,
    plan_layout,
    ragged_arrays,
    sealed,
    strip_names,
)
from stoker.cache.pack import record_packer
from stoker.cache.runs import split
from stoker.cache.strips import Strips
from stoker.huge import HUGE_BYTES
from stoker.source.columns import Packable, Pieces, Stack, in_pieces
from stoker.spec import Array, Entry, Ragged, Spec, run_name

# Packed, checked and written while it is in the processor's own cache. Packing records of 640 bytes: 640 KiB 13 GB/s,
# 1.25 MiB 9, 2.5 MiB 8.5 (2 MiB of second-level cache).
_BLOCK_BYTES = 1024 * 640
# Files of fewer bytes are written without asking for room first, which would cost them more than it saves.
_RESERVED_BYTES = 256 << 10
# Values of ragged fields are checked and written in pieces of this size: those that fill a huge page are not copied.
_PIECE_BYTES = HUGE_BYTES


class MismatchError(ValueError):
    """Arrays do not fit a spec; the message names the field."""


def prepare_chunk(
    arrays: Packable,
    spec: Spec,
    *,
    num_samples: int,
    about: Mapping[str, object] | None = None,
    page_bytes: int = PAGE_BYTES,
) -> PreparedChunk:
    """Return a chunk whose size is known and which can be written.

    Args:
        arrays: The fields, each with N rows.
        spec: What a sample is; the arrays must fit it exactly.
        num_samples: N.
        about: What made the chunk, as JSON can write it.
        page_bytes: Records begin at a multiple of it and fill a multiple of it.

    Raises:
        MismatchError: The arrays do not fit the spec.
        FieldError: Two fields would share the name of an array.
    """
    reason = _find_mismatch(arrays, spec, num_samples=num_samples)
    if reason is not None:
        raise MismatchError(reason)
    check_names(spec)
    tables = split(arrays, spec, num_samples=num_samples)
    layout = plan_layout(tables, page_bytes=page_bytes)
    metadata = {
        "format": "stoker-chunk",
        "format_version": str(format_version(spec)),
        "num_samples": str(num_samples),
        "spec": spec.json_text,
        "record": _described(tables[0].spec),
        **({"shared": json_text(_describe_shared(spec, tables))} if spec.keys else {}),
        **({"strips": json_text(strips)} if (strips := _describe_strips(tables)) else {}),
        "about": json_text(dict(about or {})),
    }
    return PreparedChunk(spec, num_samples, tuple(tables), layout, metadata["about"], layout.header(metadata))


def _describe_shared(spec: Spec, tables: Sequence[Table]) -> dict[str, object]:
    """Return what is kept once a run, by key."""
    return {
        key: {"run": run_name(key), "num_runs": table.num_rows, "record": describe_record(table.spec)}
        for key, table in zip(spec.keys, tables[1:], strict=True)
    }


def _describe_strips(tables: Sequence[Table]) -> dict[str, list[str]]:
    """Return which fields lie in the strips of each table, by the name of the array, in their order."""
    return {
        strip_names(table.name)[1]: [entry.name for entry in table.spec.strip] for table in tables if table.spec.strip
    }


@lru_cache(maxsize=256)
def _described(spec: Spec) -> str:
    """Return the description of a record as JSON; the chunks of a data set share one."""
    return json_text(describe_record(spec))


def describe_record(spec: Spec) -> dict[str, object]:
    """Return what `numpy.dtype` makes the dtype of a record of, as JSON can write it; empty without records."""
    if not spec.record_bytes:
        return {}
    return {
        "names": [entry.name for entry in spec.fixed],
        "formats": [_format(entry) for entry in spec.fixed],
        "offsets": [spec.record_offsets[entry.name] for entry in spec.fixed],
        "itemsize": spec.record_bytes,
    }


def _format(entry: Entry) -> str:
    shape = f"({','.join(map(str, entry.shape))},)" if entry.shape else ""
    return shape + entry.dtype.newbyteorder("<").str


@dataclass(frozen=True, eq=False)
class PreparedChunk:
    """A chunk that is about to be written."""

    spec: Spec
    num_samples: int
    tables: tuple[Table, ...]
    layout: Layout
    about_json: str
    header: bytes

    @property
    def header_bytes(self) -> int:
        """Bytes before the data."""
        return len(self.header)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.header_bytes + self.layout.data_bytes

    def write(self, fd: int, files: Files) -> ChunkHeader:
        """Write the file, the header last, and return what that says."""
        content: dict[str, Array | Pieces] = {
            name: array
            for table in self.tables
            for entry in table.spec.apart
            for name, array in zip(array_names(entry), ragged_arrays(entry, _ragged(table.arrays, entry)), strict=True)
        }
        records = {table.name: table for table in self.tables}
        strips: dict[str, Strips] = {}
        for table in self.tables:
            if table.strips is not None:
                places, name = strip_names(table.name)
                content[places], strips[name] = table.strips.places, table.strips
        checksums: dict[str, str] = {}
        if self.size_bytes >= _RESERVED_BYTES:
            files.reserve(fd, self.size_bytes)
        blocks = Blocks(fd, files, begin=self.header_bytes)
        for planned in self.layout.arrays:
            blocks.skip_to(self.header_bytes + planned.offset_bytes)
            if planned.name in records:
                checksums[planned.name] = _write_records(blocks, records[planned.name])
            elif planned.name in strips:
                checksums[planned.name] = _write_strips(blocks, strips[planned.name])
            else:
                checksums[planned.name] = _write_array(blocks, content[planned.name])
        blocks.skip_to(self.size_bytes)
        blocks.close(sealed(self.header, checksums))
        return ChunkHeader(
            num_samples=self.num_samples,
            spec=self.spec,
            arrays={
                planned.name: ArrayPlace(
                    self.header_bytes + planned.offset_bytes, planned.dtype, planned.shape, checksums[planned.name]
                )
                for planned in self.layout.arrays
            },
            size_bytes=self.size_bytes,
            about_json=self.about_json,
        )


def _write_records(blocks: Blocks, table: Table) -> str:
    """Write all records, packed where they are written from: only one that spans two huge pages is copied once more."""
    width, num_rows = table.spec.record_bytes, table.num_rows
    packer = record_packer(table.arrays, table.spec)
    gaps = _gaps(table.spec)
    spanning = np.empty(width, dtype=np.uint8)
    digest = xxhash.xxh3_64()
    start = 0
    while start < num_rows:
        room = blocks.room()
        num = min(min(len(room), _BLOCK_BYTES) // width, num_rows - start)
        packed = room[: num * width] if num else spanning
        stop = start + max(num, 1)
        packer.pack(packed, start, stop)
        for begin, end in gaps:
            packed.reshape(-1, width)[:, begin:end] = 0
        digest.update(packed.data)
        if num:
            blocks.fill(len(packed))
        else:
            blocks.add(packed.data)
        start = stop
    return digest.hexdigest()


def _gaps(spec: Spec) -> list[tuple[int, int]]:
    """Return where no field lies in a record."""
    gaps, end = [], 0
    for entry in sorted(spec.fixed, key=lambda entry: spec.record_offsets[entry.name]):
        begin = spec.record_offsets[entry.name]
        if begin > end:
            gaps.append((end, begin))
        end = max(end, begin + entry.value_bytes)  # one of no bytes may lie anywhere
    return [*gaps, (end, spec.record_bytes)] if end < spec.record_bytes else gaps


def _write_strips(blocks: Blocks, strips: Strips) -> str:
    """Write all strips, laid where they are written from, but for one that spans two huge pages."""
    digest = xxhash.xxh3_64()
    start, num_rows = 0, len(strips.places)
    while start < num_rows:
        room = blocks.room()
        stop = strips.fitting(start, min(len(room), _BLOCK_BYTES))
        if stop > start:
            laid = room[: strips.num_bytes(start, stop)]
            strips.lay(laid, start, stop)
            digest.update(laid.data)
            blocks.fill(len(laid))
        else:
            stop = start + 1
            for piece in strips.pieces(start, _BLOCK_BYTES):
                digest.update(piece)
                blocks.add(piece)
        start = stop
    return digest.hexdigest()


def _write_array(blocks: Blocks, array: Array | Pieces) -> str:
    digest = xxhash.xxh3_64()
    for part in in_pieces(array).arrays:
        data = part.reshape(-1).view(np.uint8).data if part.nbytes else b""
        begin = 0
        while begin < len(data):
            # Up to the next border of what is written in one call.
            piece = data[begin : begin + _PIECE_BYTES - blocks.end % _PIECE_BYTES]
            digest.update(piece)
            blocks.add(piece)
            begin += len(piece)
    return digest.hexdigest()


def _ragged(arrays: Packable, entry: Entry) -> Ragged:
    ragged = arrays[entry.name]
    assert isinstance(ragged, Ragged)
    return ragged


def _find_mismatch(arrays: Packable, spec: Spec, *, num_samples: int) -> str | None:
    """Return where `arrays` do not fit `spec`, as a sentence that names the field; None where they do."""
    for entry in spec:
        if entry.name not in arrays:
            return f"the field {entry.name!r} is missing"
        reason = _mismatch(arrays[entry.name], entry, num_samples)
        if reason is not None:
            return f"the field {entry.name!r} should be {entry}, but {reason}"
    extra = sorted(arrays.keys() - {entry.name for entry in spec})
    return f"the field {extra[0]!r} is none of the data set's" if extra else None


def _mismatch(array: Array | Ragged | Stack | Pieces, entry: Entry, num_rows: int, level: int = 0) -> str | None:
    if level < entry.num_levels:
        if not isinstance(array, Ragged):
            return "it is not ragged" if level == 0 else f"it has {level} level of lists"
        offsets = array.offsets
        if offsets.dtype != np.int64 or offsets.shape != (num_rows + 1,):
            return f"its offsets are {offsets.dtype}{list(offsets.shape)} for {num_rows} rows"
        inner = array.values
        num_values = len(inner.offsets) - 1 if isinstance(inner, Ragged) else len(inner)
        if offsets[0] != 0 or offsets[-1] != num_values or (np.diff(offsets) < 0).any():
            return f"its offsets do not rise from 0 to its {num_values} values"
        return _mismatch(inner, entry, num_values, level + 1)
    if isinstance(array, Ragged):
        return "it is ragged" if level == 0 else f"it has more than {level} level of lists"
    if array.dtype != entry.dtype:
        return f"its dtype is {array.dtype}"
    if array.shape != (num_rows, *entry.shape):
        return f"it has the shape {list(array.shape)} for {num_rows} rows"
    return None
