"""Generated loops: what is found, and what fixing it would give, within a tenth of what batches in RAM give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples, write_files
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, WorkersLoader, names_of, watched_run

import stoker

WARMUP = 10


def jittered(seed, mean, spread=0.05):
    rng = np.random.default_rng(seed)
    times = mean * np.clip(1 + spread * rng.standard_normal(4000), 0.2, 3)
    return lambda i: float(times[i % len(times)])


def true_gain(loader, step, *, num_epochs=1):
    """Return how much longer the loop takes than with batches in RAM; behind the warm-up."""
    loader.clock.now_ns = 0
    num, total_s, begun_s, ended_s = 0, 0.0, 0.0, 0.0
    for _ in range(num_epochs):
        for i in loader:
            num += 1
            if num == WARMUP + 1:
                begun_s = ended_s
            loader.clock.pass_s(step(i))
            ended_s = loader.clock.now_s
            total_s += step(i) if num > WARMUP else 0.0
    return (loader.clock.now_s - begun_s) / total_s


def run(loader, step, *, num_epochs=1):
    """Check the gain, and return the report."""
    expected = true_gain(loader, step, num_epochs=num_epochs)
    loader.clock.now_ns = 0
    report = watched_run(loader, step, num_epochs=num_epochs, warmup=WARMUP)
    if report.verdict.gain > 1:
        assert report.verdict.gain == pytest.approx(expected, rel=0.1)
    else:
        assert expected < 1 / (1 - 0.05) + 0.01
    return report


def advice_of(report):
    return " ".join(finding.advice for finding in report.findings)


@examples(7)
@given(st.integers(0, 4), st.floats(0.001, 0.1), st.floats(0.002, 0.05), st.integers(0, 100))
def test_gains_of_loaders_with_workers_are_right(num_workers, cost, step, seed):
    clock, jitter, steps = Clock(), jittered(seed, cost), jittered(seed + 1, step)
    if num_workers:
        loader = WorkersLoader(clock, 400, num_workers=num_workers, cost=jitter)
    else:
        loader = PlannedLoader(clock, 400, jitter)
        loader.num_workers = 0
    report = run(loader, steps)
    assert report.verdict.limit in ("data", "model")
    if num_workers < 2:
        assert "in_order" not in advice_of(report)


@pytest.mark.parametrize("num_workers", [0, None])
@pytest.mark.parametrize("num_hiccups", [1, 3])
def test_a_hiccup_without_workers_is_rare_and_nothing_is_overtaken(num_workers, num_hiccups):
    loader = PlannedLoader(Clock(), 300, lambda i: 2.0 if i in (100, 151, 207)[:num_hiccups] else 0.0005)
    loader.num_workers = num_workers
    report = run(loader, lambda i: 0.01)
    assert names_of(report) == ["rare-stall"]
    assert report.findings[0].sentence.startswith(
        f"the loop waits 2 s for {num_hiccups} of 290 batches, 500 µs for the others"
    )
    assert "in_order" not in advice_of(report)


def test_one_hiccup_with_workers_is_rare_too():
    loader = WorkersLoader(Clock(), 300, num_workers=4, cost=lambda i: 2.0 if i == 100 else 0.02)
    assert names_of(run(loader, lambda i: 0.01)) == ["rare-stall"]


def test_batches_that_already_overtake_each_other_are_not_told_to():
    dear = set(np.random.default_rng(3).choice(900, 30, replace=False).tolist())
    loader = WorkersLoader(Clock(), 900, num_workers=4, cost=lambda i: 0.5 if i in dear else 0.02)
    loader.in_order = False
    report = run(loader, lambda i: 0.01)
    assert names_of(report) == ["rare-stall"]
    assert "in_order" not in advice_of(report)


@pytest.mark.parametrize(
    ("num_workers", "slow"),
    [(2, (0,)), (2, (1,)), (4, (2,)), (8, (7,)), (4, (0, 1)), (4, (1, 2)), (4, (1, 3)), (4, (0, 3)), (8, (2, 5, 6))],
)
def test_slow_workers_are_named_each(num_workers, slow):
    jitter = jittered(7, 1.0)
    loader = WorkersLoader(
        Clock(),
        800,
        num_workers=num_workers,
        cost=lambda i: jitter(i) * 0.03 * num_workers * (1 if i % num_workers in slow else 0.1),
    )
    report = run(loader, lambda i: 0.01)
    assert names_of(report) == ["slow-worker"]
    finding = report.findings[0]
    assert finding.workers == slow
    if len(slow) == 1:
        assert (finding.period, finding.place) == (num_workers, slow[0])
        assert f"worker {slow[0]} of {num_workers} is slow" in finding.sentence


def test_a_slow_worker_costs_what_the_loop_waits_longer_for_it_than_for_the_others():
    loader = PlannedLoader(Clock(), 800, lambda i: 0.04 if i % 4 == 2 else 0.01)
    loader.num_workers = 4
    (finding,) = run(loader, lambda i: 0.01).findings
    assert (finding.name, finding.workers) == ("slow-worker", (2,))
    assert finding.share == pytest.approx(0.03 / 0.11, rel=0.01)


def test_without_workers_they_are_what_is_advised():
    loader = PlannedLoader(Clock(), 300, jittered(2, 0.03))
    loader.num_workers = 0
    report = run(loader, lambda i: 0.01)
    assert names_of(report) == ["even-stall"]
    assert "num_workers=0" in advice_of(report)


def test_waits_of_one_and_of_twenty_milliseconds_are_not_about_as_long():
    is_long = np.random.default_rng(5).random(600) < 0.5
    report = run(PlannedLoader(Clock(), 600, lambda i: 0.02 if is_long[i] else 0.001), lambda i: 0.01)
    assert names_of(report) == ["uneven-stall"]
    assert "20 ms or more for one batch in ten, 1 ms or less for another" in report.findings[0].sentence


@pytest.mark.parametrize("period", [16, 50, 100])
def test_a_buffer_that_is_refilled_is_periodic(period):
    report = run(PlannedLoader(Clock(), 1000, lambda i: 0.4 if i % period == 0 else 0.0002), lambda i: 0.01)
    assert names_of(report) == ["periodic-stall"]
    assert report.findings[0].period == period


def test_workers_that_become_too_slow_are_a_jump_before_they_are_too_few():
    loader = WorkersLoader(Clock(), 1000, num_workers=2, cost=lambda i: 0.002 if i < 500 else 0.06)
    report = run(loader, lambda i: 0.01)
    assert names_of(report)[0] == "stall-jump"
    assert sum(finding.share for finding in report.findings) <= 1 - 1 / report.verdict.gain + 0.01


@pytest.mark.parametrize(("low", "high"), [(0.0005, 0.02), (0.02, 0.0005), (0.005, 0.05)])
@pytest.mark.parametrize("at", [300, 500, 700])
def test_a_jump_in_mid_run_is_found_where_it_is(low, high, at):
    jitter = jittered(3, 1.0)
    report = run(PlannedLoader(Clock(), 1000, lambda i: jitter(i) * (low if i < at else high)), lambda i: 0.01)
    assert names_of(report)[0] == "stall-jump"
    assert abs(report.findings[0].place - at) <= 20


@pytest.mark.parametrize(("begin", "end"), [(200, 400), (400, 600), (300, 700)])
@pytest.mark.parametrize(("usual", "there"), [(0.0005, 0.02), (0.02, 0.0005)])
def test_a_loader_that_is_slow_or_fast_for_a_while_jumps_and_jumps_back(begin, end, usual, there):
    """As one that is slow in its second epoch alone."""
    jitter = jittered(5, 1.0)
    loader = PlannedLoader(Clock(), 800, lambda i: jitter(i) * (there if begin <= i < end else usual))
    finding = run(loader, lambda i: 0.01).findings[0]
    assert finding.name == "stall-jump"
    assert abs(finding.place - begin) <= 20
    assert abs(int(finding.sentence.rpartition("up to step ")[2]) - end) <= 20


@pytest.mark.parametrize("is_up", [True, False])
def test_ramps_are_no_jumps(is_up):
    jitter = jittered(4, 1.0)
    cost = (lambda i: jitter(i) * 3e-5 * i) if is_up else (lambda i: jitter(i) * 3e-5 * (1000 - i))
    names = names_of(run(PlannedLoader(Clock(), 1000, cost), lambda i: 0.01))
    assert ("growing-stall" if is_up else "fading-stall") in names
    assert not {"stall-jump", "fading-stall" if is_up else "growing-stall"} & {*names}


@pytest.mark.parametrize("stall", [0.0001, 0.01])
@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({"num_workers": 4, "persistent_workers": False}, "persistent_workers=True"),
        ({"num_workers": 4, "persistent_workers": True}, "longer epochs"),
        ({"num_workers": 0, "persistent_workers": False}, "made in the loop itself"),
        ({}, "persistent_workers=True"),
    ],
)
def test_first_batches_of_epochs_count_in_the_gain_and_no_advice_is_followed_already(stall, traits, words):
    loader = PlannedLoader(Clock(), 40, lambda i: 1.0 if i == 0 else stall)
    for name, value in traits.items():
        setattr(loader, name, value)
    report = run(loader, lambda i: 0.01, num_epochs=6)
    assert report.verdict.gain > 3
    assert report.verdict.limit == "epoch-start"
    advice = next(finding.advice for finding in report.findings if finding.name == "epoch-start")
    assert words in advice
    assert ("persistent_workers" in advice) == (words == "persistent_workers=True")


def test_the_end_of_an_epoch_counts_with_the_beginning_of_the_next():
    """As where a DataLoader waits for its workers to end."""

    class EndsSlowly(PlannedLoader):
        def __iter__(self):
            yield from super().__iter__()
            self.clock.pass_s(0.5)

    report = run(EndsSlowly(Clock(), 40, lambda i: 0.0001), lambda i: 0.01, num_epochs=12)
    assert report.verdict.limit == "epoch-start"
    assert report.seconds["epoch_start"] == pytest.approx(11 * 0.5, rel=0.01)


class SlowLoader(stoker.Loader):
    """One of Stoker's, whose batches come on a planned clock."""

    def __iter__(self):
        for i, batch in enumerate(super().__iter__()):
            self.clock.pass_s(self.stall(i))
            yield batch


def test_stokers_own_loader_gets_advice_of_its_own(tmp_path):
    write_files(tmp_path / "data", [300])

    def report_of(stall):
        with SlowLoader(stoker.Dataset(tmp_path / "data"), batch_size=1) as loader:
            loader.clock, loader.stall = Clock(), stall
            return watched_run(loader, lambda _: 0.01)

    report = report_of(jittered(2, 0.03))
    assert names_of(report) == ["even-stall"]
    assert "loader.stats()" in advice_of(report)
    assert names_of(report_of(lambda i: 2.0 if i == 100 else 0.0005)) == ["rare-stall"]
