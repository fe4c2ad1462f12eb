"""The storages for tests and experiments."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import SourceError, SourceMissingError, Storage
from stoker.testing import FlakyStorage, MemoryStorage, SlowStorage, write_parquet


class Time:
    """A clock that only waiting moves."""

    def __init__(self):
        self.now = 0.0

    def wait(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now


def test_every_storage_is_a_storage():
    inner = MemoryStorage()
    assert isinstance(inner, Storage)
    assert isinstance(SlowStorage(inner), Storage)
    assert isinstance(FlakyStorage(inner), Storage)


def test_memory_lists_a_folder_sorted_and_not_its_neighbours():
    storage = MemoryStorage({"a/2": b"", "a/1": b"x", "ab/3": b"", "a/b/0": b""})
    assert [info.url for info in storage.list("a")] == ["a/1", "a/2", "a/b/0"]
    assert [info.url for info in storage.list("a/")] == ["a/1", "a/2", "a/b/0"]
    assert storage.list("c") == []


def test_memory_counts_every_call_and_byte():
    storage = MemoryStorage({"a": b"12345"})
    storage.list("")
    storage.stat("a")
    assert bytes(storage.read("a", 1, 3)) == b"234"
    assert (storage.num_lists, storage.num_stats, storage.num_reads, storage.bytes_read) == (1, 1, 1, 3)
    assert storage.num_calls == 3
    storage.reset_counts()
    assert storage.num_calls == 0


def test_memory_changes_the_version_with_the_content_only():
    storage = MemoryStorage({"a": b"one"})
    before = storage.stat("a")
    storage.put("a", b"one")
    assert storage.stat("a") == before
    storage.put("a", b"two")
    assert storage.stat("a").version != before.version


def test_memory_names_what_is_missing_or_too_short():
    storage = MemoryStorage({"a": b"12345"})
    with pytest.raises(SourceMissingError, match="nope"):
        storage.stat("nope")
    with pytest.raises(SourceMissingError, match="nope"):
        storage.read("nope", 0, 1)
    with pytest.raises(SourceError, match="5 bytes"):
        storage.read("a", 3, 3)


def test_a_slow_read_takes_the_latency_and_its_time_on_the_link():
    time = Time()
    storage = SlowStorage(
        MemoryStorage({"a": bytes(1000)}), latency_s=0.5, bandwidth_bytes_s=100, clock=time.clock, wait=time.wait
    )
    storage.read("a", 0, 1000)
    assert time.now == pytest.approx(0.5 + 10)
    storage.stat("a")
    storage.list("")
    assert time.now == pytest.approx(0.5 + 10 + 1)


def test_an_idle_link_saves_nothing_up():
    time = Time()
    storage = SlowStorage(MemoryStorage({"a": bytes(1000)}), bandwidth_bytes_s=100, clock=time.clock, wait=time.wait)
    storage.read("a", 0, 1000)
    time.wait(100)
    storage.read("a", 0, 1000)
    assert time.now == pytest.approx(120)


@pytest.mark.parametrize("link", [{}, {"bandwidth_bytes_s": 1000}])
def test_one_read_alone_gets_no_more_than_its_connection_carries(link):
    time = Time()
    storage = SlowStorage(
        MemoryStorage({"a": bytes(1000)}), connection_bytes_s=50, **link, clock=time.clock, wait=time.wait
    )
    storage.read("a", 0, 1000)
    assert time.now == pytest.approx(20)


def test_a_connection_that_could_carry_more_gets_what_the_link_carries():
    time = Time()
    storage = SlowStorage(
        MemoryStorage({"a": bytes(1000)}),
        bandwidth_bytes_s=100,
        connection_bytes_s=5000,
        clock=time.clock,
        wait=time.wait,
    )
    storage.read("a", 0, 1000)
    assert time.now == pytest.approx(10)


def test_two_reads_at_once_share_the_link():
    """Both take turns: whoever begins second is not done only after the whole of the first."""
    turns = []
    gate = threading.Barrier(2)

    def wait(seconds):
        turns.append((threading.current_thread().name, seconds))
        if len(turns) <= 2:
            gate.wait(timeout=60)

    size = 256 * 1024
    storage = SlowStorage(MemoryStorage({"a": bytes(size)}), bandwidth_bytes_s=1000, clock=lambda: 0.0, wait=wait)
    threads = [threading.Thread(target=storage.read, args=("a", 0, size), name=name) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # With a clock that stands still the waits say when each turn ends: all bytes of both, one after the other.
    assert max(seconds for _, seconds in turns) == pytest.approx(2 * size / 1000)
    assert sorted(seconds for _, seconds in turns) == pytest.approx([size / 4000 * k for k in range(1, 9)])
    assert {name for name, _ in turns[:2]} == {"x", "y"}


@pytest.mark.parametrize("wrong", [{"latency_s": -1}, {"bandwidth_bytes_s": 0}, {"connection_bytes_s": 0}])
def test_a_link_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        SlowStorage(MemoryStorage(), **wrong)


def test_flaky_fails_every_nth_read_and_the_scheduled_ones():
    storage = FlakyStorage(MemoryStorage({"a": b"12345"}), every=3, reads=[1])
    outcomes = []
    for _ in range(6):
        try:
            storage.read("a", 0, 1)
            outcomes.append(True)
        except ConnectionResetError:
            outcomes.append(False)
    assert outcomes == [False, True, False, True, True, False]
    assert (storage.num_reads, storage.num_failed) == (6, 3)


def test_write_parquet_writes_to_memory_and_to_a_path(tmp_path):
    storage = MemoryStorage()
    assert write_parquet(storage, {"x": [1, 2, 3]}, url="lake/a.parquet", row_group_size=2) == "lake/a.parquet"
    path = write_parquet(tmp_path / "new" / "a.parquet", pa.table({"x": [1, 2, 3]}), row_group_size=2)
    assert pq.read_metadata(path).num_row_groups == 2
    assert storage.stat("lake/a.parquet").size_bytes > 0
    with pytest.raises(ValueError, match="url"):
        write_parquet(storage, {"x": [1]})
