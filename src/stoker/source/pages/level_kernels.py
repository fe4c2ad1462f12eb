"""The compiled loops over runs of small numbers: levels, which say what is null and where lists begin.

Source:
    Apache Parquet format 2.11: Encodings.md (RLE and bit-packing hybrid); Dremel's levels as in its README.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.addresses import load_1, load_few, load_varint, store_8
from stoker.compiling import compile_loop, writes
from stoker.source.pages.numbers import ROWS, VALUES

_OUT_BYTES, _OUT_INT64, _OUT_INT64_2D = writes(types.uint8), writes(types.int64), writes(types.int64, 2)

# A cursor: where the next run begins, where all of them end, what is left of this one, whether it repeats one value,
# that value, where its packed bits begin, and the next of these bits.
NEXT, END, LEFT, REPEATS, VALUE, BITS, BIT = range(7)
NUM_CURSOR_NUMBERS = 7

# Eight bytes: a one in each, 127 in each, and in byte k bit k. Without a sign: of numbers that have one the compiler
# believes that they never overflow.
ONES = 0x0101010101010101
_ONES, _127S, _DIAGONAL = np.uint64(ONES), np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8040201008040201)
_7, _56 = np.uint64(7), np.uint64(56)


@compile_loop(types.boolean(_OUT_INT64, types.int64))
def next_run(cursor, width):
    """Begin the next run of numbers of `width` bits, at most 32; False where there is none, or it is cut short."""
    at, end = cursor[NEXT], cursor[END]
    header, at = load_varint(at, end)
    if at == 0:
        return False
    cursor[REPEATS] = 1 - (header & 1)
    if header & 1:
        num_bytes = (header >> 1) * width
        cursor[LEFT] = (header >> 1) * 8
        cursor[BITS] = at
        cursor[BIT] = 0
        if num_bytes > end - at:
            # The last run of a page may lack the bits that pad its last group.
            if width == 0:
                return False
            cursor[LEFT] = (end - at) * 8 // width
            num_bytes = end - at
        at += num_bytes
    else:
        num_bytes = (width + 7) // 8
        if num_bytes > end - at:
            return False
        cursor[VALUE] = load_few(at, num_bytes)
        cursor[LEFT] = header >> 1
        at += num_bytes
    cursor[NEXT] = at
    return cursor[LEFT] > 0


@compile_loop(types.void(_OUT_INT64, types.int64, types.int64))
def begin_runs(cursor, at, end):
    """Set a cursor before the first of the runs between two addresses."""
    cursor[NEXT] = at
    cursor[END] = end
    cursor[LEFT] = 0


@compile_loop(types.void(_OUT_INT64, types.int64, types.int64))
def begin_packed(cursor, bits, num):
    """Set a cursor to one run of `num` packed numbers, which begin at the address `bits`."""
    begin_runs(cursor, bits, bits)
    cursor[LEFT] = num
    cursor[REPEATS] = 0
    cursor[BITS] = bits
    cursor[BIT] = 0


@compile_loop(types.int64(_OUT_INT64, types.int64, _OUT_BYTES, types.int64, types.boolean))
def flat_levels(cursor, num, valid, row, is_noted):
    """Return how many of `num` rows have a value, from levels of one bit; -1 where they are cut short.

    Args:
        cursor: Of their runs.
        num: How many rows.
        valid: Which rows have a value.
        row: The first of them.
        is_noted: Whether `valid` is filled.
    """
    num_there = np.int64(0)
    while num > 0:
        if cursor[LEFT] == 0 and not next_run(cursor, 1):
            return -1
        n = min(num, cursor[LEFT])
        if cursor[REPEATS]:
            there = cursor[VALUE] & 1
            if cursor[VALUE] > 1:
                return -1
            num_there += there * n
            if is_noted:
                valid[row : row + n] = there
        else:
            bits, bit = cursor[BITS], cursor[BIT]
            first = types.int64(valid.ctypes.data) + row
            i = 0
            while i < n:
                if bit & 7 == 0 and n - i >= 8:
                    # Each byte gets all eight bits, keeps its own, and is one if that is there.
                    own = (np.uint64(load_1(bits + (bit >> 3))) * _ONES) & _DIAGONAL
                    eight = ((own + _127S) >> _7) & _ONES
                    num_there += np.int64((eight * _ONES) >> _56)
                    if is_noted:
                        store_8(first + i, np.int64(eight))
                    bit += 8
                    i += 8
                    continue
                byte = load_1(bits + (bit >> 3)) >> (bit & 7)
                num_here = min(8 - (bit & 7), n - i)
                for k in range(num_here):
                    there = (byte >> k) & 1
                    num_there += there
                    if is_noted:
                        valid[row + i + k] = there
                bit += num_here
                i += num_here
            cursor[BIT] = bit
        cursor[LEFT] -= n
        row += n
        num -= n
    return num_there


@compile_loop(types.int64(_OUT_INT64_2D, types.int64, types.int64, types.int64, _OUT_INT64, _OUT_INT64))
def list_levels(cursors, num, full, empty, offsets, state):
    """Find where lists begin, from their levels.

    Args:
        cursors: Of repetition levels, one bit each, and of definition levels.
        num: How many entries: a value each, or an empty list.
        full: Definition level of a value.
        empty: That of an empty list; -1 where there is none.
        offsets: Of lists; those that begin are filled in.
        state: Of the column chunk; rows are counted.

    Returns:
        How many values there are; -1 where levels are cut short, a value or list is null, or lists are too many.
    """
    repetition, definition = cursors[0], cursors[1]
    width = 2 if full > 1 else 1
    mask = (1 << width) - 1
    row = state[ROWS]
    before = state[VALUES]
    value = before
    while num > 0:
        if repetition[LEFT] == 0 and not next_run(repetition, 1):
            return -1
        if definition[LEFT] == 0 and not next_run(definition, width):
            return -1
        n = min(num, repetition[LEFT], definition[LEFT])
        if repetition[REPEATS] and repetition[VALUE] == 1 and definition[REPEATS] and definition[VALUE] == full:
            # Values that follow others of their list: most are, and come so in runs.
            if row == 0:
                return -1
            value += n
        else:
            if repetition[REPEATS] and repetition[VALUE] > 1:
                return -1
            for i in range(n):
                follows, level = repetition[VALUE], definition[VALUE]
                if not repetition[REPEATS]:
                    bit = repetition[BIT] + i
                    follows = (load_1(repetition[BITS] + (bit >> 3)) >> (bit & 7)) & 1
                if not definition[REPEATS]:
                    bit = definition[BIT] + i * width
                    level = (load_1(definition[BITS] + (bit >> 3)) >> (bit & 7)) & mask
                if follows == 0:
                    if row >= len(offsets) - 1:
                        return -1
                    offsets[row] = value
                    row += 1
                elif row == 0:
                    return -1
                if level == full:
                    value += 1
                elif level != empty or follows != 0:
                    return -1
            repetition[BIT] += n
            definition[BIT] += n * width
        repetition[LEFT] -= n
        definition[LEFT] -= n
        num -= n
    state[ROWS] = row
    return value - before
