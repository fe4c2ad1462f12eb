"""Weights: every sample is drawn as often as its weight says, exactly, and evenly over epochs."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.order_page import BLOCK_ROWS, page
from tests.strategies import examples

from stoker import Dataset, Loader
from stoker.testing import MemoryStorage, write_parquet

weights = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e3), st.sampled_from([1e-12, 1e12, 5e-324, 1e300])),
    min_size=1,
    max_size=60,
).filter(any)


@contextmanager
def draws_of(values, cuts, *, seed=0):
    """Give what returns how often each row is drawn in an epoch; `cuts` are where files, and so chunks, begin."""
    values, storage = np.asarray(values, np.float64), MemoryStorage()
    parts = [part for part in np.split(values, cuts) if part.size]
    for number, part in enumerate(parts):
        write_parquet(storage, {"weight": part}, url=f"lake/{number}.parquet")
    starts = np.cumsum([0, *map(len, parts)])
    with Loader(Dataset("lake", storage=storage), batch_size=len(values), seed=seed, weights="weight") as loader:

        def drawn(epoch=0):
            told = loader.explain(0, epoch=epoch)
            rows = [told.chunk_row[told.chunk == chunk] for chunk in range(len(parts))]
            if len(values) < 100:
                expected = page.draws(values.tolist(), [*map(len, parts)], seed=seed, epoch=epoch)
                assert [row.tolist() for row in rows] == expected
            assert (np.diff(told.chunk) >= 0).all()
            for row in rows:
                assert (np.diff(row // BLOCK_ROWS) >= 0).all(), "draws of a chunk go through it once, block after block"
            return np.bincount(starts[told.chunk] + told.chunk_row, minlength=len(values))

        yield drawn


@examples(20)
@given(values=weights, cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(), epoch=st.integers(0, 5))
def test_a_sample_is_drawn_the_floor_or_the_ceiling_of_its_share(values, cuts, seed, epoch):
    with draws_of(values, sorted(cuts), seed=seed) as drawn:
        counts, whole = drawn(epoch), page.integer_weights(values)
    assert counts.sum() == len(values)
    for count, weight in zip(counts.tolist(), whole, strict=True):
        share = Fraction(len(values) * weight, sum(whole))
        assert floor(share) <= count <= ceil(share)


@examples(10)
@given(values=st.lists(st.integers(0, 1000), min_size=1, max_size=50).filter(any))
def test_whole_numbers_are_in_exact_proportion(values):
    with draws_of(values, []) as drawn:
        counts = drawn()
    for count, weight in zip(counts.tolist(), values, strict=True):
        share = Fraction(len(values) * weight, sum(values))
        assert floor(share) <= count <= ceil(share)


def test_over_many_epochs_every_sample_gets_its_share():
    values = np.random.default_rng(3).gamma(0.5, size=400)
    share = 400 * values / values.sum()
    epochs = 1000
    with draws_of(values, [100]) as drawn:
        total = sum(map(drawn, range(epochs)))
    variance = epochs * (share % 1) * (1 - share % 1)  # of one draw more or less than the floor
    chi_square = ((total - epochs * share) ** 2 / variance).mean()
    assert 0.7 < chi_square < 1.3
    assert abs(total - epochs * share).max() < 5 * np.sqrt(variance.max())


def test_equal_weights_draw_every_sample_once():
    with draws_of(np.full(97, 0.1), [40]) as drawn:
        for epoch in range(20):
            assert (drawn(epoch) == 1).all()


@pytest.mark.parametrize(
    "weights", [[1, 10], [10, *[1] * 9], [1, 0, 3, 3], [2] * 7 + [1]], ids=["two", "ten", "four", "eight"]
)
def test_weights_that_recur_do_not_fall_in_step_with_the_draws(weights):
    # One comb over rows that repeat every few weights meets the same ones each time: a whole kind of row, such as the
    # third candidate of every query, would be left out in one epoch and drawn alone in another.
    values = np.tile(np.array(weights, dtype=np.float64), 1000)
    share = len(weights) * np.array(weights) / sum(weights)
    # A row has the floor or the ceiling of its share: the variance of a coin, were rows independent. Those of a block
    # are not quite, as its rows still share one comb.
    deviation = np.sqrt(1000 * (share % 1) * (1 - share % 1))
    with draws_of(values, [len(values) // 3]) as drawn:
        for epoch in range(8):
            counts = drawn(epoch).reshape(1000, -1).sum(axis=0)
            assert (np.abs(counts - 1000 * share) <= 5 * deviation + 1000 * 0.05).all(), (epoch, counts)
