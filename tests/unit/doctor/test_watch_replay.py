"""The replay test: which batches come again, when, what it measures, and what the verdict makes of it."""

import logging
import sys
import types

import numpy as np
import pytest
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, watched_run

import stoker


def handed_over(num, **options):
    clock = Clock()
    watched = stoker.watch(PlannedLoader(clock, num, lambda i: 0.02), clock=clock, **options)
    batches = []
    for batch in watched:
        clock.pass_s(0.01)
        batches.append(batch)
    return batches, watched


def test_without_replay_nothing_is_handed_out_twice():
    batches, watched = handed_over(100)
    assert batches == list(range(100))
    assert watched.report().replay is None


def test_replayed_batches_come_in_between_and_no_real_one_is_lost():
    batches, watched = handed_over(100, warmup=10, replay=20)
    assert len(batches) == 120
    again = batches[31:51]
    assert set(again) < set(range(31))
    assert batches[:31] + batches[51:] == list(range(100))
    assert len(watched) == 100
    assert list(watched) == list(range(100))  # once in its life


def test_an_epoch_too_short_for_it_is_followed_by_its_replay():
    batches, watched = handed_over(15, warmup=2, replay=40)
    assert batches[:15] == list(range(15))
    assert len(batches) == 55
    assert watched.report().replay.num_steps == 20


def test_an_empty_epoch_has_nothing_to_replay():
    batches, _ = handed_over(0, replay=5)
    assert batches == []


def test_the_replay_says_so_in_the_log(caplog):
    with caplog.at_level(logging.WARNING, logger="stoker"):
        handed_over(100, replay=20)
    assert [record.message for record in caplog.records] == [
        "replay test: the next 20 steps get 8 batches again that they have had; not for a run that counts"
    ]


def of_size(num_bytes):
    return np.broadcast_to(np.uint8(0), num_bytes)  # which takes no memory


@pytest.mark.parametrize(
    ("batch", "size", "num_batches"),
    [
        (of_size(1000), 1000, 8),
        (of_size(300_000_000), 300_000_000, 3),
        (of_size(2_000_000_000), 2_000_000_000, 1),
        ({"a": np.zeros(10), "b": [b"123", (np.zeros(5, dtype=np.uint8),)]}, 88, 8),
        (types.SimpleNamespace(x=np.zeros(100, dtype=np.uint8)), 100, 8),
    ],
)
def test_kept_batches_end_at_a_gigabyte_but_one_is_always_kept(batch, size, num_batches):
    """The size is that of the arrays in a batch, whatever holds them."""
    watched = stoker.watch([batch] * 100, replay=10)
    for _ in watched:
        pass
    assert watched.report().replay.num_batches == num_batches
    assert watched.report().replay.num_bytes == size * num_batches


def test_a_batch_that_holds_itself_has_a_size():
    batch = {"x": np.zeros(100, dtype=np.uint8)}
    batch["own"] = batch
    watched = stoker.watch([batch] * 20, replay=2)
    for _ in watched:
        pass
    assert watched.report().replay.num_bytes >= 100


def test_the_replay_measures_what_batches_in_ram_give():
    loader = PlannedLoader(Clock(), 400, lambda i: 0.021)
    report = watched_run(loader, lambda i: 0.0125, replay=50)
    assert report.replay.gain == pytest.approx(33.5 / 12.5)
    assert report.verdict.confidence == "high"
    assert report.verdict.sentence == (
        "data-bound: the step waits 63 % of the time; with batches in RAM it would run 2.7 times faster "
        "(replay measured 2.7)"
    )
    # behind the replay the loader's queues are full: as many steps do not count, and no replayed one is a real one
    assert report.num_left_out == 50
    assert report.num_steady == 400 - 10 - 50


def verdict(*, stall, step, again=None, num=1000):
    """Return what is said of a loop whose steps take `again` seconds on batches that they have had."""
    seen = set()

    def step_s(i):
        is_again = i in seen
        seen.add(i)
        return again if is_again else step

    loader = PlannedLoader(Clock(), num, lambda i: stall)
    return watched_run(loader, step_s, replay=0 if again is None else 50).verdict


def test_nothing_to_gain_is_said_where_the_step_is_the_limit():
    found = verdict(stall=0.0001, step=0.0099)
    assert found.limit == "model"
    assert found.sentence == "nothing to gain: the model is the limit, the step waits 1.0 % of the time"
    assert found.gain == 1


def test_a_wait_that_hides_behind_the_devices_work_is_no_bottleneck():
    found = verdict(stall=0.004, step=0.006, again=0.0099)
    assert found.limit == "model"
    assert found.gain == 1
    assert "hides behind the device's work" in found.sentence


def test_a_loader_that_takes_the_steps_cores_is_caught_by_the_replay_alone():
    found = verdict(stall=0.0001, step=0.0089, again=0.006)
    assert found.limit == "contention"
    assert found.gain == pytest.approx(1.5)
    assert found.confidence == "medium"


def test_where_prediction_and_replay_differ_the_replay_is_trusted():
    found = verdict(stall=0.007, step=0.007, again=0.01)
    assert found.gain == pytest.approx(1.4)
    assert "trust the replay" in found.because


def test_waits_of_asynchronous_steps_are_an_upper_bound(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    found = verdict(stall=0.01, step=0.01)
    assert found.confidence == "low"
    assert "upper bound" in found.because


def test_too_few_steps_give_no_verdict_or_an_unsure_one():
    assert verdict(stall=0.01, step=0.01, num=5).limit == "unknown"
    assert verdict(stall=0.01, step=0.01, num=15).confidence == "low"
