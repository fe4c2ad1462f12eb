"""From bytes to Arrow: what our own loops know is decoded by them, all else by pyarrow, whose errors name the file.

Checksums of pages are verified where a writer left them: without, pyarrow gives wrong values without a word.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import SourceError
from stoker.source.fetch import Ranges, Span
from stoker.source.instants import check_instants, int96_paths
from stoker.source.pages import LeafStream, decoded_leaves, leaf_streams
from stoker.source.schema import Layout

if TYPE_CHECKING:
    from stoker.source.footers import Footer

# What pyarrow reads at once of each column of a streamed row group; a page is decoded as a whole in any case.
STREAM_BUFFER_BYTES = 1 << 18
_COUNTED = re.compile(r"^Column \d+ named\b")


@contextmanager
def decoding(url: str, *, where: str) -> Iterator[None]:
    """Turn whatever pyarrow raises on a bad file into a `SourceError` that says where."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        # pyarrow raises OSError, ValueError, TypeError, NotImplementedError and its own on broken files.
        lines = str(error).strip().splitlines()
        # pyarrow counts the columns that it was asked for, which nobody else knows.
        reason = _COUNTED.sub("column", lines[0]) if lines else type(error).__name__
        if "crypt" in reason:
            reason += " (the file is encrypted: Stoker has no keys; decrypt it, or leave the encrypted columns out)"
        elif isinstance(error, MemoryError):
            reason += " (the memory asked for is not there: too large for this machine, or a corrupt length)"
        raise SourceError(f"{where} cannot be decoded: {reason}", url=url) from error


def _opened(
    ranges: Ranges, metadata: pq.FileMetaData, *, buffer_size: int = 0, in_seconds: bool = False
) -> pq.ParquetFile:
    beginning = ranges.beginning
    return pq.ParquetFile(
        pa.PythonFile(ranges, mode="r") if beginning is None else pa.BufferReader(beginning),
        metadata=metadata,
        pre_buffer=False,  # the bytes are here, or come through windows
        buffer_size=buffer_size,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="s" if in_seconds else None,
    )


def decode_row_groups(
    ranges: Ranges,
    footer: Footer,
    *,
    row_groups: Sequence[int],
    leaves: Sequence[int],
    spans: Sequence[Span],
    num_rows: int,
    coded: Collection[str] = (),
    where: str,
    url: str,
) -> pa.Table:
    """Return columns of whole row groups, in the calling thread.

    Args:
        ranges: The file, with the columns in memory.
        footer: Its footer.
        row_groups: Numbers of the row groups.
        leaves: Numbers of the Parquet leaf columns.
        spans: Where their column chunks lie, row group by row group.
        num_rows: How many rows the footer promises.
        coded: Columns of strings that may come as Arrow's dictionary.
        where: The fragment, for errors.
        url: The file, for errors.

    Raises:
        SourceError: The bytes are not what the footer says.
        FieldError: INT96 timestamps would wrap around.
    """
    layout = footer.checked.layout
    int96: list[str] = []
    with decoding(url, where=where):
        ours = decoded_leaves(
            ranges,
            layout,
            footer.checked.numbers,
            row_groups=row_groups,
            leaves=leaves,
            spans=spans,
            coded=coded,
        )
        columns = {leaf.name: column for leaf, column in ours}
        here = {leaf.number for leaf, _ in ours}
        paths = [layout.paths[leaf] for leaf in leaves if leaf not in here]
        if paths or not here:
            int96 = int96_paths(footer.metadata, paths)
            rest = _opened(ranges, footer.metadata).read_row_groups(list(row_groups), columns=paths, use_threads=False)
            rest.validate()
            _check_num_rows(rest.num_rows, num_rows, where=where, url=url)
            columns |= zip(rest.column_names, rest.columns, strict=True)
        table = pa.table({name: columns[name] for name in layout.schema.names if name in columns})
    _check_num_rows(table.num_rows, num_rows, where=where, url=url)
    if int96:
        with decoding(url, where=where):
            seconds = _opened(ranges, footer.metadata, in_seconds=True).read_row_groups(
                list(row_groups), columns=int96, use_threads=False
            )
        check_instants(table, seconds, where=where)
    return table


def decode_parts(
    ranges: Ranges,
    footer: Footer,
    *,
    row_group: int,
    leaves: Sequence[int],
    spans: Sequence[Span],
    part_rows: Sequence[int],
    coded: Collection[str] = (),
    where: str,
    url: str,
) -> Iterator[pa.Table]:
    """Yield consecutive parts of one row group while it is read from its beginning to its end.

    Args:
        ranges: The file, whose columns come in as they are asked for.
        footer: Its footer.
        row_group: The row group.
        leaves: Numbers of the Parquet leaf columns.
        spans: Where their column chunks lie.
        part_rows: Rows of each part.
        coded: Columns of strings that may come as Arrow's dictionary.
        where: The row group, for errors.
        url: The file, for errors.

    Raises:
        SourceError: The bytes are not what the footer says.
        FieldError: INT96 timestamps would wrap around.
    """

    def parts(paths: Sequence[str], *, in_seconds: bool = False) -> Iterator[pa.Table]:
        return _parts(
            ranges,
            footer.metadata,
            row_group=row_group,
            paths=paths,
            part_rows=part_rows,
            where=where,
            url=url,
            in_seconds=in_seconds,
        )

    layout = footer.checked.layout
    with decoding(url, where=where):
        ours = leaf_streams(
            ranges, layout, footer.checked.numbers, row_group=row_group, leaves=leaves, spans=spans, coded=coded
        )
        here = {stream.leaf.number for stream in ours}
        paths = [layout.paths[leaf] for leaf in leaves if leaf not in here]
        int96 = int96_paths(footer.metadata, paths) if paths else []
    theirs = parts(paths) if paths or not ours else None
    # This reader follows a part behind the first: what it needs was fetched a moment ago.
    in_seconds = parts(int96, in_seconds=True) if int96 else None
    mixed = [_OursAsLongAsKnown(stream, parts, layout, where=where, url=url) for stream in ours]
    for num_rows in part_rows:
        tables = [] if theirs is None else [next(theirs, None)]
        tables += [column.next(num_rows) for column in mixed]
        columns: dict[str, pa.ChunkedArray] = {}
        for some in tables:
            if some is None:
                return
            columns |= zip(some.column_names, some.columns, strict=True)
        del tables, some
        table = pa.table({name: columns[name] for name in layout.schema.names if name in columns})
        del columns
        if in_seconds is not None:
            check_instants(table, next(in_seconds), where=where)
        yield table
        del table
    for rest in (theirs, in_seconds, *(column.theirs for column in mixed)):
        for _ in rest or ():  # runs the check for surplus rows
            pass


class _OursAsLongAsKnown:
    """A column decoded by our own loops, and from the part on that they do not know by pyarrow, from its beginning.

    Args:
        stream: Ours.
        parts: Makes pyarrow's of some paths.
        layout: How the file lays out its columns.
        where: The row group, for errors.
        url: The file, for errors.

    Attributes:
        theirs: pyarrow's, once it was needed.
    """

    def __init__(
        self,
        stream: LeafStream,
        parts: Callable[[Sequence[str]], Iterator[pa.Table]],
        layout: Layout,
        *,
        where: str,
        url: str,
    ) -> None:
        self.theirs: Iterator[pa.Table] | None = None
        self._stream = stream
        self._parts = parts
        self._path = layout.paths[stream.leaf.number]
        self._where = where
        self._url = url
        self._num_parts = 0

    def next(self, num_rows: int) -> pa.Table | None:
        """Return the next part as a table of one column; None where the file ends before it."""
        if self.theirs is None:
            with decoding(self._url, where=self._where):
                array = self._stream.take(num_rows)
            if array is not None:
                self._num_parts += 1
                return pa.table({self._stream.leaf.name: array})
            self.theirs = self._parts([self._path])
            for _ in range(self._num_parts):
                next(self.theirs, None)
        return next(self.theirs, None)


def _parts(
    ranges: Ranges,
    metadata: pq.FileMetaData,
    *,
    row_group: int,
    paths: Sequence[str],
    part_rows: Sequence[int],
    where: str,
    url: str,
    in_seconds: bool,
) -> Iterator[pa.Table]:
    with decoding(url, where=where):
        file = _opened(ranges, metadata, buffer_size=STREAM_BUFFER_BYTES, in_seconds=in_seconds)
        batches = file.iter_batches(
            batch_size=max(part_rows), row_groups=[row_group], columns=list(paths), use_threads=False
        )
    have: list[pa.RecordBatch] = []
    num_have = 0
    num_total = 0
    for num_rows in part_rows:
        while num_have < num_rows:
            with decoding(url, where=where):
                batch = next(batches, None)
            if batch is None:
                _check_num_rows(num_total, sum(part_rows), where=where, url=url)
                return
            have.append(batch)
            num_have += batch.num_rows
            num_total += batch.num_rows
        with decoding(url, where=where):
            table = pa.Table.from_batches(have)
            table.validate()
        rest = table.slice(num_rows)
        have = rest.to_batches() if rest.num_rows else []
        num_have = rest.num_rows
        part = table.slice(0, num_rows)
        del table, rest
        yield part
        del part
    with decoding(url, where=where):
        surplus = next(batches, None)
    if num_have or (surplus is not None and surplus.num_rows):
        _check_num_rows(num_total + num_have, sum(part_rows), where=where, url=url)


def _check_num_rows(decoded: int, promised: int, *, where: str, url: str) -> None:
    if decoded != promised:
        raise SourceError(
            f"{where} holds {decoded:,} rows, its footer promises {promised:,}: the file is corrupt", url=url
        )


class Stopwatch:
    """Tells a stage from the waits inside it: what is not waiting for bytes is decoding.

    part    |··········decode··········|
    waits       |fetch|      |fetch|
    spans   |dec|fetch|decode|fetch|dec|
    """

    def __init__(self) -> None:
        self._waits: list[tuple[int, int, bool]] = []
        self._start = time.perf_counter_ns()

    def start(self) -> None:
        """Begin a part."""
        self._waits.clear()
        self._start = time.perf_counter_ns()

    def wait(self, start_ns: int, stop_ns: int) -> None:
        """Note a wait for bytes inside the part."""
        self._waits.append((start_ns, stop_ns, True))

    def pause(self, start_ns: int, stop_ns: int) -> None:
        """Note a time inside the part that belongs to no stage."""
        self._waits.append((start_ns, stop_ns, False))

    def stop(self, on_stage: Any, *, fetched_bytes: int, decoded_bytes: int) -> None:
        """Report the spans of the part; all bytes of a kind go to its first span."""
        at = self._start
        for start, stop, is_fetch in self._waits:
            on_stage("decode", at, start, 0)
            if is_fetch:
                on_stage("fetch", start, stop, fetched_bytes)
                fetched_bytes = 0
            at = stop
        if fetched_bytes:
            on_stage("fetch", at, at, fetched_bytes)
        on_stage("decode", at, time.perf_counter_ns(), decoded_bytes)
