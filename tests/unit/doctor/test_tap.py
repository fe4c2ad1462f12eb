"""What the doctor has read once, given again at once; and the same reads by themselves."""

import time

import pytest

from stoker.doctor.tap import Tap, probe_link
from stoker.testing import MemoryStorage


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
