"""From fragments to rows: the bytes of the wanted columns, decoded, what is read in one go at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.filters import steps, surviving_row_groups
from stoker.dataset.fragments import Fragment
from stoker.dataset.listing import Listed, partition_value
from stoker.dataset.survey import Selection, Survey, survivors
from stoker.errors import SourceCorruptError
from stoker.fields.offsets import Int64
from stoker.host.forks import cached_property
from stoker.metrics.stages import NO_STAGES, Stages
from stoker.parquet.decode import RowGroups, ShareOut, column_chunks, one_by_one
from stoker.parquet.footers import Footer, Footers
from stoker.parquet.pages import MOST_DECODED_BYTES
from stoker.parquet.schema import Layout, align, flat_fields
from stoker.parquet.unify import limits, surely_fits
from stoker.storage.each import map_each
from stoker.storage.fetch import (
    ByteRange,
    Ranges,
    RequestTimes,
    StreamedRanges,
    check_unchanged,
    fetch,
    plan_ranges,
)
from stoker.storage.storage import ObjectInfo, Storage, read_of, version_reader

# Threads that fetch the windows of one huge row group from a remote store.
_STREAM_THREADS = 8
# Local column chunks of at least this size are read one by one when their turn comes, into memory that the last one
# has just left: 1.3 times as fast as all at once. Smaller ones cost more in calls than they save, unless there are so
# many that they are read by batches (`pages.NativeColumns`): 60,000 rows of 2,000 columns 0.84 -> 0.55 s.
_BY_AND_BY_BYTES = 64 * 1024
_MANY_BYTES = 16 << 20


class Stopwatch(threading.local):
    """Tells a stage from the waits inside it: what is not waiting for bytes is decoding. Each thread has its own.

    part    |··········decode··········|
    waits       |fetch|      |fetch|
    spans   |dec|fetch|decode|fetch|dec|
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a part."""
        self._waits: list[tuple[int, int, bool]] = []
        self._start = time.perf_counter_ns()

    def wait(self, start_ns: int, stop_ns: int, *, is_fetch: bool = True) -> None:
        """Note a wait for bytes inside the part, or a time in it that belongs to no stage."""
        self._waits.append((start_ns, stop_ns, is_fetch))

    def stop(self, on_stage: Stages, *, fetched_bytes: int, decoded_bytes: int) -> None:
        """Report the spans of the part: the first fetch has all bytes fetched, the last decode those decoded."""
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


class Fragments(Sequence[Fragment]):
    """All fragments of a data set, each made when it is asked for: there may be millions."""

    def __init__(self, known: Survey) -> None:
        self._known = known

    def __len__(self) -> int:
        return len(self._known.fragments)

    def __getitem__(self, i: int) -> Fragment:  # type: ignore[override]  # one at a time
        file, start, stop, row_start, row_stop, _ = self._known.fragments[i].tolist()
        rows = None if row_start < 0 else (row_start, row_stop)
        return Fragment(url=self._known.files[file].info.url, row_groups=range(start, stop), rows=rows)


class RowReader:
    """Reads the fragments that a survey has found, in their order of file, row group, row; from several threads.

    `is_remote` says that reading waits for a network rather than for a core.
    """

    def __init__(
        self, known: Survey, chosen: Selection, footers: Footers, storage: Storage, *, is_remote: bool
    ) -> None:
        self.survey = known
        self.fragments: Sequence[Fragment] = Fragments(known)
        self._chosen, self._footers, self._storage, self.is_remote = chosen, footers, storage, is_remote
        self._times = RequestTimes()

    def file_of(self, i: int) -> Listed:
        """Return the file of fragment i."""
        return self.survey.files[int(self.survey.fragments["file"][i])]

    @cached_property
    def _units(self) -> Int64:
        """The first fragment of each unit, and the end; a part that goes on where another ends begins none."""
        before, after = self.survey.fragments[:-1], self.survey.fragments[1:]
        goes_on = (after["row_start"] >= 0) & (after["row_start"] == before["row_stop"])
        goes_on &= (after["file"] == before["file"]) & (after["start"] == before["start"])
        num = len(self.survey.fragments)
        return np.append(np.flatnonzero(~np.append(False, goes_on)[:num]), num)

    def unit(self, i: int) -> range:
        """Return the fragments that are read in one go with i: all parts of its row group, or i alone."""
        n = int(np.searchsorted(self._units, i, side="right"))
        return range(*self._units[n - 1 : n + 1].tolist())

    def read_stored(
        self,
        i: int,
        chosen: Selection,
        on_stage: Stages = NO_STAGES,
        on_fetched: Callable[[], object] | None = None,
        coded: Collection[str] = (),
        share_out: ShareOut = one_by_one,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Do as `Catalogue.read`, before the filter, with structs as structs."""
        leaves = self._footers.get(self.file_of(i).info).layout.leaves(chosen.names)
        if not leaves:
            for j in self.unit(i):
                # One column that nobody asks for: Arrow's tables without columns have no rows.
                table = pa.table({"": pa.nulls(int(self.survey.fragments["num_rows"][j]))})
                yield j, self._finished(j, table, chosen, coded)
            return
        parts = self._decoded(i, leaves, chosen, on_stage, on_fetched, coded, share_out)
        if self.fragments[i].rows is not None:
            yield from parts
        else:  # exhausted first, so that the file's bytes are let go
            yield [*parts].pop()

    def group_rows(self, i: int) -> tuple[Int64, Int64, Int64]:
        """Return the row groups that fragment i is read from, the first row in each, and the number. Shape [G] each."""
        _, start, stop, row_start, _, num_rows = self.survey.fragments[i].tolist()
        if stop - start == 1:  # no footer is asked
            return np.array([start]), np.array([max(row_start, 0)]), np.array([num_rows])
        file = self.file_of(i)
        footer = self._footers.get(file.info)
        needed = survivors(footer, file, self._chosen, self._footers)
        groups = np.array([g for g in range(start, stop) if g in needed], np.int64)
        return groups, np.zeros_like(groups), footer.groups["num_rows"][groups]

    def _decoded(
        self,
        i: int,
        leaves: Sequence[int],
        chosen: Selection,
        on_stage: Stages,
        on_fetched: Callable[[], object] | None,
        coded: Collection[str],
        share_out: ShareOut,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the fragments that are read in one go with i: a whole one, or the parts of a huge row group.

        What was read is from the version that was listed, or it is not handed over; and where it could not be decoded,
        another version is the reason to tell. Where each read proves it, nothing is looked up again.
        """
        unit, info, is_part = self.unit(i), self.file_of(i).info, self.fragments[i].rows is not None
        footer = self._footers.get(info)
        groups = self.group_rows(i)[0].tolist()
        where = f"{info.url} row group {groups[0]}" if is_part else str(self.fragments[i])
        spans = column_chunks(footer, groups, leaves, info)
        watch = Stopwatch()
        is_checked = version_reader(self._storage) is None if is_part else not self.is_remote
        if is_part and is_checked:
            check_unchanged(info, self._storage)
        reported = 0
        with closing(self._ranges(info, [one for group in spans for one in group.values()], watch, is_part)) as ranges:
            if on_fetched is not None and not is_part:
                start = time.perf_counter_ns()
                on_fetched()
                watch.wait(start, time.perf_counter_ns(), is_fetch=False)
            decoding = RowGroups(
                ranges=ranges,
                footer=footer,
                numbers=groups,
                spans=spans,
                part_rows=self.survey.fragments["num_rows"][unit.start : unit.stop].tolist(),
                coded=footer.layout.stored_names(coded),
                most_bytes=max(MOST_DECODED_BYTES, 8 * self._chosen.chunk_bytes),
                where=where,
                url=info.url,
            )
            parts = decoding.parts(_noted(share_out, watch, on_stage) if is_part else one_by_one)
            for j in unit:
                if j > unit.start:
                    watch.start()
                try:
                    table = next(parts, None)
                finally:
                    if is_checked:
                        check_unchanged(info, self._storage)
                if table is None:
                    raise SourceCorruptError(f"{where} ends before its last part", url=info.url)
                table = self._finished(j, footer.layout.named(table), chosen, coded)
                watch.stop(on_stage, fetched_bytes=ranges.num_bytes - reported, decoded_bytes=chosen.size_of(table))
                reported = ranges.num_bytes
                yield j, table
                del table

    def _ranges(self, info: ObjectInfo, chunks: Sequence[ByteRange], watch: Stopwatch, is_part: bool) -> Ranges:
        """Return the file with what is needed of it: fetched, to be read by and by where it is local, or streaming."""
        num_bytes = sum(stop - start for start, stop in chunks)
        if not self.is_remote and (is_part or num_bytes >= min(_BY_AND_BY_BYTES * len(chunks), _MANY_BYTES)):
            return Ranges(info, self._storage, on_wait=watch.wait)
        if is_part:
            return StreamedRanges(
                info,
                self._storage,
                chunks,
                window_bytes=self._chosen.chunk_bytes,
                num_threads=_STREAM_THREADS,
                on_wait=watch.wait,
            )
        start = time.perf_counter_ns()
        whole = self._footers.take_whole(info)
        if whole is not None:
            ranges = Ranges(info, self._storage, [(ByteRange(0, info.size_bytes), whole)])
            ranges.num_bytes = 0  # fetched when the data set was opened
        elif not self.is_remote:
            spans = plan_ranges(chunks, size_bytes=info.size_bytes)
            parts = [(span, read_of(info, self._storage, span.start, span.stop - span.start)) for span in spans]
            ranges = Ranges(info, self._storage, parts)
        else:
            spans = plan_ranges(
                chunks,
                size_bytes=info.size_bytes,
                max_hole_bytes=self._times.hole_bytes,
                most_waste=self._times.most_waste,
            )
            ranges = fetch(info, self._storage, spans, self._times)
        watch.wait(start, time.perf_counter_ns())
        return ranges

    def _finished(self, j: int, table: pa.Table, chosen: Selection, coded: Collection[str]) -> pa.Table:
        """Return rows of fragment j with the columns all files share and those of its partition."""
        num_rows = table.num_rows
        if len(chosen.read):
            table = align(table, _as_coded(chosen.read, coded, table.schema), where=str(self.fragments[j]))
        for field in chosen.told:
            value = partition_value(self.file_of(j), field)
            column = pa.nulls(num_rows, field.type) if not value.is_valid else pa.repeat(value, num_rows)
            table = table.append_column(field, column)
        return table

    def check_doubts(self, *, num_threads: int) -> None:
        """Read the values that perhaps do not fit the type that all files share: held against statistics, else read.

            x   int64 in a.parquet, double in b.parquet        unified: double, which holds integers up to 2^53

            a.parquet   row group 0: x from 1 to 99            fits: the statistics say it
                        row group 1: x from 1 to 2^60          does not, perhaps: x is read
                        row group 2: no statistics             nobody knows: x is read

        A FieldError comes here, before the first batch, rather than hours later at the chunk that holds the value.
        """
        known, shared = self.survey, dict(flat_fields(self.survey.schema))
        by_layout: dict[Layout, Mapping[str, tuple[pa.DataType, pa.DataType]]] = {}
        units: dict[int, pa.Schema] = {}

        def look(f: int) -> None:
            info = known.files[f].info
            footer = self._footers.get(info)
            if footer.layout not in by_layout:
                by_layout[footer.layout] = _doubtful(footer.layout, shared, self._chosen.names)
            if doubtful := by_layout[footer.layout]:
                in_doubt = _groups_in_doubt(footer, doubtful, self._footers.bytes_of(info))
                schema = pa.schema([(name, kind) for name, (_, kind) in doubtful.items()])
                for i in np.flatnonzero(known.fragments["file"] == f).tolist():
                    if not in_doubt.isdisjoint(self.fragments[i].row_groups):
                        units[self.unit(i)[0]] = schema

        def read(first: int) -> None:
            alone = replace(self._chosen, columns=units[first], filter_columns=pa.schema([]))
            for _ in self.read_stored(first, alone):
                pass

        map_each(range(len(known.files)), look, num_threads=num_threads)
        map_each(sorted(units), read, num_threads=num_threads)


def _noted(share_out: ShareOut, watch: Stopwatch, on_stage: Stages) -> ShareOut:
    """Return the same, with what other threads do reported; the caller reports its own."""

    def noting(num: int, work: Callable[[int], None]) -> None:
        caller = threading.get_ident()

        def noted(i: int) -> None:
            if threading.get_ident() == caller:
                work(i)
                return
            watch.start()
            try:
                work(i)
            finally:
                watch.stop(on_stage, fetched_bytes=0, decoded_bytes=0)

        share_out(num, noted)

    return noting


def _as_coded(read: pa.Schema, coded: Collection[str], schema: pa.Schema) -> pa.Schema:
    """Return the columns that are read, as dictionaries where they came so and are wanted so."""
    for name in coded:
        i, there = read.get_field_index(name), schema.get_field_index(name)
        if i < 0 or there < 0:
            continue
        kind = schema.field(there).type
        if pa.types.is_dictionary(kind) and kind.value_type.equals(read.field(i).type):
            read = read.set(i, read.field(i).with_type(kind))
    return read


def _doubtful(
    layout: Layout, shared: Mapping[str, pa.DataType], names: Sequence[str]
) -> Mapping[str, tuple[pa.DataType, pa.DataType]]:
    """Return columns by their dotted names, their types in a file and in all, where not every value surely fits."""
    here = dict(flat_fields(layout.named_schema()))
    both = {name: (here[name], shared[name]) for name in names if name in here and name in shared}
    return {name: (source, target) for name, (source, target) in both.items() if not surely_fits(source, target)}


def _groups_in_doubt(
    footer: Footer, doubtful: Mapping[str, tuple[pa.DataType, pa.DataType]], content: pa.Buffer
) -> frozenset[int]:
    """Return the row groups of a file whose statistics do not say that all values fit."""
    layout, num_groups = footer.layout, len(footer.groups)
    bounds = {name: limits(source, target) for name, (source, target) in doubtful.items()}
    told = {name: both for name, both in bounds.items() if both is not None}
    if len(told) < len(bounds) or layout.members is not None:  # in a table, statistics go by other names
        return frozenset(range(num_groups))
    columns = {name: pc.field(*steps(layout.named_schema(), name)) for name in told}
    beyond = [(columns[name] < low) | (columns[name] > high) for name, (low, high) in told.items()]
    expression = reduce(lambda one, other: one | other, beyond)
    return surviving_row_groups(content, num_groups, expression=expression, schema=layout.schema, partition=None)
