"""Planning and fetching of byte ranges."""

from __future__ import annotations

import io
import itertools
import math
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Dataset, SourceChangedError, SourceError
from stoker.storage.each import for_each
from stoker.storage.failures import RetryingStorage, hedged
from stoker.storage.fetch import (
    ByteRange,
    RangesFile,
    RequestTimes,
    StreamedRanges,
    check_unchanged,
    fetch,
    plan_ranges,
    plan_requests,
)
from stoker.testing import FlakyStorage, MemoryStorage

CONTENT = bytes(range(256)) * 64


def spans():
    limit = len(CONTENT)
    return st.lists(
        st.tuples(st.integers(0, limit), st.integers(0, limit)).map(sorted).map(lambda p: ByteRange(*p)), max_size=8
    )


@given(spans(), st.integers(0, 300), st.integers(0, 50))
def test_ranges_cover_every_chunk_and_lie_apart(chunks, hole, slack):
    ranges = plan_ranges(chunks, size_bytes=len(CONTENT), max_hole_bytes=hole, slack_bytes=slack)
    for start, stop in chunks:
        if start < stop:
            assert any(r.start <= start and min(stop + slack, len(CONTENT)) <= r.stop for r in ranges)
    for before, after in itertools.pairwise(ranges):
        assert after.start - before.stop > hole
    assert all(0 <= r.start < r.stop <= len(CONTENT) for r in ranges)


@given(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(10**6, 10**7))
def test_requests_cut_a_range_evenly(start, length, limit):
    requests = plan_requests(ByteRange(start, start + length), max_request_bytes=limit)
    assert requests[0].start == start
    assert requests[-1].stop == start + length
    assert all(a.stop == b.start for a, b in itertools.pairwise(requests))
    assert max(r.stop - r.start for r in requests) <= limit
    assert len(requests) == max(1, -(-length // limit))


def memory():
    storage = MemoryStorage({"a": CONTENT})
    return storage, storage.stat("a")


@given(wanted=spans(), asked=spans())
def test_what_was_fetched_reads_like_the_file(wanted, asked):
    storage, info = memory()
    ranges = fetch(info, storage, plan_ranges(wanted, size_bytes=len(CONTENT), max_hole_bytes=100), RequestTimes())
    files = [RangesFile(ranges), RangesFile(ranges)]
    for i, (start, stop) in enumerate(asked):
        file = files[i % 2]  # each has a place of its own
        if stop > start:
            assert bytes(memoryview(ranges.get(start, stop))) == CONTENT[start:stop]
        assert file.seek(start) == start
        files[1 - i % 2].seek(7)
        assert bytes(memoryview(file.read(stop - start))) == CONTENT[start:stop]
        assert file.tell() == stop
    files[0].seek(-8, 2)
    assert bytes(memoryview(files[0].read())) == CONTENT[-8:]


def test_a_large_range_comes_in_several_requests_at_once():
    content = bytes(40 << 20)
    storage = MemoryStorage({"a": content})
    ranges = fetch(storage.stat("a"), storage, [ByteRange(0, len(content))], RequestTimes())
    assert storage.num_reads == 3
    assert ranges.num_bytes == len(content)
    assert len(ranges.get(0, len(content))) == len(content)
    assert storage.num_reads == 3


def test_an_object_that_changed_is_not_read():
    storage, info = memory()
    storage.put("a", bytes(len(CONTENT)))
    with pytest.raises(SourceChangedError, match=r"a has changed.*refresh=True"):
        fetch(info, storage, [ByteRange(0, 10)], RequestTimes())
    storage.put("a", b"shorter")
    with pytest.raises(SourceChangedError, match="16,384 bytes then, 7 now"):
        check_unchanged(info, storage)


def test_a_fetch_survives_reads_that_fail_now_and_then():
    storage, info = memory()
    retrying = RetryingStorage(FlakyStorage(storage, every=2), wait=lambda s: None)
    for _ in range(4):
        ranges = fetch(info, retrying, [ByteRange(100, 200), ByteRange(5000, 6000)], RequestTimes())
        assert bytes(memoryview(ranges.get(5000, 6000))) == CONTENT[5000:6000]


def test_a_fetch_that_fails_leaves_no_thread_and_names_the_object():
    storage, info = memory()
    dead = RetryingStorage(FlakyStorage(storage, every=1), wait=lambda s: None)
    with pytest.raises(SourceError, match="a failed"):
        fetch(info, dead, [ByteRange(100, 200), ByteRange(5000, 6000)], RequestTimes())


def test_ctrl_c_is_raised_even_where_work_on_a_lower_number_failed_as_well():
    together = threading.Barrier(2)

    def work(i):
        together.wait()
        raise KeyboardInterrupt if i else ValueError

    with pytest.raises(KeyboardInterrupt):
        for_each(2, work, num_threads=2)


def test_a_stream_reads_like_the_file():
    content = bytes(i * 7 % 256 for i in range(3_000_000))
    storage = MemoryStorage({"a": content})
    columns = [ByteRange(100, 1_400_000), ByteRange(1_400_000, 2_900_000)]
    waits = []
    stream = StreamedRanges(
        storage.stat("a"),
        storage,
        columns,
        window_bytes=600_000,
        num_threads=3,
        on_wait=lambda a, b: waits.append((a, b)),
    )
    at = [span.start for span in columns]
    while any(at[k] < columns[k].stop for k in range(2)):
        for k in range(2):
            stop = min(at[k] + 70_001, columns[k].stop)
            assert bytes(memoryview(stream.get(at[k], stop))) == content[at[k] : stop]
            at[k] = stop
    assert bytes(memoryview(stream.get(2_950_000, 2_950_010))) == content[2_950_000:2_950_010]
    stream.close()
    assert storage.bytes_read == sum(span.stop - span.start for span in columns) + 10
    assert all(start <= stop for start, stop in waits)


def test_a_stream_left_early_leaves_no_thread():
    storage = MemoryStorage({"a": bytes(3_000_000)})
    stream = StreamedRanges(
        storage.stat("a"),
        storage,
        [ByteRange(0, 3_000_000)],
        window_bytes=300_000,
        num_threads=4,
        on_wait=lambda a, b: None,
    )
    stream.get(0, 10)
    stream.close()
    stream.close()


def test_an_object_overwritten_between_look_up_and_read_is_never_taken_for_the_old_one():
    def content(value):
        target = io.BytesIO()
        table = pa.table({"a": pa.array([value] * 50_000)})  # too large to be read whole at once
        pq.write_table(table, target, compression="none", use_dictionary=False, write_statistics=False)
        return target.getvalue()

    class Overwritten(MemoryStorage):
        """Overwritten right before a read, whatever was looked up before."""

        is_armed = False

        def read(self, url, offset, num_bytes):
            if self.is_armed:
                self.is_armed = False
                self.put(url, content(2))
            return super().read(url, offset, num_bytes)

    storage = Overwritten({"lake://a.parquet": content(1)})
    catalogue = Dataset("lake://a.parquet", storage=storage).open()
    storage.is_armed = True
    with pytest.raises(SourceChangedError, match=r"a\.parquet"):
        list(catalogue.read(0))


@pytest.mark.parametrize("columns", [None, ["x_5"]])
def test_pyarrow_is_not_called_back_for_what_was_fetched_from_the_first_byte_on(columns, monkeypatch):
    sink = pa.BufferOutputStream()
    # What our own loops do not know, and a file too large to be read whole.
    rng = np.random.default_rng(0)
    table = pa.table({f"x_{i}": pa.array(rng.integers(0, 1 << 36, 5_000), pa.time64("us")) for i in range(9)})
    pq.write_table(table, sink)
    storage = MemoryStorage({"a.parquet": sink.getvalue().to_pybytes()})
    catalogue = Dataset("a.parquet", storage=storage, columns=columns).open()
    reads = []
    read = RangesFile.read
    monkeypatch.setattr(RangesFile, "read", lambda self, num_bytes=-1: reads.append(num_bytes) or read(self, num_bytes))
    ((_, found),) = catalogue.read(0)
    assert found.equals(table.select(columns or table.column_names))
    assert len(reads) == (0 if columns is None else 1)


def test_holes_are_as_large_as_what_comes_while_a_request_waits():
    times = RequestTimes()
    assert (times.hole_bytes, times.most_waste) == (4 << 10, 0.08)  # nothing is known yet
    times.note(40_000, 0.03)
    times.note(2_000_000, 1.03)
    assert (times.hole_bytes, times.most_waste) == (61_200, 0.25)
    times.note(198_000_000, 0.53)
    assert times.hole_bytes == 1 << 20
    near = RequestTimes()
    near.note(1_000, 0.0001)
    near.note(1 << 20, 0.01)
    assert near.hole_bytes == 10_601


@pytest.mark.parametrize("num_bytes", [1_000, 5_000, 100_000])
@pytest.mark.parametrize(("latency_s", "most"), [(0.03, 1.3), (0.003, 1.1)])
def test_of_every_tenth_column_little_more_is_read_than_is_needed(num_bytes, latency_s, most):
    times = RequestTimes()
    for _ in range(3):
        times.note(1 << 20, latency_s + 0.005)
    chunks = [ByteRange(start, start + num_bytes) for start in range(4, 1000 * num_bytes, 10 * num_bytes)]
    ranges = plan_ranges(
        chunks, size_bytes=1 << 40, max_hole_bytes=times.hole_bytes, most_waste=times.most_waste, slack_bytes=0
    )
    assert sum(stop - start for start, stop in ranges) <= most * sum(stop - start for start, stop in chunks)


class Stuck(MemoryStorage):
    """One read, the first that is told to, gets no answer until all is over."""

    def __init__(self, objects):
        super().__init__(objects)
        self.over = threading.Event()
        self.is_armed = False

    def read_version(self, info, offset, num_bytes):
        is_stuck, self.is_armed = self.is_armed, False
        if is_stuck:
            self.over.wait(60)
            raise ConnectionResetError("too late")
        return super().read_version(info, offset, num_bytes)


def times_of(num, **options):
    """What so many requests for 100 bytes have taken: a moment each."""
    times = RequestTimes(**options)
    for _ in range(num):
        times.note(100, 0.001)
    return times


def test_a_request_that_is_far_slower_than_its_peers_is_asked_a_second_time():
    storage = Stuck({"a": CONTENT})
    times = times_of(20, least_patience_s=0.02)
    storage.is_armed = True
    ranges = fetch(storage.stat("a"), storage, [ByteRange(300, 400)], times)
    assert bytes(ranges.get(300, 400)) == CONTENT[300:400]
    assert storage.num_reads == 1  # of the one that was answered
    assert not times.may_hedge()  # no more than one in twenty
    storage.over.set()


def test_the_second_answer_counts_where_the_first_is_an_error():
    storage = Stuck({"a": CONTENT})
    storage.is_armed = True
    may_ask = threading.Event()

    def may_hedge():
        storage.over.set()  # the first one fails now, whichever comes first
        may_ask.set()
        return True

    assert hedged(0.01, lambda: storage.read_version(storage.stat("a"), 0, 3), may_hedge) == CONTENT[:3]
    assert may_ask.is_set()


def test_how_long_a_request_may_take_is_told_by_requests_for_as_many_bytes():
    times = times_of(15)
    assert times.patience_s(100) == math.inf  # too few are known
    times.note(100, 2.0)
    assert times.patience_s(100) == 0.5
    assert times.patience_s(1_000_000) == math.inf
    for _ in range(10):
        times.note(127, 1.0)
    assert times.patience_s(64) == 4.0
