"""What the compiled loops of a gather are made of: asking ahead, wide moves, and writing past the caches.

What they do, and why (docs/decisions/0007 and 0011; 4,096 records of 640 bytes from 1 million, mapped; np.take of as
many in memory of NumPy's own: 541 microseconds):

    ask ahead    rows some 20 kB ahead are asked for, into L2 on most processors: 8 rows ahead 425 microseconds, 16 rows
                 412, 32 rows 384; into L1, 8 rows ahead, 467
    wide moves   whole cache lines by vector registers: nothing is called and no length looked at
    stream       large batches of records are written past the caches: 14 GB/s by two threads instead of 10
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stoker.compiling import compile_loop, reads, writes
from stoker.machine_code.processors import LEVELS

_Function = TypeVar("_Function", bound=Callable[..., object])

LINE_BYTES = 64
# How near to the core comes what is asked for ahead of its turn, as LLVM counts (3 is L1, 2 is L2), and how many rows
# or lists ahead that is, at most. A core waits for more lines at a time in L2 than in L1. Two threads of an AMD EPYC
# (Zen 4), records of 640 bytes, nanoseconds each: L1 86, L2 57, and 92 is `memcpy`; with 8 to 32 rows ahead the same.
# Not so on Zen 5: against `memcpy`, stacked tensors 0.80 by L1 and 0.71 by L2, all columns 0.77 and 0.67.
_CPU = numba.config.CPU_NAME or get_host_cpu_name()
IS_AMD = _CPU.startswith(("znver", LEVELS["AuthenticAMD"]))
_NEARNESS, MAX_AHEAD, LISTS_AHEAD = (3, 16, 12) if _CPU == "znver5" else (2, 16, 12) if IS_AMD else (2, 32, 24)
# Of so many rows further ahead the first line alone is asked for: to find out where a page lies takes as long as to
# read a line of it, and whatever else is asked for waits behind it. Two threads of an Intel Xeon in a virtual machine,
# records and strips: 95 -> 91 nanoseconds a row. On an EPYC (Zen 4) it takes 2 to 3 more.
FURTHER = 0 if IS_AMD else 8
# Bytes that are asked for ahead of their turn: near enough that they are still at hand when it is their turn.
AHEAD_BYTES = 20 << 10
# Of a long row only the beginning is asked for: behind it the processor sees by itself where this leads.
MAX_ASKED_BYTES = 2 << 10
# From this many bytes on, what is written goes past the caches: it would push out rows that were asked for, and be
# pushed out itself before anybody reads it.
STREAMED_BYTES = 1 << 20
BYTES, UINT32 = reads(types.uint8), reads(types.uint32)
INT64, INT64_2D = reads(types.int64), reads(types.int64, 2)
OUT_BYTES, OUT_INT32 = writes(types.uint8), writes(types.int32)
OUT_INT64, OUT_INT64_2D = writes(types.int64), writes(types.int64, 2)
OUT_UINT64 = writes(types.uint64)


def compiled(
    *arguments: object, returns: Callable[..., object] = types.void, keeps_lock: bool = False
) -> Callable[[_Function], _Function]:
    """Return what compiles a loop for these types, and for no others; see `compile_loop`."""
    return compile_loop(returns(*arguments), keeps_lock=keeps_lock)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, without waiting and without any effect on values."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(struct.data, [arguments[1]])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        read, data = word(0), word(1)
        builder.call(function, [builder.bitcast(pointer, byte), read, word(_NEARNESS), data])
        return context.get_dummy_value()

    return signature, generate


def _copies(num_bytes: int, *, streams: bool = False) -> Any:
    """Return a function that copies whole blocks of so many bytes from one byte array to another.

    Args:
        num_bytes: Of a block.
        streams: Whether what is written goes past the caches; the target must begin at a multiple of `num_bytes` then.
    """

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
                written = builder.store(value, builder.gep(target, [loop.index]))
                written.align = num_bytes if streams else 1
                if streams:
                    one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                    written.set_metadata("nontemporal", one)
            return context.get_dummy_value()

        return signature, generate

    return copy


# As many as one vector register has room for, or some few.
NUM_STEPS = 8


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def write_steps(_typing_context: Any, array: Any, index: Any, first: Any) -> Any:
    """Write `first`, and what is one, two, ... cache lines more, to `array[index : index + NUM_STEPS]`, in one move."""
    signature = types.void(array, index, first)
    numbers = ir.VectorType(ir.IntType(64), NUM_STEPS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(struct.data, [arguments[1]]), numbers.as_pointer())
        anything, word = ir.Constant(numbers, ir.Undefined), ir.IntType(32)
        alone = builder.insert_element(anything, arguments[2], word(0))
        everywhere = builder.shuffle_vector(alone, anything, ir.Constant(ir.VectorType(word, NUM_STEPS), None))
        written = builder.store(
            builder.add(everywhere, ir.Constant(numbers, [LINE_BYTES * step for step in range(NUM_STEPS)])), pointer
        )
        written.align = 8
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def fence(_typing_context: Any) -> Any:
    """Let nobody see what is written from here on before what went past the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


copy_lines = _copies(LINE_BYTES)
stream_lines = _copies(LINE_BYTES, streams=True)
copy_32, copy_16, copy_8 = _copies(32), _copies(16), _copies(8)
