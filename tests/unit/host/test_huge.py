"""Memory in huge pages."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from stoker.host import huge
from stoker.host.huge import HUGE_BYTES


@pytest.mark.parametrize("num_bytes", [0, 1, 5_000, HUGE_BYTES, HUGE_BYTES + 1])
def test_memory_begins_at_a_huge_page_and_can_be_written(num_bytes):
    memory = huge.memory(num_bytes)
    assert memory.shape == (num_bytes,)
    assert memory.dtype == np.uint8
    if num_bytes:
        assert memory.ctypes.data % HUGE_BYTES == 0
    memory[:] = 7
    assert (memory == 7).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="the system has no such advice")
@pytest.mark.parametrize("is_inherited", [True, False])
def test_what_a_device_copies_from_is_not_inherited(is_inherited):
    memory = huge.memory(5_000, is_inherited=is_inherited)
    flags, inside = None, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[0].isupper():  # 7f1c2a000000-7f1c2a400000 rw-p ...
            begin, end = (int(border, 16) for border in line.split()[0].split("-"))
            inside = begin <= memory.ctypes.data < end
        elif inside and line.startswith("VmFlags:"):
            flags = line.split()[1:]
    assert ("dc" in flags) is not is_inherited  # not copied
