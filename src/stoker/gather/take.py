"""Gather of random samples from the stitched chunks of a window.

Every array here is an index into one flat array of a `Region`, so nothing depends on how many chunks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker import loops
from stoker.cache.strips import STRIP_UNIT_BYTES
from stoker.offsets import offsets_of, ranges
from stoker.order.epoch import Located
from stoker.spec import CACHE_LINE_BYTES, Array, unit_dtype
from stoker.windows.list_places import Fields

Index = npt.NDArray[np.int64]


_ROWS_AND_LISTS = "stoker.gather.kernels"
_STRETCHES = "stoker.gather.stretch_kernels"
_SHARED = "stoker.gather.shared_kernels"


def take_records(
    records: Array, index: Index, out: Array, *, at: int = 0, places: Index | None = None, compiled: bool = True
) -> None:
    """Copy `records[index]` to `out`, or to some columns or rows of it.

    Args:
        records: uint8, shape [rows of the region, record_bytes].
        index: Rows, shape [B], each known to be in range: that is not checked again.
        out: uint8, contiguous, shape [B, record_bytes] or wider.
        at: Byte of each row of `out` where the record goes.
        places: Row of `out` that each goes to, each known to be in range, shape [B]; None for one after the other.
        compiled: False keeps to NumPy.
    """
    num_bytes = records.shape[1]
    kernels = loops.find(_ROWS_AND_LISTS) if compiled and num_bytes % CACHE_LINE_BYTES == 0 else None
    if kernels is not None and places is not None:
        kernels.put_lines(records.reshape(-1), index, num_bytes, places, out.reshape(-1), out.shape[1], at)
        return
    if kernels is not None:
        kernels.take_lines(records.reshape(-1), index, num_bytes, out.reshape(-1), out.shape[1], at)
        return
    # One opaque item a record moves at memcpy speed; "clip" spares a second pass that looks for bad indices
    # (7.8 against 6.3 million rows/s, 624-byte records).
    item = np.dtype((np.void, num_bytes))
    if places is not None:
        if len(index):
            rows: Array = np.ndarray(len(out), item, buffer=out, offset=at, strides=(out.shape[1],))
            rows[places] = np.take(records.view(item)[:, 0], index, mode="clip")
    elif num_bytes == out.shape[1]:
        np.take(records.view(item)[:, 0], index, out=out.view(item)[:, 0], mode="clip")
    elif len(index):
        target: Array = np.ndarray(len(index), item, buffer=out, offset=at, strides=(out.shape[1],))
        target[...] = np.take(records.view(item)[:, 0], index, mode="clip")


class Places(NamedTuple):
    """Places of samples in a window that have been found.

    Attributes:
        slot: Chunk of each, as its place in the window. Shape [B].
        row: Row of each, counted through the window, known to be in range. Shape [B].
    """

    slot: Index
    row: Index

    @property
    def num(self) -> int:
        """B."""
        return len(self.row)


Where: TypeAlias = Places | Located
"""Places of samples in a window, found or still to be found."""


def take_located(records: Array, where: Where, out: Array) -> None:
    """Copy the records at some places to `out`; places still to be found are found in the same call.

    Each call gives up the interpreter's lock and waits until it gets it back.

    Args:
        records: uint8, shape [rows of the region, record_bytes].
        where: Their places.
        out: uint8, contiguous, shape [B, record_bytes].
    """
    num_bytes = records.shape[1]
    kernels = loops.find(_STRETCHES) if num_bytes % CACHE_LINE_BYTES == 0 else None
    if kernels is None or (stretch := _stretch(where)) is None:
        take_records(records, where.row, out)
    else:
        kernels.take_stretch(*stretch, records.reshape(-1), num_bytes, out.reshape(-1))


def _stretch(where: Where) -> tuple[Any, ...] | None:
    """Return what compiled loops find places by; None where they are found, or lie in several ranges."""
    if isinstance(where, Places):
        return None
    stretch = where.stretch
    return None if stretch is None else (stretch[0], *where.tables)


class Taken(NamedTuple):
    """The lists of several fields, taken; the fields in the order of a strip.

    Attributes:
        offsets: Of the lists of each field. Shape [F, B + 1].
        begins: Where each field's values begin. Shape [F].
        values: The values of all fields, uint8.
        num_bytes: How many bytes of it these take.
    """

    offsets: Array
    begins: Index
    values: Array
    num_bytes: int


def take_rows(
    records: Array,
    fields: Fields,
    where: Where,
    out: Array,
    memory_for: Callable[[int], Array],
    *,
    expected_bytes: int = 0,
) -> Taken | None:
    """Copy records and all lists of rows: what `take_located`, `borders_of` and `copy_lists` do, in one call.

    Each call gives up the interpreter's lock and waits until it gets it back. So the memory for values is asked for
    before it is known how much is needed, and again where it was too little.

    Args:
        records: As in `take_records`; without columns where there are none.
        fields: Where the lists lie.
        where: Their places.
        out: uint8, contiguous, shape [B, record_bytes].
        memory_for: Gives a buffer of so many bytes.
        expected_bytes: How many bytes the values probably take.

    Returns:
        None where only NumPy's ways are there.
    """
    kernels = loops.find(_ROWS_AND_LISTS) if records.shape[1] % CACHE_LINE_BYTES == 0 else None
    if kernels is None:
        return None
    num_fields, num = len(fields.value_bytes), where.num
    stretching = loops.find(_STRETCHES)
    stretch = None if stretching is None else _stretch(where)
    slot, row = (where.slot, where.row) if stretch is None else np.empty((2, num), dtype=np.int64)
    sources = np.empty((num_fields, num), dtype=np.int64)
    offsets = np.empty((num_fields, num + 1), dtype=np.int64)
    begins = np.empty(num_fields, dtype=np.int64)
    values = memory_for(expected_bytes)
    rows = (records.reshape(-1), row, records.shape[1], out.reshape(-1), *fields, slot, sources, offsets, begins)
    if stretching is None or stretch is None:
        num_bytes = kernels.take_rows(*rows, values)
    else:
        num_bytes = stretching.take_rows_of_stretch(*stretch, *rows, values)
    if num_bytes > len(values):
        values = memory_for(num_bytes)
        kernels.copy_fields(fields.memory, fields.value_bytes, sources, offsets, begins, values)
    return Taken(offsets, begins, values, num_bytes)


def copy_fields(
    memory: Array,
    sources: Index,
    value_bytes: Index,
    offsets: Index,
    memory_for: Callable[[int], Array],
    *,
    compiled: bool = True,
) -> Taken:
    """Copy the lists of several fields, one field behind the other, those of a row at a time.

    Args:
        memory: The region as uint8.
        sources: First byte of each list of each field in `memory`, those of a row behind each other. Shape [F, B].
        value_bytes: Bytes of a value of each field, none of them 0. Shape [F].
        offsets: Of each field's lists side by side, in values. Shape [F, B + 1].
        memory_for: Gives a buffer of so many bytes.
        compiled: False keeps to NumPy.
    """
    begins = np.empty(len(value_bytes), dtype=np.int64)
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is not None:
        num_bytes = kernels.room_for_fields(value_bytes, offsets)
        values = memory_for(num_bytes)
        kernels.copy_fields(memory, value_bytes, sources, offsets, begins, values)
        return Taken(offsets, begins, values, num_bytes)
    # Each begins on a cache line, whatever its values are.
    sizes = -(-offsets[:, -1] * value_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    np.cumsum(sizes, out=begins)
    num_bytes = int(begins[-1])
    values = memory_for(num_bytes)
    begins -= sizes
    for f, begin in enumerate(begins.tolist()):
        copy_lists(memory, sources[f], int(value_bytes[f]), offsets[f], values[begin:], compiled=False)
    return Taken(offsets, begins, values, num_bytes)


def extents(words: Index, first: Index, slot: Index, row: Index, *, compiled: bool = True) -> tuple[Index, Index]:
    """Return where each list begins in its chunk, and the offsets of the lists side by side.

    Args:
        words: The region as int64.
        first: What to add to a slot's row to get its place in `words`, shape [K].
        slot: Chunk of each sample, as its place in the window. Shape [B].
        row: Row of each sample. Shape [B].
        compiled: False keeps to NumPy.

    Returns:
        Starts, counted in what the lists are of, shape [B], and offsets, shape [B + 1].
    """
    starts = np.empty(len(slot), dtype=np.int64)
    offsets = np.empty(len(slot) + 1, dtype=np.int64)
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is not None:
        kernels.extents(words, first, slot, row, starts, offsets)
    else:
        at = first[slot] + row
        starts[:] = words[at]
        offsets[0] = 0
        np.cumsum(words[at + 1] - starts, out=offsets[1:])
    return starts, offsets


def inner_extents(
    words: Index, first: Index, slot: Index, starts: Index, outer: Index, *, compiled: bool = True
) -> tuple[Index, Index, Index]:
    """Return where the values of rows of lists of lists lie: side by side in their chunk, all those of a row.

    Args:
        words: The region as int64.
        first: What to add to an inner list's number in a slot's chunk to get its place in `words`, shape [K].
        slot: Chunk of each row, as its place in the window. Shape [B].
        starts: First inner list of each row, counted in the chunk. Shape [B].
        outer: Offsets of the rows' inner lists side by side. Shape [B + 1].
        compiled: False keeps to NumPy.

    Returns:
        Where the values of each row begin in the chunk, shape [B]; offsets of the rows in all values, shape [B + 1];
        offsets of the inner lists in all values, shape [outer[-1] + 1].
    """
    begins = np.empty(len(slot), dtype=np.int64)
    ends = np.empty(len(slot) + 1, dtype=np.int64)
    offsets = np.empty(int(outer[-1]) + 1, dtype=np.int64)
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is not None:
        kernels.inner_extents(words, first, slot, starts, outer, begins, ends, offsets)
    else:
        at, num = first[slot] + starts, np.diff(outer)
        begins[:] = words[at]
        ends[:] = offsets_of(words[at + num] - begins)
        offsets[0] = 0
        offsets[1:] = words[ranges(at + 1, outer)] + np.repeat(ends[:-1] - begins, num)
    return begins, ends, offsets


def strip_extents(
    halves: npt.NDArray[np.uint32],
    first: Index,
    first_byte: Index,
    value_bytes: Index,
    slot: Index,
    row: Index,
    *,
    compiled: bool = True,
) -> tuple[Index, Index]:
    """Return where the lists of each strip begin in the region, and the offsets of each field's side by side.

    Args:
        halves: The region as uint32.
        first: What to add to a slot's row, times 1 + F, to get its place in `halves`, shape [K].
        first_byte: Where each slot's strips begin in the region, shape [K].
        value_bytes: Bytes of a value of each field. Shape [F].
        slot: Chunk of each sample, as its place in the window. Shape [B].
        row: Row of each sample. Shape [B].
        compiled: False keeps to NumPy.

    Returns:
        First byte of each list, shape [F, B], and offsets, shape [F, B + 1].
    """
    num_fields, num = len(value_bytes), len(slot)
    sources = np.empty((num_fields, num), dtype=np.int64)
    offsets = np.zeros((num_fields, num + 1), dtype=np.int64)
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is not None:
        kernels.strip_extents(halves, first, first_byte, value_bytes, slot, row, sources, offsets)
        return sources, offsets
    places = halves[(first[slot] + row * (1 + num_fields))[:, None] + np.arange(1 + num_fields)].astype(np.int64)
    np.cumsum(places[:, 1:].T, axis=1, out=offsets[:, 1:])
    num_bytes = places[:, 1:].T * value_bytes[:, None]
    sources[:] = first_byte[slot] + places[:, 0] * STRIP_UNIT_BYTES
    sources[1:] += np.cumsum(num_bytes[:-1], axis=0)
    return sources, offsets


def copy_lists(
    memory: Array, sources: Index, value_bytes: int, offsets: Index, out: Array, *, compiled: bool = True
) -> None:
    """Copy the values of lists to `out`, side by side.

    Args:
        memory: The region as uint8.
        sources: First byte of each list in `memory`, a multiple of what `unit_dtype` gives. Shape [B].
        value_bytes: Bytes of a value, not 0.
        offsets: Where each list begins in `out`, shape [B + 1], in values.
        out: uint8, with room for all of them.
        compiled: False keeps to NumPy.
    """
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is not None:
        kernels.copy_lists(memory, sources, value_bytes, offsets, out)
        return
    unit = unit_dtype(value_bytes)
    units = ranges(sources // unit.itemsize, offsets * (value_bytes // unit.itemsize))
    np.take(memory.view(unit), units, out=out[: len(units) * unit.itemsize].view(unit), mode="clip")


def expand(slot: Index, starts: Index, offsets: Index, *, compiled: bool = True) -> tuple[Index, Index]:
    """Return slot and row of every row of some units, or of every inner list of outer ones, which lie side by side.

    Args:
        slot: Chunk of each unit, as its place in the window. Shape [B].
        starts: Its first row. Shape [B].
        offsets: Units side by side, in rows. Shape [B + 1].
        compiled: False keeps to NumPy.

    Returns:
        Slot and row of each row, shapes [offsets[-1]].
    """
    kernels = loops.find(_ROWS_AND_LISTS) if compiled else None
    if kernels is None:
        return np.repeat(slot, np.diff(offsets)), ranges(starts, offsets)
    found_slot, found_row = np.empty((2, int(offsets[-1])), dtype=np.int64)
    kernels.expand(slot, starts, offsets, found_slot, found_row)
    return found_slot, found_row


def run_rows(records: Array, offset: int, first: Index, slot: Index, row: Index, *, compiled: bool = True) -> Index:
    """Return where lies what each sample shares: its run, as a row counted through the window. Shape [B].

    Args:
        records: uint8, shape [rows of the region, record_bytes].
        offset: Byte of a record where its run's number begins, a uint32.
        first: Row of each slot's first run, shape [K].
        slot: Chunk of each sample, as its place in the window. Shape [B].
        row: Row of each sample, each known to be in range. Shape [B].
        compiled: False keeps to NumPy.
    """
    kernels = loops.find(_SHARED) if compiled else None
    if kernels is None:
        runs = records[:, offset : offset + 4].view(np.uint32)[:, 0]
        found: Index = first[slot] + runs[row]
        return found
    found = np.empty(len(row), dtype=np.int64)
    kernels.run_rows(records.reshape(-1), records.shape[1], offset, first, slot, row, found)
    return found


class Distinct(NamedTuple):
    """Rows of some batches, of each batch each once, in the order in which they come first.

    Attributes:
        row: Those of one batch behind those of the one before it. Shape [U].
        number: Which of its batch's each one is, int32. Shape [B].
        counts: How many each batch has. Shape [N].
    """

    row: Index
    number: Array
    counts: Index


class Runs(NamedTuple):
    """What samples of some batches share, of each batch each run once, in the order in which they come first.

    Attributes:
        slot: Chunk of each run, as its place in the window. Shape [U].
        row: Its row, counted through the window. Shape [U].
        number: Which of its batch's runs each sample has, int32. Shape [B].
        counts: How many runs each batch has. Shape [N].
    """

    slot: Index
    row: Index
    number: Array
    counts: Index


def take_runs(
    records: Array,
    slot: Index,
    row: Index,
    out: Array,
    *,
    offset: int,
    first: Index,
    sizes: Index,
    compiled: bool = True,
) -> Runs:
    """Copy `records[row]` to `out`, and find what they share: what `take_records`, `run_rows` and `distinct` do.

    Args:
        records: uint8, shape [rows of the region, record_bytes].
        slot: Chunk of each sample, as its place in the window. Shape [B].
        row: Row of each sample, each known to be in range. Shape [B].
        out: uint8, contiguous, shape [B, record_bytes].
        offset: Byte of a record where its run's number begins, a uint32.
        first: Row of each slot's first run, shape [K].
        sizes: Samples of each batch, shape [N].
        compiled: False keeps to NumPy.
    """
    num_bytes = records.shape[1]
    kernels = loops.find(_SHARED) if compiled and num_bytes % CACHE_LINE_BYTES == 0 else None
    if kernels is None:
        take_records(records, row, out, compiled=compiled)
        runs = run_rows(records, offset, first, slot, row, compiled=compiled)
        found = distinct(runs, sizes, compiled=compiled)
        return Runs(np.searchsorted(first, found.row, side="right") - 1, *found)
    num = len(row)
    found_slot, found_row = np.empty((2, num), dtype=np.int64)
    number, counts = np.empty(num, dtype=np.int32), np.empty(len(sizes), dtype=np.int64)
    num_found = kernels.take_lines_and_runs(
        *(records.reshape(-1), row, num_bytes, out.reshape(-1), offset, first, slot, sizes),
        *(found_slot, found_row, number, counts, _empty_table(sizes)),
    )
    return Runs(found_slot[:num_found], found_row[:num_found], number, counts)


def _empty_table(sizes: Index) -> Array:
    """Return a table to look up the rows of one batch after the other in.

    Half empty at least, so that a place is found in a try or two.
    """
    most = int(sizes.max(initial=0))
    return np.full(max(2, 1 << (2 * most - 1).bit_length()), -1, dtype=np.int32)


def distinct(row: Index, sizes: Index, *, compiled: bool = True) -> Distinct:
    """Return the rows of each batch once, in the order in which they come first, and which of them each one is.

    Args:
        row: Rows, none below 0. Shape [B].
        sizes: Rows of each batch, shape [N].
        compiled: False keeps to NumPy.
    """
    number, counts = np.empty(len(row), dtype=np.int32), np.empty(len(sizes), dtype=np.int64)
    kernels = loops.find(_SHARED) if compiled else None
    if kernels is not None:
        found = np.empty(len(row), dtype=np.int64)
        kernels.distinct(row, sizes, found, number, counts, _empty_table(sizes))
        return Distinct(found[: counts.sum()], number, counts)
    rows, begin = [row[:0]], 0
    for batch, size in enumerate(sizes.tolist()):
        end = begin + size
        _, first, inverse = np.unique(row[begin:end], return_index=True, return_inverse=True)
        order = np.argsort(first)
        places = np.empty(len(first), dtype=np.int32)
        places[order] = np.arange(len(first), dtype=np.int32)
        number[begin:end] = places[inverse.reshape(-1)]
        counts[batch] = len(first)
        rows.append(row[begin:end][first[order]])
        begin = end
    return Distinct(np.concatenate(rows), number, counts)
