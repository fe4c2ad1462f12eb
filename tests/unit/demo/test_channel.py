import threading

import pytest

from stoker.demo.ways.channel import Channel


def test_items_come_in_order_and_the_channel_ends_with_its_writer():
    with Channel[int](2) as channel:
        channel.start(lambda: [channel.put(i) for i in range(10)], name="test")
        assert list(channel) == list(range(10))


def test_all_items_of_several_writers_come():
    with Channel[int](1) as channel:
        channel.start(lambda: [channel.put(i) for i in range(50)], name="test", num_threads=3)
        assert sorted(channel) == sorted(list(range(50)) * 3)


def test_an_error_of_a_writer_reaches_the_reader_behind_the_items_before_it():
    def write():
        channel.put(1)
        raise OSError("the disk is gone")

    with Channel[int](2) as channel:
        channel.start(write, name="test")
        items = iter(channel)
        assert next(items) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(items)


def test_closing_frees_a_writer_that_waits_for_room_and_tells_it():
    told = []
    is_full = threading.Event()

    def write():
        channel.put(1)
        is_full.set()
        told.append(channel.put(2))

    channel = Channel[int](1)
    channel.start(write, name="test")
    is_full.wait()
    channel.close()
    assert told == [False]
    assert list(channel) == []
