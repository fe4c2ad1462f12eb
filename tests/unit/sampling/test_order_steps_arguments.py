"""Steps and shards: what the drawings say, and wrong arguments."""

from __future__ import annotations

import pytest

from stoker.sampling import RankShare, Slice, Steps


def _taken(steps, step, world_size):
    return [[tuple(s)[:3] for s in steps.slices(step, RankShare(rank, world_size))] for rank in range(world_size)]


def test_ranks_cut_the_lanes_as_drawn():
    steps = Steps(lane_sizes=(40, 40), global_batch_size=8)
    assert _taken(steps, 1, 3) == [[(0, 4, 6)], [(0, 6, 8), (1, 4, 5)], [(1, 5, 8)]]


def test_the_remainder_is_kept_dropped_or_padded_as_drawn():
    keep, drop, pad = (
        Steps(lane_sizes=(22,), global_batch_size=8, remainder=remainder) for remainder in ("keep", "drop", "pad")
    )
    assert (keep.num_steps, drop.num_steps, pad.num_steps) == (3, 2, 3)
    assert _taken(keep, 2, 3) == [[(0, 16, 18)], [(0, 18, 20)], [(0, 20, 22)]]
    assert [steps.consumed_before(steps.num_steps) for steps in (keep, drop, pad)] == [22, 16, 22]
    assert pad.slices(2) == (Slice(0, 16, 22), Slice(0, 0, 2, is_padding=True))
    padded = [any(piece.is_padding for piece in pad.slices(2, RankShare(rank, 3))) for rank in range(3)]
    assert padded == [False, False, True]


def test_the_remainder_of_two_lanes_is_kept_dropped_or_padded_as_drawn():
    keep, drop, pad = (
        Steps(lane_sizes=(10, 11), global_batch_size=8, remainder=remainder) for remainder in ("keep", "drop", "pad")
    )
    assert (keep.num_steps, drop.num_steps, pad.num_steps) == (3, 2, 3)
    for steps in (keep, drop, pad):
        assert _taken(steps, 1, 3) == [[(0, 4, 6)], [(0, 6, 8), (1, 4, 5)], [(1, 5, 8)]]
    assert _taken(keep, 2, 3) == [[(0, 8, 9)], [(0, 9, 10), (1, 8, 9)], [(1, 9, 11)]]
    assert _taken(pad, 2, 3) == [[(0, 8, 10)], [(0, 0, 2), (1, 8, 9)], [(1, 9, 11), (1, 0, 1)]]
    assert drop.consumed_before(2) == 21 - 5


def test_a_batch_larger_than_the_epoch_repeats_it_as_often_as_needed():
    steps = Steps(lane_sizes=(3,), global_batch_size=8, remainder="pad")
    assert steps.slices(0) == (Slice(0, 0, 3), Slice(0, 0, 3, is_padding=True), Slice(0, 0, 2, is_padding=True))


def test_an_empty_lane_is_padded_from_one_that_is_not():
    steps = Steps(lane_sizes=(0, 1), global_batch_size=4, remainder="pad")
    assert steps.num_steps == 1
    assert sum(s.num_samples for s in steps.slices(0)) == 4
    assert {s.lane for s in steps.slices(0)} == {1}


def test_a_rank_without_samples_still_has_the_step():
    steps = Steps(lane_sizes=(9,), global_batch_size=8)
    assert steps.num_steps == 2
    assert _taken(steps, 1, 4) == [[], [], [], [(0, 8, 9)]]


def test_steps_that_begin_at_the_end_are_none():
    for remainder in ("keep", "drop", "pad"):
        assert Steps(lane_sizes=(3, 4), global_batch_size=2, remainder=remainder, start=7).num_steps == 0


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"global_batch_size": 0}, "at least 1"),
        ({"global_batch_size": 5, "lane_sizes": (4, 4)}, "no multiple of 2"),
        ({"remainder": "fill"}, "'keep', 'drop' or 'pad'"),
        ({"start": -1}, "outside"),
        ({"start": 11}, "outside"),
        ({"start": 1, "lane_sizes": (4, 4)}, "no multiple of 2 lanes"),
    ],
)
def test_a_wrong_setting_is_a_value_error(settings, error):
    with pytest.raises(ValueError, match=error):
        Steps(**{"lane_sizes": (10,), "global_batch_size": 4} | settings)


def test_a_batch_size_that_is_no_integer_is_a_type_error():
    with pytest.raises(TypeError, match="global_batch_size"):
        Steps(lane_sizes=(10,), global_batch_size=2.5)


def test_a_step_that_does_not_exist_is_a_value_error():
    steps = Steps(lane_sizes=(10,), global_batch_size=4)
    for step in (-1, 3):
        with pytest.raises(ValueError, match="outside"):
            steps.slices(step)
    with pytest.raises(ValueError, match="outside"):
        steps.consumed_before(4)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_its_world_is_a_value_error(rank, world_size):
    with pytest.raises(ValueError, match=r"outside|world_size must be at least 1, not 0"):
        RankShare(rank, world_size)


@pytest.mark.parametrize("rank", ["0", 0.0, True])
def test_a_rank_that_is_no_integer_is_a_type_error(rank):
    with pytest.raises(TypeError, match="rank must be an integer"):
        RankShare(rank, 2)
