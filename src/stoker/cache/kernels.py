"""The compiled loops that pack records, a few rows of many columns at a time, and lay lists side by side.

Imported where loops are compiled; see `machine_code`. `pack.py` and `strips.py` have the same
in plain NumPy for machines without numba; both are held equal by tests. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from numba import types

from stoker.addresses import copy, mover, zero
from stoker.compiling import compile_loop, reads

# Rows of one column before the next column: their part of the records stays in the first-level cache, and the next
# cache lines of the column are on their way. 70 columns, records of 640 bytes: 16 to 256 rows 13 GB/s, 512 rows 6.
_ROWS = 64

_move_1 = mover(8, 8)
_move_2 = mover(16, 16)
_move_4 = mover(32, 32)
_move_8 = mover(64, 64)
_widen_i1 = mover(8, 64)
_widen_i2 = mover(16, 64)
_widen_i4 = mover(32, 64)
_widen_u1 = mover(8, 64, is_signed=False)
_widen_u2 = mover(16, 64, is_signed=False)
_widen_u4 = mover(32, 64, is_signed=False)


@compile_loop("void(int64[:, ::1], int64, int64, int64, int64)")
def pack(jobs, target, record_bytes, start, stop):
    """Lay rows [start, stop) of all jobs side by side at the address `target`. See `pack.Packer`."""
    step = record_bytes
    for first in range(start, stop, _ROWS):
        num = min(_ROWS, stop - first)
        for j in range(jobs.shape[0]):
            width = jobs[j, 1]
            at = jobs[j, 0] + first * width
            to = target + (first - start) * step + jobs[j, 2]
            way = jobs[j, 3]
            if way == 4:
                for i in range(num):
                    _move_4(to + i * step, at + i * 4)
            elif way == 8:
                for i in range(num):
                    _move_8(to + i * step, at + i * 8)
            elif way == 14:
                for i in range(num):
                    _widen_i4(to + i * step, at + i * 4)
            elif way == 1:
                for i in range(num):
                    _move_1(to + i * step, at + i)
            elif way == 2:
                for i in range(num):
                    _move_2(to + i * step, at + i * 2)
            elif way == 11:
                for i in range(num):
                    _widen_i1(to + i * step, at + i)
            elif way == 12:
                for i in range(num):
                    _widen_i2(to + i * step, at + i * 2)
            elif way == 21:
                for i in range(num):
                    _widen_u1(to + i * step, at + i)
            elif way == 22:
                for i in range(num):
                    _widen_u2(to + i * step, at + i * 2)
            elif way == 24:
                for i in range(num):
                    _widen_u4(to + i * step, at + i * 4)
            else:
                for i in range(num):
                    copy(to + i * step, at + i * width, width)


@compile_loop(types.void(*[reads(types.int64)] * 2, types.Array(types.uint32, 2, "C", readonly=True), types.int64))
def lay_strips(sources, value_bytes, places, target):
    """Lay the lists of rows side by side, a strip a row, at the address `target`. See `strips.Strips.lay`.

    Args:
        sources: Address of each field's first list; the next ones lie behind it.
        value_bytes: Of each field.
        places: Of the rows.
        target: Where the first strip goes.
    """
    at = sources.copy()
    begin = places[0, 0] if len(places) else types.uint32(0)
    for i in range(len(places)):
        to = target + types.int64(places[i, 0] - begin) * 8
        end = 0
        for f in range(len(at)):
            num_bytes = types.int64(places[i, f + 1]) * value_bytes[f]
            copy(to + end, at[f], num_bytes)
            at[f] += num_bytes
            end += num_bytes
        for byte in range(end, (end + 7) // 8 * 8):
            zero(to + byte)
