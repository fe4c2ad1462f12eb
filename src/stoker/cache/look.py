"""Which files chunks are, asked of many at once.

To look at a file takes a microsecond, but each `os.stat` gives up the interpreter's lock, and to get it back from
threads that make batches takes twenty. One compiled call for a whole window gives it up once.
"""

from __future__ import annotations

import contextlib
import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker import loops

Version: TypeAlias = tuple[int, int, int]
"""Which file a chunk is: inode, time of writing in nanoseconds, size in bytes."""

NO_VERSION: Version = (-1, -1, -1)


def version_of(about: os.stat_result) -> Version:
    """Return which file was looked at."""
    return about.st_ino, about.st_mtime_ns, about.st_size


def find_changed(
    names: npt.NDArray[np.bytes_],
    versions: npt.NDArray[np.int64],
    files: npt.NDArray[np.int64],
    *,
    compiled: bool = True,
) -> npt.NDArray[np.bool_]:
    """Return which of some files are not there any more, or are not what they were.

    Args:
        names: Of all files, with room for a zero behind the longest. Shape [N].
        versions: What they were, see `Version`. Shape [N, 3].
        files: Those to look at. Shape [K].
        compiled: False does without the compiled loop, which some systems do not have.

    Returns:
        Shape [K]. Whoever was `NO_VERSION` has changed.
    """
    changed = np.ones(len(files), dtype=np.bool_)
    kernels = loops.find("stoker.cache.look_kernels") if compiled else None
    if kernels is not None:
        kernels.find_changed(names.view(np.uint8).reshape(len(names), names.itemsize), versions, files, changed)
        return changed
    for i, file in enumerate(files.tolist()):
        with contextlib.suppress(OSError):
            changed[i] = version_of(os.stat(names[file])) != tuple(versions[file].tolist())  # noqa: PTH116  (bytes)
    return changed
