"""Compiled loops for ragged fields: NumPy needs five passes over memory for what they do in one.

Imported on first use only, because numba takes a tenth of a second to import. `gather.py` has the same in plain NumPy
for machines without numba; the two are held equal by a test. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Rows whose memory is asked for ahead of their turn: far enough that a row is there when it is its turn, near enough
# that it has not been thrown out of the cache again. Lists of 25 int64: 4 ahead 8.3 million rows/s, 8 9.8, 16 10.6, 24
# 10.7, on a busy machine; an element-wise loop instead of memcpy 7.5.
_AHEAD = 16
_LINE_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, without waiting and without any effect on values."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(struct.data, [arguments[1]])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        builder.call(function, [builder.bitcast(pointer, byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _memcpy(_typing_context: Any, target: Any, at: Any, source: Any, begin: Any, num: Any) -> Any:
    """Copy `source[begin:begin + num]` to `target[at:at + num]`; both hold items of one size and do not overlap."""
    signature = types.void(target, at, source, begin, num)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_type, _, source_type, _, _ = signature.args
        targets = context.make_array(target_type)(context, builder, arguments[0])
        sources = context.make_array(source_type)(context, builder, arguments[2])
        item_bytes = context.get_abi_sizeof(context.get_data_type(target_type.dtype))
        cgutils.raw_memcpy(
            builder,
            builder.gep(targets.data, [arguments[1]]),
            builder.gep(sources.data, [arguments[3]]),
            arguments[4],
            ir.Constant(arguments[4].type, item_bytes),
        )
        return context.get_dummy_value()

    return signature, generate


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator,unused-ignore]
def extents(words, first, slot, row, starts, offsets):
    """Read where each list begins, and add up the lengths. See `gather.extents`."""
    num = len(slot)
    total = 0
    offsets[0] = 0
    for i in range(num):
        if i + _AHEAD < num:
            _prefetch(words, first[slot[i + _AHEAD]] + row[i + _AHEAD])
        at = first[slot[i]] + row[i]
        starts[i] = words[at]
        total += words[at + 1] - words[at]
        offsets[i + 1] = total


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator,unused-ignore]
def copy_values(units, first, units_per_value, slot, starts, offsets, out):
    """Copy each list's values to its place. See `gather.copy_values`."""
    num = len(slot)
    units_per_line = max(1, _LINE_BYTES // units.itemsize)
    for i in range(num):
        if i + _AHEAD < num:
            ahead = first[slot[i + _AHEAD]] + starts[i + _AHEAD] * units_per_value
            length = (offsets[i + _AHEAD + 1] - offsets[i + _AHEAD]) * units_per_value
            for unit in range(0, length, units_per_line):
                _prefetch(units, ahead + unit)
        num_units = (offsets[i + 1] - offsets[i]) * units_per_value
        _memcpy(out, offsets[i] * units_per_value, units, first[slot[i]] + starts[i] * units_per_value, num_units)
