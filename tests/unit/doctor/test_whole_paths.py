"""What time is left goes to the paths that were looked at for a moment only."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.doctor.plans_made import DEMAND, source_plan, tensors_plan

from stoker.doctor import whole_paths
from stoker.doctor.outcome import pace_note
from stoker.doctor.results import ARROW, SOURCE, TENSORS, Rate
from stoker.doctor.whole_paths import WholePaths

BUDGET_S = 60.0


class Clock:
    """A budget of which so much is left."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def say(self, _what: str) -> None:
        """Tell nobody."""

    def slice_s(self, share: float) -> float:
        """Return a share of the whole."""
        return share * BUDGET_S


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """The runs that are made: which path, and for how long."""
    made: list[tuple[str, float]] = []

    def run_of(key: str) -> Any:
        def run(*_arguments: object, seconds: float, **_more: object) -> Any:
            made.append((key, seconds))
            # Arrow gives half at first, and all of it in long runs; tensors more than the step takes.
            times = {SOURCE: 0.1, ARROW: 0.5 if seconds < 3.0 else 0.8, TENSORS: 1.0}[key]
            rate = Rate(samples_s=times * DEMAND, low=0.0, high=times * DEMAND)
            return SimpleNamespace(rate=rate, cores_left=8.0, got=())

        return run

    for key in (SOURCE, ARROW, TENSORS):
        monkeypatch.setattr(whole_paths, f"run_{key}", run_of(key))
    monkeypatch.setattr(whole_paths, "warm_up", lambda *_arguments, **_more: None)
    monkeypatch.setattr(whole_paths.probe_machine, "pace", lambda: SimpleNamespace(speed=1.0))
    return made


def paths(left_s: float) -> WholePaths:
    arrow = replace(tensors_plan(), path="tensors")
    plans = {SOURCE: source_plan(), ARROW: arrow, TENSORS: tensors_plan()}
    sample: Any = SimpleNamespace(longer=1.0, mean_chunk=1.0)
    settings: Any = SimpleNamespace(budget_s=BUDGET_S)
    return WholePaths(sample, settings, Clock(left_s), plans, today=SOURCE, step_s=0.0)  # type: ignore[arg-type]


def test_what_is_left_goes_to_the_path_that_the_step_does_not_hold_back(runs):
    found = paths(left_s=10.0)
    found.run()
    del runs[:]
    found.run_again()
    assert [key for key, _ in runs] == [ARROW]
    assert 3.0 < runs[0][1] <= 10.0
    # Each second counts alike: two looks of 2.1 s at half, one of 6 s at 0.8.
    looked_s = 2 * whole_paths._OTHERS * BUDGET_S
    mean = (0.5 * looked_s + 0.8 * runs[0][1]) / (looked_s + runs[0][1])
    assert found.measured[ARROW].samples_s == pytest.approx(mean * DEMAND)


@pytest.mark.parametrize("left_s", [-3.0, 0.0, 0.5])
def test_where_nothing_is_left_nothing_is_run(runs, left_s):
    found = paths(left_s)
    found.run()
    del runs[:]
    found.run_again()
    assert runs == []


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ([], None),
        ([3_000, 4_000], None),
        ([3_000, 3_050, 3_020, 3_100, 3_010, 2_990], None),
        ([3_000, 3_050, 3_020, 4_300, 3_010, 2_990], None),  # once is chance
        ([3_000, 4_000, 3_100, 4_100, 3_000, 4_000], "by 32%"),
    ],
)
def test_a_machine_that_keeps_no_pace_is_said_to(speeds, said):
    note = pace_note(speeds)
    assert note is None if said is None else said in str(note)
