"""What the doctor has read once, given again: at once, or as another link would bring it."""

import pytest

from stoker.doctor.tap import Tap
from stoker.testing import MemoryStorage, SlowStorage


class Time:
    def __init__(self):
        self.now = 0.0

    def clock(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def inner():
    return MemoryStorage({"a": bytes(range(100)), "b": bytes(50)})


@pytest.fixture
def tap(inner):
    tap = Tap(inner)
    with tap.keeping():
        tap.read("a", 10, 20)
        tap.stat("a")
    inner.reset_counts()
    return tap


def test_what_was_kept_is_given_again_without_asking(tap, inner):
    with tap.replaying():
        assert bytes(tap.read("a", 10, 20)) == bytes(range(10, 30))
        assert tap.stat("a").size_bytes == 100
    assert inner.num_calls == 0


def test_what_was_not_kept_and_what_is_asked_for_outside_comes_from_the_store(tap, inner):
    with tap.replaying():
        assert bytes(tap.read("a", 0, 5)) == bytes(range(5))
        tap.stat("b")
    tap.read("a", 10, 20)
    tap.stat("a")
    assert (inner.num_reads, inner.num_stats) == (2, 2)


def test_a_link_before_it_takes_its_time_and_gives_the_same(tap, inner):
    time = Time()

    def link(kept):
        return SlowStorage(kept, latency_s=0.5, bandwidth_bytes_s=10, clock=time.clock, wait=time.wait)

    with tap.replaying(link):
        assert bytes(tap.read("a", 10, 20)) == bytes(range(10, 30))
        assert time.now == pytest.approx(0.5 + 2)
        assert tap.stat("a").size_bytes == 100
        assert time.now == pytest.approx(0.5 + 2 + 0.5)
    assert inner.num_calls == 0
    assert [info.url for info in tap.list("")] == ["a", "b"]


def test_what_is_forgotten_is_asked_for_again(tap, inner):
    tap.forget()
    with tap.replaying():
        tap.read("a", 10, 20)
    assert inner.num_reads == 1
