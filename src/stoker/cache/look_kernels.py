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


@compile_loop(types.void(reads(types.uint8, 2), reads(types.int64, 2), reads(types.int64), writes(types.boolean)))
def find_changed(names, versions, files, changed):
    """Look at some files, and note which are not what they were. See `look.find_changed`."""
    about = np.zeros(_STATX_WORDS, np.int64)
    length = names.shape[1]
    for i in range(len(files)):
        file = files[i]
        if versions[file, 0] < 0:
            changed[i] = True
            continue
        if _statx(_AT_FDCWD, names.ctypes.data + file * length, 0, _INODE_SIZE_AND_MTIME, about.ctypes.data):
            changed[i] = True
            continue
        changed[i] = (
            about[_INODE] != versions[file, 0]
            or about[_MTIME_S] * 1_000_000_000 + (about[_MTIME_NS] & 0xFFFFFFFF) != versions[file, 1]
            or about[_SIZE] != versions[file, 2]
        )
