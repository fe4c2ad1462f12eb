"""Memory in huge pages."""

from __future__ import annotations

import numpy as np
import pytest

from stoker import huge
from stoker.huge import HUGE_BYTES


@pytest.mark.parametrize("num_bytes", [0, 1, 5_000, HUGE_BYTES, HUGE_BYTES + 1])
def test_memory_begins_at_a_huge_page_and_can_be_written(num_bytes):
    memory = huge.memory(num_bytes)
    assert memory.shape == (num_bytes,)
    assert memory.dtype == np.uint8
    if num_bytes:
        assert memory.ctypes.data % HUGE_BYTES == 0
    memory[:] = 7
    assert (memory == 7).all()
