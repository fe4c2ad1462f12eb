"""Loops compiled to machine code: how all of them are.

Imported by modules of loops alone, which are imported on first use: numba takes a tenth of a second to import.

`python -m stoker.compiling` compiles all of them: where an image is built, say, so that nobody compiles them later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
from numba import types

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told not to compile; the NumPy version is the faster one then")


def reads(kind: Any, num_dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop reads, whether or not it may be written to."""
    return types.Array(kind, num_dimensions, "C", readonly=True)


def writes(kind: Any, num_dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop writes to."""
    return types.Array(kind, num_dimensions, "C")


def compile_loop(signature: object = None, **options: object) -> Callable[[Callable[..., object]], Any]:
    """Return what compiles a function, once a machine: the code is kept where numba finds a folder to write to.

    The interpreter's lock is given up while a loop runs.

    Args:
        signature: Types of arguments and result, so that the loop exists once and is compiled at once; None compiles
            it for those of each call.
        options: More for `numba.njit`.
    """
    signatures = () if signature is None else (signature,)
    options["nogil"] = True

    def decorate(function: Callable[..., object]) -> Any:
        try:
            return numba.njit(*signatures, cache=True, **options)(function)
        except RuntimeError:  # neither beside the source nor in the home can be written: compile in each process
            return numba.njit(*signatures, **options)(function)

    return decorate


if __name__ == "__main__":
    from stoker import loops

    start_s = time.perf_counter()
    num_modules = loops.load_all()
    print(f"{num_modules} modules of compiled loops are there, after {time.perf_counter() - start_s:.1f} s")  # noqa: T201
