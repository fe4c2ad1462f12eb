"""The compiled loop that packs records: one pass over many columns, a few rows of each at a time.

Imported on first use only, because numba takes a tenth of a second to import. `pack.py` has the same in plain NumPy for
machines without numba; the two are held equal by a test. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stoker.compiling import compile_loop

# Rows of one column before the next column: their part of the records stays in the first-level cache, and the next
# cache lines of the column are on their way. 70 columns, records of 640 bytes: 16 to 256 rows 13 GB/s, 512 rows 6.
_ROWS = 64


def _mover(bits: int, to_bits: int, *, is_signed: bool = True) -> Any:
    """Return a function that copies one number between two addresses, widened where it is narrower there."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def move(_typing_context: Any, target: Any, source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[1], ir.IntType(bits).as_pointer()))
            value.align = 1
            if to_bits > bits:
                value = (builder.sext if is_signed else builder.zext)(value, ir.IntType(to_bits))
            builder.store(value, builder.inttoptr(arguments[0], ir.IntType(to_bits).as_pointer())).align = 1
            return _context.get_dummy_value()

        return types.void(target, source), generate

    return move


_move_1 = _mover(8, 8)
_move_2 = _mover(16, 16)
_move_4 = _mover(32, 32)
_move_8 = _mover(64, 64)
_widen_i1 = _mover(8, 64)
_widen_i2 = _mover(16, 64)
_widen_i4 = _mover(32, 64)
_widen_u1 = _mover(8, 64, is_signed=False)
_widen_u2 = _mover(16, 64, is_signed=False)
_widen_u4 = _mover(32, 64, is_signed=False)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _copy(_typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy bytes between two addresses."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(arguments[0], byte),
            builder.inttoptr(arguments[1], byte),
            arguments[2],
            ir.Constant(arguments[2].type, 1),
        )
        return _context.get_dummy_value()

    return types.void(target, source, num_bytes), generate


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
                    _copy(to + i * step, at + i * width, width)
