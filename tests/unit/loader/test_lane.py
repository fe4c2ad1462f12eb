"""The windows of a lane: opened ahead of the steps, let go of as soon as no later step needs them."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import alone

from stoker.loader.lane import Lane, num_windows_ahead
from stoker.metrics.stages import Stages
from stoker.sampling.epoch import Order
from stoker.sampling.mixture import MixtureOrder


class FakeWindow:
    """A window of some chunks: notes whether it is closed."""

    def __init__(self, chunks):
        self.is_closed = False

    def is_in_memory(self):
        return True

    def settle(self, goes_on):
        assert not self.is_closed

    def close(self):
        assert not self.is_closed
        self.is_closed = True


class FakeSets:
    """Data sets whose windows a function opens; notes which chunks were asked for, by data set."""

    def __init__(self, num_sets=1, *, open_window=FakeWindow, num_builders=1, is_tight=False):
        self.is_tight = is_tight
        self.pool = SimpleNamespace(size=num_builders)
        self.asked = []
        self.open_window = open_window
        self.opened = []  # data set, chunks and a weak reference to each window
        self.datasets = [
            SimpleNamespace(
                builder=which,
                catalogue=SimpleNamespace(fragments=()),
                windows=SimpleNamespace(open=self._opener(which), not_standing=lambda chunks: chunks),
            )
            for which in range(num_sets)
        ]

    def _opener(self, which):
        def opened(chunks, filler):
            window = self.open_window(chunks)
            self.opened.append((which, chunks.tolist(), weakref.ref(window)))
            return window

        return opened

    def request(self, chunks, subjects):
        self.asked += [number for _, number in chunks]

    @property
    def alive(self):
        """Data set and chunks of the windows that somebody refers to."""
        return sorted((which, chunks) for which, chunks, window in self.opened if window() is not None)


def lane_of(order, sets, **options):
    """Return the lane of an epoch's order, with what asks the fakes for chunks and windows."""
    stages = Stages()
    units = lambda which, epoch: None  # noqa: E731
    return Lane(
        order, sets, sets, units_in=units, stages=stages, subject_at=lambda position: None, on_open=id, **options
    )


def of_ten_windows(sets, *, num_windows=10):
    """Return a lane of windows 0, 1, 2, ..., each of one chunk of one sample, at these positions."""
    order = Order(np.ones(num_windows, np.int64), shuffle=False, seed=0, window=1)
    return lane_of(alone(order).epoch(0), sets)


def window_at(lane, position):
    (part,) = lane.parts([(position, position + 1)])
    return part.window


def comes_true(condition):
    """Wait for what another thread does: the one that opens windows enters their pages, and closes none meanwhile."""
    until_s = time.monotonic() + 10
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.001)
    return condition()


@pytest.fixture
def sets():
    return FakeSets()


@pytest.fixture
def lane(sets):
    with closing(of_ten_windows(sets)) as lane:
        yield lane
    assert all(window() is None or window().is_closed for *_, window in sets.opened)


def test_windows_behind_the_steps_are_let_go_of_and_one_ahead_is_opened(lane, sets):
    for position in range(10):
        assert window_at(lane, position).chunks.tolist() == [position]
        lane.pass_by(position)
    assert window_at(lane, 9).chunks.tolist() == [9]
    assert comes_true(lambda: sets.alive == [(0, [9])])


def test_a_window_in_use_stays_open_when_it_is_passed_and_no_longer(lane, sets):
    window = window_at(lane, 0)
    lane.pass_by(5)
    assert not window.is_closed
    del window
    assert comes_true(lambda: (0, [0]) not in sets.alive)


def test_a_passed_window_is_opened_again_when_it_is_needed_again(lane, sets):
    assert window_at(lane, 0).chunks.tolist() == [0]
    assert window_at(lane, 9).chunks.tolist() == [9]
    lane.pass_by(9)
    assert comes_true(lambda: (0, [0]) not in sets.alive)
    assert window_at(lane, 0).chunks.tolist() == [0]


def test_an_error_of_opening_reaches_everyone_who_needs_that_window():
    def open_window(chunks):
        if chunks.tolist() == [1]:
            raise OSError("no such window")
        return FakeWindow(chunks)

    lane = of_ten_windows(FakeSets(open_window=open_window))
    assert window_at(lane, 0).chunks.tolist() == [0]
    for _ in range(2):
        with pytest.raises(OSError, match="no such window"):
            window_at(lane, 1)
    lane.close()


@pytest.mark.parametrize("is_slow", [True, False])
def test_chunks_are_asked_for_window_by_window_whoever_comes_first(is_slow):
    class SlowSets(FakeSets):
        def request(self, numbers, subject=None):
            if is_slow:  # the other thread overtakes, if it can
                time.sleep(0.02)
            super().request(numbers, subject)

    sets = SlowSets()
    lane = of_ten_windows(sets, num_windows=6)
    for position in range(6):
        for _ in range(2):
            window_at(lane, position)
        assert sets.asked[: position + 1] == list(range(position + 1))
        lane.pass_by(position)
    lane.close()
    assert sets.asked == list(range(6))


@pytest.mark.parametrize(
    ("num_builders", "is_tight", "expected"),
    [(1, True, [0, 1]), (1, False, [0, 1, 2, 3]), (2, False, list(range(7))), (99, False, list(range(9)))],
)
def test_chunks_of_as_many_windows_ahead_are_asked_for_as_keep_the_builders_at_work_each_once(
    num_builders, is_tight, expected
):
    sets = FakeSets(num_builders=num_builders, is_tight=is_tight)
    lane = of_ten_windows(sets, num_windows=9)
    window_at(lane, 0)
    window_at(lane, 0)
    assert comes_true(lambda: sets.asked[: len(expected)] == expected)  # a lane that is closed asks for no more
    lane.close()
    assert len(set(sets.asked)) == len(sets.asked) <= len(expected) + 1  # the one behind is opened ahead


def test_each_of_the_hosts_that_share_a_mirror_begins_elsewhere_in_a_window():
    for begins_at, asked in ((0.0, [0, 1, 2, 3]), (0.25, [1, 2, 3, 0]), (0.7, [2, 3, 0, 1])):
        sets = FakeSets()
        order = alone(Order(np.ones(4, np.int64), shuffle=False, seed=0, window=4)).epoch(0)
        with closing(lane_of(order, sets, begins_at=begins_at)) as lane:
            assert window_at(lane, 0).chunks.tolist() == [0, 1, 2, 3]
        assert sets.asked == asked


@given(st.integers(1, 200), st.floats(0.1, 1000), st.integers(0, 100))
def test_each_builder_finds_another_chunk_while_the_next_window_is_waited_for(num_builders, window_chunks, number):
    num_ahead = num_windows_ahead(num_builders, window_chunks, number)
    assert (num_ahead - 1) * window_chunks >= num_builders
    # Up to what is lost by rounding: 597 are 60.00000000000001 times 9.95.
    most = (3 if number == 0 else 25) * num_builders * (1 + 1e-9)
    assert num_ahead == 2 or (num_ahead - 1) * window_chunks < most
    assert number < 4 or num_ahead * window_chunks >= 25 * num_builders * (1 - 1e-9)


def test_closing_frees_whoever_waits_for_a_window():
    may_open, waits = threading.Event(), threading.Event()
    seen = []

    def open_window(chunks):
        waits.set()
        may_open.wait(30)
        return FakeWindow(chunks)

    lane = of_ten_windows(FakeSets(open_window=open_window))

    def use():
        try:
            window_at(lane, 0)
        except InterruptedError as error:
            seen.append(error)

    user = threading.Thread(target=use)
    user.start()
    assert waits.wait(30)
    closer = threading.Thread(target=lane.close)
    closer.start()
    user.join(30)
    may_open.set()
    closer.join(30)
    assert len(seen) == 1


def test_a_window_is_used_while_its_pages_are_still_being_entered():
    in_use, is_done = threading.Event(), []

    class SlowWindow(FakeWindow):
        def settle(self, goes_on):
            assert in_use.wait(30)
            is_done.append(goes_on())

    lane = of_ten_windows(FakeSets(open_window=SlowWindow), num_windows=1)
    window = window_at(lane, 0)
    in_use.set()
    lane.close()
    assert window.is_closed
    assert len(is_done) == 1


@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    window=st.integers(1, 3),
    epoch=st.integers(0, 2),
    step=st.integers(1, 7),
    shuffle=st.booleans(),
)
def test_what_is_passed_when_told_to_look_is_what_is_passed_by_looking_at_every_step(
    sizes, weights, window, epoch, step, shuffle
):
    order = MixtureOrder(
        sizes,
        names=[str(number) for number in range(len(sizes))],
        weights=[10, *weights][: len(sizes)],
        until="last",
        shuffle=shuffle,
        seed=1,
        window=window,
    )
    of_epoch, again, num_looks = order.epoch(epoch), 0, 0
    one, two = (lane_of(order.epoch(epoch), FakeSets(len(sizes))) for _ in range(2))
    for position in range(0, of_epoch.num_samples, step):
        for lane in (one, two):
            lane.parts([(position, min(position + step, of_epoch.num_samples))])
        one.pass_by(position)
        if position >= again:
            again, num_looks = two.pass_by(position), num_looks + 1
            assert again > position
        assert one._windows.keys() == two._windows.keys()
    own = {epoch for stand in (0, of_epoch.num_samples) for epoch, _ in of_epoch.streams_at(stand)}
    one.close()
    two.close()
    num_windows = sum(len(counts) for counts in sizes) * (max(own) + 1)
    assert num_looks <= 2 * num_windows + 2 * len(sizes) * (max(own) + 1) + 1
