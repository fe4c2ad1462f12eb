"""The promise as a whole: any chunks, any ranks, any batch, any remainder, any lanes; every sample exactly once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import alone, examples

from stoker.sampling import Order, RankShare, Steps
from stoker.sampling.steps import samples_of


@st.composite
def chunks(draw):
    """1 to 5,000 chunks of up to 20,000 samples together, from all but empty to one that has nearly everything."""
    num_chunks = draw(st.one_of(st.integers(1, 60), st.integers(60, 5000)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share_empty = draw(st.sampled_from([0, 0.3, 0.99]))
    shape = draw(st.sampled_from(["even", "skewed", "one"]))
    largest = max(20_000 // num_chunks, 1)
    if shape == "even":
        sizes = rng.integers(1, largest, num_chunks, endpoint=True)
    elif shape == "skewed":
        sizes = np.minimum((largest * rng.pareto(1.2, num_chunks)).astype(np.int64), 5000)
    else:
        sizes = np.zeros(num_chunks, dtype=np.int64)
        sizes[rng.integers(num_chunks)] = draw(st.integers(0, 10_000))
    return sizes * (rng.random(num_chunks) >= share_empty)


@examples(40)
@given(
    sizes=chunks(),
    world_size=st.integers(1, 64),
    lanes=st.integers(1, 16),
    num_full_steps=st.integers(1, 12),
    extra=st.integers(0, 20),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    shuffle=st.booleans(),
    window=st.sampled_from([None, 1, 3, 64]),
    epoch=st.integers(0, 5),
)
def test_every_sample_comes_once_over_all_ranks_for_any_shape_of_data_set(
    sizes, world_size, lanes, num_full_steps, extra, remainder, shuffle, window, epoch
):
    order = Order(sizes, shuffle=shuffle, seed=world_size, window=window, lanes=lanes)
    total = order.num_samples
    batch_size = (max(total // num_full_steps, 1) + extra) // lanes * lanes or lanes  # mostly divides nothing
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=batch_size, remainder=remainder)
    order_of_lanes = alone(order).lanes_of_epoch(epoch)
    seen = np.zeros(total, dtype=np.int64)
    for step in range(steps.num_steps):
        one = samples_of(order_of_lanes, steps, step)
        ranks = [samples_of(order_of_lanes, steps, step, RankShare(rank, world_size)) for rank in range(world_size)]
        for whole, parts in zip(one, zip(*ranks, strict=True), strict=True):
            assert np.array_equal(np.concatenate(parts), whole)
        np.add.at(seen, (order.chunk_starts[one.chunk] + one.row)[~one.is_padding], 1)
        is_last = step == steps.num_steps - 1
        assert not one.is_padding.any() or (remainder == "pad" and is_last)
        assert one.chunk.size == batch_size or (remainder == "keep" and is_last)
    if remainder == "drop":
        assert seen.sum() == steps.num_steps * batch_size
        assert seen.max(initial=0) <= 1
        assert total - seen.sum() < batch_size + lanes
    else:
        assert (seen == 1).all()


@examples(20)
@given(
    total=st.integers(0, 10**12),
    lanes=st.integers(1, 16),
    part=st.integers(1, 10**9),
    world_sizes=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    data=st.data(),
)
def test_ranks_share_a_batch_out_whole_and_evenly_at_any_size(total, lanes, part, world_sizes, remainder, data):
    """Arithmetic on sizes alone, so up to 1e12 samples: nothing here may depend on how many there are."""
    order = Order([total], shuffle=True, seed=0, window=None, lanes=lanes)
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=part * lanes, remainder=remainder)
    if not steps.num_steps:
        assert total == 0 or (remainder == "drop" and total < part * lanes + lanes)
        return
    if remainder == "pad" and part > 1000 * min(steps.lane_sizes):
        return  # a few samples over and over, a slice each time
    step = data.draw(st.sampled_from(sorted({0, steps.num_steps // 2, steps.num_steps - 1})))
    for world_size in world_sizes:
        pieces = [steps.slices(step, RankShare(rank, world_size)) for rank in range(world_size)]
        sizes = [sum(piece.num_samples for piece in rank) for rank in pieces]
        assert sum(sizes) == sum(piece.num_samples for piece in steps.slices(step))
        assert max(sizes) - min(sizes) <= (1 if sum(sizes) == part * lanes else lanes)
        at = dict.fromkeys(range(lanes), steps.lane_start + step * steps.part_size)
        for lane, start, stop, is_padding in (piece for rank in pieces for piece in rank):
            if not is_padding:
                assert start == at[lane]
                at[lane] = stop
