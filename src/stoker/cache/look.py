"""Which files chunks are, asked of many at once.

To look at a file takes a microsecond, but each `os.stat` gives up the interpreter's lock, and to get it back from
threads that make batches takes twenty. One compiled call for a whole window gives it up once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Version: TypeAlias = tuple[int, int, int]
"""Which file a chunk is: inode, time of writing in nanoseconds, size in bytes."""

NO_VERSION: Version = (-1, -1, -1)


def version_of(about: os.stat_result) -> Version:
    """Return which file was looked at."""
    return about.st_ino, about.st_mtime_ns, about.st_size


@cache
def _loops() -> ModuleType | None:
    """Return the compiled loop; None without numba, or on a system that has another way to be asked."""
    try:
        from stoker.cache import look_kernels
    except ImportError:
        return None
    return look_kernels


def versions_of(names: Sequence[bytes], *, compiled: bool) -> npt.NDArray[np.int64]:
    """Return which files have these names: inode, time of writing in nanoseconds, size; -1 where there is none.

    Args:
        names: Of K files.
        compiled: Whether the compiled loop may be used: it is loaded where it was not.

    Returns:
        Shape [K, 3].
    """
    found = np.empty((len(names), 3), dtype=np.int64)
    loops = _loops() if compiled else None
    if loops is not None:
        begins = np.zeros(len(names) + 1, dtype=np.int64)
        np.cumsum([len(name) + 1 for name in names], out=begins[1:])
        text = np.frombuffer(b"\0".join((*names, b"")), dtype=np.uint8)
        loops.look(text, begins[:-1], found)
        return found
    for i, name in enumerate(names):
        try:
            found[i] = version_of(os.stat(name))  # noqa: PTH116  (no Path: it is bytes)
        except OSError:
            found[i] = NO_VERSION
    return found
