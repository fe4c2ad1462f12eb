"""Weights: every sample is drawn as often as its weight says, exactly, and evenly over epochs."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.order_page import BLOCK_ROWS, page

from stoker.dataset.units.count import Index, cumulate
from stoker.sampling.units import Draws

weights = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e3), st.sampled_from([1e-12, 1e12, 5e-324, 1e300])),
    min_size=1,
    max_size=60,
).filter(any)


def drawn(values, chunk_starts, *, seed=0, epoch=0):
    cumulated = cumulate(np.asarray(values, dtype=np.float64))
    index = Index(row_starts=np.asarray(chunk_starts), arrays={"cumulated": cumulated})
    draws = Draws(index, seed=seed, epoch=epoch)
    rows = [draws.rows(np.full(num, chunk), np.arange(num))[0] for chunk, num in enumerate(draws.num_units.tolist())]
    if len(values) < 100:
        expected = page.draws(list(map(float, values)), np.diff(chunk_starts).tolist(), seed=seed, epoch=epoch)
        assert [row.tolist() for row in rows] == expected
    counts = np.zeros(len(values), dtype=np.int64)
    for chunk, row in enumerate(rows):
        assert ((row >= 0) & (row < chunk_starts[chunk + 1] - chunk_starts[chunk])).all()
        assert (np.diff(row // BLOCK_ROWS) >= 0).all(), "draws of a chunk go through it once, block after block"
        np.add.at(counts, row + chunk_starts[chunk], 1)
    return counts


@given(values=weights, cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(), epoch=st.integers(0, 5))
def test_a_sample_is_drawn_the_floor_or_the_ceiling_of_its_share(values, cuts, seed, epoch):
    cumulated = cumulate(np.array(values))
    assert cumulated[0] == 0
    assert 2**60 - len(values) <= cumulated[-1] <= 2**62 + len(values)
    num = len(values)
    counts = drawn(values, [0, *sorted(min(cut, num) for cut in cuts), num], seed=seed, epoch=epoch)
    assert counts.sum() == num
    total = int(cumulated[-1])
    for count, weight in zip(counts.tolist(), np.diff(cumulated).tolist(), strict=True):
        share = Fraction(num * weight, total)
        assert floor(share) <= count <= ceil(share)


@given(values=st.lists(st.integers(0, 1000), min_size=1, max_size=50).filter(any))
def test_whole_numbers_are_in_exact_proportion(values):
    counts = drawn(values, [0, len(values)])
    for count, weight in zip(counts.tolist(), values, strict=True):
        share = Fraction(len(values) * weight, sum(values))
        assert floor(share) <= count <= ceil(share)


def test_over_many_epochs_every_sample_gets_its_share():
    rng = np.random.default_rng(3)
    values = rng.gamma(0.5, size=400)
    share = 400 * values / values.sum()
    epochs = 2000
    total = sum(drawn(values, [0, 100, 100, 400], epoch=epoch) for epoch in range(epochs))
    variance = epochs * (share % 1) * (1 - share % 1)  # of one draw more or less than the floor
    chi_square = ((total - epochs * share) ** 2 / variance).mean()
    assert 0.7 < chi_square < 1.3
    assert abs(total - epochs * share).max() < 5 * np.sqrt(variance.max())


def test_equal_weights_draw_every_sample_once():
    for epoch in range(20):
        assert (drawn(np.full(97, 0.1), [0, 40, 97], epoch=epoch) == 1).all()


@pytest.mark.parametrize(
    "weights", [[1, 10], [10, *[1] * 9], [1, 0, 3, 3], [2] * 7 + [1]], ids=["two", "ten", "four", "eight"]
)
def test_weights_that_recur_do_not_fall_in_step_with_the_draws(weights):
    # One comb over rows that repeat every few weights meets the same ones each time: a whole kind of row, such as the
    # third candidate of every query, would be left out in one epoch and drawn alone in another.
    values = np.tile(np.array(weights, dtype=np.float64), 1000)
    share = len(weights) * np.array(weights) / sum(weights)
    for epoch in range(8):
        counts = drawn(values, [0, len(values) // 3, len(values)], epoch=epoch).reshape(1000, -1).sum(axis=0)
        # A row has the floor or the ceiling of its share: the variance of a coin, were rows independent. Those of a
        # block are not quite, as its rows still share one comb.
        deviation = np.sqrt(1000 * (share % 1) * (1 - share % 1))
        assert (np.abs(counts - 1000 * share) <= 5 * deviation + 1000 * 0.05).all(), (epoch, counts)
