"""Writing a chunk file: fields packed into records, a block of rows at a time, each byte checked and written once.

pieces   ┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆▒▒▒┆      as they are made, while they lie in the processor's cache
calls    ┆     2 MiB     ┆ 2 MiB     one each: for less, the page cache takes small pages
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from stoker.cache.folder import Files
from stoker.cache.format import (
    FORMAT_VERSION,
    NO_CHECKSUM,
    PAGE_BYTES,
    ArrayPlace,
    ChunkHeader,
    array_names,
    header_bytes,
    json_text,
    round_up,
    strip_names,
)
from stoker.cache.tables import ChunkTable, Strips, record_packer, split
from stoker.columns import Packable, Pieces, in_pieces
from stoker.errors import FieldError
from stoker.fields.spec import CACHE_LINE_BYTES, Array, Entry, Ragged, Spec, run_name
from stoker.host.huge import HUGE_BYTES

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
    _check_names(spec)
    tables = split(arrays, spec, num_samples=num_samples)
    items = list(_items(tables, page_bytes))
    behind, padding, data_bytes = _plan(items)
    shared = {
        key: {"run": run_name(key), "num_runs": table.num_rows, "record": describe_record(table.spec)}
        for key, table in zip(spec.keys, tables[1:], strict=True)
    }
    strips = {
        strip_names(table.name)[1]: [entry.name for entry in table.spec.strip] for table in tables if table.spec.strip
    }
    metadata = {
        "format": "stoker-chunk",
        "format_version": str(FORMAT_VERSION),
        "num_samples": str(num_samples),
        "spec": spec.json_text,
        "record": _described(tables[0].spec),
        **({"shared": json_text(shared)} if shared else {}),
        **({"strips": json_text(strips)} if strips else {}),
        "about": json_text(dict(about or {})),
    }
    make_header = partial(header_bytes, behind, padding, metadata, page_bytes)
    num_bytes = len(make_header(dict.fromkeys(behind, NO_CHECKSUM)))
    places = {name: replace(it, offset_bytes=num_bytes + it.offset_bytes) for name, it in behind.items()}
    planned = ChunkHeader(str((about or {}).get("key", "")), num_samples, spec, places, num_bytes + data_bytes)
    return PreparedChunk(planned, num_bytes, make_header, items)


@dataclass(frozen=True, eq=False)
class PreparedChunk:
    """A chunk that is about to be written.

    Attributes:
        planned: What its header will say, but for the checksums.
        header_bytes: Of that header.
        make_header: Makes it of the checksums of all arrays.
        items: The arrays, in the order of the file.
    """

    planned: ChunkHeader
    header_bytes: int
    make_header: Callable[[Mapping[str, str]], bytes]
    items: Sequence[_Item]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.planned.size_bytes

    def write(self, fd: int, files: Files) -> ChunkHeader:
        """Write the file, and return what its header says.

        The header is written last, in one call with what shares its huge page: a file that was cut off while being
        written has no header, or fewer bytes than its header says.
        """
        if self.size_bytes >= _RESERVED_BYTES:
            files.reserve(fd, self.size_bytes)
        blocks = Blocks(fd, files, begin=self.header_bytes)
        checksums: dict[str, str] = {}
        for item in self.items:
            blocks.skip_to(self.planned.arrays[item.name].offset_bytes)
            checksums[item.name] = item.write(blocks)
        blocks.skip_to(self.size_bytes)
        blocks.close(self.make_header(checksums))
        arrays = {name: replace(place, checksum=checksums[name]) for name, place in self.planned.arrays.items()}
        return replace(self.planned, arrays=arrays)


class _Item(NamedTuple):
    """One array of a chunk file: `write` writes it and returns its checksum; `behind_bytes` zeros follow at least."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    write: Callable[[Blocks], str]
    align_bytes: int = CACHE_LINE_BYTES  # what follows begins at a multiple of it
    behind_bytes: int = 0


def _items(tables: Sequence[ChunkTable], page_bytes: int) -> Iterator[_Item]:
    """Yield the arrays of a chunk, in the order of the file: the records of all tables, then their lists."""
    numbers = np.dtype(np.uint8)
    for table in tables:
        shape = table.num_rows, table.spec.record_bytes
        if table.spec.record_bytes:
            yield _Item(table.name, numbers, shape, partial(_write_records, table=table), page_bytes)
    for table in tables:
        if table.strips is not None:
            places, content = strip_names(table.name)
            yield _array_item(places, table.strips.places)
            # Whole lines are read of them, the last one from anywhere inside of them.
            write = partial(_write_strips, strips=table.strips)
            yield _Item(content, numbers, (table.strips.size_bytes,), write, behind_bytes=CACHE_LINE_BYTES)
        for entry in table.spec.apart:
            values: Any = table.arrays[entry.name]
            *offsets, content = array_names(entry)
            for name in offsets:
                yield _array_item(name, values.offsets)
                values = values.values
            yield _array_item(content, values)


def _array_item(name: str, array: Array | Pieces) -> _Item:
    return _Item(name, array.dtype, array.shape, partial(_write_array, array=array))


def _plan(items: Sequence[_Item]) -> tuple[dict[str, ArrayPlace], list[tuple[str, int, int]], int]:
    """Return where arrays lie behind the header, the gaps between them, and how many bytes all that has."""
    arrays: dict[str, ArrayPlace] = {}
    padding: list[tuple[str, int, int]] = []
    end = 0
    for item in items:
        place = arrays[item.name] = ArrayPlace(end, item.dtype, tuple(int(k) for k in item.shape), "")
        stop = end + place.size_bytes
        end = round_up(stop + item.behind_bytes, item.align_bytes)
        if end > stop:
            padding.append((f"padding.{len(padding)}", stop, end))
    return arrays, padding, end


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


def _check_names(spec: Spec) -> None:
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


def _write_records(blocks: Blocks, *, table: ChunkTable) -> str:
    width, num_rows = table.spec.record_bytes, table.num_rows
    packer = record_packer(table.arrays, table.spec)
    has_gaps = sum(entry.value_bytes for entry in table.spec.fixed) < width

    def lay(block: Array, start: int, stop: int) -> None:
        if has_gaps:
            block[:] = 0
        packer.pack(block, start, stop)

    def fitting(start: int, num_bytes: int) -> int:
        return min(start + num_bytes // width, num_rows)

    return _write_rows(blocks, num_rows, fitting, lambda start, stop: (stop - start) * width, lay)


def _write_strips(blocks: Blocks, *, strips: Strips) -> str:
    return _write_rows(blocks, len(strips.places), strips.fitting, strips.num_bytes, strips.lay)


def _write_rows(
    blocks: Blocks,
    num_rows: int,
    fitting: Callable[[int, int], int],
    num_bytes: Callable[[int, int], int],
    lay: Callable[[Array, int, int], None],
) -> str:
    """Write rows, laid where they are written from: only one that spans two huge pages is copied once more.

    Args:
        blocks: Where they go.
        num_rows: How many there are.
        fitting: Says up to which row they fit into so many bytes, from a row on.
        num_bytes: Says how many some rows take.
        lay: Lays some rows at the beginning of memory.
    """
    digest, start = xxhash.xxh3_64(), 0
    while start < num_rows:
        room = blocks.room()
        stop = fitting(start, min(len(room), _BLOCK_BYTES))
        is_whole = stop > start
        stop = max(stop, start + 1)
        laid = room[: num_bytes(start, stop)] if is_whole else np.empty(num_bytes(start, stop), dtype=np.uint8)
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
        data = part.reshape(-1).view(np.uint8).data if part.nbytes else b""
        begin = 0
        while begin < len(data):
            # Up to the next border of what is written in one call.
            piece = data[begin : begin + _PIECE_BYTES - blocks.end % _PIECE_BYTES]
            digest.update(piece)
            blocks.add(piece)
            begin += len(piece)
    return digest.hexdigest()


_kept = threading.local()


class Blocks:
    """Collects what is written until it fills a huge page.

    Args:
        begin: Where the first byte goes. What lies before it is written as zeros, up to a huge page's border, until
            `close` is told what it is.

    Attributes:
        end: Where the next byte goes.
    """

    def __init__(self, fd: int, files: Files, *, begin: int) -> None:
        self._fd = fd
        self._files = files
        self._block = _block()
        self._written = begin // HUGE_BYTES * HUGE_BYTES
        self._block[: begin - self._written] = 0
        self.end = begin

    def add(self, data: bytes | memoryview) -> None:
        """Write bytes behind what there is."""
        rest = memoryview(data)
        while rest:
            at = self.end - self._written
            piece = rest[: HUGE_BYTES - at]
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
        """Write what was collected, and last the beginning of the file: in one call if all lies in one huge page.

        Args:
            beginning: The first bytes of the file, as many as `begin` left room for.
        """
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


def _block() -> Array:
    """Return this thread's block: fresh memory costs more than filling it."""
    kept: Array | None = getattr(_kept, "block", None)
    if kept is None:
        kept = _kept.block = np.empty(HUGE_BYTES, dtype=np.uint8)
    return kept


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
