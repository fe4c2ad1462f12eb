import dataclasses

import pytest

from stoker import LoaderStats
from stoker.metrics.stages import StageTotal


def stats(**changes):
    usual = {"num_steps": 0, "num_samples": 0, "wait_s": 0.0, "num_ready": 0, "num_built": 0, "num_reused": 0}
    return LoaderStats(**{**usual, "num_mended": 0, "stages": {}, **changes})


def test_shares_and_rates_are_of_the_loops_own_time():
    some = stats(
        num_steps=10, num_samples=640, wait_s=1.0, step_s=3.0, elapsed_s=100.0, num_built=4, num_missed=1, num_reused=3
    )
    assert some.stall_share == 0.25
    assert some.busy_share == 0.75
    assert some.samples_per_s == 160.0
    assert some.steps_per_s == 2.5
    assert some.hit_share == 0.75


def test_before_the_first_batch_everything_is_nothing():
    none = stats()
    assert (none.stall_share, none.busy_share, none.samples_per_s, none.hit_share, none.left_s) == (0, 0, 0, 0, None)
    assert (none.fetched_bytes, none.num_building) == (0, 0)


def test_time_left_is_that_of_the_steps_left():
    assert stats(num_steps=10, wait_s=1.0, step_s=4.0, epoch_step=10, epoch_steps=30).left_s == 10.0


def test_it_says_who_waits_for_whom():
    stages = {
        name: StageTotal(num_calls=1, busy_s=busy)
        for name, busy in (("wait_window", 1.0), ("wait_chunk", 2.0), ("fetch", 4.0), ("wait_room", 8.0))
    }
    waits = stats(wait_s=0.5, stages=stages).waits
    assert waits._asdict() == {
        "loop_for_batch_s": 0.5,
        "batch_for_window_s": 1.0,
        "window_for_chunk_s": 2.0,
        "build_for_bytes_s": 4.0,
        "batch_for_room_s": 8.0,
    }


def test_the_time_between_two_looks_is_a_difference_and_what_holds_now_holds():
    fetch = StageTotal(num_calls=3, busy_s=1.5, num_bytes=100)
    before = stats(num_steps=5, num_samples=50, wait_s=1.0, stages={"fetch": fetch}, elapsed_s=10.0, num_ready=4)
    after = dataclasses.replace(
        before,
        num_steps=8,
        num_samples=80,
        wait_s=1.25,
        elapsed_s=12.0,
        num_ready=1,
        epoch=1,
        active={"fetch": 2, "build": 2},
        stages={
            "fetch": StageTotal(num_calls=4, busy_s=2.0, num_bytes=150),
            "decode": StageTotal(num_calls=1, busy_s=0.25),
        },
    )
    found = after.since(before)
    assert (found.num_steps, found.num_samples, found.wait_s, found.elapsed_s) == (3, 30, 0.25, 2.0)
    assert (found.num_ready, found.epoch, found.num_building) == (1, 1, 2)
    assert found.stages["fetch"] == StageTotal(num_calls=1, busy_s=0.5, num_bytes=50)
    assert found.stages["decode"].busy_s == 0.25
    assert found.fetched_bytes == 50


def test_every_number_is_either_subtracted_or_said_as_it_is():
    """A field that is added later must not be forgotten in `since`."""
    names = {field.name for field in dataclasses.fields(LoaderStats)} - {"stages", "active"}
    one = LoaderStats(**dict.fromkeys(names, 1), stages={}, active={})
    three = LoaderStats(**dict.fromkeys(names, 3), stages={}, active={})
    found = three.since(one)
    now = {"num_ready", "epoch", "epoch_step", "epoch_steps"}
    assert {name for name in names if getattr(found, name) == 3} == now
    assert {name for name in names if getattr(found, name) == 2} == names - now


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats().num_steps = 1
