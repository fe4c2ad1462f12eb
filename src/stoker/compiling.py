"""Loops compiled to machine code: how all of them are.

Imported by modules of loops alone, which are imported where they are compiled: once a machine, after which their
machine code is kept (`machine_code`) and numba is not even imported.

`python -m stoker.compiling` compiles all of them: where an image is built, say, so that nobody compiles them later.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numba
import numpy as np
from numba import types

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told not to compile; the NumPy version is the faster one then")


def reads(kind: Any, num_dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop reads, whether or not it may be written to."""
    return types.Array(kind, num_dimensions, "C", readonly=True)


def writes(kind: Any, num_dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop writes to."""
    return types.Array(kind, num_dimensions, "C")


def compile_loop(
    signature: object = None, *, keeps_lock: bool = False, **options: object
) -> Callable[[Callable[..., object]], Any]:
    """Return what compiles a function, once a machine: the code is kept where numba finds a folder to write to.

    Kept code is used for as long as the function's module stays as it is, and whatever that has from others of its
    package: numba itself asks only for the former, though the loops of other modules are compiled into it, and
    another version of a package is installed around what is kept.

    Args:
        signature: Types of arguments and result, so that the loop exists once and is compiled at once; None compiles
            it for those of each call.
        keeps_lock: Keeps the interpreter's lock while the loop runs, which must be short then; otherwise it is given
            up, and got back afterwards, which takes long where another thread gives it up for moments only.
        options: More for `numba.njit`.
    """
    options["nogil"] = not keeps_lock

    def decorate(function: Callable[..., object]) -> Any:
        loop = numba.njit(**options)(function)
        try:
            loop.enable_caching()
        except RuntimeError:  # neither beside the source nor in the home can be written: compile in each process
            pass
        else:
            kept = loop._cache._cache_file
            kept._source_stamp = (kept._source_stamp, _made_of(function.__module__))
        if signature is not None:
            loop.compile(signature)
            loop.disable_compile()
        return loop

    return decorate


class LockKept:
    """A compiled loop under one more name, whose machine code is called without giving up the interpreter's lock.

    For what is over soon: to get the lock back may take longer. Where numba itself calls the loop, it gives it up.

    Args:
        loop: The loop; what else it is called for may take long.
    """

    targetoptions: ClassVar[dict[str, object]] = {"nogil": False}

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.__module__, self.overloads = loop.__module__, loop.overloads

    def __call__(self, *arguments: object) -> object:
        """Call the loop by way of numba."""
        return self._loop(*arguments)


def _made_of(module: str) -> str:
    """Return a digest of what a module has from others of its package, while it is being imported."""
    digest = hashlib.sha256()
    package, seen, unseen = module.partition(".")[0], {module}, [module]
    while unseen:
        name = unseen.pop()
        found = vars(sys.modules[name])
        if name != module:
            digest.update(_source(found.get("__file__")))
        for key, value in sorted(found.items(), key=lambda item: item[0]):
            if isinstance(value, int | float | str | np.generic) and not key.startswith("__"):
                digest.update(f"{name} {key} {value!r}\n".encode())
            owner = getattr(value, "__module__", None)
            if isinstance(owner, str) and owner.partition(".")[0] == package and owner not in seen:
                seen.add(owner)
                unseen.append(owner)
    return digest.hexdigest()


@cache
def _source(path: str | None) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:  # in an archive: packages are not changed there, but made anew
        return b""


def _main() -> int:
    """Have machine code of all loops, and say where it is; 1 where a loop cannot be compiled."""
    from stoker import loops, machine_code

    path = machine_code.where_kept(loops.NAMES)
    if path is None:
        print("Compiling the loops, once a machine: half a minute ...", flush=True)  # noqa: T201
        start_s = time.perf_counter()
        num_there, path = loops.compile_all()
        print(f"{num_there} of {len(loops.NAMES)} modules after {time.perf_counter() - start_s:.1f} s")  # noqa: T201
        if num_there < len(loops.NAMES):
            return 1
    print(f"Machine code of the loops: {path or 'none is kept on this machine, numba loads them'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main())
