"""What a real run shows of a plan: threads that lose time by working side by side, and batches that come unevenly."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.doctor.plans_made import BATCH, changed, source_plan, step_cost, tensors_plan

from stoker.doctor.bounds import bounds_of, demand_of, supply_of
from stoker.doctor.flow import rate_of
from stoker.doctor.together import settled
from stoker.doctor.whatif import at_speed, more_threads, with_cores

SLOW = source_plan(decode=changed("decode", cpu_s=20e-6))


@settings(max_examples=12)  # each finds a root of what the model says
@given(share=st.floats(0.45, 0.97))
def test_a_run_that_was_slower_than_its_stages_settles_the_plan_at_what_came(share):
    came = share * rate_of(SLOW)
    plan = settled(SLOW, build_cpu_s=None, measured_s=came, cores_left=8.0)
    assert rate_of(plan) == pytest.approx(came, rel=0.01)


def test_what_others_took_of_the_cores_is_not_blamed_on_the_threads():
    plan = settled(SLOW, build_cpu_s=None, measured_s=rate_of(with_cores(SLOW, 4.0)), cores_left=4.0)
    assert plan.machine.together == 1
    assert rate_of(plan) == rate_of(SLOW)


def test_building_that_took_more_in_the_run_is_taken_from_the_run():
    alone_s = sum(stage.cpu_s for stage in SLOW.stages if stage.place == "build")
    plan = settled(SLOW, build_cpu_s=2 * alone_s, measured_s=1e9, cores_left=8.0)
    assert sum(stage.cpu_s for stage in plan.stages if stage.place == "build") == pytest.approx(2 * alone_s)
    assert all(new.gil_s == old.gil_s for new, old in zip(plan.stages, SLOW.stages, strict=True))


def test_a_run_that_kept_up_with_the_step_says_nothing_of_the_threads():
    plan = source_plan()
    assert settled(plan, build_cpu_s=None, measured_s=demand_of(plan), cores_left=8.0) == plan


LINK = source_plan(fetch=changed("fetch", net_bytes=10_000.0))


@settings(max_examples=12)
@given(share=st.floats(0.45, 1.45))
def test_a_link_that_gave_another_rate_in_the_run_gives_it_from_then_on(share):
    came = share * rate_of(LINK)
    assert bounds_of(LINK)[0].resource == "network"
    plan = settled(LINK, build_cpu_s=None, measured_s=came, cores_left=8.0)
    assert rate_of(plan) == pytest.approx(came, rel=0.03)
    assert plan.machine.together == 1  # the processors had no part in it


def test_what_a_run_gave_limits_no_step_and_is_no_faster_than_it():
    slow = settled(LINK, build_cpu_s=None, measured_s=0.6 * rate_of(LINK), cores_left=8.0)
    assert rate_of(slow.without("fetch")) == pytest.approx(rate_of(LINK.without("fetch")), rel=0.02)
    fast = settled(LINK, build_cpu_s=None, measured_s=1.4 * rate_of(LINK), cores_left=8.0)
    assert rate_of(fast.without("fetch")) <= demand_of(LINK)


def test_a_run_that_no_handing_over_explains_changes_nothing():
    assert settled(SLOW, build_cpu_s=None, measured_s=rate_of(SLOW) / 20, cores_left=8.0) == SLOW


@given(gaps=st.lists(st.floats(0.0, 10.0), min_size=20, max_size=200), times=st.floats(0.5, 3.0))
def test_uneven_batches_are_never_faster_than_even_ones(gaps, times):
    if not sum(gaps):
        gaps = [1.0, *gaps]
    plan = tensors_plan()
    plan = plan.with_stage(step_cost(times * supply_of(plan)))
    uneven = dataclasses.replace(plan, gaps=tuple(gaps))
    assert 0 < rate_of(uneven) <= rate_of(plan) * (1 + 1e-9)


def test_batches_in_bursts_of_more_than_wait_cost_a_step_that_could_eat_them_all():
    plan = tensors_plan()
    plan = plan.with_stage(step_cost(supply_of(plan)))
    bursts = dataclasses.replace(plan, gaps=(0.0,) * 31 + (32.0,) + ((0.0,) * 31 + (32.0,)) * 9)
    assert rate_of(bursts) < 0.7 * rate_of(plan)
    # A step with time to spare never notices.
    slow = bursts.with_stage(step_cost(supply_of(plan) / 100))
    assert rate_of(slow) == pytest.approx(demand_of(slow), rel=0.02)


def test_only_as_many_read_as_may_and_more_threads_let_more_read():
    plan = source_plan(transform=changed("transform", cpu_s=0.2e-6, wait_s=50e-6))
    two = dataclasses.replace(plan, num_builders=3, num_computing=2)
    bound = bounds_of(two)[0]
    assert bound.resource == "computing"
    assert bound.stages[0] == "transform"
    assert rate_of(more_threads(two, num_more=2)) == pytest.approx(2 * rate_of(two), rel=0.05)


def test_chunks_too_small_for_more_builders_are_promised_none():
    plan = source_plan(transform=changed("transform", cpu_s=0.2e-6, wait_s=50e-6))
    two = dataclasses.replace(plan, num_builders=2, builders_worth=2)
    assert more_threads(two, num_more=4).num_builders == 2
    assert rate_of(more_threads(two, num_more=4)) == pytest.approx(rate_of(two), rel=0.01)
    assert more_threads(dataclasses.replace(two, builders_worth=4), num_more=4).num_builders == 4
    assert more_threads(dataclasses.replace(two, builders_worth=1), num_more=4).num_builders == 2
    assert more_threads(dataclasses.replace(two, builders_worth=None), num_more=4).num_builders == 6


def test_who_waits_for_a_network_takes_no_place_of_those_that_compute():
    waits = source_plan(fetch=changed("fetch", wait_s=200e-6, net_bytes=1.0))
    eight = dataclasses.replace(waits, num_builders=8, num_computing=2)
    assert bounds_of(eight)[0].resource == "builders"
    assert rate_of(eight) == pytest.approx(8 / 2 * rate_of(dataclasses.replace(eight, num_builders=2)), rel=0.1)


@given(num_places=st.integers(1, 8), gil_us=st.floats(1.0, 50.0), wait_us=st.floats(0.0, 400.0))
def test_fewer_places_never_give_more(num_places, gil_us, wait_us):
    plan = source_plan(
        fetch=changed("fetch", wait_s=wait_us * 1e-6, net_bytes=100.0),
        transform=changed("transform", cpu_s=gil_us * 1e-6, gil_s=gil_us * 1e-6),
    )
    eight = dataclasses.replace(plan, num_builders=8)
    some = dataclasses.replace(eight, num_computing=num_places)
    assert 0 < rate_of(some) <= bounds_of(eight)[0].samples_s * (1 + 1e-9)
    assert bounds_of(some)[0].samples_s <= bounds_of(eight)[0].samples_s


def test_processors_of_half_the_speed_halve_what_is_computed_and_nothing_else():
    assert rate_of(at_speed(SLOW, 0.5)) == pytest.approx(rate_of(SLOW) / 2, rel=0.1)
    waits = source_plan(fetch=changed("fetch", wait_s=20.0 / BATCH))
    assert rate_of(at_speed(waits, 0.9)) == pytest.approx(rate_of(waits), rel=0.02)
