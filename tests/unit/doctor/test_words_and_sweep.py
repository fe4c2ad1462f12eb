"""Small pure parts: numbers as text, the line through batch times, rates of runs, money, GPU facts without a GPU."""

import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.plans_made import on, source_plan, tensors_plan

from stoker.doctor.diagnose import path_of
from stoker.doctor.gpu import NO_GPU, NO_LIBRARY, GpuWatch
from stoker.doctor.money import money_of
from stoker.doctor.results import BatchPoint, Rate
from stoker.doctor.sweep import fixed_and_each, sweep_of
from stoker.doctor.whatif import Options, fixes_for, materialise
from stoker.doctor.whole import Whole, built_rate, steady_rate
from stoker.doctor.words import rate_text, share_text, size_text, time_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(218_453), "218,000"),
        (rate_text(999_900), "1 M"),
        (rate_text(1_254_000), "1.25 M"),
        (rate_text(91.24), "91.2"),
        (size_text(354e6), "354 MB"),
        (size_text(1.2e12), "1.2 TB"),
        (time_text(4.55e-3), "4.55 ms"),
        (time_text(130), "2 min 10 s"),
        (time_text(1e-6), "1 µs"),
        (share_text(0.756), "76 %"),
        (share_text(0.995), "99.5 %"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(text, expected):
    assert text == expected


@given(st.floats(1e-7, 1e-2), st.floats(1e-9, 1e-5))
def test_the_line_through_batch_times_finds_what_a_batch_and_what_a_sample_takes(fixed, each):
    points = [(size, fixed + each * size) for size in (16, 256, 4_096, 65_536)]
    found_fixed, found_each = fixed_and_each(points)
    assert found_fixed == pytest.approx(fixed, rel=1e-3, abs=1e-9)
    assert found_each == pytest.approx(each, rel=1e-3)


def test_the_knee_is_the_smallest_batch_that_gives_nearly_all():
    points = [
        BatchPoint(batch_size=size, loader_s=rate, step_s=None) for size, rate in ((8, 1e3), (64, 9e3), (512, 1e4))
    ]
    found = sweep_of([*points, BatchPoint(batch_size=4096, loader_s=10_100.0, step_s=None)])
    assert found.loader_knee == 512
    assert found.step_knee is None
    assert sweep_of([]) is None


def test_a_rate_taken_over_whole_windows_is_not_fooled_by_batches_that_come_at_once():
    # Ten batches of a window at once, then nothing for a second: 10 batches of 100 samples a second.
    times = [window + i * 1e-3 for window in range(6) for i in range(10)]
    rate = steady_rate(times[:-7], [100] * (len(times) - 7), window_batches=10)
    assert rate.samples_s == pytest.approx(1_000, rel=1e-6)


def taken(times, sizes):
    """A run whose loop took batches of these sizes at these times."""
    times, sizes = tuple(times), tuple(sizes)
    return Whole(rate=None, num_samples=0, wall_s=0.0, cores_left=2.0, asked=times, got=times, begun=times, sizes=sizes)


def test_units_that_are_built_eight_at_a_time_have_the_rate_of_all_of_them():
    built = [(turn * 2.0, turn * 2.0 + 2.0 + 1e-3 * i, 500) for turn in range(8) for i in range(8)]
    whole = taken([100.0], [0])
    rate = built_rate(built, num_first=8, whole=whole)
    assert rate.samples_s == pytest.approx(2_000, rel=0.01)
    assert built_rate(built[:12], num_first=8, whole=whole) is None


@pytest.mark.parametrize(("loop_s", "expected"), [(1_000, 1_000), (700, 710), (990, 1_000), (1_100, 1_000)])
def test_what_was_built_ahead_of_a_loop_that_falls_behind_is_no_throughput(loop_s, expected):
    built = [(0.1 * i, 0.1 * (i + 1), 100) for i in range(2_000)]
    times = [0.5 * i for i in range(1, 250)]
    # Of what it fell behind by a window may come and go: 10 samples/s.
    rate = built_rate(built, num_first=10, whole=taken(times, [loop_s // 2] * 249), window_samples=1_240)
    assert rate.samples_s == pytest.approx(expected, rel=0.01)
    assert rate.low <= rate.samples_s <= rate.high


@given(until=st.floats(40.0, 80.0), begin=st.floats(0.0, 20.0))
def test_a_huge_unit_counts_all_along_the_time_it_took(until, begin):
    small = [(0.1 * i, 0.1 * (i + 1), 100) for i in range(1_000)]
    huge = [(begin + 20.0 * i, begin + 20.0 * (i + 1), 60_000) for i in range(10)]
    rate = built_rate([*small, *huge], num_first=200, whole=taken([until], [0]))
    assert rate.samples_s == pytest.approx(1_000 + 3_000, rel=0.02)


@given(
    pieces=st.lists(
        st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.integers(0, 10_000)), min_size=14, max_size=60
    ),
    batches=st.lists(st.tuples(st.floats(0.0, 25.0), st.integers(0, 1_000)), max_size=40),
    num_first=st.integers(1, 8),
    window_samples=st.floats(0.0, 1e6),
)
def test_however_unevenly_a_run_was_built_its_rate_lies_between_its_lowest_and_highest(
    pieces, batches, num_first, window_samples
):
    built = [(begin, begin + length, size) for begin, length, size in pieces]
    batches = sorted(batches)
    whole = taken([at for at, _ in batches], [size for _, size in batches])
    rate = built_rate(built, num_first=num_first, whole=whole, window_samples=window_samples)
    assert rate is None or (rate.samples_s > 0 and 0 <= rate.low <= rate.samples_s <= rate.high)


def test_a_run_that_was_built_in_one_burst_far_ahead_of_its_loop_has_a_lowest_rate():
    # All but one part of nothing: what it fell behind by is more than was built in them.
    built = [(1.0 + 0.01 * i, 1.0 + 0.01 * (i + 1), 1_000) for i in range(40)] + [(9.0, 9.1, 10)]
    rate = built_rate(built, num_first=2, whole=taken([float(i) for i in range(12)], [64] * 12), window_samples=100)
    assert 0 <= rate.low <= rate.samples_s <= rate.high


def test_a_run_of_less_than_a_window_has_no_rate():
    assert steady_rate([0.0, 0.1, 0.2], [10] * 3, window_batches=10) is None


def test_tensors_on_ssd_are_the_best_fix_of_a_throttled_network_and_the_model_limits_then():
    slow = on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6)
    fixes = fixes_for({"source": slow, "tensors": tensors_plan()}, today="source", options=Options(num_threads=8))
    assert fixes[0].key == "tensors"
    assert fixes[0].limit == "step"
    assert {fix.key for fix in fixes} == {"tensors", "network"}
    assert next(fix for fix in fixes if fix.key == "network").times == pytest.approx(2)


def test_nothing_is_advised_where_the_model_is_the_limit():
    plans = {"source": source_plan(), "tensors": tensors_plan()}
    assert fixes_for(plans, today="source", options=Options(num_threads=8)) == ()


def test_keeping_tensors_pays_after_the_epochs_that_writing_them_takes():
    slow = on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6)
    warm = on(tensors_plan(), write_bytes_s=50e6)
    found = materialise(
        {"source": slow, "tensors": warm}, today="source", num_samples=10**9, disk_bytes={"tensors": 1_000.0}
    )
    (tensors,) = found
    assert tensors.disk_bytes == 1e12
    # Today an epoch takes 4,500 s, writing 20,000 s, a warm epoch 1,000 s: 15,500 s more once, 3,500 s less each time.
    assert tensors.extra_s == pytest.approx(15_500, rel=0.01)
    assert tensors.saved_s == pytest.approx(3_500, rel=0.01)
    assert tensors.pays_after == 6


def test_the_parts_of_an_epochs_price_add_up_to_it():
    slow = on(source_plan(), network_bytes_s=40e6, connection_bytes_s=40e6)
    path = path_of(slow, is_today=True, measured=None, num_samples=10**9, disk_bytes=0.0)
    fixes = fixes_for({"source": slow, "tensors": tensors_plan()}, today="source", options=Options(num_threads=8))
    money = money_of(path, gpu_hour=2.5, num_gpus=8, fixes=fixes)
    assert money.epoch == pytest.approx(4_500 / 3_600 * 2.5 * 8, rel=0.01)
    assert sum(part.cost for part in money.parts) == pytest.approx(money.epoch)
    assert money.stalls == pytest.approx(money.epoch * (1 - 1_000 / 4_500), rel=0.01)
    assert money.best_fix == pytest.approx(1_000 / 3_600 * 2.5 * 8, rel=0.01)


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
    assert gpu.sm_activity is None
    assert gpu.throttled == ("power limit",)
    assert "different" in watch.note or "share of the multiprocessors" in watch.note
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
