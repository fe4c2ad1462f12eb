"""The promise: a bijection on any size, the same on every machine, as random as a permutation can be."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.oracles import permutation as oracle
from tests.strategies import permute, unpermute

from stoker import _native
from stoker.hashing import order_key
from stoker.sampling import Order

keys = st.integers(0, 2**64 - 1)
powers = [2**k + d for k in range(35) for d in (-1, 0, 1) if 2**k + d >= 0] + [4**k + 1 for k in range(18)]
sizes = st.integers(0, 70_000) | st.sampled_from(powers)


def _index(size):
    """All of a small size; of a large one its ends and what a stride meets in between."""
    if size <= 70_000:
        return np.arange(size)
    return np.unique(np.concatenate([np.arange(2000), np.arange(2000) * (size // 2000), size - 1 - np.arange(2000)]))


@given(size=sizes, key=keys)
@example(size=0, key=0)
@example(size=1, key=2**64 - 1)
@example(size=256, key=1)
@example(size=257, key=1)
def test_it_is_a_bijection_and_unpermute_its_inverse(size, key):
    index = _index(size)
    places = permute(index, size=size, key=key)
    assert np.array_equal(unpermute(places, size=size, key=key), index)
    assert np.array_equal(permute(unpermute(index, size=size, key=key), size=size, key=key), index)
    if size <= 70_000:
        assert np.array_equal(np.sort(places), index)
    else:
        assert np.unique(places).size == index.size
        assert places.min() >= 0
        assert places.max() < size


def test_it_is_a_bijection_around_every_power_of_two():
    for size in sorted(set(powers)):
        index = _index(size)
        places = permute(index, size=size, key=size)
        assert np.array_equal(unpermute(places, size=size, key=size), index), size
        assert np.unique(places).size == index.size, size


@pytest.mark.slow
def test_it_is_a_bijection_on_every_size_to_70_000():
    for size in range(70_001):
        places = permute(np.arange(size), size=size, key=size)
        assert np.bincount(places, minlength=size).max(initial=1) == 1, size
        assert (places.min(initial=0), places.max(initial=size - 1)) == (0, size - 1), size


@given(size=sizes, key=keys)
@example(size=256, key=2**64 - 1)
@example(size=257, key=2**63)
def test_it_is_the_documented_permutation(size, key):
    index = _index(size)
    assert np.array_equal(oracle.permute(index, size, key), permute(index, size=size, key=key))
    assert np.array_equal(oracle.unpermute(index, size, key), unpermute(index, size=size, key=key))


@given(
    counts=st.lists(st.integers(1, 500), min_size=1, max_size=60),
    shuffle=st.booleans(),
    window=st.none() | st.integers(1, 70),
    seed=st.integers(0, 3),
)
def test_the_samples_of_a_window_are_its_chunks_side_by_side_permuted_by_its_key(counts, shuffle, window, seed):
    epoch = Order(counts, shuffle=shuffle, seed=seed, window=window).epoch(0)
    for number in range(epoch.num_windows):
        start, stop = epoch.window_starts[number : number + 2].tolist()
        chunks = epoch.window_chunks(number)
        places = positions = np.arange(start, stop)
        if shuffle:
            key = order_key(seed=seed, epoch=0, purpose=f"window:{number}")
            places = oracle.permute(positions - start, stop - start, key) + start
        begins = start + np.cumsum([0, *(counts[chunk] for chunk in chunks)])
        slots = np.searchsorted(begins, places, side="right") - 1
        rows = places - begins[slots]
        of_range, each = np.empty((2, stop - start), np.int64), np.empty((2, stop - start), np.int64)
        epoch.tables(number).locate_range(start, *of_range)
        epoch.tables(number).locate(positions, *each)
        for found in (of_range, each):
            assert np.array_equal(found, (slots, rows))


@given(data=st.data(), num_components=st.integers(1, 5), most=st.sampled_from([0, 1, 9, 300]))
def test_blocks_are_mixed_as_documented_and_each_component_has_its_number_of_places(data, num_components, most):
    block = st.lists(st.integers(0, most), min_size=num_components, max_size=num_components)
    counts = np.array(data.draw(st.lists(block, min_size=1, max_size=6)), dtype=np.int64)
    block_keys = np.array([data.draw(keys) for _ in counts], dtype=np.uint64)
    first = data.draw(st.integers(0, int(counts.sum())))
    mixed = np.empty(data.draw(st.integers(0, int(counts.sum()) - first)), np.int64)
    _native.mix_blocks(counts, block_keys, first, mixed)
    assert np.array_equal(mixed, oracle.mix_blocks(counts, block_keys, first, mixed.size))
    everything = np.empty(counts.sum(), np.int64)
    _native.mix_blocks(counts, block_keys, 0, everything)
    for whose, asked in zip(np.split(everything, np.cumsum(counts.sum(axis=1))[:-1]), counts, strict=True):
        assert np.bincount(whose, minlength=num_components).tolist() == asked.tolist()
    grouped = np.empty_like(mixed)
    _native.group_places(mixed, num_components, grouped)
    assert np.array_equal(grouped, oracle.group_places(mixed))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_permutation_of_a_few_things_is_equally_likely(size):
    num_keys = 20_000
    seen = Counter(
        tuple(permute(np.arange(size), size=size, key=order_key(seed=seed, epoch=0, purpose="chunks")).tolist())
        for seed in range(num_keys)
    )
    kinds = list(permutations(range(size)))
    expected = num_keys / len(kinds)
    chi_square = sum((seen[kind] - expected) ** 2 / expected for kind in kinds) / (len(kinds) - 1)
    assert chi_square < 2.2


@pytest.mark.parametrize("size", [5, 16, 61, 256, 257, 300, 511, 512, 513])
def test_every_place_is_equally_likely_for_every_index_and_pair(size):
    num_keys = 4000
    places = np.array(
        [permute(np.arange(size), size=size, key=order_key(seed=s, epoch=1, purpose="")) for s in range(num_keys)]
    )
    first = np.array([np.bincount(places[:, i], minlength=size) for i in range(size)])
    expected = num_keys / size
    assert abs(((first - expected) ** 2 / expected).sum() / (size - 1) ** 2 - 1) < 4 * np.sqrt(2) / (size - 1)
    # How far neighbours lie apart: each distance but 0 is equally likely.
    distance = np.bincount(((places[:, 1:] - places[:, :-1]) % size).ravel(), minlength=size)
    assert distance[0] == 0
    expected = distance.sum() / (size - 1)
    per_freedom = ((distance[1:] - expected) ** 2 / expected).sum() / max(size - 2, 1)
    assert per_freedom < 1 + 5 * np.sqrt(2 / (size - 2))


@pytest.mark.parametrize("size", [257, 300, 512, 1000, 65_536])
def test_fixed_points_and_cycles_are_those_of_a_random_permutation(size):
    num_keys = 400
    fixed, cycles = [], []
    for seed in range(num_keys):
        places = permute(np.arange(size), size=size, key=order_key(seed=seed, epoch=0, purpose="window:0"))
        fixed.append(np.count_nonzero(places == np.arange(size)))
        if size <= 1000:
            seen, number = np.zeros(size, bool), 0
            for begin in range(size):
                number += not seen[begin]
                while not seen[begin]:
                    seen[begin] = True
                    begin = places[begin]
            cycles.append(number)
    assert abs(np.mean(fixed) - 1) < 5 / np.sqrt(num_keys)
    if cycles:
        harmonic = (1 / np.arange(1, size + 1)).sum()
        assert abs(np.mean(cycles) - harmonic) < 5 * np.sqrt(harmonic / num_keys)


@pytest.mark.parametrize("size", [65_536, 10**6, 2**30 + 1, 10**9])
def test_no_lag_correlates(size):
    places = permute(np.arange(min(size, 300_000)), size=size, key=order_key(seed=5, epoch=0, purpose="window:0"))
    centred = (places - (size - 1) / 2) / (size / 12**0.5)
    lags = [1, 2, 3, 255, 256, 257, 1024, 4096, 32_768]
    assert max(abs(np.mean(centred[:-lag] * centred[lag:])) for lag in lags) < 0.01


@pytest.mark.parametrize("size", [1000, 65_536, 10**9])
def test_two_epochs_and_two_seeds_have_nothing_in_common(size):
    index = np.arange(min(size, 200_000))
    ways = [(1, 0), (1, 1), (2, 0), (2, 1), (1, 2)]
    orders = [permute(index, size=size, key=order_key(seed=s, epoch=e, purpose="window:0")) for s, e in ways]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(index.size)
            assert np.count_nonzero(one == other) < 12


def test_seed_1_epoch_1_is_not_seed_2_epoch_0():
    chunk_1, row_1 = Order([50] * 40, shuffle=True, seed=1, window=4).epoch(1).locate(np.arange(2000))
    chunk_2, row_2 = Order([50] * 40, shuffle=True, seed=2, window=4).epoch(0).locate(np.arange(2000))
    assert np.count_nonzero((chunk_1 == chunk_2) & (row_1 == row_2)) < 20
