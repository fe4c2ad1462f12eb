"""The GIL is seen held for the share of time in which it was, however short each time."""

import hashlib
import sys
import time

import pytest

from stoker.doctor.gilwatch import GilWatch

CONTENT = bytes(1 << 22)
SECONDS = 0.8


def compute_without_gil(seconds: float, bytes_s: float) -> None:
    hashlib.sha256(memoryview(CONTENT)[: max(4096, int(seconds * bytes_s))]).digest()  # gives it up from 2 KiB on


def hold(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.fixture(scope="module")
def bytes_s():
    begin = time.perf_counter()
    hashlib.sha256(CONTENT).digest()
    return len(CONTENT) / (time.perf_counter() - begin)


def watched(held_us: float, free_us: float, bytes_s: float) -> tuple[float, float]:
    """Return the share of time in which the GIL was held, as it was seen and as it was."""
    held_s = 0.0
    with GilWatch() as watch:
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + SECONDS:
            hold(held_us * 1e-6)
            held_s += time.perf_counter() - now
            compute_without_gil(free_us * 1e-6, bytes_s)
        end = time.perf_counter()
    share = watch.held_share([(int(begin * 1e9), int(end * 1e9))])
    assert share is not None
    return share, held_s / (end - begin)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere short times are not seen")
@pytest.mark.parametrize(("held_us", "free_us"), [(20, 80), (100, 100), (20, 180), (500, 1500), (4000, 1000)])
def test_the_share_of_looks_that_waited_is_the_share_of_time_in_which_it_was_held(held_us, free_us, bytes_s):
    # Looks wait for a processor, too, where others take it: such a second is looked at again, a few times at most.
    seen = []
    for _ in range(4):
        seen.append(watched(held_us, free_us, bytes_s))
        if seen[-1][0] == pytest.approx(seen[-1][1], abs=0.12):
            return
    pytest.fail(f"seen and true, each time: {seen}")


def test_what_waits_or_sleeps_does_not_hold_it():
    with GilWatch() as watch:
        begin = time.perf_counter_ns()
        time.sleep(SECONDS / 2)
        end = time.perf_counter_ns()
    assert watch.held_share([(begin, end)]) < 0.3  # what else runs may take the processor from a look


def test_only_looks_inside_the_spans_count():
    with GilWatch() as watch:
        begin = time.perf_counter_ns()
        hold(SECONDS / 4)
        between = time.perf_counter_ns()
        time.sleep(SECONDS / 4)
        end = time.perf_counter_ns()
    # Both spans together would give 0.5 for each; what else runs may take the processor from a look, or from the loop.
    assert watch.held_share([(begin, between)]) > 0.7
    assert watch.held_share([(between, end)]) < 0.3
    assert watch.held_share([]) is None


def test_the_switch_interval_is_what_it_was():
    before = sys.getswitchinterval()
    with GilWatch():
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
