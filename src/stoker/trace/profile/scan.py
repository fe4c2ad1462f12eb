"""A compiled reader of trace events: JSON bytes in, one row of integers an event out.

`json` needs some 10 microseconds an event and builds a dictionary of which six values are used; a trace of a gigabyte
has three million. This reads them at the speed of memory, forgives what profilers write (trailing commas, NaN, control
characters, quotes that nobody escaped) and goes on behind an event that makes no sense.

    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12.5, "dur": 3, "args": {"correlation": 4}}
      └─ PHASE    └─ CATEGORY      └─ NAME         └─ PID    └─ TID    └─ START    └─ LENGTH           └─ CORRELATION

Texts are interned: a row holds the number of a text in a table that lives beside the rows.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM109, SIM110  plain comparisons and loops are what the compiler turns into the fastest code
from __future__ import annotations

import numpy as np

from stoker.compiling import compile_loop

(PHASE, CATEGORY, NAME, PID, TID, START, LENGTH, CORRELATION, BYTES, SEQUENCE, GROUP, LABEL, FLOW, NUM_COLUMNS) = range(
    14
)
"""Columns of a row. Times are nanoseconds; CATEGORY, NAME, GROUP and LABEL are numbers of texts, -1 without one."""

MISSING = -(1 << 63)
"""Stands for a number that is not there."""

TEXT = 1 << 62
"""A PID or TID from here on is the number of a text, plus this."""

MORE, ENDED, ROWS_FULL, TEXTS_FULL = range(4)
"""Why `scan` stopped: it needs more bytes, the array ended, there is no room for rows, or for texts."""

NUM_TEXTS, POOL_USED, DAMAGED = range(3)
"""What `counts` holds: texts in the table, bytes of their pool, events that made no sense."""

_INCOMPLETE, _BROKEN, _NO_ROOM = -1, -2, -3
_QUOTE, _BACKSLASH, _COMMA, _COLON, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 34, 92, 44, 58, 123, 125, 91, 93
_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46
# 9.2e15 microseconds are as many as fit in int64 nanoseconds.
_MAX_US = 9_200_000_000_000_000


def _key(text: str):
    return np.frombuffer(text.encode(), dtype=np.uint8).copy()


_PH, _CAT, _NAME, _PID, _TID, _TS, _DUR, _ARGS, _ID = (
    _key(text) for text in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
)
_CORRELATION, _BYTES, _SEQ, _GROUP, _COLLECTIVE = (
    _key(text) for text in ("correlation", "bytes", "Seq", "Process Group Name", "Collective name")
)


@compile_loop()
def _is_space(char):
    return char == 32 or char == 10 or char == 13 or char == 9


@compile_loop()
def _skip_space(data, at, end):
    while at < end and _is_space(data[at]):
        at += 1
    return at


@compile_loop()
def _skip_string(data, at, end):
    """Return the place behind the string that begins at `at`."""
    at += 1
    while at < end:
        char = data[at]
        if char == _QUOTE:
            return at + 1
        at += 2 if char == _BACKSLASH else 1
    return _INCOMPLETE


@compile_loop()
def skip_value(data, at, end):
    """Return the place behind the value at `at`, -1 where it does not end before `end`, -2 where none begins."""
    if at >= end:
        return _INCOMPLETE
    char = data[at]
    if char == _QUOTE:
        return _skip_string(data, at, end)
    if char == _OPEN or char == _OPEN_LIST:
        depth = 0
        while at < end:
            char = data[at]
            if char == _QUOTE:
                at = _skip_string(data, at, end)
                if at < 0:
                    return _INCOMPLETE
                continue
            if char == _OPEN or char == _OPEN_LIST:
                depth += 1
            elif char == _CLOSE or char == _CLOSE_LIST:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        return _INCOMPLETE
    begin = at
    while at < end:
        char = data[at]
        if char == _COMMA or char == _CLOSE or char == _CLOSE_LIST or _is_space(char):
            return at if at > begin else _BROKEN
        if char == _QUOTE or char == _COLON or char == _OPEN or char == _OPEN_LIST:
            return _BROKEN
        at += 1
    return _INCOMPLETE


@compile_loop()
def _is(data, begin, stop, key):
    if stop - begin != key.size:
        return False
    for index in range(key.size):
        if data[begin + index] != key[index]:
            return False
    return True


@compile_loop()
def _unquote(data, begin, stop):
    """Return the range inside the quotes, or the range itself where there are none."""
    if stop - begin >= 2 and data[begin] == _QUOTE:
        begin += 1
        stop -= 1
    while begin < stop and _is_space(data[begin]):
        begin += 1
    while begin < stop and _is_space(data[stop - 1]):
        stop -= 1
    return begin, stop


@compile_loop()
def parse_ns(data, begin, stop):
    """Return a number of microseconds, in quotes or not, as nanoseconds: exact to the third decimal, then rounded."""
    begin, stop = _unquote(data, begin, stop)
    sign = 1
    at = begin
    if at < stop and (data[at] == _MINUS or data[at] == _PLUS):
        sign = -1 if data[at] == _MINUS else 1
        at += 1
    whole = np.int64(0)
    num_digits = 0
    while at < stop and _ZERO <= data[at] <= _NINE:
        if whole >= _MAX_US:
            return MISSING
        whole = whole * 10 + np.int64(data[at] - _ZERO)
        num_digits += 1
        at += 1
    fraction = np.int64(0)
    num_decimals = 0
    rounding = np.int64(0)
    precise = 0.0
    scale = 0.1
    if at < stop and data[at] == _POINT:
        at += 1
        while at < stop and _ZERO <= data[at] <= _NINE:
            digit = np.int64(data[at] - _ZERO)
            if num_decimals < 3:
                fraction = fraction * 10 + digit
            elif num_decimals == 3:
                rounding = np.int64(1) if digit >= 5 else np.int64(0)
            precise += digit * scale
            scale *= 0.1
            num_decimals += 1
            num_digits += 1
            at += 1
    if num_digits == 0:
        return MISSING
    if at == stop:
        if whole >= _MAX_US:
            return MISSING
        for _ in range(num_decimals, 3):
            fraction *= 10
        return sign * (whole * 1000 + fraction + rounding)
    if data[at] != 69 and data[at] != 101:  # E, e
        return MISSING
    at += 1
    power_sign = 1
    if at < stop and (data[at] == _MINUS or data[at] == _PLUS):
        power_sign = -1 if data[at] == _MINUS else 1
        at += 1
    power = 0
    if at >= stop:
        return MISSING
    while at < stop:
        if not (_ZERO <= data[at] <= _NINE) or power > 400:
            return MISSING
        power = power * 10 + (data[at] - _ZERO)
        at += 1
    value = (whole + precise) * 10.0 ** (power_sign * power) * 1000.0
    if not value < 9.2e18:
        return MISSING
    return sign * np.int64(np.rint(value))


@compile_loop()
def _parse_integer(data, begin, stop):
    """Return an integer, in quotes or not, or MISSING."""
    begin, stop = _unquote(data, begin, stop)
    at = begin
    sign = 1
    if at < stop and data[at] == _MINUS:
        sign = -1
        at += 1
    if at >= stop:
        return MISSING
    value = np.int64(0)
    while at < stop:
        if not (_ZERO <= data[at] <= _NINE) or value > 400_000_000_000_000_000:
            return MISSING
        value = value * 10 + np.int64(data[at] - _ZERO)
        at += 1
    return sign * value


@compile_loop()
def _intern(data, begin, stop, slots, offsets, lengths, counts, pool):
    """Return the number of a text, or _NO_ROOM."""
    size = stop - begin
    code = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
    # Names of kernels are kilobytes of template arguments: some 64 of their bytes tell them apart well enough.
    step = 1 if size <= 64 else size // 64 + 1
    at = stop - 1
    while at >= begin:
        code = (code ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        at -= step
    mask = np.uint64(slots.size - 1)
    slot = (code ^ (code >> np.uint64(29))) & mask
    while slots[slot] >= 0:
        entry = slots[slot]
        if lengths[entry] == size:
            offset = offsets[entry]
            is_same = True
            for index in range(size):
                if pool[offset + index] != data[begin + index]:
                    is_same = False
                    break
            if is_same:
                return np.int64(entry)
        slot = (slot + np.uint64(1)) & mask
    entry = counts[NUM_TEXTS]
    used = counts[POOL_USED]
    if entry >= offsets.size or used + size > pool.size:
        return np.int64(_NO_ROOM)
    for index in range(size):
        pool[used + index] = data[begin + index]
    offsets[entry] = used
    lengths[entry] = size
    slots[slot] = entry
    counts[NUM_TEXTS] = entry + 1
    counts[POOL_USED] = used + size
    return np.int64(entry)


@compile_loop()
def _read_number(data, key, key_stop, value, stop, row, is_args):
    """Put the value of a key into `row` where it is a number; return the column of a text that is wanted, or -1."""
    if is_args:
        if _is(data, key, key_stop, _CORRELATION):
            row[CORRELATION] = _parse_integer(data, value, stop)
        elif _is(data, key, key_stop, _BYTES):
            row[BYTES] = _parse_integer(data, value, stop)
        elif _is(data, key, key_stop, _SEQ):
            row[SEQUENCE] = _parse_integer(data, value, stop)
        elif _is(data, key, key_stop, _GROUP):
            return GROUP
        elif _is(data, key, key_stop, _NAME) or _is(data, key, key_stop, _COLLECTIVE):
            return LABEL
        return -1
    if _is(data, key, key_stop, _PH):
        row[PHASE] = data[value + 1] if stop - value == 3 else 0
    elif _is(data, key, key_stop, _TS):
        row[START] = parse_ns(data, value, stop)
    elif _is(data, key, key_stop, _DUR):
        row[LENGTH] = parse_ns(data, value, stop)
    elif _is(data, key, key_stop, _CAT):
        return CATEGORY
    elif _is(data, key, key_stop, _NAME):
        return NAME
    elif _is(data, key, key_stop, _ID):
        row[FLOW] = _parse_integer(data, value, stop)
    elif _is(data, key, key_stop, _PID) or _is(data, key, key_stop, _TID):
        column = PID if data[key] == _PID[0] else TID
        row[column] = _parse_integer(data, value, stop)
        if row[column] == MISSING:
            return column
    return -1


@compile_loop()
def _event(data, at, end, row, slots, offsets, lengths, counts, pool):
    """Read the event at `at` into `row`, and return the place behind it or why not.

    The members of "args" are read by the same loop, one level deeper: numba's cache on disk cannot hold a function that
    calls itself.
    """
    at += 1
    is_args = False
    while True:
        while at < end and (_is_space(data[at]) or data[at] == _COMMA):
            at += 1
        if at >= end:
            return _INCOMPLETE
        if data[at] == _CLOSE:
            at += 1
            if not is_args:
                return at
            is_args = False
            at = _skip_space(data, at, end)
            if at >= end:
                return _INCOMPLETE
            if data[at] != _COMMA and data[at] != _CLOSE:
                return _BROKEN
            continue
        if data[at] != _QUOTE:
            return _BROKEN
        key = at + 1
        at = _skip_string(data, at, end)
        if at < 0:
            return _INCOMPLETE
        key_stop = at - 1
        at = _skip_space(data, at, end)
        if at >= end:
            return _INCOMPLETE
        if data[at] != _COLON:
            return _BROKEN
        at = _skip_space(data, at + 1, end)
        if at >= end:
            return _INCOMPLETE
        value = at
        if not is_args and data[at] == _OPEN and _is(data, key, key_stop, _ARGS):
            is_args = True
            at += 1
            continue
        at = skip_value(data, at, end)
        if at < 0:
            return at
        text_column = _read_number(data, key, key_stop, value, at, row, is_args)
        if text_column >= 0:
            begin, stop = (value + 1, at - 1) if data[value] == _QUOTE else (value, at)
            if data[value] == _QUOTE or text_column == PID or text_column == TID:
                entry = _intern(data, begin, stop, slots, offsets, lengths, counts, pool)
                if entry < 0:
                    return entry
                row[text_column] = entry + TEXT if text_column == PID or text_column == TID else entry
        at = _skip_space(data, at, end)
        if at >= end:
            return _INCOMPLETE
        if data[at] != _COMMA and data[at] != _CLOSE:
            return _BROKEN


@compile_loop()
def find_event(data, at, end):
    """Return where the next event begins behind damage, or -1: an object in a list, with a key that events have."""
    last = np.uint8(0)
    while at < end:
        char = data[at]
        if char == _OPEN and (last == _COMMA or last == _OPEN_LIST):
            inside = _skip_space(data, at + 1, end)
            if inside + 6 < end and data[inside] == _QUOTE:
                stop = inside + 1
                while stop < inside + 6 and data[stop] != _QUOTE:
                    stop += 1
                for key in (_PH, _CAT, _NAME, _PID, _TID, _TS):
                    if _is(data, inside + 1, stop, key):
                        return at
        if not _is_space(char):
            last = char
        at += 1
    return -1


@compile_loop()
def scan(data, at, end, rows, slots, offsets, lengths, counts, pool):
    """Read events from `data[at:end]`, inside a JSON array, until one of four reasons to stop.

    Args:
        data: Bytes. uint8.
        at: Where to begin: between two events.
        end: Where the bytes end.
        rows: Where rows go. int64 [R, NUM_COLUMNS].
        slots: Hash table of texts; a power of two. int32.
        offsets: Where each text lies in `pool`. int64 [T].
        lengths: Bytes of each. int64 [T].
        counts: Numbers of texts, bytes, damaged events; added to. int64 [3].
        pool: Bytes of all texts.

    Returns:
        Rows written, the place up to which all is read, and why it stopped.
    """
    num_rows = 0
    while True:
        while at < end and (_is_space(data[at]) or data[at] == _COMMA):
            at += 1
        if at >= end:
            return num_rows, at, MORE
        if data[at] == _CLOSE_LIST:
            return num_rows, at + 1, ENDED
        if num_rows == rows.shape[0]:
            return num_rows, at, ROWS_FULL
        row = rows[num_rows]
        row[:] = MISSING
        row[CATEGORY] = row[NAME] = row[GROUP] = row[LABEL] = -1
        row[PHASE] = 0
        stop = np.int64(_BROKEN)
        if data[at] == _OPEN:
            stop = np.int64(_event(data, at, end, row, slots, offsets, lengths, counts, pool))
        if stop == _INCOMPLETE:
            return num_rows, at, MORE
        if stop == _NO_ROOM:
            return num_rows, at, TEXTS_FULL
        if stop == _BROKEN:
            found = find_event(data, at + 1, end)
            if found < 0:
                return num_rows, at, MORE
            counts[DAMAGED] += 1
            at = found
            continue
        at = stop
        if row[PHASE] != 0:
            num_rows += 1


@compile_loop()
def intern_all(texts, begins, sizes, slots, offsets, lengths, counts, pool):
    """Fill fresh tables with texts, in their order, so that each keeps its number."""
    for index in range(begins.size):
        _intern(texts, begins[index], begins[index] + sizes[index], slots, offsets, lengths, counts, pool)
