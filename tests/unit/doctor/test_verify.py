"""Predicted beside measured: for the processors as they are by then, where that can be told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.verify import faster_by

speeds = st.lists(st.floats(100.0, 10_000.0), min_size=2, max_size=12)


@given(then=speeds, now=speeds)
def test_only_what_every_look_says_is_believed(then, now):
    found = faster_by(then, now)
    if found > 1:
        assert min(now) > max(then)
    elif found < 1:
        assert max(now) < min(then)
    assert faster_by(now, then) == pytest.approx(1 / found)


@given(then=speeds)
def test_processors_that_are_as_they_were_change_nothing(then):
    assert faster_by(then, then) == 1.0


@given(then=speeds, times=st.floats(0.01, 0.99))
def test_what_is_slower_by_more_than_looks_differ_is_told(then, times):
    slow = min(then) / max(then) * times
    assert faster_by(then, [speed * slow for speed in then]) == pytest.approx(slow)
