"""Bytes of the columns that are needed, and only these: plan (pure), then fetch.

    file        |A A A|b|C C|.......big hole.......|D D D D D D|
    wanted       A A A   C C                        D D D D D D
    ranges      [A A A b C C]                      [D D D][D D D]
                 b is cheaper fetched than skipped   asked for at once

`RangesFile` then looks like a file to pyarrow, which sees the very buffers that were fetched.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from stoker.errors import SourceChangedError, SourceError
from stoker.storage.each import for_each
from stoker.storage.failures import hedged
from stoker.storage.storage import BytesLike, ObjectInfo, Storage, check_same, read_of, version_reader

# A hole is read over where that takes no longer than another request would, as measured; the least is what the headers
# of a request and its answer take.
_MOST_HOLE_BYTES = 1 << 20
_LEAST_HOLE_BYTES = 4 << 10
# A link that many threads fill is the better used the less is read that nobody needs: so much of what is needed may be
# read over beside it where an answer takes long, and where it does not.
_MOST_WASTE, _LEAST_WASTE, _LONG_S = 0.25, 0.08, 0.01
# One request of an object store gives 50 to 100 MB/s; several at once fill the link.
_MOST_REQUEST_BYTES = 16 << 20
_MAX_REQUESTS_AT_ONCE = 8
# Small ones wait for their answers rather than for the link.
_MAX_SMALL_AT_ONCE, _SMALL_REQUEST_BYTES = 32, 512 << 10
# A request that takes so many times longer than nine in ten of its peers, requests for about as many bytes, is asked a
# second time; of all requests no more than one in twenty, so that a store that has become slow is not asked twice.
_FAR_SLOWER, _LEAST_PEERS, _MOST_PEERS, _REQUESTS_A_HEDGE = 4, 16, 64, 20
_LEAST_PATIENCE_S = 0.5
# Some writers (PARQUET-816) give column chunks up to 100 bytes too short; readers read so much more.
SLACK_BYTES = 128
# What stands before the first column chunk of a file. With it, one range is the beginning of the file: see `Ranges`.
_MAGIC_BYTES = 4


class ByteRange(NamedTuple):
    """Bytes [start, stop) of a file."""

    start: int
    stop: int


class RequestTimes:
    """What requests to a store have taken: how long one waits for its first byte, and how fast the others follow.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency_s, self._seconds = math.inf, 0.0
        self._num = self._num_hedged = self._num_bytes = 0
        self._peers: dict[int, deque[float]] = {}  # by the digits of their bytes

    def note(self, num_bytes: int, seconds: float) -> None:
        """Note a request. Of several at once each gets a share of the link, as those will that come next."""
        with self._lock:
            self._latency_s = min(self._latency_s, seconds)
            self._num += 1
            self._num_bytes += num_bytes
            self._seconds += seconds
            self._peers.setdefault(num_bytes.bit_length(), deque(maxlen=_MOST_PEERS)).append(seconds)

    @property
    def hole_bytes(self) -> int:
        """The largest hole between two ranges that is cheaper read than skipped: latency times bandwidth."""
        if not self._num_bytes:
            return _LEAST_HOLE_BYTES
        hole = self._latency_s * self._num_bytes / max(self._seconds - self._num * self._latency_s, 1e-9)
        return int(min(max(hole, _LEAST_HOLE_BYTES), _MOST_HOLE_BYTES))

    @property
    def most_waste(self) -> float:
        """What may be read over, as a share of what is needed."""
        return _MOST_WASTE if _LONG_S <= self._latency_s < math.inf else _LEAST_WASTE

    def patience_s(self, num_bytes: int) -> float:
        """Return how long to wait for so many bytes before they are asked for again; for ever while little is known."""
        with self._lock:
            peers = sorted(self._peers.get(num_bytes.bit_length(), ()))
        if len(peers) < _LEAST_PEERS:
            return math.inf
        return max(_FAR_SLOWER * peers[len(peers) * 9 // 10], _LEAST_PATIENCE_S)

    def may_hedge(self) -> bool:
        """Whether one more request may be asked a second time, which is then counted."""
        with self._lock:
            may = self._num_hedged < self._num // _REQUESTS_A_HEDGE
            self._num_hedged += may
            return may


def plan_ranges(
    chunks: Iterable[ByteRange],
    *,
    size_bytes: int,
    max_hole_bytes: int = _MOST_HOLE_BYTES,
    most_waste: float = math.inf,
) -> list[ByteRange]:
    """Return the ranges to fetch, ascending and apart: every column chunk lies in one of them.

    No hole above `max_hole_bytes` is read over. The smallest ones come first, as long as all of them together have no
    more than `most_waste` of what is needed; those that cost less than a request's headers do not count.
    """
    spans: list[ByteRange] = []
    for start, stop in sorted(chunks):
        stop = min(stop + SLACK_BYTES, size_bytes)
        if stop <= start:
            continue
        start = 0 if start <= _MAGIC_BYTES else start
        if spans and start <= spans[-1].stop:
            spans[-1] = ByteRange(spans[-1].start, max(spans[-1].stop, stop))
        else:
            spans.append(ByteRange(start, stop))
    holes = [after.start - before.stop for before, after in itertools.pairwise(spans)]
    left = most_waste * sum(span.stop - span.start for span in spans)
    read_over: set[int] = set()
    for i in sorted(range(len(holes)), key=holes.__getitem__):
        left -= holes[i] if holes[i] > _LEAST_HOLE_BYTES else 0
        if left < 0 or holes[i] > max_hole_bytes:
            break
        read_over.add(i)
    joined = spans[:1]
    for i, span in enumerate(spans[1:]):
        if i in read_over:
            joined[-1] = ByteRange(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return joined


def _requests_of(span: ByteRange) -> list[ByteRange]:
    """Return `span` cut into as few requests of about one size as may be."""
    size_bytes = span.stop - span.start
    each = -(-size_bytes // max(1, -(-size_bytes // _MOST_REQUEST_BYTES)))
    return [ByteRange(start, min(start + each, span.stop)) for start in range(span.start, span.stop, each)]


def check_unchanged(info: ObjectInfo, storage: Storage) -> None:
    """Look the object up again; a `SourceChangedError` says that it is not the one that `info` describes."""
    check_same(info, storage.stat(info.url))


def fetch(info: ObjectInfo, storage: Storage, spans: Sequence[ByteRange], times: RequestTimes) -> Ranges:
    """Read `spans` of one remote object, several requests at once, all of the version that `info` describes.

    Where the storage does not prove that with each read, the object is looked up once more: after the reads, since one
    overwritten between a look-up and a read would be kept as the old one: a `SourceChangedError` says so. A request
    that is far slower than its peers is asked a second time, and the other answer is left to itself.
    """
    requests = [request for span in spans for request in _requests_of(span)]
    parts = [memoryview(b"")] * len(requests)

    def read(i: int) -> None:
        num_bytes = requests[i].stop - requests[i].start
        begin = time.perf_counter()
        ask = partial(read_of, info, storage, requests[i].start, num_bytes)
        patience_s = times.patience_s(num_bytes)
        parts[i] = ask() if math.isinf(patience_s) else hedged(patience_s, ask, times.may_hedge)
        times.note(num_bytes, time.perf_counter() - begin)

    is_small = all(stop - start <= _SMALL_REQUEST_BYTES for start, stop in requests)
    try:
        num_threads = _MAX_SMALL_AT_ONCE if is_small else _MAX_REQUESTS_AT_ONCE
        for_each(len(requests), read, num_threads=num_threads, name="stoker-fetch")
    except SourceChangedError:
        raise
    except SourceError:
        check_unchanged(info, storage)  # another object by now: that is what is wrong, not the read
        raise
    if version_reader(storage) is None:
        check_unchanged(info, storage)
    return Ranges(info, storage, list(zip(requests, parts, strict=True)))


class Ranges:
    """A file of `size_bytes` of which some ranges are in memory; what else is asked for is read from the storage.

    Safe to use from several threads, as long as each reads other column chunks. `on_wait` is called with start and stop
    in ns, in the thread that reads, whenever it had to wait. `num_bytes` have been read so far.
    """

    may_jump = True  # any bytes of it can be looked at, in any order, for next to nothing

    def __init__(
        self,
        info: ObjectInfo,
        storage: Storage,
        parts: Sequence[tuple[ByteRange, memoryview]] = (),
        *,
        on_wait: Callable[[int, int], None] | None = None,
    ) -> None:
        self.size_bytes = info.size_bytes
        self._info, self._storage, self._on_wait = info, storage, on_wait
        self._counting = threading.Lock()
        self._spans, self._views = [span for span, _ in parts], [view for _, view in parts]
        self.num_bytes = sum(span.stop - span.start for span in self._spans)

    @property
    def beginning(self) -> memoryview | None:
        """The beginning of the file, where that is all there is in memory; None where it is not."""
        return self._views[0] if len(self._views) == 1 and self._spans[0].start == 0 else None

    def get(self, start: int, stop: int) -> BytesLike:
        """Return bytes [start, stop), which the file has: a view of what was fetched, wherever that is enough."""
        first = last = max(bisect.bisect_right(self._spans, start, key=lambda span: span.start) - 1, 0)
        at = start
        while at < stop and last < len(self._spans) and self._spans[last].start <= at < self._spans[last].stop:
            at = min(self._spans[last].stop, stop)
            last += 1
        there = self._there(first, last) if last > first else ()
        views = [
            view[max(start - span.start, 0) : stop - span.start]
            for span, view in zip(self._spans[first:last], there, strict=True)
        ]
        if at < stop:
            begin = time.perf_counter_ns()
            self._count(stop - at)
            views.append(read_of(self._info, self._storage, at, stop - at))
            if self._on_wait is not None:
                self._on_wait(begin, time.perf_counter_ns())
        # A column chunk that lies in two requests is joined; what lies in none is read.
        return views[0] if len(views) == 1 else b"".join(views)

    def _there(self, first: int, last: int) -> Sequence[memoryview]:
        """Return what the ranges from `first` up to `last` hold."""
        return self._views[first:last]

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self.num_bytes += num_bytes

    def close(self) -> None:
        """Let go of what is in memory."""
        self._spans, self._views = [], []


class RangesFile:
    """Ranges as a file with a place in it, which `pyarrow.PythonFile` wants: one for each reader.

    `on_read` is called with the place and the bytes of whatever is read, before it is handed out.

    pyarrow calls the methods with the GIL, twice for each column. Where many threads fetch, each call waits for the GIL
    longer than a small column takes to decode: what lies in one piece from the first byte on is given to pyarrow as it
    is.
    """

    closed = False

    def __init__(self, ranges: Ranges, on_read: Callable[[int, BytesLike], None] | None = None) -> None:
        self._ranges, self._on_read = ranges, on_read
        self._at = 0

    def read(self, num_bytes: int = -1) -> BytesLike:
        """Return the next bytes."""
        size_bytes, start = self._ranges.size_bytes, self._at
        stop = size_bytes if num_bytes < 0 else min(start + num_bytes, size_bytes)
        self._at = max(start, stop)
        found = self._ranges.get(start, stop) if stop > start else b""
        if self._on_read is not None:
            self._on_read(start, found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset, as files do."""
        self._at = offset + (0, self._at, self._ranges.size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def close(self) -> None:
        """Do nothing: the ranges are their owner's."""


class StreamedRanges(Ranges):
    """A file whose wanted column chunks are fetched window by window, ahead of a reader that goes through all of them.

        column A   |window 0|window 1|window 2|         being read: 0   being fetched: 1
        column B   |window 3|window 4|window 5|

    For a row group too large to be in memory: a window of each column is there, and the next one is on its way. Windows
    of all columns together have `window_bytes`.
    """

    may_jump = False

    def __init__(
        self,
        info: ObjectInfo,
        storage: Storage,
        spans: Sequence[ByteRange],
        *,
        window_bytes: int,
        num_threads: int,
        on_wait: Callable[[int, int], None],
    ) -> None:
        super().__init__(info, storage, on_wait=on_wait)
        total = sum(stop - start for start, stop in spans) or 1
        self._first: set[int] = set()  # windows that a column begins with
        for start, stop in sorted(spans):
            self._first.add(len(self._spans))
            step = max(1 << 18, window_bytes * (stop - start) // total)
            self._spans += [ByteRange(at, min(at + step, stop)) for at in range(start, stop, step)]
        self._reads: dict[int, Future[memoryview]] = {}
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-fetch")
        for window in sorted(self._first):
            self._ask(window)

    def _there(self, first: int, last: int) -> Sequence[memoryview]:
        before = first
        while before not in self._first:
            before -= 1
            self._reads.pop(before, None)
        for window in range(first, last):
            self._ask(window)
        if last not in self._first:  # the next one of this column
            self._ask(last)
        begin = time.perf_counter_ns()
        waits = any(not self._reads[i].done() for i in range(first, last))
        views = [self._reads[i].result() for i in range(first, last)]
        if waits and self._on_wait is not None:
            self._on_wait(begin, time.perf_counter_ns())
        return views

    def _ask(self, window: int) -> None:
        if window < len(self._spans) and window not in self._reads:
            start, stop = self._spans[window]
            self._count(stop - start)
            self._reads[window] = self._pool.submit(read_of, self._info, self._storage, start, stop - start)

    def close(self) -> None:
        """Wait for the reads under way and let go of everything."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._reads = {}
        super().close()
