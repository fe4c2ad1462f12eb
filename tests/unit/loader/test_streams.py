"""Windows of a mixture's data sets are left behind as soon as no later step needs them, and looked at only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.loader.streams import EpochStream, MixedStream
from stoker.loader.windows.in_use import OpenWindow
from stoker.sampling.mixture import MixtureOrder


class FakeWindows:
    """Notes which windows are open."""

    def __init__(self):
        self.open = set()
        self.is_closed = False

    def get(self, number):
        self.open.add(number)
        return OpenWindow(window=None, order=None, chunks=None)

    def pass_by(self, number):
        self.open -= set(range(number))

    def ask(self, number):
        pass

    def close(self):
        self.is_closed = True


def stream_of(order, epoch):
    made = {}

    def open_epoch(which, own):
        made[which, own.epoch] = FakeWindows()
        return EpochStream(own, made[which, own.epoch], units=None, fragments=(), which=which)

    mixed = MixedStream(order.epoch(epoch), open_epoch)
    return mixed, made


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
    one, every = stream_of(order, epoch)
    two, told = stream_of(order, epoch)
    of_epoch, again, num_looks = order.epoch(epoch), 0, 0
    positions = range(0, of_epoch.num_samples, step)
    for position in positions:
        for stream in (one, two):
            stream.parts([(position, min(position + step, of_epoch.num_samples))])
        one.pass_by(position)
        if position >= again:
            again, num_looks = two.pass_by(position), num_looks + 1
            assert again > position
        assert {key: (windows.open, windows.is_closed) for key, windows in every.items()} == {
            key: (windows.open, windows.is_closed) for key, windows in told.items()
        }
    num_windows = sum(len(counts) for counts in sizes) * (max(own for _, own in every) + 1)
    assert num_looks <= 2 * num_windows + 2 * len(every) + 1
