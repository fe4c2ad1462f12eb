"""How good the shuffle is, at the sizes promised: a whole-data-set order cannot be told from a random permutation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.strategies import quality_of_sorted

from stoker.sampling import Order

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
