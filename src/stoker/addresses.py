"""What compiled loops do by address: read and write numbers and bytes, call functions that others have compiled.

Imported by modules of loops alone, which are imported where they are compiled. Nothing
here looks whether an address is right.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def mover(bits: int, to_bits: int, *, is_signed: bool = True) -> Any:
    """Return a function (target, source) that copies one number, widened where it is narrower at its source."""

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


def _loader(bits: int) -> Any:
    """Return a function that reads an unsigned number of so many bits as int64; of 64, its bits."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(_typing_context: Any, source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            value.align = 1
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(source), generate

    return load


load_1, load_4, load_8 = _loader(8), _loader(32), _loader(64)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def load_few(source, num_bytes):
    """Read an unsigned number of at most seven bytes, the lowest first."""
    number = 0
    for i in range(num_bytes):
        number |= load_1(source + i) << (8 * i)
    return number


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def load_varint(source, end):
    """Read a number of at most five bytes, seven bits in each and the lowest first; return it, and where it ends.

    It ends at 0 where it is longer, or cut short at the address `end`.
    """
    number = 0
    for shift in range(0, 35, 7):
        if source >= end:
            break
        byte = load_1(source)
        source += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, source
    return number, 0


def _storer(bits: int) -> Any:
    """Return a function (target, value) that writes the lower bits, so many, of an int64."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(_typing_context: Any, target: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            number = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(number, builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(target, value), generate

    return store


store_1, store_4, store_8 = _storer(8), _storer(32), _storer(64)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def copy(_typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
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
def zero(_typing_context: Any, target: Any) -> Any:
    """Write a byte of zeros to an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(ir.IntType(8)(0), builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(target), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def call_5(_typing_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Call a C function of five pointers or sizes by its address, and return what it returns."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = ir.FunctionType(word, [word] * 5).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], pointer), arguments[1:])

    return types.int64(function, a, b, c, d, e), generate
