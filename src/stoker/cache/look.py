"""Which files chunks are, asked of many at once.

To look at a file takes a microsecond or two, but each `os.stat` gives up the interpreter's lock, and to get it back
from threads that make batches takes twenty. From a thread that makes small ones it takes five milliseconds, and a
hundred wake-ups: that one gives the lock up for moments, and has it again before anybody else is awake. So one
call looks at a whole window and keeps the lock, as long as a thread that runs Python may; where files are slow to look
at, the rest is done without it.
"""

from __future__ import annotations

import os
import sys
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import find_changed as find_changed_files

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
    patience_s: float = sys.getswitchinterval(),
) -> npt.NDArray[np.bool_]:
    """Return which of some files are not there any more, or are not what they were.

    Args:
        names: Of all files, with room for a zero behind the longest. Shape [N].
        versions: What they were, see `Version`. Shape [N, 3].
        files: Those to look at. Shape [K].
        patience_s: How long the interpreter's lock is kept at most, but for one file.

    Returns:
        Shape [K]. Whoever was `NO_VERSION` has changed.
    """
    changed = np.ones(len(files), dtype=np.bool_)
    texts = names.view(np.uint8).reshape(len(names), names.itemsize)
    find_changed_files(texts, versions, files, changed, int(1e9 * patience_s))
    return changed
