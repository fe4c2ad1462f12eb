"""Quality: figures that are known otherwise, and what the sentence says."""

from __future__ import annotations

import numpy as np
import pytest
from tests.strategies import alone, quality_of_sorted

from stoker.sampling import Order
from stoker.sampling.quality import chi_square, quality


def test_chi_square_is_the_textbook_one_with_the_correction_for_drawing_without_replacement():
    counts = np.array([60, 30, 10])
    labels = np.repeat([0, 1, 2], [4, 4, 2])
    plain = ((4 - 6) ** 2 / 6 + (4 - 3) ** 2 / 3 + (2 - 1) ** 2 / 1) / 2
    assert chi_square(labels, counts) == pytest.approx(plain / (90 / 99))


def test_chi_square_of_true_random_permutations_is_one():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), [10, 20, 30, 40, 100])
    found = [chi_square(rng.permutation(labels)[:100], np.bincount(labels)) for _ in range(3000)]
    assert np.mean(found) == pytest.approx(1, abs=0.05)


def test_a_label_that_does_not_occur_takes_no_degree_of_freedom():
    assert chi_square(np.array([0, 1, 1]), np.array([5, 5, 0])) == chi_square(np.array([0, 1, 1]), np.array([5, 5]))


def test_a_window_of_few_chunks_has_the_chi_square_that_theory_gives():
    """Sorted by label, k chunks of one label each: the labels vary 1 + (B - 1) * (1 / k - 1 / K) times as much."""
    for window in (16, 64):
        order = Order(np.full(4096, 2000), shuffle=True, seed=1, window=window)
        found = quality_of_sorted(order, batch_size=512, num_batches=1024)
        assert found.chi_square == pytest.approx(1 + 511 * (1 / window - 1 / 4096), rel=0.1)
        assert found.num_chunks <= 2 * window  # a batch may begin in one window and end in the next


def test_the_window_that_the_sentence_names_does_what_it_says():
    order = Order(np.full(4096, 2000), shuffle=True, seed=1, window=16)
    found = quality_of_sorted(order, batch_size=512, num_batches=1024)
    assert found.sentence.startswith("Badly mixed")
    better = Order(np.full(4096, 2000), shuffle=True, seed=1, window=found.window_for_weak)
    assert f"window={better.window}" in found.sentence
    assert 1.5 < quality_of_sorted(better, batch_size=512, num_batches=1024).chi_square < 2.2


def test_the_whole_data_set_is_well_mixed_and_the_sentence_says_so():
    found = quality_of_sorted(Order(np.full(100, 2000), shuffle=True, seed=1, window=None), batch_size=512)
    assert found.sentence.startswith("Well mixed")


def test_an_unshuffled_order_is_told_to_shuffle():
    found = quality_of_sorted(Order(np.full(100, 2000), shuffle=False, seed=1, window=4), batch_size=512)
    assert "shuffle=True" in found.sentence


def test_labels_of_ones_own_and_files_are_counted():
    order = Order([100] * 40, shuffle=True, seed=1, window=2)
    found = quality(
        alone(order),
        label_of=lambda which, epoch, place: place % 2,
        label_counts=[[2000, 2000]],
        files=np.arange(40) // 10,
        batch_size=50,
    )
    assert 0.7 < found.chi_square < 1.3
    assert 1 <= found.num_files <= found.num_chunks == 2


def test_lanes_make_batches_more_even_than_chance_on_sorted_data():
    found = quality_of_sorted(Order([10_000] * 64, shuffle=True, seed=1, window=None, lanes=16), batch_size=1600)
    assert found.chi_square < 0.9
    assert found.sentence.startswith("Well mixed")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 300}, "fewer than two batches"),
        ({"label_counts": [[1, 2]]}, "add up to 3"),
        ({"label_counts": [[400, 0]]}, "fewer than two labels"),
    ],
)
def test_what_gives_no_figure_is_a_value_error(settings, error):
    with pytest.raises(ValueError, match=error):
        quality_of_sorted(Order([400], shuffle=True, seed=0, window=None), **{"batch_size": 20} | settings)
