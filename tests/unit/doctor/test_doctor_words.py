"""Small pure parts of the doctor: figures as text, rates of runs, what a run spent its time on, GPUs without a GPU."""

import dataclasses
import re
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.numbers_made import numbers, path

from stoker.doctor.gpu import NO_GPU, NO_LIBRARY, GpuWatch
from stoker.doctor.results import Rate
from stoker.doctor.runs import built_rate, rough_rate, steady_rate
from stoker.doctor.verdict import cause_of
from stoker.doctor.words import cost_text, factor_text, rate_text, share_text, size_text, time_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(218_453), "218,000"),
        (rate_text(999_900), "1 M"),
        (rate_text(1_254_000), "1.25 M"),
        (rate_text(91.24), "91.2"),
        (rate_text(2.5e13), "25,000 G"),
        (rate_text(float("inf")), "no limit"),
        (size_text(354e6), "354 MB"),
        (size_text(1.2e12), "1.2 TB"),
        (time_text(4.55e-3), "4.55 ms"),
        (time_text(130), "2 min 10 s"),
        (time_text(1e-6), "1 µs"),
        (time_text(2.08e-17), "under 1 ns"),
        (time_text(0.0), "0 s"),
        (share_text(0.756), "76 %"),
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
        size_text(value),
        time_text(value),
        share_text(min(1.0, value)),
        cost_text(value),
    ):
        assert not re.search(r"\de[+-]", text), text


def test_a_steady_rate_leaves_out_what_fills_the_pipe():
    times = [0.0] * 6 + [0.1 * i for i in range(1, 41)]
    rate, low, high = steady_rate(times, [10] * 46)
    assert rate == pytest.approx(100, rel=0.01)
    assert low <= rate <= high
    assert steady_rate([0.0], [10]) is None


def test_units_that_are_built_eight_at_a_time_have_the_rate_of_all_of_them():
    built = [(turn * 2.0, turn * 2.0 + 2.0 + 1e-3 * i, 500) for turn in range(8) for i in range(8)]
    whole = {"begun": [100.0], "sizes": [0]}
    rate = built_rate(built, num_first=8, **whole)
    assert rate[0] == pytest.approx(2_000, rel=0.01)
    assert built_rate(built[:12], num_first=8, **whole) is None


@pytest.mark.parametrize(("loop_s", "expected"), [(1_000, 1_000), (700, 710), (990, 1_000), (1_100, 1_000)])
def test_what_was_built_ahead_of_a_loop_that_falls_behind_is_no_throughput(loop_s, expected):
    built = [(0.1 * i, 0.1 * (i + 1), 100) for i in range(2_000)]
    times = [0.5 * i for i in range(1, 250)]
    # Of what it fell behind by a window may come and go: 10 samples/s.
    rate = built_rate(built, num_first=10, begun=times, sizes=[loop_s // 2] * 249, window_samples=1_240)
    assert rate[0] == pytest.approx(expected, rel=0.01)


@given(until=st.floats(40.0, 80.0), begin=st.floats(0.0, 20.0))
def test_a_huge_unit_counts_all_along_the_time_it_took(until, begin):
    small = [(0.1 * i, 0.1 * (i + 1), 100) for i in range(1_000)]
    huge = [(begin + 20.0 * i, begin + 20.0 * (i + 1), 60_000) for i in range(10)]
    rate = built_rate([*small, *huge], num_first=200, begun=[until], sizes=[0])
    assert rate[0] == pytest.approx(1_000 + 3_000, rel=0.02)


@given(
    pieces=st.lists(
        st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.integers(0, 10_000)), min_size=14, max_size=60
    ),
    batches=st.lists(st.tuples(st.floats(0.0, 25.0), st.integers(0, 1_000)), max_size=40),
    num_first=st.integers(1, 8),
    window_samples=st.floats(0.0, 1e6),
)
def test_however_unevenly_a_run_was_built_it_has_a_rate(pieces, batches, num_first, window_samples):
    built = [(begin, begin + length, size) for begin, length, size in pieces]
    batches = sorted(batches)
    whole = {"begun": [at for at, _ in batches], "sizes": [size for _, size in batches]}
    rate = built_rate(built, num_first=num_first, **whole, window_samples=window_samples)
    assert rate is None or (rate[0] > 0 and 0 <= rate[1] <= rate[2])


def test_a_run_that_was_built_in_one_burst_far_ahead_of_its_loop_has_a_lowest_rate():
    # All but one part of nothing: what it fell behind by is more than was built in them.
    built = [(1.0 + 0.01 * i, 1.0 + 0.01 * (i + 1), 1_000) for i in range(40)] + [(9.0, 9.1, 10)]
    rate = built_rate(built, num_first=2, begun=[float(i) for i in range(12)], sizes=[64] * 12, window_samples=100)
    assert 0 <= rate[1] <= rate[2]


def test_a_few_units_promise_no_more_than_came_of_them_together():
    rate, low, high = rough_rate([(0.0, 2.0, 500), (0.0, 4.0, 500), (2.0, 4.0, 500)])
    assert (rate, low, high) == (375, pytest.approx(375 * 0.7), pytest.approx(375 * 1.3))


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
    assert cause_of(known, today) == limit


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
    watch = GpuWatch(nvml)
    with watch.watching():
        assert nvml.asked.wait(10)
    (gpu,) = watch.facts()
    assert (gpu.name, gpu.utilisation, gpu.sm_clock_mhz) == ("A100", 0.17, 1_200)
    assert gpu.power_w is None
    assert gpu.throttled == ("power limit",)
    assert "share of time" in watch.note
    assert not nvml.is_open


def test_a_machine_without_a_gpu_says_so():
    class Nothing:
        def nvmlInit(self):  # noqa: N802
            raise RuntimeError("driver not loaded")

    watch = GpuWatch(Nothing())
    with watch.watching():
        pass
    assert watch.facts() == ()
    assert watch.note in (NO_GPU, NO_LIBRARY)


def test_a_rate_lies_between_its_extremes():
    with pytest.raises(ValueError, match="between"):
        Rate(samples_s=5, low=6, high=7)
