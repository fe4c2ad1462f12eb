"""The functions that kept machine code becomes: they take what the loops take, and refuse all else."""

import sys
import threading

import numpy as np
import pytest
from tests.oracles import permutation

from stoker import loops, machine_code

MODULES = machine_code.load(loops.NAMES)
pytestmark = pytest.mark.skipif(MODULES is None, reason="no machine code is kept here")


def _permute(index, out, *, start=0, size=1000, key=7, name="permute_into"):
    return getattr(MODULES["stoker.order.kernels"], name)(index, start, size, key, out)


def test_a_loop_does_what_it_does_in_numpy_and_returns_nothing():
    index, out = np.arange(1000), np.empty(1000, np.int64)
    assert _permute(index, out) is None
    assert np.array_equal(out, permutation.permute(index, 1000, 7))


def test_arrays_of_other_kinds_that_hold_the_same_are_taken(tmp_path):
    expected = permutation.permute(np.arange(1000), 1000, 7)
    mapped = np.memmap(tmp_path / "index", np.int64, "w+", shape=1000)
    mapped[:] = np.arange(1000)
    read_only = np.arange(1000)
    read_only.flags.writeable = False
    for index in (mapped, read_only, np.arange(1000, dtype=np.longlong), np.arange(1000, dtype="<i8")):
        out = np.empty(1000, np.longlong)
        _permute(index, out, start=np.int64(0), size=np.uint64(1000), key=np.int8(7))
        assert np.array_equal(out, expected)


READ_ONLY = np.arange(1000)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (1, np.arange(1000, dtype=np.int32)),
        (1, np.arange(1000, dtype=np.uint64)),
        (1, np.arange(1000, dtype=np.float64)),
        (1, np.arange(1000, dtype=">i8")),
        (1, np.arange(2000)[::2]),
        (1, np.arange(1000).reshape(10, 100)),
        (1, np.array(1)),
        (1, np.empty(8001, np.uint8)[1:].view(np.int64)),
        (1, list(range(1000))),
        (1, None),
        (5, READ_ONLY),
        (5, np.empty(1000, np.int32)),
        (5, b"bytes"),
    ],
)
def test_what_is_no_such_array_is_refused_by_the_number_of_its_place(number, wrong):
    arguments = [np.arange(1000), 0, 1000, 7, np.empty(1000, np.int64)]
    arguments[number - 1] = wrong
    with pytest.raises(TypeError, match=f"argument {number} of stoker.order.kernels.permute_into must be a contiguous"):
        MODULES["stoker.order.kernels"].permute_into(*arguments)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"start": 1.5}, TypeError),
        ({"start": "0"}, TypeError),
        ({"start": 1 << 63}, OverflowError),
        ({"size": -1}, OverflowError),
        ({"size": 1 << 64}, OverflowError),
        ({"key": 7.0}, TypeError),
        ({"key": None}, TypeError),
    ],
)
def test_what_is_no_such_number_is_refused(wrong, error):
    with pytest.raises(error):
        _permute(np.arange(1000), np.empty(1000, np.int64), **wrong)


@pytest.mark.parametrize("num", [0, 4, 6])
def test_another_number_of_arguments_is_refused(num):
    with pytest.raises(TypeError, match=r"stoker\.order\.kernels\.permute_into takes 5 arguments"):
        MODULES["stoker.order.kernels"].permute_into(*range(num))
    with pytest.raises(TypeError):
        MODULES["stoker.order.kernels"].permute_into(index=np.arange(5))


def test_numbers_at_their_limits_come_through():
    index, out = np.arange(300), np.empty(300, np.int64)
    _permute(index, out, size=300, key=2**64 - 1)
    assert np.array_equal(out, permutation.permute(index, 300, 2**64 - 1))


def test_numbers_and_truths_are_returned():
    join = MODULES["stoker.gather.kernels"]
    assert join.room_for_fields(np.ones(2, np.int64), np.array([[0, 5], [0, 7]])) >= 12


def test_calls_leave_no_references_behind():
    index, out = np.arange(300), np.empty(300, np.int64)
    key = 2**63 + 5
    held = [sys.getrefcount(thing) for thing in (index, out, key, None)]
    for _ in range(2000):
        _permute(index, out, size=300, key=key)
        with pytest.raises(TypeError):
            _permute(index, index[:0:-1], size=300, key=key)
    now = [sys.getrefcount(thing) for thing in (index, out, key, None)]
    assert now[:3] == held[:3]
    assert now[3] < held[3] + 1000


@pytest.mark.parametrize(("name", "is_given_up"), [("permute_into", True), ("permute_few_into", False)])
def test_the_interpreters_lock_is_given_up_unless_the_loop_keeps_it(name, is_given_up):
    """Another thread comes to its turn during a loop of some 50 ms, or not before its end."""
    num = 4_000_000
    index, out = np.arange(num), np.empty(num, np.int64)
    gate, seen = threading.Lock(), []

    def note():
        with gate:
            seen.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is interrupted
    try:
        with gate:
            other = threading.Thread(target=note)
            other.start()
        _permute(index, out, size=num, name=name)
        was_seen = bool(seen)
    finally:
        sys.setswitchinterval(interval)
    other.join()
    assert was_seen is is_given_up


def test_they_are_what_is_found_where_they_are_kept():
    assert loops.find("stoker.gather.kernels").take_rows.__class__ is type(len)
