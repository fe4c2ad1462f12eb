"""The compiled loop that finds where neighbours differ.

Imported where loops are compiled. `runs.py` has the same in plain NumPy for machines without numba; the two are held
equal by a test.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stoker.compiling import compile_loop, reads, writes


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _memcmp(_typing_context: Any, array: Any, first: Any, second: Any, num_bytes: Any) -> Any:
    """Compare two ranges of an array of bytes; 0 where they are the same."""
    signature = types.int32(array, first, second, num_bytes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.IntType(32), [byte, byte, number]), "memcmp"
        )
        pointers = [builder.gep(struct.data, [arguments[i]]) for i in (1, 2)]
        return builder.call(function, [*pointers, arguments[3]])

    return signature, generate


@compile_loop(types.void(reads(types.uint8), reads(types.int64), writes(types.boolean)))
def mark(data, starts, begins):
    """Mark the rows whose bytes differ from those of the row before. See `runs.mark`."""
    for i in range(1, len(begins)):
        if begins[i]:
            continue
        first, second = starts[i - 1], starts[i]
        num_bytes = starts[i + 1] - second
        if second - first != num_bytes or (num_bytes and _memcmp(data, first, second, num_bytes)):
            begins[i] = True
