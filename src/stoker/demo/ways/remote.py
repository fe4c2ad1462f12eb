"""Row groups of the demo's files, read through a `Storage` one range at a time."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.storage.storage import Storage

# A footer of these files is about 40 kB: one request for the end of the file brings it whole.
_TAIL_BYTES = 128 * 1024
_MAX_FOOTERS = 16


@dataclass(frozen=True, kw_only=True)
class RemoteRowGroup:
    """One row group: where its bytes lie.

    Attributes:
        url: Its file.
        footer: The file's metadata.
        number: Its number in the file.
        start: First byte of its column chunks.
        stop: The byte behind them.
    """

    url: str
    footer: pq.FileMetaData
    number: int
    start: int
    stop: int

    def read(self, storage: Storage) -> pa.Table:
        """Fetch the row group in one request and decode it on this thread, for the caller brings the threads."""
        fetched = memoryview(storage.read(self.url, self.start, self.stop - self.start))
        with pq.ParquetFile(pa.PythonFile(_Part(fetched, self.start), mode="r"), metadata=self.footer) as file:
            return file.read_row_group(self.number, use_threads=False)


class RowGroups:
    """All row groups of some files; the footers are fetched once, at the first use."""

    def __init__(self, urls: Sequence[str], storage: Storage) -> None:
        self._urls = urls
        self._storage = storage
        self._lock = threading.Lock()
        self._found: list[RemoteRowGroup] | None = None

    def shuffled(self, *, seed: int, epoch: int) -> list[RemoteRowGroup]:
        """Return the row groups in an order of the epoch's own."""
        with self._lock:
            if self._found is None:
                # Each waits for the latency twice: at the same time, not one after the other.
                with ThreadPoolExecutor(_MAX_FOOTERS, thread_name_prefix="stoker-demo-footers") as pool:
                    of_files = pool.map(partial(_row_groups, storage=self._storage), self._urls)
                    self._found = [group for groups in of_files for group in groups]
        order = np.random.default_rng([seed, epoch]).permutation(len(self._found))
        return [self._found[i] for i in order]


def _row_groups(url: str, *, storage: Storage) -> list[RemoteRowGroup]:
    size_bytes = storage.stat(url).size_bytes
    tail_bytes = min(size_bytes, _TAIL_BYTES)
    tail = memoryview(storage.read(url, size_bytes - tail_bytes, tail_bytes))
    # The last 8 bytes are the length of the footer and a magic word.
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes > tail_bytes:
        tail = memoryview(storage.read(url, size_bytes - footer_bytes, footer_bytes))
    footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail[-footer_bytes:])))
    return [_row_group(url, footer, number) for number in range(footer.num_row_groups)]


def _row_group(url: str, footer: pq.FileMetaData, number: int) -> RemoteRowGroup:
    columns = [footer.row_group(number).column(i) for i in range(footer.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    stops = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    return RemoteRowGroup(url=url, footer=footer, number=number, start=min(starts), stop=max(stops))


class _Part(io.RawIOBase):
    """A file of which only one range is there, at its own place: what pyarrow needs to find the columns."""

    def __init__(self, content: memoryview, begin: int) -> None:
        self._content = content
        self._begin = begin
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._begin + len(self._content)}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> Any:
        start = self._at - self._begin
        content = self._content[start : len(self._content) if size < 0 else start + size]
        self._at += len(content)
        return pa.py_buffer(content)
