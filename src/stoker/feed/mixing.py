"""How many chunks are mixed together where the user does not say."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

# A window must be large enough to mix, small enough to lie in the page cache beside the model's own memory: the next
# one is opened while this one is used. And the first batch of a cold cache waits for the whole first window.
WINDOW_BYTES = 512 << 20
# Chunks twice as large as they should be, of row groups that are not worth cutting, make a window of so many anyway.
# With fewer, larger ones, rows that lie together in the source would come together in too few batches.
_MIN_WINDOW_CHUNKS = 8
# That wait again: building a chunk of a small file takes 3 ms, and 10,000 of them half a minute.
MAX_WINDOW_CHUNKS = 512
# What a sample counts at least: one of ragged fields alone has no record.
_MIN_SAMPLE_BYTES = 64


def window_chunks(
    window: int | Literal["all"] | None, *, num_samples: npt.NDArray[np.int64], record_bytes: int, num_sets: int = 1
) -> int | None:
    """Return the window as a number of chunks, None for all; from the data alone and nothing of the machine.

    Args:
        window: What the user said: chunks, "all", or None for about 512 MiB of samples; of a mixture, an equal part of
            them for each data set.
        num_samples: Samples of each chunk, of all data sets. Shape [K].
        record_bytes: Bytes of a record.
        num_sets: How many data sets there are.
    """
    if window == "all":
        return None
    if window is not None:
        return int(window)
    num_chunks = int(np.count_nonzero(num_samples))
    total_bytes = int(num_samples.sum()) * max(record_bytes, _MIN_SAMPLE_BYTES)
    mean_bytes = max(1, total_bytes // max(1, num_chunks))
    whole = min(max(_MIN_WINDOW_CHUNKS, WINDOW_BYTES // mean_bytes), MAX_WINDOW_CHUNKS)
    return int(max(_MIN_WINDOW_CHUNKS, whole // num_sets))
