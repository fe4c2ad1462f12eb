"""The compiled loop that looks at many files; `look.py` has the same in Python, and the two are held equal by a test.

Imported on first use only. Compiled once a machine, kept beside this file.

Source:
    Linux man-pages, statx(2); include/uapi/linux/stat.h, struct statx.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ctypes
import sys

import numpy as np
from numba import types

from stoker.compiling import compile_loop, reads, writes

if sys.platform != "linux" or sys.byteorder != "little" or not hasattr(ctypes.CDLL(None), "statx"):
    raise ImportError("the system has no statx")

_statx = types.ExternalFunction("statx", types.int32(types.int32, types.intp, types.int32, types.uint32, types.intp))
_AT_FDCWD = -100
_INODE_SIZE_AND_MTIME = 0x100 | 0x200 | 0x40
# Places in struct statx of 256 bytes, counted in int64; the nanoseconds are the lower half of theirs.
_STATX_WORDS = 32
_INODE, _SIZE, _MTIME_S, _MTIME_NS = 4, 5, 14, 15


@compile_loop(types.void(reads(types.uint8), reads(types.int64), writes(types.int64, 2)))
def look(names, begins, found):
    """Look at files whose names, each with a zero behind, begin at `begins`. See `look.versions_of`."""
    about = np.zeros(_STATX_WORDS, np.int64)
    for i in range(len(begins)):
        if _statx(_AT_FDCWD, names.ctypes.data + begins[i], 0, _INODE_SIZE_AND_MTIME, about.ctypes.data):
            found[i] = -1
            continue
        found[i, 0] = about[_INODE]
        found[i, 1] = about[_MTIME_S] * 1_000_000_000 + (about[_MTIME_NS] & 0xFFFFFFFF)
        found[i, 2] = about[_SIZE]
