"""The promise: mixed data sets keep their shares all along an epoch, on any lanes and at any size.

That each comes in its own order, epoch after epoch, is held by the page of the order and what loaders explain.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from tests.strategies import examples

from stoker.sampling.mixture import BLOCK_SIZE, MixtureOrder, mixture_counts

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "mixture.json").read_text())["mixtures"]


def _sizes(golden):
    return [[part["of"]] * part["chunks"] if isinstance(part, dict) else part for part in golden["sizes"]]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['names']}-{golden['until']}-{golden['epoch']}")
def test_mixtures_are_frozen(golden):
    arguments = {name: golden[name] for name in ("names", "weights", "until", "seed", "window", "lanes")}
    order = MixtureOrder(_sizes(golden), shuffle=True, **arguments)
    assert list(order.counts) == golden["counts"]
    assert list(order.lane_sizes) == golden["lane_sizes"]
    epoch = order.epoch(golden["epoch"], lane=golden["lane"])
    samples = [_samples(epoch, position, position + 1)[0] for position in golden["position"]]
    assert samples == list(zip(golden["component"], golden["chunk"], golden["row"], strict=True))


weights = st.one_of(st.integers(1, 6), st.sampled_from([0.3, 0.7, 1.5, 2.25, 9.5]), st.fractions(Fraction(1, 4), 4))


@st.composite
def mixtures(draw, max_lanes=8, max_samples=400):
    """A mixture of one to five data sets of a few chunks, empty ones among them."""
    num_components = draw(st.integers(1, 5))
    lanes = draw(st.integers(1, max_lanes))
    has_weights = draw(st.booleans())
    sizes = []
    for _ in range(num_components):
        chunks = draw(st.lists(st.integers(0, max_samples // 4), min_size=1, max_size=6))
        sizes.append([*chunks, lanes] if has_weights else chunks)
    return MixtureOrder(
        sizes,
        names=[f"set {i}" for i in range(num_components)],
        # Far apart, so that components differ; near enough that none gets nothing.
        weights=[draw(weights) for _ in sizes] if has_weights else None,
        until=draw(st.sampled_from(["first", "last"])),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(-3, 3)),
        window=draw(st.none() | st.integers(1, 4)),
        lanes=lanes,
    )


def mixtures_that_are_possible(**options):
    """Draw again where a weight is too small to give a sample."""

    @st.composite
    def possible(draw):
        try:
            return draw(mixtures(**options))
        except ValueError as error:
            if "would give no sample" not in str(error):
                raise
            return reject()

    return possible()


def _samples(epoch, start, stop):
    """Return component, chunk and row at positions [start, stop)."""
    component, _, chunk, row = epoch.samples(start, stop)
    return list(zip(component.tolist(), chunk.tolist(), row.tolist(), strict=True))


def _all(epoch):
    return _samples(epoch, 0, epoch.num_samples)


@examples(15)
@given(order=mixtures_that_are_possible(), epoch=st.integers(0, 3))
def test_an_epoch_gives_each_data_set_its_count_and_the_lanes_are_of_one_size(order, epoch):
    seen = Counter(component for lane in order.lanes_of_epoch(epoch) for component, _, _ in _all(lane))
    assert [seen[component] for component in range(len(order.components))] == list(order.counts)
    assert sum(order.lane_sizes) == order.num_samples == sum(order.counts)
    assert max(order.lane_sizes) - min(order.lane_sizes) <= 1
    assert not order.num_samples or order.lane_sizes[-1]  # padding may borrow from the last lane
    for component in order.components:
        assert sum(component.lane_sizes) == component.num_samples
        assert max(component.lane_sizes) - min(component.lane_sizes) <= 1


@examples(65)
@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=6),
    scale=st.integers(1, 1000),
    data=st.data(),
    until=st.sampled_from(["first", "last"]),
)
def test_counts_are_the_shares_of_the_data_set_that_ends_the_epoch(sizes, scale, data, until):
    shares = data.draw(st.lists(weights, min_size=len(sizes), max_size=len(sizes)))
    names = [str(i) for i in range(len(sizes))]
    try:
        counts = mixture_counts(sizes, weights=shares, until=until, names=names)
    except ValueError as error:
        if "would give no sample" not in str(error):
            raise
        return
    exact = [Fraction(str(share)) for share in shares]
    ends = [i for i, size in enumerate(sizes) if counts[i] == size]
    assert any(
        all(
            abs(count - share * counts[i] / exact[i]) <= Fraction(1, 2)
            for count, share in zip(counts, exact, strict=True)
        )
        for i in ends
    )
    for count, size in zip(counts, sizes, strict=True):
        assert count <= size if until == "first" else count >= size
    # The scale of the weights means nothing.
    assert counts == mixture_counts(sizes, weights=[share * scale for share in exact], until=until, names=names)


@examples(15)
@given(order=mixtures_that_are_possible(max_lanes=1, max_samples=12_000), epoch=st.integers(0, 2))
def test_at_every_border_of_blocks_each_share_is_exact_to_half_a_sample(order, epoch):
    one = order.epoch(epoch)
    counts = np.array(order.lane_counts[0], dtype=np.int64)
    components = one.components(0, one.num_samples)
    num_blocks = -(-one.num_samples // BLOCK_SIZE)
    given_before = np.zeros((len(counts), one.num_samples + 1), dtype=np.int64)
    for number in range(len(counts)):
        np.cumsum(components == number, out=given_before[number, 1:])
    for block in range(num_blocks + 1):
        ideal = [Fraction(int(count) * block, max(num_blocks, 1)) for count in counts]
        border = sum(int(share + Fraction(1, 2)) for share in ideal)
        for number, share in enumerate(ideal):
            assert abs(given_before[number, border] - share) <= Fraction(1, 2)
    # Between borders no share can be off by more than a block.
    positions = np.arange(one.num_samples + 1)
    for number, count in enumerate(counts.tolist()):
        assert (abs(given_before[number] - positions * (count / max(one.num_samples, 1))) <= BLOCK_SIZE / 2 + 5).all()


@examples(15)
@given(order=mixtures_that_are_possible(max_samples=30_000), epoch=st.integers(0, 2))
def test_all_lanes_together_keep_each_share_to_a_sample_at_every_border_of_their_blocks(order, epoch):
    lanes = order.lanes_of_epoch(epoch)
    num_blocks = {-(-lane.num_samples // BLOCK_SIZE) for lane in lanes}
    assume(len(num_blocks) == 1 and lanes[0].num_samples)  # else their borders do not lie side by side
    all_components = [lane.components(0, lane.num_samples) for lane in lanes]
    most = max(num_blocks)
    for number, count in enumerate(order.counts):
        totals = np.zeros(most + 1)
        for lane, components, counts, phases in zip(
            lanes, all_components, order.lane_counts, order.lane_phases, strict=True
        ):
            for block in range(most + 1):
                shares = [Fraction(c * block, most) + Fraction(*p) for c, p in zip(counts, phases, strict=True)]
                before = (components[: sum(int(share) for share in shares)] == number).sum()
                assert abs(before - Fraction(counts[number] * block, most)) < 1
                totals[block] += before
            assert lane.num_samples == sum(counts)
        assert (abs(totals - count * np.arange(most + 1) / most) <= 1 + 1e-9).all()


def test_where_the_samples_of_a_rare_data_set_stand_is_found_at_once_in_an_epoch_without_end():
    order = MixtureOrder(
        [[10**17], [3]], names=("all", "rare"), weights=None, shuffle=True, seed=0, window=None, lanes=1
    )
    one = order.epoch(0)
    for ordinal in range(3):
        position = one.position_of(1, 0, ordinal)
        assert one.component_ranges(position, position + 1)[0][0] == 1
        assert abs(position - one.num_samples * (2 * ordinal + 1) // 6) <= BLOCK_SIZE


@examples(15)
@given(order=mixtures_that_are_possible(max_lanes=1, max_samples=12_000))
def test_unshuffled_no_share_is_ever_off_by_more_than_two_samples(order):
    order = MixtureOrder(
        [np.diff(component.chunk_starts) for component in order.components],
        names=order.names, weights=None, shuffle=False, seed=0, window=None,
    )  # fmt: skip
    one = order.epoch(0)
    components = one.components(0, one.num_samples)
    positions = np.arange(1, one.num_samples + 1)
    for number, count in enumerate(order.counts):
        off = np.cumsum(components == number) - positions * (count / max(one.num_samples, 1))
        assert (abs(off) <= 1 + len(order.counts) / 2).all()


def positions_of(lane, component, chunk, row):
    """Every position of an epoch at which a sample stands."""
    places = (
        (own, lane.component_epoch(component, own).positions_of(np.array([chunk]), np.array([row]))[0])
        for own in lane.own_epochs(component)
    )
    found = [lane.position_of(component, own, int(place)) for own, place in places]
    return [position for position in found if position is not None]


def test_batches_of_a_mixture_are_made_up_as_random_draws_are_or_more_evenly():
    one = MixtureOrder([[10**6], [10**6]], names=("a", "b"), weights=(1, 1), shuffle=True, seed=5, window=None).epoch(0)
    for batch_size in (64, 256, 1000, 4096):
        batches = one.components(0, batch_size * 200).reshape(200, batch_size)
        variance = batches.sum(axis=1).var() / (batch_size / 4)
        assert variance < 1.35
        assert abs(batches.mean() - 0.5) < 0.01
    neighbours = one.components(0, 10**5)
    assert abs(np.corrcoef(neighbours[:-1], neighbours[1:])[0, 1]) < 0.02


def test_a_billion_samples_of_many_data_sets_stay_small():
    order = MixtureOrder(
        [np.full(50_000, 10_000), np.full(40_000, 10_000), np.full(10, 10)],
        names=("web", "books", "tiny"), weights=(5, 4, 0.001), until="last", shuffle=True, seed=1, window=None,
    )  # fmt: skip
    one = order.epoch(7)
    positions = np.arange(one.num_samples - 5000, one.num_samples)
    component, _, chunk, row = one.samples(one.num_samples - 5000, one.num_samples)
    for i in (0, 777, 4999):
        assert positions[i] in positions_of(one, int(component[i]), int(chunk[i]), int(row[i]))
    assert one.num_samples == sum(order.counts) == order.num_samples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": (1, 0)}, "positive"),
        ({"weights": (1, -1)}, "positive"),
        ({"weights": (1, 1e-9)}, "'b' with weight 1e-09 would give no sample"),
        ({"num_samples": [[5], [0]]}, "'b' has no samples"),
        ({"num_samples": [[50], [3]], "lanes": 4, "until": "last"}, "too few to share out among 4 lanes"),
        ({"num_samples": [[2**62 - 1], [2**62 - 1]], "until": "last"}, r"2\*\*62"),
    ],
)
def test_what_cannot_be_mixed_is_refused(arguments, message):
    usual = {"num_samples": [[5], [7]], "names": ("a", "b"), "weights": (1, 1), "shuffle": True, "seed": 0}
    settings = usual | {"window": None} | arguments
    with pytest.raises(ValueError, match=message):
        MixtureOrder(settings.pop("num_samples"), **settings)
