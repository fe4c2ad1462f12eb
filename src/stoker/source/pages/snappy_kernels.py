"""The compiled loop that undoes snappy, the codec that most writers use unless told otherwise.

No library that is always there offers it by an address, as the system's zstd does: each page would have to be given to
Arrow's by a call from Python.

Source:
    Snappy's format_description.txt: a length, then literals and copies of what came before.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from numba import types

from stoker.addresses import copy, load_1, load_4, load_few, load_varint, mover
from stoker.compiling import compile_loop

_move_1, _move_8 = mover(8, 8), mover(64, 64)
# What is copied at once where there is room for more than is asked for.
_STEP = 8
# Lengths of literals from here on stand in the bytes behind the tag.
_SHORT = 60


@compile_loop(types.int64(types.int64, types.int64, types.int64, types.int64))
def unsnap(source, source_end, target, num_bytes):
    """Write what was compressed between two addresses, and return how many bytes that is; -1 where something is wrong.

    Args:
        source: Address of what was compressed.
        source_end: Where it ends.
        target: Where it goes.
        num_bytes: Room there, and what is expected.
    """
    promised, source = load_varint(source, source_end)
    if source == 0 or promised != num_bytes:
        return -1
    begin, end = target, target + num_bytes
    while source < source_end:
        tag = load_1(source)
        source += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= _SHORT:
                num_more = length - _SHORT + 1
                if source_end - source < num_more:
                    return -1
                length = load_few(source, num_more)
                source += num_more
            length += 1
            if length > source_end - source or length > end - target:
                return -1
            if length <= 2 * _STEP and source_end - source >= 2 * _STEP and end - target >= 2 * _STEP:
                _move_8(target, source)
                _move_8(target + _STEP, source + _STEP)
            else:
                copy(target, source, length)
            source += length
            target += length
            continue
        if kind == 1:
            if source >= source_end:
                return -1
            length = ((tag >> 2) & 7) + 4
            distance = ((tag >> 5) << 8) | load_1(source)
            source += 1
        else:
            length = (tag >> 2) + 1
            num_more = 2 if kind == 2 else 4
            if source_end - source < num_more:
                return -1
            distance = load_few(source, 2) if kind == 2 else load_4(source)
            source += num_more
        if distance == 0 or distance > target - begin or length > end - target:
            return -1
        back, stop = target - distance, target + length
        if end - target >= length + 2 * _STEP:
            # What is nearer than a step repeats itself: twice as much of it each time, until it is as far as that.
            while target - back < _STEP and target < stop:
                _move_8(target, back)
                target += target - back
            while target < stop:
                _move_8(target, back)
                target += _STEP
                back += _STEP
        else:
            for i in range(length):
                _move_1(target + i, back + i)
        target = stop
    return num_bytes if target == end else -1
