"""The default window: about 512 MiB, whatever the chunks are like."""

from __future__ import annotations

import numpy as np
import pytest

from stoker import Dataset
from stoker.loader.orders import MAX_WINDOW_CHUNKS, WINDOW_BYTES, window_chunks

CHUNK_BYTES = Dataset("never-opened.parquet").chunk_bytes


@pytest.mark.parametrize("num_chunks", [3, 40, 5000])
@pytest.mark.parametrize("record_bytes", [64, 640, 150_000])
@pytest.mark.parametrize("size", [1 / 4, 1, 2])
def test_chunks_of_about_the_usual_size_make_no_more_than_512_mib(num_chunks, record_bytes, size):
    rows = int(CHUNK_BYTES * size) // record_bytes
    window = window_chunks(None, np.full(num_chunks, rows), record_bytes)
    # A chunk ends where a row does: so many whole ones take a little less.
    assert 0.9 * WINDOW_BYTES < window * rows * record_bytes <= WINDOW_BYTES


def test_large_chunks_are_still_mixed_with_others_and_tiny_ones_not_without_end():
    assert window_chunks(None, np.full(100, 1 << 20), 4096) >= 8
    assert window_chunks(None, np.full(100_000, 3), 64) == MAX_WINDOW_CHUNKS
