"""The promise: every sample exactly once an epoch, over any ranks, with the same number of steps on each.

What a rank takes in each step is held against the page that specifies it, by what loaders explain; chains of resumes
on other ranks and batches are laws of loaders. Here is what needs more samples or ranks than files can have.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.strategies import examples, lanes_of

from stoker.sampling import Order, RankShare, Steps

remainders = st.sampled_from(["keep", "drop", "pad"])


@st.composite
def chunk_sizes(draw):
    """Up to 5,000 chunks, many of them empty, of a few thousand samples together; small ones written out."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, 40), max_size=12))
    num_chunks, largest = draw(st.sampled_from([(1, 2000), (17, 90), (60, 40), (300, 5), (5000, 1)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.integers(0, largest, num_chunks, endpoint=True) * (rng.random(num_chunks) < 0.8)


@st.composite
def orders(draw):
    return Order(
        draw(chunk_sizes()),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(-5, 5)),
        window=draw(st.none() | st.integers(1, 70) | st.just(1000)),
        lanes=draw(st.integers(1, 16)),
    )


@st.composite
def plans(draw):
    """Sizes of lanes, steps over them and a world size."""
    num_lanes = draw(st.integers(1, 16))
    num_samples = draw(st.integers(0, 3000))
    steps = Steps(
        lane_sizes=Order([num_samples], shuffle=False, seed=0, window=None, lanes=num_lanes).lane_sizes,
        global_batch_size=draw(st.integers(1, 40)) * num_lanes,
        remainder=draw(remainders),
        start=draw(st.integers(0, num_samples // num_lanes)) * num_lanes,
    )
    return steps, draw(st.integers(1, 64))


def _fixed_order(order):
    return [(chunk, row) for chunk, count in enumerate(np.diff(order.chunk_starts)) for row in range(count)]


@examples(50)
@given(order=orders(), epoch=st.integers(0, 3))
def test_the_lanes_together_hold_every_sample_once_and_no_empty_chunk(order, epoch):
    found = []
    lanes = lanes_of(order, epoch)
    for lane in lanes:
        positions = np.arange(lane.num_samples)
        chunk, row = lane.locate(positions)
        found += zip(chunk.tolist(), row.tolist(), strict=True)
        assert np.array_equal(lane.positions_of(chunk, row), positions)
        assert all(other is lane or not other.positions_of(chunk, row).size for other in lanes)
        for window in range(lane.num_windows):
            inside = positions[lane.window_starts[window] : lane.window_starts[window + 1]]
            slot, own_row = np.empty_like(inside), np.empty_like(inside)
            lane.tables(window).locate_range(inside[0], slot, own_row)
            assert np.array_equal(lane.window_chunks(window)[slot], chunk[inside])
            assert np.array_equal(own_row, row[inside])
            assert set(slot.tolist()) == set(range(lane.window_chunks(window).size))
            assert order.window is None or lane.window_chunks(window).size <= order.window
    assert sorted(found) == _fixed_order(order)
    if not order.shuffle:
        assert found == _fixed_order(order)


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


@examples(50)
@given(plan=plans(), data=st.data(), ranks_per_node=st.integers(1, 8))
def test_a_node_never_needs_another_nodes_lanes(plan, data, ranks_per_node):
    steps, _ = plan
    assume(min(steps.lane_sizes) > 0)
    num_nodes = data.draw(st.sampled_from([n for n in range(1, 17) if steps.num_lanes % n == 0]))
    lanes_per_node = steps.num_lanes // num_nodes
    for step in range(steps.num_steps):
        for rank in range(num_nodes * ranks_per_node):
            lanes = {s.lane for s in steps.slices(step, RankShare(rank, num_nodes * ranks_per_node))}
            assert {lane // lanes_per_node for lane in lanes} <= {rank // ranks_per_node}


@pytest.mark.parametrize("num_chunks", [1, 5000])
def test_empty_chunks_take_no_place_however_many(num_chunks):
    counts = np.zeros(num_chunks, dtype=np.int64)
    counts[num_chunks // 2] = 10
    order = Order(counts, shuffle=True, seed=0, window=3).epoch(0)
    assert order.num_windows == 1
    assert order.window_chunks(0).tolist() == [num_chunks // 2]
    assert sorted(order.locate(np.arange(10))[1]) == list(range(10))


def test_a_data_set_without_samples_has_no_steps_and_no_windows():
    for counts in ([], [0, 0]):
        order = Order(counts, shuffle=True, seed=0, window=None, lanes=3)
        assert [lane.num_windows for lane in lanes_of(order, 0)] == [0, 0, 0]
        for remainder in ("keep", "drop", "pad"):
            assert Steps(lane_sizes=order.lane_sizes, global_batch_size=6, remainder=remainder).num_steps == 0
