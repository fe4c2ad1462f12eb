"""Which chunks the first batches are made of: known before anything of a data set is read but its footers."""

from __future__ import annotations

from stoker.feed.mixing import window_chunks
from stoker.feed.options import Wanted
from stoker.order.epoch import Order
from stoker.order.plain import Int64
from stoker.order.steps import Steps
from stoker.spec import Spec


def first_chunks(wanted: Wanted, num_samples: Int64, spec: Spec) -> list[int]:
    """Return the chunks of the windows that a rank's first batch of epoch 0 needs; none where the order counts no rows.

    Args:
        wanted: What the loader was asked for.
        num_samples: Samples of each chunk. Shape [K].
        spec: What a sample is.
    """
    if wanted.asked is not None:
        return []
    at_most = window_chunks(wanted.window, num_samples=num_samples, record_bytes=spec.plain_bytes)
    order = Order(num_samples, shuffle=wanted.shuffle, seed=wanted.seed, window=at_most, lanes=wanted.lanes)
    shard = wanted.ranks.guess()  # where it proves wrong, these are chunks of another rank's, built a little earlier
    try:
        global_size = wanted.global_size(shard)
    except ValueError:  # raised where somebody asks for a batch
        return []
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=global_size, remainder=wanted.remainder)
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
