"""Storages that behave as a test or an experiment needs them, and small Parquet files.

    MemoryStorage   objects in a dict; counts every call
    SlowStorage     any storage behind a link with latency and a bandwidth
    FlakyStorage    any storage that fails now and then
    write_example   a folder of small files to try Stoker on

They are for users, too: test a training script without a data lake, or try what a faster link would give.
"""

from __future__ import annotations

import hashlib
import io
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import SourceError, SourceMissingError
from stoker.storage.storage import Around, ObjectInfo, Storage, check_same

T = TypeVar("T")

# A transfer holds the link for this long, then others have their turn: short enough to share fairly, long enough that
# a wait is not mostly overhead.
_TURN_S = 0.004
_MIN_TURN_BYTES = 64 * 1024


class MemoryStorage:
    """Objects in memory; every call is counted.

    Versions are hashes of the content, so that an object put again with other bytes has changed.

    Args:
        objects: URL -> content. URLs are any text: "lake/a.parquet", "s3://lake/a.parquet".

    Attributes:
        num_lists: Calls of `list`.
        num_stats: Calls of `stat`.
        num_reads: Calls of `read`.
        bytes_read: Bytes that `read` returned.

    Examples:
        >>> storage = MemoryStorage({"lake/a": b"12345"})
        >>> bytes(storage.read("lake/a", 1, 3)), storage.num_reads, storage.bytes_read
        (b'234', 1, 3)
    """

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, str]] = {}
        self.reset_counts()
        for url, content in (objects or {}).items():
            self.put(url, content)

    def put(self, url: str, content: bytes) -> None:
        """Store `content` at `url`, in place of what was there."""
        version = hashlib.blake2b(content, digest_size=8).hexdigest()
        with self._lock:
            self._objects[url] = (content, version)

    def delete(self, url: str) -> None:
        """Remove the object at `url`."""
        with self._lock:
            del self._objects[url]

    def reset_counts(self) -> None:
        """Set every counter back to zero."""
        with self._lock:
            self.num_lists = 0
            self.num_stats = 0
            self.num_reads = 0
            self.bytes_read = 0

    @property
    def num_calls(self) -> int:
        """Calls of any kind."""
        with self._lock:
            return self.num_lists + self.num_stats + self.num_reads

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under the folder `url`, sorted by URL; "" is the root."""
        folder = url.rstrip("/") + "/" if url else ""
        with self._lock:
            self.num_lists += 1
            return [self._info(name) for name in sorted(self._objects) if name.startswith(folder)]

    def stat(self, url: str) -> ObjectInfo:
        """Return URL, size and version of one object; raises a `SourceMissingError` if there is none."""
        with self._lock:
            self.num_stats += 1
            return self._info(url)

    def read(self, url: str, offset: int, num_bytes: int) -> memoryview:
        """Return a view of `num_bytes` from `offset` on."""
        with self._lock:
            self.num_reads += 1
            size_bytes = self._info(url).size_bytes
            if offset < 0 or offset + num_bytes > size_bytes:
                raise SourceError(f"{url} has {size_bytes} bytes, none at {offset + num_bytes}", url=url)
            self.bytes_read += num_bytes
            return memoryview(self._objects[url][0])[offset : offset + num_bytes]

    def read_version(self, info: ObjectInfo, offset: int, num_bytes: int) -> memoryview:
        """Return the same as `read`; raises if the object is no longer the one that `info` describes."""
        data = self.read(info.url, offset, num_bytes)
        with self._lock:
            check_same(info, self._info(info.url))
        return data

    def _info(self, url: str) -> ObjectInfo:
        if url not in self._objects:
            raise SourceMissingError(f"nothing is stored at {url}", url=url)
        content, version = self._objects[url]
        return ObjectInfo(url=url, size_bytes=len(content), version=version)

    def __repr__(self) -> str:
        return f"MemoryStorage({len(self._objects)} objects)"


class SlowStorage(Around):
    """`inner` behind a simulated link: every call waits for the latency, and all bytes share one bandwidth.

        read A  |··latency··|█ █ █ █
        read B      |··latency··| █ █ █ █     both at once: each gets half the link

    Args:
        inner: Where the objects are.
        latency_s: Seconds before the first byte of each call; concurrent calls wait concurrently.
        bandwidth_bytes_s: Bytes a second over all reads together; None for no limit.
        connection_bytes_s: Bytes a second that one read alone gets, whatever the link could carry; None for no limit.
        clock: Gives the time in seconds.
        wait: Waits for a number of seconds; called outside of any lock.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        latency_s: float = 0.0,
        bandwidth_bytes_s: float | None = None,
        connection_bytes_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        if latency_s < 0:
            raise ValueError(f"latency_s must not be negative, got {latency_s}")
        for name, rate in (("bandwidth_bytes_s", bandwidth_bytes_s), ("connection_bytes_s", connection_bytes_s)):
            if rate is not None and not rate > 0:
                raise ValueError(f"{name} must be positive, got {rate}")
        super().__init__(inner)
        self._latency_s = latency_s
        self._bandwidth = math.inf if bandwidth_bytes_s is None else bandwidth_bytes_s
        self._connection = math.inf if connection_bytes_s is None else connection_bytes_s
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._link_free_at = 0.0

    def _ask(self, call: Callable[[], T], *, url: str, doing: str) -> T:  # noqa: ARG002
        if self._latency_s:
            self._wait(self._latency_s)
        found: Any = call()
        num_bytes = memoryview(found).nbytes if doing == "reading" else 0
        if math.isfinite(self._bandwidth):
            turn = max(_MIN_TURN_BYTES, int(self._bandwidth * _TURN_S))
            begun = self._clock()
            for start in range(0, num_bytes, turn):
                stop = min(start + turn, num_bytes)
                self._transfer(stop - start, not_before=begun + stop / self._connection)
        elif math.isfinite(self._connection) and num_bytes:
            self._wait(num_bytes / self._connection)
        return found  # type: ignore[no-any-return]

    def _transfer(self, num_bytes: int, *, not_before: float) -> None:
        """Send some bytes over the link, after those that were asked for earlier."""
        with self._lock:
            now = self._clock()
            self._link_free_at = max(now, self._link_free_at) + num_bytes / self._bandwidth
            wait_s = max(self._link_free_at, not_before) - now
        self._wait(wait_s)


class FlakyStorage(Around):
    """`inner` with some reads that fail.

    Args:
        inner: Where the objects are.
        every: Fail every n-th read: with 3 the reads 3, 6, 9, ...
        reads: Fail these reads, counted from 1.
        error: Makes the exception; by default a reset connection.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        every: int | None = None,
        reads: Collection[int] = (),
        error: Callable[[], BaseException] = lambda: ConnectionResetError("connection reset by peer"),
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        super().__init__(inner)
        self._every = every
        self._reads = frozenset(reads)
        self._error = error
        self._lock = threading.Lock()
        self.num_reads = 0
        self.num_failed = 0

    def _ask(self, call: Callable[[], T], *, url: str, doing: str) -> T:  # noqa: ARG002
        if doing == "reading":
            with self._lock:
                self.num_reads += 1
                fails = self.num_reads in self._reads or (self._every is not None and self.num_reads % self._every == 0)
                self.num_failed += fails
            if fails:
                raise self._error()
        return call()


def write_parquet(
    target: str | Path | MemoryStorage,
    table: pa.Table | Mapping[str, Any],
    *,
    url: str | None = None,
    row_group_size: int | None = None,
    compression: str = "zstd",
) -> str:
    """Write `table` as one Parquet file and return its URL.

    Args:
        target: A path, whose folder is made if need be, or a `MemoryStorage`.
        table: An Arrow table, or a mapping that makes one.
        url: Where in a `MemoryStorage`.
        row_group_size: Rows in a row group.
        compression: Codec of every column.

    Raises:
        ValueError: `url` is missing beside a `MemoryStorage`, or given beside a path.
    """
    if not isinstance(table, pa.Table):
        table = pa.table(dict(table))
    if isinstance(target, MemoryStorage) != (url is not None):
        raise ValueError("url says where in a MemoryStorage, and only there")
    if isinstance(target, MemoryStorage):
        assert url is not None
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=row_group_size, compression=compression)
        target.put(url, sink.getvalue())
        return url
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size, compression=compression)
    return str(path)


def example_table(num_rows: int, *, first: int = 0) -> pa.Table:
    """Return a table in which every value of a row follows from its id, so that mixed-up rows show.

    | column  | type            | value in the row with id i     |
    |---------|-----------------|--------------------------------|
    | id      | int64           | i                              |
    | half    | float32         | i / 2                          |
    | flag    | bool            | whether 3 divides i            |
    | vector  | float32[3]      | i, i, i                        |
    | history | list of int64   | 10 i, as often as i modulo 5   |
    | word    | string          | `w{i % 7}`, as often as i modulo 3 |

    Args:
        num_rows: Number of rows.
        first: Id of the first row; the others count up from it.
    """
    ids = np.arange(first, first + num_rows, dtype=np.int64)
    lengths = ids % 5
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table(
        {
            "id": ids,
            "half": (ids / 2).astype(np.float32),
            "flag": ids % 3 == 0,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3),
            "history": pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(ids, lengths) * 10)),
            "word": pa.array([f"w{i % 7}" * (i % 3) for i in ids], type=pa.string()),
        }
    )


def write_example(folder: str | Path, *, rows_of_files: Sequence[int] = (300, 200), row_group_size: int = 64) -> Path:
    """Write the Parquet files that the pages of the documentation load, and return their folder.

    The ids of `example_table` count through all files: 0 to 499 unless told otherwise.

    Args:
        folder: Made if it does not exist. The files are `part-00000.parquet`, `part-00001.parquet`, ...
        rows_of_files: Rows of each file.
        row_group_size: Rows of a row group.
    """
    first = 0
    for i, num_rows in enumerate(rows_of_files):
        table = example_table(num_rows, first=first)
        path = Path(folder) / f"part-{i:05}.parquet"
        write_parquet(path, table, row_group_size=row_group_size, compression="snappy")
        first += num_rows
    return Path(folder)
