"""Compiled loops that copy samples out of a window: rows of records, and lists.

Imported on first use only, because numba takes a tenth of a second to import. `gather.py` has the same in plain NumPy
for machines without numba; the two are held equal by a test. All signatures are given, so that each loop exists once,
whatever its arrays may be; compiled once a machine, kept beside this file where that can be written.

What both kinds of loops do, and why (4,096 records of 640 bytes from 1 million, mapped; np.take of as many in memory of
NumPy's own: 541 microseconds; docs/decisions/0007):

    ask ahead    rows some 20 kB ahead are asked for into L2, which can wait for three times as many lines as L1 can.
                 8 rows ahead 425 microseconds, 16 rows 412, 32 rows 384; into L1, 8 rows ahead, 467
    wide moves   whole cache lines by vector registers: nothing is called and no length looked at
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told not to compile; the NumPy version is the faster one then")

_Function = TypeVar("_Function", bound=Callable[..., object])

_LINE_BYTES = 64
# Bytes that are asked for ahead of their turn, and rows at most: near enough that they are still in L2 (1 to 2 MiB)
# when it is their turn.
_AHEAD_BYTES = 20 << 10
_MAX_AHEAD = 32
# Of a long row only the beginning is asked for: behind it the processor sees by itself where this leads.
_MAX_ASKED_BYTES = 2 << 10
# Lists ahead of their turn. Their lengths differ, so this is a number and not bytes.
_LISTS_AHEAD = 24

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INT64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT_BYTES = types.Array(types.uint8, 1, "C")
_OUT_INT32 = types.Array(types.int32, 1, "C")
_OUT_INT64 = types.Array(types.int64, 1, "C")


def _compile(*arguments: object, returns: object = types.void) -> Callable[[_Function], _Function]:
    def decorate(function: _Function) -> _Function:
        signature = returns(*arguments)  # type: ignore[operator,unused-ignore]
        try:
            compiled: _Function = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # neither beside the source nor in the home can be written: compile in each process
            compiled = numba.njit(signature, nogil=True)(function)
        return compiled

    return decorate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]` into L2, without waiting and without any effect on values."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(struct.data, [arguments[1]])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        read, into_l2, data = word(0), word(2), word(1)
        builder.call(function, [builder.bitcast(pointer, byte), read, into_l2, data])
        return context.get_dummy_value()

    return signature, generate


def _copies(num_bytes: int) -> Any:
    """Return a function that copies whole blocks of so many bytes from one byte array to another."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def copy(_typing_context: Any, target: Any, at: Any, source: Any, begin: Any, num_blocks: Any) -> Any:
        signature = types.void(target, at, source, begin, num_blocks)
        block = ir.VectorType(ir.IntType(64), num_bytes // 8).as_pointer()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            targets = context.make_array(signature.args[0])(context, builder, arguments[0])
            sources = context.make_array(signature.args[2])(context, builder, arguments[2])
            target = builder.bitcast(builder.gep(targets.data, [arguments[1]]), block)
            source = builder.bitcast(builder.gep(sources.data, [arguments[3]]), block)
            with cgutils.for_range(builder, arguments[4]) as loop:
                value = builder.load(builder.gep(source, [loop.index]))
                value.align = 1
                builder.store(value, builder.gep(target, [loop.index])).align = 1
            return context.get_dummy_value()

        return signature, generate

    return copy


_copy_lines = _copies(_LINE_BYTES)
_copy_16 = _copies(16)


@_compile(_BYTES, _INT64, types.int64, _OUT_BYTES, types.int64, types.int64)
def take_lines(memory, index, num_bytes, out, out_bytes, at):
    """Copy records of whole cache lines. See `gather.take_records`."""
    num = len(index)
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    for i in range(min(ahead, num)):
        for byte in range(0, asked, _LINE_BYTES):
            _prefetch(memory, index[i] * num_bytes + byte)
    for i in range(num):
        if i + ahead < num:
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(memory, index[i + ahead] * num_bytes + byte)
        _copy_lines(out, i * out_bytes + at, memory, index[i] * num_bytes, num_lines)


@_compile(_BYTES, _INT64, types.int64, _INT64, _OUT_BYTES, types.int64, types.int64)
def put_lines(memory, index, num_bytes, places, out, out_bytes, at):
    """Copy records of whole cache lines, each to its place. See `gather.take_records`.

    As `take_lines`, which is a loop of its own: it need not look where each goes.
    """
    num = len(index)
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    for i in range(min(ahead, num)):
        for byte in range(0, asked, _LINE_BYTES):
            _prefetch(memory, index[i] * num_bytes + byte)
    for i in range(num):
        if i + ahead < num:
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(memory, index[i + ahead] * num_bytes + byte)
        _copy_lines(out, places[i] * out_bytes + at, memory, index[i] * num_bytes, num_lines)


@_compile(_INT64, _INT64, _INT64, _INT64, _OUT_INT64, _OUT_INT64)
def extents(words, first, slot, row, starts, offsets):
    """Read where each list begins, and add up the lengths. See `gather.extents`."""
    num = len(slot)
    total = 0
    offsets[0] = 0
    for i in range(min(_MAX_AHEAD, num)):
        _prefetch(words, first[slot[i]] + row[i])
    for i in range(num):
        if i + _MAX_AHEAD < num:
            _prefetch(words, first[slot[i + _MAX_AHEAD]] + row[i + _MAX_AHEAD])
        at = first[slot[i]] + row[i]
        begin = words[at]
        starts[i] = begin
        total += words[at + 1] - begin
        offsets[i + 1] = total


@_compile(_BYTES, _INT64, types.int64, _INT64, _INT64, _INT64, _OUT_BYTES)
def copy_lists(memory, first, value_bytes, slot, starts, offsets, out):
    """Copy each list's values to its place. See `gather.copy_lists`.

    Whole blocks are copied, also of a list that ends within one: what is too much lies where the next list will be.
    """
    num = len(slot)
    for i in range(-_LISTS_AHEAD, num):
        if i + _LISTS_AHEAD < num:
            j = i + _LISTS_AHEAD
            begin = first[slot[j]] + starts[j] * value_bytes
            end = begin + min((offsets[j + 1] - offsets[j]) * value_bytes, _MAX_ASKED_BYTES)
            for byte in range(begin, end, _LINE_BYTES):
                _prefetch(memory, byte)
        if i < 0:
            continue
        begin = first[slot[i]] + starts[i] * value_bytes
        at = offsets[i] * value_bytes
        num_bytes = (offsets[i + 1] - offsets[i]) * value_bytes
        num_lines = max(1, (num_bytes + _LINE_BYTES - 1) // _LINE_BYTES)  # an empty list's 16 bytes need room, too
        if begin + num_lines * _LINE_BYTES > len(memory) or at + num_lines * _LINE_BYTES > len(out):
            for byte in range(num_bytes):  # the very end of the window or of the buffer
                out[at + byte] = memory[begin + byte]
        elif num_bytes <= 16:
            _copy_16(out, at, memory, begin, 1)
        else:
            _copy_lines(out, at, memory, begin, num_lines)


@_compile(_BYTES, types.int64, types.int64, _INT64, _INT64, _INT64, _OUT_INT64)
def run_rows(memory, num_bytes, offset, first, slot, row, found):
    """Read which run each record is in. See `gather.run_rows`."""
    num = len(row)
    for i in range(min(_MAX_AHEAD, num)):
        _prefetch(memory, row[i] * num_bytes + offset)
    for i in range(num):
        if i + _MAX_AHEAD < num:
            _prefetch(memory, row[i + _MAX_AHEAD] * num_bytes + offset)
        at = row[i] * num_bytes + offset
        run = types.int64(memory[at]) | types.int64(memory[at + 1]) << 8
        run |= types.int64(memory[at + 2]) << 16 | types.int64(memory[at + 3]) << 24
        found[i] = first[slot[i]] + run


@_compile(_INT64, _OUT_INT64, _OUT_INT32, _OUT_INT32, returns=types.int64)
def distinct(row, found, index, table):
    """Number different rows in the order in which they come first. See `gather.distinct`.

    A row like the one before it, as in data that is grouped, costs a comparison; others are looked up in `table`,
    whose size is a power of two.
    """
    num = 0
    mask = len(table) - 1
    for i in range(len(row)):
        if i > 0 and row[i] == row[i - 1]:
            index[i] = index[i - 1]
            continue
        place = ((row[i] * 0x1E3779B97F4A7C15) >> 20) & mask
        while table[place] >= 0 and found[table[place]] != row[i]:
            place = (place + 1) & mask
        if table[place] < 0:
            table[place] = num
            found[num] = row[i]
            num += 1
        index[i] = table[place]
    return num
