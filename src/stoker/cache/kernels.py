"""The compiled loops that pack records, a few rows of many columns at a time, and lay lists side by side.

Imported on first use only, because numba takes a tenth of a second to import. `pack.py` and `strips.py` have the same
in plain NumPy for machines without numba; both are held equal by tests. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stoker.compiling import compile_loop, reads

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


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _zero(_typing_context: Any, target: Any) -> Any:
    """Write a byte of zeros to an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(ir.IntType(8)(0), builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(target), generate


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
            _copy(to + end, at[f], num_bytes)
            at[f] += num_bytes
            end += num_bytes
        for byte in range(end, (end + 7) // 8 * 8):
            _zero(to + byte)
