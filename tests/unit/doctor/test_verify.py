"""Predicted beside measured: for the processors as they are by then, where that can be told."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.verify import faster_by

speeds = st.lists(st.floats(100.0, 10_000.0), min_size=2, max_size=12)


@given(then=speeds, now=speeds)
def test_a_difference_is_believed_in_part_and_never_more_than_looks_say(then, now):
    found, said = faster_by(then, now), statistics.fmean(now) / statistics.fmean(then)
    assert min(1.0, said) * (1 - 1e-9) <= found <= max(1.0, said) * (1 + 1e-9)
    assert faster_by(now, then) == pytest.approx(1 / found)


@given(then=speeds)
def test_processors_that_are_as_they_were_change_nothing(then):
    assert faster_by(then, then) == 1.0


@given(then=st.floats(100.0, 10_000.0), times=st.floats(0.1, 10.0), num=st.integers(2, 12))
def test_what_steady_looks_say_is_believed_whole(then, times, num):
    assert faster_by([then] * num, [then * times] * num) == pytest.approx(times)


def test_looks_that_go_up_and_down_are_believed_as_far_as_their_number_bears_out():
    few, many = (faster_by([2400, 4000] * n, [2100, 3500] * n) for n in (2, 20))
    assert few == 1.0  # an eighth less, of looks that differ by two thirds
    assert 0.875 < many < 0.93


def test_a_difference_by_chance_is_believed_for_a_small_part():
    rng = np.random.default_rng(0)
    said, found = [], []
    for _ in range(500):
        then, now = (rng.choice([2400.0, 4000.0], 9, p=[0.2, 0.8]) for _ in range(2))
        said.append(abs(math.log(now.mean() / then.mean())))
        found.append(abs(math.log(faster_by(then.tolist(), now.tolist()))))
    assert statistics.fmean(found) < 0.5 * statistics.fmean(said)
