"""Orders and epochs: shapes, borders and arguments."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.sampling import Order


def test_unshuffled_samples_stand_in_fixed_order_and_windows_are_consecutive_chunks():
    epoch = Order([3, 0, 2, 4, 1], shuffle=False, seed=1, window=2).epoch(5)
    assert epoch.window_starts.tolist() == [0, 5, 10]
    assert [epoch.window_chunks(window).tolist() for window in range(2)] == [[0, 2], [3, 4]]
    chunk, row = epoch.locate(range(10))
    assert chunk.tolist() == [0, 0, 0, 2, 2, 3, 3, 3, 3, 4]
    assert row.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 0]


def test_windows_are_of_equal_size_give_or_take_one_chunk():
    epoch = Order([1] * 10, shuffle=True, seed=1, window=4).epoch(0)
    assert np.diff(epoch.window_starts).tolist() == [3, 3, 4]


def test_a_chunk_on_the_border_of_lanes_lies_in_both_with_its_own_rows():
    order = Order([3, 2, 4, 2], shuffle=False, seed=0, window=None, lanes=3)
    assert order.lane_sizes == (3, 4, 4)
    lanes = [order.epoch(0, lane=lane) for lane in range(3)]
    assert [lane.window_chunks(0).tolist() for lane in lanes] == [[0], [1, 2], [2, 3]]
    rows = [lane.locate(range(lane.num_samples))[1].tolist() for lane in lanes]
    assert rows == [[0, 1, 2], [0, 1, 0, 1], [2, 3, 0, 1]]
    places = [lane.positions_of([2, 2, 3, 9, 0], [1, 2, 0, 0, 3]).tolist() for lane in lanes]
    assert places == [[], [3], [0, 2]]  # of those that the lane holds


def test_more_lanes_than_samples_leaves_lanes_empty():
    order = Order([2], shuffle=True, seed=0, window=None, lanes=4)
    assert order.lane_sizes == (0, 1, 0, 1)
    assert [order.epoch(0, lane=lane).num_windows for lane in range(4)] == [0, 1, 0, 1]
    assert order.epoch(0, lane=0).locate([])[0].size == 0


def test_epochs_seeds_and_lanes_differ_and_each_comes_again():
    def rows(seed, epoch, lane):
        return tuple(
            Order([400], shuffle=True, seed=seed, window=None, lanes=2).epoch(epoch, lane=lane).locate(range(200))[1]
        )

    ways = [(seed, epoch, lane) for seed in (0, 1) for epoch in (0, 1) for lane in (0, 1)]
    assert len({rows(*way) for way in ways}) == len(ways)
    assert rows(1, 0, 1) == rows(1, 0, 1)


def test_the_window_that_holds_all_chunks_is_the_whole_data_set():
    some = Order([5, 6, 7], shuffle=True, seed=0, window=3).epoch(0).locate(range(18))
    whole = Order([5, 6, 7], shuffle=True, seed=0, window=None).epoch(0).locate(range(18))
    assert np.array_equal(some, whole)


def test_the_order_does_not_change_with_the_array_it_was_made_of():
    counts = np.array([3, 4])
    order = Order(counts, shuffle=False, seed=0, window=None)
    counts[0] = 100
    assert order.num_samples == 7


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"window": 0}, "window must be at least 1"),
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"num_samples": [1, -1]}, "outside"),
        ({"num_samples": [2**61, 2**61, 2**61]}, "more than"),
    ],
)
def test_a_wrong_setting_is_a_value_error(settings, error):
    with pytest.raises(ValueError, match=error):
        Order(**{"num_samples": [1], "shuffle": True, "seed": 0, "window": None} | settings)


@pytest.mark.parametrize(
    "settings", [{"seed": 1.0}, {"seed": None}, {"lanes": None}, {"window": "8"}, {"num_samples": [0.5]}]
)
def test_a_setting_of_another_type_is_a_type_error(settings):
    with pytest.raises(TypeError):
        Order(**{"num_samples": [1], "shuffle": True, "seed": 0, "window": None} | settings)


@pytest.mark.parametrize(
    "ask",
    [
        lambda epoch: epoch.locate([10]),
        lambda epoch: epoch.locate([-1]),
        lambda epoch: epoch.locate([0, 10**18]),
        lambda epoch: epoch.tables(2),
        lambda epoch: epoch.tables(-1),
        lambda epoch: epoch.window_chunks(2),
        lambda epoch: epoch.positions_of([-1], [3]),
    ],
)
def test_what_does_not_exist_is_a_value_error(ask):
    with pytest.raises(ValueError, match="outside"):
        ask(Order([3, 0, 2, 4, 1], shuffle=False, seed=1, window=2).epoch(0))


def test_a_negative_epoch_or_an_unknown_lane_is_a_value_error():
    order = Order([3], shuffle=True, seed=1, window=None)
    with pytest.raises(ValueError, match="epoch"):
        order.epoch(-1)
    with pytest.raises(ValueError, match="lane"):
        order.epoch(0, lane=1)
