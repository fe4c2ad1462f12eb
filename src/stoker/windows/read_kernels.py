"""The compiled loop that reads pieces of files; `reading.py` has the same in Python, held equal by a test.

Imported where loops are compiled; see `machine_code`.

Source:
    Linux man-pages, pread(2).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ctypes
import sys

from numba import types

from stoker.compiling import compile_loop, reads

if sys.platform != "linux" or ctypes.sizeof(ctypes.c_ssize_t) != ctypes.sizeof(ctypes.c_int64):
    raise ImportError("the system's files are not counted in 64 bits")

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.int64, types.int64))


@compile_loop(types.int64(reads(types.int64, 2), types.intp, types.int64, types.int64, types.int64))
def read_pieces(pieces, address, first, step, page_bytes):
    """Read pieces `first`, `first + step`, …; return which could not be read whole, or how many there are.

    Args:
        pieces: A `reading.Part` each. Shape [N, 4].
        address: Of the target.
        first: See above.
        step: See above.
        page_bytes: Whole pages are asked for.
    """
    for i in range(first, len(pieces), step):
        fd, offset, num_bytes, at = pieces[i]
        asked = (num_bytes + page_bytes - 1) // page_bytes * page_bytes
        if _pread(fd, address + at, asked, offset) < num_bytes:
            return i
    return len(pieces)
