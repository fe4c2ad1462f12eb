"""Planted patterns get their names, what is planted nowhere gets none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, WorkersLoader, names_of, watched_run


def noise(seed: int):
    rng = np.random.default_rng(seed)
    return lambda seconds, spread=0.1: seconds * min(3.0, max(0.2, 1 + spread * float(rng.standard_normal())))


@given(st.integers(2, 64), st.data(), st.integers(0, 100))
def test_a_slow_kth_batch_is_found_with_its_period_and_place(period, data, seed):
    place = data.draw(st.integers(0, period - 1))
    jitter = noise(seed)
    loader = PlannedLoader(Clock(), 700, lambda i: jitter(0.05 if i % period == place else 0.0005))
    report = watched_run(loader, lambda i: jitter(0.01))
    finding = next(finding for finding in report.findings if finding.name == "periodic-stall")
    assert (finding.period, finding.place) == (period, place)
    assert f"for every {period}" in finding.sentence


def test_a_slow_worker_that_is_not_the_first_is_named_by_times_alone():
    jitter = noise(1)
    loader = WorkersLoader(
        Clock(), 800, num_workers=4, cost=lambda i: jitter(0.12 if i % 4 == 2 else 0.02), is_seen=False
    )
    assert names_of(watched_run(loader, lambda i: jitter(0.01))) == ["slow-worker"]


@pytest.mark.parametrize("num_workers", [2, 4, 8])
@pytest.mark.parametrize("spread", [0.001, 0.05, 0.3])
@pytest.mark.parametrize("is_seen", [True, False])
def test_workers_that_are_all_too_slow_are_too_few(num_workers, spread, is_seen):
    jitter = noise(1)
    loader = WorkersLoader(
        Clock(), 800, num_workers=num_workers, cost=lambda i: jitter(0.03 * num_workers, spread), is_seen=is_seen
    )
    names = names_of(watched_run(loader, lambda i: jitter(0.01)))
    assert names == ["too-few-workers"] or (not is_seen and names in (["even-stall"], ["uneven-stall"]))


def test_hiccups_of_a_busy_machine_make_no_period_of_workers_at_their_limit():
    """Each hiccup changes which worker is last; a hundred batches have few turns, and chance likes long ones."""
    wrong = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        hiccups = rng.exponential(0.02, 100) * (rng.random(100) < 0.1)
        loader = WorkersLoader(Clock(), 100, num_workers=2, cost=lambda i, hiccups=hiccups: 0.02 + float(hiccups[i]))
        names = names_of(watched_run(loader, lambda i: 2e-5))
        if names[:1] != ["too-few-workers"]:
            wrong.append((seed, names))
    assert len(wrong) <= 3, wrong  # one in a hundred


def test_one_dear_batch_that_holds_back_those_behind_it_is_head_of_line_blocking():
    rng = np.random.default_rng(3)
    dear = set(rng.choice(900, 30, replace=False).tolist())
    loader = WorkersLoader(Clock(), 900, num_workers=4, cost=lambda i: 0.5 if i in dear else 0.02)
    report = watched_run(loader, lambda i: 0.01)
    assert names_of(report) == ["head-of-line"]
    assert report.findings[0].share > 0.1


def test_a_machine_that_stops_all_workers_now_and_then_has_neither_dear_batches_nor_too_few_of_them():
    stops = set(np.random.default_rng(3).choice(100, 8, replace=False).tolist())
    loader = WorkersLoader(Clock(), 900, num_workers=3, cost=lambda i: 0.6 if i // 9 in stops and i % 9 < 3 else 0.02)
    assert names_of(watched_run(loader, lambda i: 0.01)) == ["rare-stall"]


@pytest.mark.parametrize("every", [10, 100, 150])
def test_slow_steps_are_told_from_slow_batches(every):
    jitter = noise(7)
    loader = PlannedLoader(Clock(), 1000, lambda i: jitter(0.0001))
    report = watched_run(loader, lambda i: jitter(0.5 if i % every == every - 1 else 0.01))
    assert names_of(report) == ["slow-steps"]
    assert report.findings[0].period == every
    assert report.verdict.limit == "model"


def test_epochs_that_begin_slowly_are_told_apart_from_stalls_inside():
    loader = PlannedLoader(Clock(), 40, lambda i: 1.0 if i == 0 else 0.0001)
    report = watched_run(loader, lambda i: 0.01, num_epochs=6)
    assert names_of(report) == ["epoch-start"]
    assert report.verdict.limit == "epoch-start"
    assert report.stall_share == pytest.approx(0.01, abs=0.002)
    assert report.seconds["epoch_start"] == pytest.approx(5.0)
    assert report.first_batch_s == pytest.approx(1.0)


@given(st.integers(0, 1000))
def test_noise_has_no_pattern(seed):
    rng = np.random.default_rng(seed)
    waits = rng.exponential(0.02, 500).tolist()
    names = names_of(watched_run(PlannedLoader(Clock(), 500, waits.__getitem__), lambda i: 0.01))
    assert not {"periodic-stall", "slow-worker", "too-few-workers"} & {*names}


def test_a_balanced_loop_has_nothing_to_tell():
    jitter = noise(8)
    report = watched_run(PlannedLoader(Clock(), 500, lambda i: jitter(0.00005)), lambda i: jitter(0.01))
    assert report.findings == ()
    assert report.verdict.limit == "model"
    assert "nothing to gain" in report.verdict.sentence
