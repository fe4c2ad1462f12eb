"""Shuffle windows: how many chunks make one where the user does not say, and which chunks the first batches need."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from stoker.fields.spec import Spec
from stoker.loader.config import LoaderConfig
from stoker.sampling.epoch import Order
from stoker.sampling.steps import Steps

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


def first_chunks(config: LoaderConfig, num_samples: npt.NDArray[np.int64], spec: Spec) -> list[int]:
    """Return the chunks of the windows that a rank's first batch of epoch 0 needs; none where the order counts no rows.

    Args:
        config: What the loader was asked for.
        num_samples: Samples of each chunk. Shape [K].
        spec: What a sample is.
    """
    if config.unit is not None:
        return []
    at_most = window_chunks(config.window, num_samples=num_samples, record_bytes=spec.plain_bytes)
    order = Order(num_samples, shuffle=config.shuffle, seed=config.seed, window=at_most, lanes=config.lanes)
    shard = config.ranks.guess()  # where it proves wrong, these are chunks of another rank's, built a little earlier
    try:
        global_size = config.global_size(shard)
    except ValueError:  # raised where somebody asks for a batch
        return []
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=global_size, remainder=config.remainder)
    if not steps.num_steps:
        return []
    lanes = order.lanes_of_epoch(0)
    chunks: dict[int, None] = {}  # one on the border of lanes may belong to both
    for piece in steps.slices(0, shard):
        if not piece.is_padding:
            lane = lanes[piece.lane]
            first, last = lane.windows_of([piece.start, piece.stop - 1]).tolist()
            for window in range(first, last + 1):
                chunks.update(dict.fromkeys(lane.window_chunks(window).tolist()))
    return list(chunks)
