"""Compiled loops that find what samples share, each run once."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from numba import types

from stoker.gather.moves import (
    AHEAD_BYTES,
    BYTES,
    INT64,
    LINE_BYTES,
    MAX_AHEAD,
    MAX_ASKED_BYTES,
    OUT_BYTES,
    OUT_INT32,
    OUT_INT64,
    STREAMED_BYTES,
    compiled,
    copy_lines,
    fence,
    prefetch,
    stream_lines,
)


@compiled(BYTES, types.int64, returns=types.int64)
def _read_run(memory, at):
    run = types.int64(memory[at]) | types.int64(memory[at + 1]) << 8
    return run | types.int64(memory[at + 2]) << 16 | types.int64(memory[at + 3]) << 24


@compiled(BYTES, types.int64, types.int64, INT64, INT64, INT64, OUT_INT64)
def run_rows(memory, num_bytes, offset, first, slot, row, found):
    """Read which run each record is in. See `take.run_rows`."""
    num = len(row)
    for i in range(min(MAX_AHEAD, num)):
        prefetch(memory, row[i] * num_bytes + offset)
    for i in range(num):
        if i + MAX_AHEAD < num:
            prefetch(memory, row[i + MAX_AHEAD] * num_bytes + offset)
        found[i] = first[slot[i]] + _read_run(memory, row[i] * num_bytes + offset)


@compiled(types.int64, OUT_INT64, OUT_INT32, types.int64, returns=types.int64)
def _place_of(row, found, table, begin):
    """Return where in `table`, whose size is a power of two, the number of a row stands, or would.

    Numbers below `begin` are another batch's: nothing stands there.
    """
    mask = len(table) - 1
    place = ((row * 0x1E3779B97F4A7C15) >> 20) & mask
    while table[place] >= begin and found[table[place]] != row:
        place = (place + 1) & mask
    return place


@compiled(INT64, INT64, OUT_INT64, OUT_INT32, OUT_INT64, OUT_INT32)
def distinct(row, sizes, found, number, counts, table):
    """Number different rows of each batch in the order in which they come first. See `take.distinct`.

    A row like the one before it, as in data that is grouped, costs a comparison; others are looked up in `table`.
    """
    num = 0
    end = 0
    for batch in range(len(sizes)):
        start, end = end, end + sizes[batch]
        begin = num
        for i in range(start, end):
            if i > start and row[i] == row[i - 1]:
                number[i] = number[i - 1]
                continue
            place = _place_of(row[i], found, table, begin)
            if table[place] < begin:
                table[place] = num
                found[num] = row[i]
                num += 1
            number[i] = table[place] - begin
        counts[batch] = num - begin


@compiled(
    *(BYTES, INT64, types.int64, OUT_BYTES, types.int64, INT64, INT64, INT64),
    *(OUT_INT64, OUT_INT64, OUT_INT32, OUT_INT64, OUT_INT32),
    returns=types.int64,
)
def take_lines_and_runs(
    memory, index, num_bytes, out, offset, first, slot, sizes, found_slot, found, number, counts, table
):
    """Do what `take_lines`, `run_rows` and `distinct` do, at once. See `take.take_runs`.

    What a record shares is looked up while the record is at hand, and not by a way through memory of its own.
    """
    num = len(index)
    ahead = max(1, min(MAX_AHEAD, AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, MAX_ASKED_BYTES)
    num_lines = num_bytes // LINE_BYTES
    streams = num * num_bytes >= STREAMED_BYTES and out.ctypes.data % LINE_BYTES == 0
    for i in range(min(ahead, num)):
        for byte in range(0, asked, LINE_BYTES):
            prefetch(memory, index[i] * num_bytes + byte)
    num_found = 0
    end = 0
    for batch in range(len(sizes)):
        start, end = end, end + sizes[batch]
        found_before = num_found
        last = -1
        for i in range(start, end):
            if i + ahead < num:
                for byte in range(0, asked, LINE_BYTES):
                    prefetch(memory, index[i + ahead] * num_bytes + byte)
            begin = index[i] * num_bytes
            if streams:
                stream_lines(out, i * num_bytes, memory, begin, num_lines)
            else:
                copy_lines(out, i * num_bytes, memory, begin, num_lines)
            row = first[slot[i]] + _read_run(memory, begin + offset)
            if row == last:
                number[i] = number[i - 1]
                continue
            last = row
            place = _place_of(row, found, table, found_before)
            if table[place] < found_before:
                table[place] = num_found
                found[num_found] = row
                found_slot[num_found] = slot[i]
                num_found += 1
            number[i] = table[place] - found_before
        counts[batch] = num_found - found_before
    if streams:
        fence()
    return num_found
