"""Parts of the doctor that no command shows alone: how runs are measured, what is replayed, what others took."""

import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.looks import looked_at_again

from stoker import Dataset, Loader, StokerError
from stoker.doctor.examine import examine
from stoker.doctor.machine import cores_from_now
from stoker.doctor.paths import Way
from stoker.doctor.results import ARROW, SHARED, TENSORS, PathRun
from stoker.doctor.runs import at_work, builders_at_work, rates_of, what_next
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import FunctionStep, StepError, TimedStep
from stoker.doctor.tap import Tap, probe_link
from stoker.doctor.watch import read_ranks
from stoker.testing import MemoryStorage

planted = pytest.importorskip("benchmarks.planted")


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


# ---------------------------------------------------------------------- what was read once is given again


@pytest.fixture
def inner():
    return MemoryStorage({"a": bytes(range(100)), "b": bytes(50)})


@pytest.fixture
def tap(inner):
    tap = Tap(inner)
    with tap.doing("keeping"):
        tap.read("a", 10, 20)
        tap.stat("a")
    inner.reset_counts()
    return tap


def test_what_was_kept_is_given_again_without_asking(tap, inner):
    with tap.doing("replaying"):
        assert bytes(tap.read("a", 10, 20)) == bytes(range(10, 30))
        assert tap.stat("a").size_bytes == 100
    assert inner.num_calls == 0


def test_what_was_not_kept_and_what_is_asked_for_outside_comes_from_the_store(tap, inner):
    with tap.doing("replaying"):
        assert bytes(tap.read("a", 0, 5)) == bytes(range(5))
        tap.stat("b")
    tap.read("a", 10, 20)
    tap.stat("a")
    assert (inner.num_reads, inner.num_stats) == (2, 2)


def test_reads_alone_tell_a_connection_from_what_all_of_them_bring(inner):
    link = probe_link(inner, [("a", 0, 100), ("b", 0, 50)], until_s=time.perf_counter() + 0.2)
    assert link["network"] >= link["connection"] > 0
    assert link["latency"] >= 0


# ---------------------------------------------------------------------- a whole examination


def settings(**changed):
    return DoctorSettings(**{"num_threads": 2, "budget_s": 4.0, **changed})


@looked_at_again
def test_a_cache_that_holds_everything_makes_today_the_warm_path(tmp_path):
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    with Loader(dataset, batch_size=4_096, cache=tmp_path / "cache") as loader:
        for _ in loader:
            pass
    before = sorted(path.name for path in (tmp_path / "cache").rglob("*"))
    found = examine(
        dataset,
        settings(
            step=TimedStep(1e-3),
            batch_size=2_048,
            cache=tmp_path / "cache",
            disk=lambda *_: {"disk_read": 5e6, "disk_write": 5e6},
            free_memory_bytes=lambda: 0,
        ),
    )
    assert found.numbers.today == TENSORS
    assert found.stages[0] == "open"
    assert "disk" in found.sentence
    assert ARROW not in [fix.key for fix in found.fixes]  # as many bytes from the same disk
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*")) == before


def test_a_loader_that_fails_beside_the_step_does_not_end_the_examination(tmp_path):
    class FailsBeside(Loader):
        def __iter__(self):
            if "beside" in threading.current_thread().name:
                raise StokerError("no room beside the step")
            return super().__iter__()

    step = FunctionStep(lambda _: sum(range(50_000)), name="train.py:step")
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    found = examine(dataset, settings(step=step, batch_size=512, scratch=tmp_path / "x", make_loader=FailsBeside))
    assert found.numbers.path(SHARED) is None
    assert found.numbers.path(TENSORS) is not None
    assert any("could not be tried: no room beside the step" in note for note in found.notes)


def test_what_a_loader_that_works_beside_a_step_raises_is_raised_there(tmp_path):
    def fails(batch, rng):
        raise ArithmeticError("no more")

    def step_for_ever():
        dataset = Dataset(planted.local(tmp_path, num_chunks=1))
        with at_work(Loader(dataset, batch_size=64, augment=fails)) as want:
            while True:
                want()

    with pytest.raises(ArithmeticError, match="no more"):
        step_for_ever()


def test_a_step_that_raises_is_told_before_anything_is_measured_with_the_users_own_line(tmp_path):
    def step(batch):
        return batch["no such field"]

    doing = []
    with pytest.raises(StepError, match=r"train.py:step failed: KeyError.*test_doctor_parts\.py, line \d+, in step"):
        examine(
            Dataset(planted.local(tmp_path, num_chunks=4)),
            settings(
                step=FunctionStep(step, name="train.py:step"),
                scratch=tmp_path / "scratch",
                on_progress=lambda what, _: doing.append(what),
            ),
        )
    assert doing[-1] == "trying the step"
    assert len(doing) == 3  # after the data set was opened, and one chunk of it built
    assert not list(tmp_path.glob("scratch/*"))


# ---------------------------------------------------------------------- ranks of a watch


def test_a_folder_that_no_rank_has_written_to_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no rank has written"):
        read_ranks(tmp_path)
