"""The compiled loop that looks at many files; `look.py` has the same in Python, and the two are held equal by a test.

Imported where loops are compiled; see `machine_code`.

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


_CLOCK_MONOTONIC = 1
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_FILES = (reads(types.uint8, 2), reads(types.int64, 2), reads(types.int64), writes(types.boolean))


@compile_loop()
def _monotonic_ns(about):
    _clock_gettime(_CLOCK_MONOTONIC, about.ctypes.data)
    return about[0] * 1_000_000_000 + about[1]


@compile_loop()
def _has_changed(name_at, version, about):
    if version[0] < 0 or _statx(_AT_FDCWD, name_at, 0, _INODE_SIZE_AND_MTIME, about.ctypes.data):
        return True
    mtime_ns = about[_MTIME_S] * 1_000_000_000 + (about[_MTIME_NS] & 0xFFFFFFFF)
    return about[_INODE] != version[0] or mtime_ns != version[1] or about[_SIZE] != version[2]


@compile_loop(types.void(*_FILES))
def find_changed(names, versions, files, changed):
    """Look at some files, and note which are not what they were. See `look.find_changed`."""
    about = np.zeros(_STATX_WORDS, np.int64)
    for i in range(len(files)):
        name_at = names.ctypes.data + files[i] * names.shape[1]
        changed[i] = _has_changed(name_at, versions[files[i]], about)


@compile_loop(types.int64(*_FILES, types.int64), keeps_lock=True)
def find_changed_at_once(names, versions, files, changed, patience_ns):
    """Do the same without giving up the interpreter's lock, for a while; return how many were looked at."""
    about = np.zeros(_STATX_WORDS, np.int64)
    until_ns = _monotonic_ns(about) + patience_ns
    for i in range(len(files)):
        name_at = names.ctypes.data + files[i] * names.shape[1]
        changed[i] = _has_changed(name_at, versions[files[i]], about)
        if _monotonic_ns(about) > until_ns:
            return i + 1
    return len(files)
