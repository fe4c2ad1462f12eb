"""Writing a chunk file: fields packed into records, a block of rows at a time, each byte checked and written once.

pieces   ┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆      as they are made, while they lie in the processor's cache
calls    ┆     2 MiB     ┆ 2 MiB     one each: for less, the page cache takes small pages
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import xxhash

from stoker.cache.folder import Files
from stoker.cache.format import (
    FORMAT_VERSION,
    NO_CHECKSUM,
    PAGE_BYTES,
    ArrayPlace,
    ChunkHeader,
    NewChunk,
    array_names,
    header_bytes,
    json_text,
    round_up,
    strip_names,
    table_names,
)
from stoker.cache.tables import TableRows, make_strips, record_packer, split
from stoker.columns import Packable, Pieces, in_pieces
from stoker.errors import FieldMismatchError
from stoker.fields.spec import CACHE_LINE_BYTES, Array, Entry, Ragged, Spec, run_name
from stoker.host.huge import HUGE_BYTES

# Packed, checked and written while it is in the processor's own cache. Packing records of 640 bytes: 640 KiB 13 GB/s,
# 1.25 MiB 9, 2.5 MiB 8.5 (2 MiB of second-level cache).
_BLOCK_BYTES = 1024 * 640
# Files of fewer bytes are written without asking for room first, which would cost them more than it saves.
_RESERVED_BYTES = 256 << 10


def prepare_chunk(
    arrays: Packable,
    spec: Spec,
    *,
    num_samples: int,
    about: Mapping[str, object] | None = None,
    page_bytes: int = PAGE_BYTES,
) -> NewChunk:
    """Return a chunk that can be written, and whose size is known; `about` tells what made it, as JSON can write it.

    Records begin at a multiple of `page_bytes` and fill a multiple of it.

    Raises:
        FieldMismatchError: The arrays do not fit the spec exactly.
        FieldError: The lists of a strip are more than it can count.
    """
    reason = _find_mismatch(arrays, spec, num_samples=num_samples)
    if reason is not None:
        raise FieldMismatchError(reason, fragment="")
    rows = split(arrays, spec, num_samples=num_samples)
    tables = [*zip(table_names(spec), spec.tables, rows, strict=True)]
    behind, writers, data_bytes = _lay_out(tables, page_bytes)
    shared = {
        key: {"run": run_name(key), "num_runs": num_runs, "record": describe_record(table)}
        for key, table, (num_runs, _) in zip(spec.keys, spec.tables[1:], rows[1:], strict=True)
    }
    strips = {strip_names(name)[1]: [entry.name for entry in table.strip] for name, table, _ in tables if table.strip}
    metadata = {
        "format": "stoker-chunk",
        "format_version": str(FORMAT_VERSION),
        "num_samples": str(num_samples),
        "spec": spec.json_text,
        "record": _described(spec.tables[0]),
        **({"shared": json_text(shared)} if shared else {}),
        **({"strips": json_text(strips)} if strips else {}),
        "about": json_text(dict(about or {})),
    }
    make_header = partial(header_bytes, behind, data_bytes, metadata, page_bytes)
    num_bytes = len(make_header(dict.fromkeys(behind, NO_CHECKSUM)))
    key, size_bytes = str((about or {}).get("key", "")), num_bytes + data_bytes

    def write(fd: int, files: Files) -> ChunkHeader:
        """Write the file, the header last: one that was cut off has none, or fewer bytes than its header says."""
        if size_bytes >= _RESERVED_BYTES:
            files.reserve(fd, size_bytes)
        blocks = Blocks(fd, files, begin=num_bytes)
        places: dict[str, ArrayPlace] = {}
        for name, write_array in writers.items():
            offset_bytes = num_bytes + behind[name].offset_bytes
            blocks.skip_to(offset_bytes)
            places[name] = replace(behind[name], offset_bytes=offset_bytes, checksum=write_array(blocks))
        blocks.skip_to(size_bytes)
        blocks.close(make_header({name: place.checksum for name, place in places.items()}))
        return ChunkHeader(key, num_samples, spec, places, size_bytes)

    return size_bytes, write


def _lay_out(
    tables: Sequence[tuple[str, Spec, TableRows]], page_bytes: int
) -> tuple[dict[str, ArrayPlace], dict[str, Callable[[Blocks], str]], int]:
    """Return where arrays lie behind the header, what writes each and returns its checksum, and where they end.

    In the order of the file: the records of all tables, then their lists.
    """
    places: dict[str, ArrayPlace] = {}
    writers: dict[str, Callable[[Blocks], str]] = {}
    end = 0

    def add(
        name: str,
        write: Callable[[Blocks], str],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        align_bytes: int = CACHE_LINE_BYTES,
        behind_bytes: int = 0,
    ) -> None:
        nonlocal end
        places[name], writers[name] = ArrayPlace(end, dtype, tuple(map(int, shape)), NO_CHECKSUM), write
        # What follows begins at a multiple of `align_bytes`, behind so many zeros at least.
        end = round_up(end + places[name].size_bytes + behind_bytes, align_bytes)

    def add_array(name: str, array: Array | Pieces) -> None:
        add(name, partial(_write_array, array=array), array.shape, array.dtype)

    numbers = np.dtype(np.uint8)
    for name, table, (num_rows, fields) in tables:
        if table.record_bytes:
            write = partial(_write_records, spec=table, num_rows=num_rows, fields=fields)
            add(name, write, (num_rows, table.record_bytes), numbers, align_bytes=page_bytes)
    for name, table, (_, fields) in tables:
        if (strips := make_strips(table, fields)) is not None:
            array, begins, lay = strips
            add_array(strip_names(name)[0], array)
            write = partial(_write_rows, begins=cast("Sequence[int]", begins), lay=lay)
            # Whole lines are read of them, the last one from anywhere inside of them.
            add(strip_names(name)[1], write, (int(begins[-1]),), numbers, behind_bytes=CACHE_LINE_BYTES)
        for entry in table.apart:
            values: Any = fields[entry.name]
            *offsets, content = array_names(entry)
            for offset_name in offsets:
                add_array(offset_name, values.offsets)
                values = values.values
            add_array(content, values)
    return places, writers, end


@lru_cache(maxsize=256)
def _described(spec: Spec) -> str:
    """Return the description of a record as JSON; the chunks of a data set share one."""
    return json_text(describe_record(spec))


def describe_record(spec: Spec) -> dict[str, object]:
    """Return what to give `numpy.dtype` for the dtype of a record, as JSON can write it; empty without records."""
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


def _write_records(blocks: Blocks, *, spec: Spec, num_rows: int, fields: Packable) -> str:
    width, packer = spec.record_bytes, record_packer(fields, spec)
    has_gaps = sum(entry.value_bytes for entry in spec.fixed) < width

    def lay(block: Array, start: int, stop: int) -> None:
        if has_gaps:
            block[:] = 0
        packer.pack(block, start, stop)

    return _write_rows(blocks, begins=range(0, (num_rows + 1) * width, width), lay=lay)


def _write_rows(blocks: Blocks, *, begins: Sequence[int], lay: Callable[[Array, int, int], None]) -> str:
    """Write rows, laid where they are written from: only one that spans two huge pages is copied once more.

    Each begins at a byte of `begins`, which has their end, too; `lay` lays rows [start, stop) where memory begins.
    """
    digest, start = xxhash.xxh3_64(), 0
    while start < len(begins) - 1:
        room = blocks.room()
        stop = bisect_right(begins, begins[start] + min(len(room), _BLOCK_BYTES)) - 1
        is_whole = stop > start
        stop = max(stop, start + 1)
        num_bytes = int(begins[stop] - begins[start])
        laid = room[:num_bytes] if is_whole else np.empty(num_bytes, dtype=np.uint8)
        lay(laid, start, stop)
        digest.update(laid.data)
        if is_whole:
            blocks.fill(len(laid))
        else:
            blocks.add(laid.data)
        start = stop
    return digest.hexdigest()


def _write_array(blocks: Blocks, *, array: Array | Pieces) -> str:
    digest = xxhash.xxh3_64()
    for part in in_pieces(array).arrays:
        blocks.add(part.reshape(-1).view(np.uint8).data if part.nbytes else b"", digest)
    return digest.hexdigest()


_of_thread = threading.local()


class Blocks:
    """Collects what is written, from `begin` to `end`, until it fills a huge page.

    What lies before `begin` is written as zeros, back to a huge page's border, until `close` is told what it is.
    """

    def __init__(self, fd: int, files: Files, *, begin: int) -> None:
        if not hasattr(_of_thread, "block"):  # fresh memory costs more than filling it
            _of_thread.block = np.empty(HUGE_BYTES, dtype=np.uint8)
        self._fd, self._files, self._block = fd, files, cast("Array", _of_thread.block)
        self._written = begin // HUGE_BYTES * HUGE_BYTES
        self._block[: begin - self._written] = 0
        self.end = begin

    def add(self, data: bytes | memoryview, digest: xxhash.xxh3_64 | None = None) -> None:
        """Write bytes behind what there is, and add them to a digest; those that fill a huge page are not copied."""
        rest = memoryview(data)
        while rest:
            at = self.end - self._written
            piece = rest[: HUGE_BYTES - at]
            if digest is not None:
                digest.update(piece)
            self.end += len(piece)
            if at == 0 and len(piece) == HUGE_BYTES:
                self._files.write(self._fd, piece, offset=self._written)
                self._written = self.end
            else:
                self._block[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                if at + len(piece) == HUGE_BYTES:
                    self.flush()
            rest = rest[len(piece) :]

    def room(self) -> Array:
        """Return what is left of the huge page, to be filled in place: it is written once `fill` has said so.

        A view, good until the next call: bytes of earlier pages lie in it.
        """
        return self._block[self.end - self._written :]

    def fill(self, num_bytes: int) -> None:
        """Write so many bytes of `room` behind what there is."""
        self.end += num_bytes
        if self.end - self._written == HUGE_BYTES:
            self.flush()

    def skip_to(self, end: int) -> None:
        """Write zeros up to there."""
        self.add(bytes(end - self.end))

    def close(self, beginning: bytes) -> None:
        """Write what was collected, and last the first bytes of the file: in one call if all lies in one huge page."""
        if self._written == 0:
            self._block[: len(beginning)] = np.frombuffer(beginning, dtype=np.uint8)
            self.flush()
        else:
            self.flush()
            self._files.write(self._fd, beginning, offset=0)

    def flush(self) -> None:
        """Write what was collected. Bytes that come behind it in the same huge page get small pages."""
        if self.end > self._written:
            self._files.write(self._fd, self._block.data[: self.end - self._written], offset=self._written)
            self._written = self.end


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


def _mismatch(array: Array | Ragged | Pieces, entry: Entry, num_rows: int, level: int = 0) -> str | None:
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
