"""Small pure parts of the doctor: figures as text, rates of runs, what a run spent its time on, GPUs without a GPU."""

import dataclasses
import multiprocessing
import re
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.numbers_made import numbers, path

from stoker.doctor.machine import NO_GPU, NO_LIBRARY, cores_from_now, watching_gpus
from stoker.doctor.paths import Way
from stoker.doctor.results import PathRun, StageResult
from stoker.doctor.runs import builders_at_work, rates_of, what_next
from stoker.doctor.verdict import DoctorResult
from stoker.words import cost_text, factor_text, range_text, rate_text, share_text, time_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(218_453), "218,000"),
        (rate_text(999_900), "1 M"),
        (rate_text(1_254_000), "1.25 M"),
        (rate_text(91.24), "91.2"),
        (rate_text(2.5e13), "25,000 G"),
        (rate_text(float("inf")), "no limit"),
        (range_text(190_200, 218_453), "190,000 to 218,000"),
        (range_text(218_100, 218_200), "218,000"),
        (time_text(4.55e-3), "4.55 ms"),
        (time_text(130), "2 min 10 s"),
        (time_text(1e-6), "1 µs"),
        (time_text(2.08e-17), "under 1 ns"),
        (time_text(0.0), "0 s"),
        (share_text(0.756), "76 %"),
        (share_text(0.0861), "8.6 %"),
        (share_text(0.995), "99.5 %"),
        (share_text(1e-6), "under 0.1 %"),
        (factor_text(2.71), "2.7"),
        (cost_text(4.1e-5), "under 0.01"),
        (cost_text(1_234.5), "1,234.50"),
        (cost_text(0.0), "0.00"),
    ],
)
def test_figures_have_three_digits_and_a_unit(text, expected):
    assert text == expected


@given(st.floats(0, 1e13))
def test_no_figure_has_an_exponent(value):
    for text in (
        rate_text(1e-3 + value),
        time_text(value),
        share_text(min(1.0, value)),
        cost_text(value),
    ):
        assert not re.search(r"\de[+-]", text), text


def taken(waits, *, step_s, size=10):
    """What a loop waited for each batch, when it had begun each step, where these take so long, and batch sizes."""
    begun, now = [], 0.0
    for wait in waits:
        begun.append(now + wait)
        now += wait + step_s
    return waits, begun, [size] * len(begun)


def test_a_loop_that_does_not_wait_has_its_own_pace_once_what_fills_the_pipe_is_over():
    rates, stall = rates_of(*taken([3.0, 1.0, 1.0, *[0.0] * 60], step_s=0.1))
    assert rates == pytest.approx((100, 100, 100))
    assert stall == 0
    assert rates_of([0.0, 1.0], [1.0, 2.0], [10, 10]) == ((), 1.0)


@given(window=st.integers(1, 12), wait_s=st.floats(0.05, 3.0), num=st.integers(60, 300), begins=st.integers(0, 11))
def test_batches_that_come_a_window_at_a_time_have_the_rate_of_whole_windows(window, wait_s, num, begins):
    waits = [wait_s if (i + begins) % window == 0 else 0.0 for i in range(num)]
    rates, stall = rates_of(*taken(waits, step_s=0.01))
    assert rates == pytest.approx([10 * window / (wait_s + 0.01 * window)] * 3)
    assert stall == pytest.approx(wait_s / (wait_s + 0.01 * window))


@given(
    waits=st.lists(st.floats(0.0, 10.0), min_size=3, max_size=60),
    step_s=st.floats(0.0, 1.0),
    size=st.integers(1, 10_000),
)
def test_however_unevenly_batches_came_the_rate_of_all_lies_between_those_of_its_parts(waits, step_s, size):
    rates, stall = rates_of(*taken(waits, step_s=step_s, size=size))
    assert len(rates) == 3
    assert 0 < rates[0] <= rates[1] <= rates[2]
    assert 0 <= stall <= 1


def test_runs_in_which_others_took_more_of_the_cores_are_not_compared_with_those_in_which_they_did_not():
    quiet, busy, always = (PathRun(rates=(1.0,), others=others) for others in (0.0, 0.3, 0.09))
    way = Way(key="tensors", name="tensors on SSD", run=lambda _: quiet, batch_size=1)
    way.runs, way.came = [quiet, busy, always], [busy, always]
    assert way.comparable == ([quiet, always], [always])
    way.came = [busy]
    assert way.comparable == ([quiet, always], [])
    way.runs = [busy, busy]
    assert way.comparable == ([busy, busy], [busy])


STEADY, UNSTEADY = (100.0, 103.0, 105.0), (100.0, 110.0, 120.0)


@pytest.mark.parametrize(
    ("times", "has_all", "parts", "num_batches", "does"),
    [
        (1.1, True, STEADY, 1_000, "end"),
        (1.1, False, STEADY, 1_000, "go on"),  # not as many samples as it needs
        (2.9, False, STEADY, 1_000, "go on"),
        (3.1, False, STEADY, 1_000, "end"),
        (1.1, True, UNSTEADY, 1_000, "forget"),
        (1.1, False, UNSTEADY, 1_000, "forget"),
        (1.1, True, UNSTEADY, 31, "go on"),  # too few to drop any
        (2.1, True, UNSTEADY, 1_000, "go on"),  # too late to begin again
        (3.1, True, UNSTEADY, 1_000, "end"),
    ],
)
def test_a_run_ends_when_it_is_steady_and_forgets_what_was_not(times, has_all, parts, num_batches, does):
    assert what_next(times, longer=3, has_all=has_all, parts=parts, num_batches=num_batches) == does


@given(st.floats(0, 9), st.floats(1, 3), st.booleans(), st.floats(1, 100), st.floats(1, 3), st.integers(3, 1_000))
def test_a_run_always_ends_in_time_and_never_forgets_what_is_steady(times, longer, has_all, rate, factor, num):
    parts = (rate, rate * (1 + factor) / 2, rate * factor)
    does = what_next(times, longer=longer, has_all=has_all, parts=parts, num_batches=num)
    assert does == "end" or times <= longer
    assert does != "forget" or (factor > 1.05 and times < longer - 1)


def test_builders_that_have_nothing_to_do_while_the_loop_waits_are_seen():
    many = [[(float(i), i + 1.0) for i in range(10)] for _ in range(4)]
    assert builders_at_work(many, [(0.0, 5.0), (6.0, 10.0)]) == (4, 4.0, 1.0)
    one_huge = [[(0.0, 1.0), (1.0, 9.0)], [(0.0, 1.0), (9.0, 10.0)], [(0.0, 1.0), (9.0, 10.0)]]
    num, at_work, share = builders_at_work(one_huge, [(0.0, 0.0), (2.0, 8.0), (9.5, 10.0)])
    assert num == 3
    assert at_work == pytest.approx((9 + 2 + 2) / 10)
    assert share == pytest.approx((6 + 2 * 0.5) / (3 * 6.5))
    # Nobody builds while a loop that has all it wants does not wait: what they gave while they did is what can come.
    assert builders_at_work([[(0.0, 1.0)], [(0.0, 1.0)]], [(0.0, 0.0), (10.0, 10.0)]) == (2, 2.0, 0.0)
    # The others had all been done before the loop began to wait for the huge one.
    one_left = [[(0.0, 9.0)], [(0.1, 1.0), (9.0, 9.1)], [(0.2, 1.0)], [(0.3, 1.0)]]
    assert builders_at_work(one_left, [(2.0, 9.0)]) == (4, 1.0, pytest.approx(0.25))
    # Two that were tried brought no more: they build nothing since then.
    fewer = [[(float(i), i + 1.0) for i in range(20)]] * 2 + [[(0.0, 1.0)]] * 2
    assert builders_at_work(fewer, [(5.0, 20.0)]) == (2, 2.0, 1.0)


BUILDING = {"batch": 1.0, "wait_window": 0.9, "gather": 0.1, "fetch": 3.0, "decode": 1.0, "publish": 0.5}


@pytest.mark.parametrize(
    ("stages", "build_share", "evenness", "limit"),
    [
        (BUILDING, 0.9, 1.0, "fetch"),
        ({**BUILDING, "decode": 5.0}, 0.9, 1.0, "decode"),
        (BUILDING, 0.2, 0.3, "skew"),
        (BUILDING, 0.2, 1.0, "fetch"),
        ({**BUILDING, "wait_window": 0.1, "gather": 0.8}, 0.9, 1.0, "gather"),
        ({"batch": 1.0, "gather": 0.9}, 0.0, 1.0, "gather"),
        ({"batch": 1.0, "gather": 0.1, "augment": 0.8}, 0.0, 1.0, "augment"),
        ({"batch": 1.0, "wait_window": 0.8, "gather": 0.1}, 0.0, 1.0, "open"),
        ({"batch": 1.0}, 0.0, 1.0, ""),  # nobody was seen at work: nobody is named
        ({"batch": 1.0, "gather": 0.01}, 0.0, 1.0, ""),
        ({}, 0.0, 1.0, ""),
    ],
)
def test_who_does_not_wait_for_another_is_what_limits(stages, build_share, evenness, limit):
    today = path("source", 1.0, stages=stages, build_share=build_share)  # so many threads are at work in each
    known = numbers({"source": today}, stages=())
    known = dataclasses.replace(known, data=dataclasses.replace(known.data, evenness=evenness))
    assert DoctorResult(known).cause_of(today) == limit


@pytest.mark.parametrize(("evenness", "limit"), [(0.3, "skew"), (1.0, "decode")])
def test_uneven_chunks_are_what_limits_where_the_longest_stage_gives_far_more_alone(evenness, limit):
    today = path("source", 1.0, stages=BUILDING, build_share=0.9)
    known = numbers({"source": today}, stages=(StageResult(key="fetch", supply_s=9.0),))
    known = dataclasses.replace(known, data=dataclasses.replace(known.data, evenness=evenness))
    assert DoctorResult(known).cause_of(today) == limit


class FakeNvml:
    """The few functions of pynvml that are asked, and one that this GPU cannot answer."""

    NVML_CLOCK_SM = 1
    nvmlClocksThrottleReasonSwPowerCap = 4  # noqa: N815  as the library names it

    def __init__(self):
        self.is_open = False
        self.asked = threading.Event()

    def nvmlInit(self):  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, i):  # noqa: N802
        return i

    def nvmlDeviceGetName(self, _):  # noqa: N802
        self.asked.set()
        return b"A100"

    def nvmlDeviceGetUtilizationRates(self, _):  # noqa: N802
        return types.SimpleNamespace(gpu=17)

    def nvmlDeviceGetClockInfo(self, *_):  # noqa: N802
        return 1_200

    def nvmlDeviceGetMaxClockInfo(self, *_):  # noqa: N802
        return 1_410

    def nvmlDeviceGetPowerUsage(self, _):  # noqa: N802
        raise RuntimeError("not supported")

    def nvmlDeviceGetMemoryInfo(self, _):  # noqa: N802
        return types.SimpleNamespace(used=10, total=40)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _):  # noqa: N802
        return 4


def test_what_the_driver_tells_is_reported_and_what_it_does_not_tell_is_left_out():
    nvml = FakeNvml()
    with watching_gpus(nvml) as found:
        assert nvml.asked.wait(10)
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["utilisation"], gpu["sm_clock_mhz"]) == ("A100", 0.17, 1_200)
    assert "power_w" not in gpu
    assert gpu["throttled"] == ("power limit",)
    assert "share of time" in found["gpu_note"]
    assert not nvml.is_open


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell of living processes")
def test_a_living_process_of_our_own_is_no_neighbour():
    process = multiprocessing.get_context("spawn").Process(target=sum, args=(range(10**10),), daemon=True)
    process.start()
    used = 0.0
    try:
        tell = cores_from_now()
        for _ in range(100):
            process.join(0.2)
            if (used := tell()[0]) > 0.2:
                break
    finally:
        process.kill()
        process.join()
    assert used > 0.2


def test_a_machine_without_a_gpu_says_so():
    class Nothing:
        def nvmlInit(self):  # noqa: N802
            raise RuntimeError("driver not loaded")

    with watching_gpus(Nothing()) as found:
        pass
    assert "gpus" not in found
    assert found["gpu_note"] in (NO_GPU, NO_LIBRARY)
