"""The order at sizes that no test's files have: every sample once, even shares, well mixed, little memory.

What a rank takes in each step is held against the page that specifies it, by what loaders explain; chains of resumes
on other ranks and batches are laws of loaders.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.strategies import alone, examples

from stoker.sampling import Order, RankShare, Steps
from stoker.sampling.quality import quality


def lanes_of(order, epoch):
    return [order.epoch(epoch, lane=lane) for lane in range(order.lanes)]


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
def steps_over_lanes(draw):
    """Steps over lanes of some sizes."""
    num_lanes = draw(st.integers(1, 16))
    num_samples = draw(st.integers(0, 3000))
    return Steps(
        lane_sizes=Order([num_samples], shuffle=False, seed=0, window=None, lanes=num_lanes).lane_sizes,
        global_batch_size=draw(st.integers(1, 40)) * num_lanes,
        remainder=draw(st.sampled_from(["keep", "drop", "pad"])),
        start=draw(st.integers(0, num_samples // num_lanes)) * num_lanes,
    )


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
@given(steps=steps_over_lanes(), data=st.data(), ranks_per_node=st.integers(1, 8))
def test_a_node_never_needs_another_nodes_lanes(steps, data, ranks_per_node):
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


# ---------------------------------------------------------------------- how well it mixes


def quality_of_sorted(order, **options):
    """Return how well the order of one data set mixes it where it is sorted by a label of 64 equal classes."""
    num, borders = order.num_samples, np.arange(65)
    its = {
        "label_of": lambda _which, _epoch, place: place * 64 // num,
        "label_counts": [np.diff(-(-borders * num // 64))],
        "files": np.arange(len(order.chunk_starts) - 1),
    }
    return quality(alone(order), **its | options)


# Samples, chunks they lie in, samples of a batch.
SHAPES = [(65_536, 64, 1024), (10**6, 100, 4096), (10**7, 1000, 4096), (10**9, 100_000, 4096)]
SOME = [SHAPES[0], *(pytest.param(*shape, marks=pytest.mark.slow) for shape in SHAPES[1:3]), SHAPES[3]]


def order_of(num_samples, num_chunks, *, seed, window=None):
    borders = np.arange(num_chunks + 1) * num_samples // num_chunks
    return Order(np.diff(borders), shuffle=True, seed=seed, window=window)


@pytest.mark.parametrize(("num_samples", "num_chunks", "batch_size"), SOME)
def test_data_sorted_by_label_come_as_a_random_permutation_would_give_them(num_samples, num_chunks, batch_size):
    order = order_of(num_samples, num_chunks, seed=11)
    found = quality_of_sorted(order, batch_size=batch_size, num_batches=512)
    assert 0.95 <= found.chi_square <= 1.05
    assert found.sentence.startswith("Well mixed")


@pytest.mark.slow
@pytest.mark.parametrize(("num_samples", "num_chunks", "batch_size"), SHAPES)
def test_each_of_many_seeds_and_epochs_is_as_good(num_samples, num_chunks, batch_size):
    for seed in range(6):
        order = order_of(num_samples, num_chunks, seed=seed)
        for epoch in range(2):
            found = quality_of_sorted(order, batch_size=batch_size, num_batches=1000, epoch=epoch)
            assert 0.95 <= found.chi_square <= 1.05, (seed, epoch)


@pytest.mark.parametrize(("num_samples", "num_chunks", "batch_size"), SOME[1:])
def test_a_window_reports_its_own_larger_figure(num_samples, num_chunks, batch_size):
    """Sorted by label, k chunks of a window vary a batch's labels 1 + (B - 1) * (1 / k - 1 / K) times as much."""
    window = num_chunks // 20
    order = order_of(num_samples, num_chunks, seed=3, window=window)
    found = quality_of_sorted(order, batch_size=batch_size, num_batches=300)
    expected = 1 + (batch_size - 1) * (1 / window - 1 / num_chunks)
    if num_chunks >= 1000:  # fewer, and chunks hold several of the 64 labels
        assert found.chi_square == pytest.approx(expected, rel=0.2)
    assert found.chi_square > 1.2 or window > batch_size


@pytest.mark.parametrize("window", [500, None])
def test_resuming_at_a_billion_samples_in_a_hundred_thousand_chunks_takes_little_memory(window):
    """All that a rank holds: the order, this epoch's and the next one's, and what a step works out."""
    tracemalloc.start()
    order = Order(np.full(100_000, 10_000), shuffle=True, seed=1, window=window)
    epochs = [order.epoch(epoch) for epoch in (41, 42)]
    for one in epochs:
        chunk, row = one.locate(np.arange(567_890_123, 567_890_123 + 4096))
        assert (one.positions_of(chunk, row) == np.arange(567_890_123, 567_890_123 + 4096)).all()
    held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 24e6
    assert peak_bytes < 64e6


def test_the_window_that_the_sentence_names_does_what_it_says():
    order = Order(np.full(4096, 2000), shuffle=True, seed=1, window=16)
    found = quality_of_sorted(order, batch_size=512, num_batches=1024)
    assert found.sentence.startswith("Badly mixed")
    assert found.num_chunks <= 2 * 16  # a batch may begin in one window and end in the next
    better = Order(np.full(4096, 2000), shuffle=True, seed=1, window=found.window_for_weak)
    assert f"window={better.window}" in found.sentence
    assert 1.5 < quality_of_sorted(better, batch_size=512, num_batches=1024).chi_square < 2.2


def test_lanes_make_batches_more_even_than_chance_on_sorted_data():
    found = quality_of_sorted(Order([10_000] * 64, shuffle=True, seed=1, window=None, lanes=16), batch_size=1600)
    assert found.chi_square < 0.9
    assert found.sentence.startswith("Well mixed")
