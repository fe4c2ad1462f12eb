"""Huge pages: where random rows lie in them, the processor need not look up where nearly every row is.

A page of 4 KiB holds six records of 640 bytes, one of 2 MiB more than three thousand. A file has huge pages when it is
written, or read, 2 MiB at a time, on file systems that know them (XFS, ext4 from Linux 6.16 on), and they stay huge
where file and addresses are mapped alike, 2 MiB for 2 MiB. Elsewhere all of this changes nothing. Figures:
docs/decisions/0014.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

HUGE_BYTES = 2 << 20
"""Of a huge page, on x86 and, with pages of 4 KiB, on ARM."""
LARGE_BYTES = 32 << 20
"""Memory of so many bytes the C library and pyarrow's pool give back to the system each time, and get it again a small
page at a time, which takes longer than to fill it."""


def memory(num_bytes: int, *, is_inherited: bool = True) -> npt.NDArray[Any]:
    """Return new memory of this process, in huge pages as far as it fills them: uint8, shape [num_bytes].

    It begins at a huge page's border. What is not touched takes no memory. Freed with the last array that refers to it.

    Args:
        num_bytes: How much.
        is_inherited: Whether a process that is forked has it, too: not what a device copies from. This process, which
            writes to it next, would get another page, and the device go on with the one that is the child's now.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    whole = mmap.mmap(-1, max(num_bytes, 1) + HUGE_BYTES, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux alone has it
        whole.madvise(mmap.MADV_HUGEPAGE)
    if not is_inherited and hasattr(mmap, "MADV_DONTFORK"):
        whole.madvise(mmap.MADV_DONTFORK)
    begin = -np.frombuffer(whole, dtype=np.uint8).ctypes.data % HUGE_BYTES
    # By way of a memoryview: a view of a slice of an array would refer to that array, not be one of its own.
    return np.frombuffer(memoryview(whole)[begin : begin + num_bytes], dtype=np.uint8)
