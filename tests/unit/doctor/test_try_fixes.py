"""What a faster link gives is tried, and tried again with fewer threads where the last of them bring too little."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.doctor.plans_made import CHUNK, HEALTHY, source_plan

from stoker.doctor import try_fixes
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import Rate
from stoker.doctor.try_fixes import TryFixes
from stoker.doctor.whatif import FASTER, faster_network
from stoker.doctor.whole import Whole

LEAST, MOST = 8, 64


class Trials(TryFixes):
    """Fixes of a path, tried behind a link of which it is known what it gives."""

    def __init__(self, plan: Plan, gives: dict[int, float]) -> None:
        nothing: Any = None
        super().__init__(
            sample=nothing,
            settings=nothing,
            clock=nothing,
            paths=SimpleNamespace(alone=lambda _key: plan),  # type: ignore[arg-type]
            today="source",
            may_open_again=True,
            widest_share=0.0,
            widest_cpu_share=0.0,
            tap=None,
            fetched=(),
            fetch=nothing,
        )
        self.tried: list[int] = []
        self._gives = gives

    def _behind_faster_link(self, plan: Plan) -> Plan | None:
        """Return a plan that gives so many times what this one says it would."""
        self.tried.append(plan.num_builders)
        times = self._gives.get(plan.num_builders)
        return None if times is None else slower(plan, rate_s=times * rate_of(plan))


def slower(plan: Plan, *, rate_s: float) -> Plan:
    """Return the plan with a step that takes no more than so much."""
    stages = tuple(
        replace(stage, device_s=max(stage.device_s, 1 / rate_s)) if stage.key == "step" else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def plan(*, fetch_s: float) -> Plan:
    """Return a path whose chunks take so long to come, each in a thread of its own."""
    fetch = replace(HEALTHY["fetch"], wait_s=fetch_s / CHUNK)
    return replace(
        source_plan(fetch=fetch),
        num_builders=LEAST,
        num_computing=4,
        least_builders=LEAST,
        most_builders=MOST,
        window=MOST,
    )


LATE = plan(fetch_s=10.0)


def test_behind_a_late_link_the_model_comes_to_all_threads():
    assert faster_network(LATE, times=FASTER).num_builders == MOST  # else the tests below show nothing


def test_threads_that_are_worth_it_are_tried_once():
    trials = Trials(LATE, {MOST: 1.0, MOST // 2: 1.0})
    found = trials._network()
    assert found is not None
    assert found.num_builders == MOST
    assert trials.tried == [MOST]


def test_threads_that_bring_too_little_are_left_out_as_a_loader_does():
    trials = Trials(LATE, {MOST: 0.4, MOST // 2: 0.9})
    found = trials._network()
    assert trials.tried == [MOST, MOST // 2]
    assert found is not None
    assert found.num_builders == MOST // 2


def test_what_was_tried_counts_where_there_is_no_time_to_try_again():
    trials = Trials(LATE, {MOST: 0.4})
    found = trials._network()
    assert trials.tried == [MOST, MOST // 2]
    assert found is not None
    assert found.num_builders == MOST


def test_with_no_more_threads_than_at_the_beginning_there_are_no_fewer_to_try():
    trials = Trials(plan(fetch_s=0.06), {LEAST: 0.1})
    assert trials._network() is not None
    assert trials.tried == [LEAST]


def test_where_nothing_could_be_tried_nothing_is_said():
    assert Trials(LATE, {})._network() is None


def rate(samples_s: float) -> Rate:
    return Rate(samples_s=samples_s, low=samples_s, high=samples_s)


@pytest.mark.parametrize(("is_less", "share"), [(True, 0.8), (False, 0.6)])
def test_a_run_with_less_to_do_that_was_slower_than_today_promises_nothing(
    monkeypatch: pytest.MonkeyPatch, is_less: bool, share: float
):
    simple = source_plan(decode=replace(HEALTHY["decode"], cpu_s=15e-6))
    alone_s = rate_of(simple)
    slow = Whole(
        rate=rate(0.6 * alone_s),
        num_samples=1,
        wall_s=1.0,
        cores_left=simple.machine.cores,
        asked=(),
        got=(),
        begun=(),
        sizes=(),
    )
    monkeypatch.setattr(try_fixes, "run_source", lambda *_args, **_options: slow)
    trials = Trials(simple, {})
    trials.paths = SimpleNamespace(measured={"source": rate(0.8 * alone_s)})  # type: ignore[assignment]
    nothing: Any = None
    found = trials._from_source(simple, nothing, nothing, seconds=1.0, is_less=is_less)
    assert found is not None
    assert rate_of(found) == pytest.approx(share * alone_s, rel=0.05)
