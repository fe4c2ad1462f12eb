"""The compiled loop that copies the lists of strips, each field's side by side, without asking how long a list is.

    strips   ┆ a0 │ b0 ┆ a1  │b1┆ a2 │   b2 ┆        the lists of a row, anywhere in the window
    pieces   a0 a0 a1 a1 a2 | b0 b1 b2 b2            64 bytes each, some rows at a time, a field after the other
    target   ├ a0 ┤├ a1 ┤├ a2 ┤   ├ b0 ┤├b1┤├ b2 ┤   what a piece has too much is written over by the next list

No processor guesses where a list of any length ends, and each wrong guess stops all that it has under way. So lists are
cut into pieces first, which needs no guess: for each list eight are written down, and the next list's begin behind
those that it has. Then one loop copies all pieces, and asks for those of the next rows meanwhile
(docs/decisions/0018).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.gather.moves import (
    BYTES,
    INT64,
    INT64_2D,
    LINE_BYTES,
    NUM_STEPS,
    OUT_BYTES,
    OUT_INT64,
    compiled,
    copy_lines,
    fence,
    prefetch,
    stream_lines,
    write_steps,
)

# Rows that are cut and asked for together, so far ahead of their turn: fewer come too late, more do not stay at hand.
# Two threads of an EPYC (Zen 4), two histories and a word, nanoseconds a row: 16 rows 70, 32 rows 55, 64 rows 60.
_ROWS = 32
# Together they have so many bytes at most; a row of more is copied by itself. Rows of 200 short lists, 6.4 kB: two at a
# time 2,900 nanoseconds each, ten 2,100, since each field of a block has a price.
_BLOCK_BYTES = 64 << 10
# What each field's stage has room for beside whole lines of a block: what was left before, a line that is begun, and
# what its last piece has too much.
_STAGE_ROOM_BYTES = 3 * LINE_BYTES
_LAST = LINE_BYTES - 1
_ONE, _STEPS, _SHIFT = np.uint64(1), np.uint64(NUM_STEPS), np.uint64(6)


@compiled(INT64, INT64_2D, types.int64, types.int64, returns=types.int64)
def _num_bytes(value_bytes, offsets, start, stop):
    num_bytes = 0
    for f in range(len(value_bytes)):
        num_bytes += (offsets[f, stop] - offsets[f, start]) * value_bytes[f]
    return num_bytes


@compiled(types.int64, returns=types.int64)
def _whole(num_bytes):
    """Return how many bytes of these are whole lines."""
    return num_bytes - num_bytes % LINE_BYTES


@compiled(INT64, INT64_2D, types.int64, returns=types.int64)
def _end_of_block(value_bytes, offsets, start):
    """Return behind which row the block ends that begins with row `start`."""
    num_rows = min(_ROWS, offsets.shape[1] - 1 - start)
    while num_rows > 1 and _num_bytes(value_bytes, offsets, start, start + num_rows) > _BLOCK_BYTES:
        num_rows //= 2
    return start + num_rows


@compiled(
    *(BYTES, INT64_2D, INT64, INT64_2D, INT64, INT64, types.uint64, types.uint64, OUT_INT64, OUT_INT64),
    returns=types.uint64,
)
def _cut(memory, sources, value_bytes, offsets, begins, shifts, start, stop, piece_sources, piece_places):
    """Cut the lists of rows [start, stop) into pieces, and return how many these are.

    The first line of each strip is asked for. `shifts` says how far each field's stage is from its place in the batch.
    """
    num = types.uint64(0)
    for f in range(len(value_bytes)):
        value, starts, borders, begin = value_bytes[f], sources[f], offsets[f], begins[f] + shifts[f]
        for i in range(start, stop):
            source, place = starts[i], begin + borders[i] * value
            num_pieces = types.uint64((borders[i + _ONE] - borders[i]) * value + _LAST) >> _SHIFT
            if f == 0:
                prefetch(memory, source)
            write_steps(piece_sources, num, source)
            write_steps(piece_places, num, place)
            if num_pieces > _STEPS:
                for piece in range(_STEPS, num_pieces, _STEPS):
                    further = types.int64(piece) * LINE_BYTES
                    write_steps(piece_sources, num + piece, source + further)
                    write_steps(piece_places, num + piece, place + further)
            num += num_pieces
    return num


@compiled(BYTES, INT64, INT64, types.uint64, INT64, types.uint64, OUT_BYTES)
def _copy_pieces(memory, sources, places, num, next_sources, num_next, target):
    """Copy the pieces of a block, and ask for those of the next one: for the line in which each of these ends."""
    both = min(num, num_next)
    for k in range(both):
        prefetch(memory, next_sources[k] + _LAST)
        copy_lines(target, places[k], memory, sources[k], 1)
    for k in range(both, num):
        copy_lines(target, places[k], memory, sources[k], 1)
    for k in range(both, num_next):
        prefetch(memory, next_sources[k] + _LAST)


@compiled(BYTES, INT64_2D, INT64, INT64_2D, INT64, types.int64, OUT_BYTES, OUT_BYTES, types.boolean)
def _copy_long(memory, sources, value_bytes, offsets, begins, row, rests, out, streams):
    """Copy the lists of a row that is a block by itself: the line that was begun, what follows, and begin another."""
    for f in range(len(value_bytes)):
        place, end = begins[f] + offsets[f, row] * value_bytes[f], begins[f] + offsets[f, row + 1] * value_bytes[f]
        if streams:
            copy_lines(out, _whole(place), rests, f * LINE_BYTES, 1)
        copy_lines(out, place, memory, sources[f, row], (end - place + _LAST) // LINE_BYTES)
        if streams:
            copy_lines(rests, f * LINE_BYTES, out, _whole(end), 1)


@compiled(BYTES, INT64_2D, INT64, INT64_2D, INT64, OUT_BYTES, types.boolean)
def copy_strips(memory, sources, value_bytes, offsets, begins, out, streams):
    """Copy the lists of strips, each field's values from `begins[f]` on: a line's border. See `take.copy_fields`.

    What is too much of a list's last piece lies in the same strip, or behind it, where windows have room; in `out` it
    is written over by the next list, or lies between two fields.

    Past the caches (`streams`) they go by way of stages, one a field, whose whole lines go out behind each block:

        stage of a field   ├ 0 ┤├──── 1 ────┤├ 2 ┤├─── 3 ───┤
        out                │ line │ line │ line │ line │ └── begins the next block's stage
    """
    num_fields, num = sources.shape
    most = _BLOCK_BYTES // LINE_BYTES + _ROWS * num_fields + NUM_STEPS
    piece_sources, piece_places = np.empty((2, most), dtype=np.int64), np.empty((2, most), dtype=np.int64)
    stages = np.empty(_BLOCK_BYTES + (num_fields + 1) * _STAGE_ROOM_BYTES, dtype=np.uint8)
    stages = stages[-types.int64(stages.ctypes.data) % LINE_BYTES :]
    target = stages if streams else out
    rests = np.empty(num_fields * LINE_BYTES, dtype=np.uint8)  # of each stage, the line that is begun
    # How far each field's stage is from its place in the batch; none where lists go there straight.
    shifts, next_shifts = -begins if streams else np.zeros(num_fields, dtype=np.int64), np.zeros(num_fields, np.int64)
    start, stop, num_pieces, now = 0, 0, types.uint64(0), 0
    while True:
        # Rows [start, stop) have been cut and asked for; the next block is, before they are copied.
        row = stop
        next_start = next_stop = _end_of_block(value_bytes, offsets, row)
        is_long = _num_bytes(value_bytes, offsets, row, next_stop) > _BLOCK_BYTES
        if not is_long:
            next_start = row
        if streams:
            end = 0  # stages of a block lie side by side, so that they stay in L1
            for f in range(num_fields):
                next_shifts[f] = end - _whole(begins[f] + offsets[f, next_start] * value_bytes[f])
                end += _whole((offsets[f, next_stop] - offsets[f, next_start]) * value_bytes[f]) + _STAGE_ROOM_BYTES
        num_next = _cut(
            *(memory, sources, value_bytes, offsets, begins, next_shifts),
            *(types.uint64(next_start), types.uint64(next_stop), piece_sources[1 - now], piece_places[1 - now]),
        )
        _copy_pieces(
            memory, piece_sources[now], piece_places[now], num_pieces, piece_sources[1 - now], num_next, target
        )
        if streams:
            for f in range(num_fields):
                first = _whole(begins[f] + offsets[f, start] * value_bytes[f])
                last = _whole(begins[f] + offsets[f, stop] * value_bytes[f])
                stream_lines(out, first, stages, first + shifts[f], (last - first) // LINE_BYTES)
                copy_lines(rests, f * LINE_BYTES, stages, last + shifts[f], 1)
        if is_long:
            _copy_long(memory, sources, value_bytes, offsets, begins, row, rests, out, streams)
        if streams:
            for f in range(num_fields):
                last = _whole(begins[f] + offsets[f, next_start] * value_bytes[f])
                if row == num:
                    copy_lines(out, last, rests, f * LINE_BYTES, 1)
                else:
                    copy_lines(stages, last + next_shifts[f], rests, f * LINE_BYTES, 1)
                shifts[f] = next_shifts[f]
        if row == num:
            break
        start, stop, num_pieces, now = next_start, next_stop, num_next, 1 - now
    if streams:
        fence()
