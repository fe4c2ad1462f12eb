"""An opened data set: what its fragments are, and their rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.errors import SourceError
from stoker.identity import fingerprint
from stoker.source import thrift
from stoker.source.decode import Stopwatch, decode_parts, decode_row_groups, decoding
from stoker.source.fetch import (
    OnStage,
    Ranges,
    Span,
    Stream,
    check_unchanged,
    column_chunk,
    fetch,
    fetch_local,
    ignore_stage,
    plan_ranges,
)
from stoker.source.filters import passes
from stoker.source.footers import Footer, Footers, for_each
from stoker.source.fragments import Fragment
from stoker.source.listing import Listed, partition_value
from stoker.source.schema import align, choose, flat_fields, flatten, restrict
from stoker.source.storage import ObjectInfo, Storage
from stoker.source.survey import Cut, Survey, survivors

if TYPE_CHECKING:
    from stoker.source.dataset import Dataset
    from stoker.source.units.rule import RunRule
    from stoker.source.units.runs import Runs

# A part of every key: raise it when the rows made from the same source and recipe become other rows.
_KEY_VERSION = 1
# Threads that fetch the windows of one huge row group from a remote store.
_STREAM_THREADS = 8
# Local column chunks of at least this size are read one by one when their turn comes, into memory that the last one
# has just left: 1.3 times as fast as all at once. Smaller ones cost more in calls than they save.
_BY_AND_BY_BYTES = 64 * 1024


class Want(NamedTuple):
    """What one pass over fragments reads.

    Attributes:
        columns: Columns it gives, flat.
        read: Columns it reads, structs as structs, without partition columns.
        names: Dotted names of what it reads.
        partitions: Partition columns that it needs.
    """

    columns: pa.Schema
    read: pa.Schema
    names: tuple[str, ...]
    partitions: pa.Schema


class Catalogue:
    """Everything about a data set that is known before any row is decoded, and the way to its rows.

    Made by `Dataset.open`. Safe to use from several threads. K is the number of fragments.

    Attributes:
        dataset: What was opened.
        files: Its files, by URL.
        schema: The columns the transform sees: chosen, structs taken apart, partition columns last unless `columns`
            names them elsewhere.
        fragments: In their fixed order: file, row group, row.
        num_rows: Rows in each source fragment, without row groups that no row of which can pass. int64, shape [K].
        num_samples: Rows that pass the filter. int64, shape [K].
        null_counts: Column -> nulls in each fragment as the footers say, -1 where they do not. int64, shape [K] each.
        kept_together: Rows that are in one fragment where row groups allow it, or None.
        num_builders: Threads that a loader builds with to begin with; None leaves that to it.
        num_short: How often a loader takes it for granted that these stood idle beside a wait.
        runs: Runs of rows, where fragments were cut between them just now; whoever keeps them elsewhere sets it None.
    """

    def __init__(
        self,
        dataset: Dataset,
        known: Survey,
        *,
        cut: Cut,
        columns: pa.Schema,
        filter_columns: pa.Schema,
        storage: Storage,
        is_local: bool,
        footers: Footers,
        kept_together: RunRule | None = None,
    ) -> None:
        self.dataset = dataset
        self.num_builders: int | None = None
        self.num_short = 0
        self.runs: Runs | None = None
        self.kept_together = kept_together
        self.files: tuple[ObjectInfo, ...] = tuple(file.info for file in known.files)
        self.schema = columns
        self.fragments: Sequence[Fragment] = _Fragments(known)
        self.num_rows: npt.NDArray[np.int64] = known.num_rows
        self.num_samples: npt.NDArray[np.int64] = known.num_samples
        self.null_counts: Mapping[str, npt.NDArray[np.int64]] = known.null_counts
        self._known = known
        self._cut = cut
        self._storage = storage
        self._is_local = is_local
        self._footers = footers
        self._filter_columns = filter_columns
        self._rows = self._want(columns)

    @property
    def is_remote(self) -> bool:
        """Whether reading waits for a network rather than for a core."""
        return not self._is_local

    def __len__(self) -> int:
        return len(self.fragments)

    def __repr__(self) -> str:
        return (
            f"<Catalogue of {self.dataset!r}: {len(self.files):,} files, {len(self):,} fragments, "
            f"{int(self.num_samples.sum()):,} samples>"
        )

    def sharing(self, share: Mapping[str, Sequence[str]]) -> Catalogue:
        """Return the same fragments of the same files, with fields shared as `Dataset(share=...)` says."""
        other = copy.copy(self)
        other.dataset = copy.copy(self.dataset)
        other.dataset.share = {key: tuple(patterns) for key, patterns in share.items()}
        for made_of_it in ("_recipe", "fingerprint"):
            other.__dict__.pop(made_of_it, None)
        return other

    @cached_property
    def _recipe(self) -> str:
        """Everything but the source itself that decides what chunk comes from a fragment."""
        return fingerprint(
            "recipe",
            {
                "version": _KEY_VERSION,
                "schema": [[field.name, str(field.type)] for field in self.schema],
                **self.dataset.recipe(),
            },
        )

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that stand for the data set: every file as it is now, and everything made of it."""
        return fingerprint(
            "dataset",
            {
                "recipe": self._recipe,
                "chunk_bytes": self.dataset.chunk_bytes,
                "files": [[info.url, info.size_bytes, info.version] for info in self.files],
                **({} if self.kept_together is None else {"runs": self.kept_together.to_json()}),
            },
        )

    def key(self, i: int) -> str:
        """Return 32 hex digits that stand for the chunk made of fragment i: everything that decides its content.

        The source object (URL, size, version), its row groups and rows, columns, filter, fields, transform. Another
        data set with a fragment of the same key may use the same chunk.
        """
        known = self._known
        file = known.files[int(known.file[i])]
        return fingerprint(
            "chunk",
            {
                "recipe": self._recipe,
                "source": [file.info.url, file.info.size_bytes, file.info.version],
                "partition": file.partition,
                "row_groups": [int(known.start[i]), int(known.stop[i])],
                "rows": [int(known.row_start[i]), int(known.row_stop[i])],
            },
        )

    def metadata(self, file: int) -> pq.FileMetaData:
        """Return what the footer of a file says, by its number in `files`.

        Blocks: on one or two reads of the source where it was not kept.

        Raises:
            SourceError: It cannot be read.
        """
        return self._footers.get(self.files[file]).metadata

    def unit(self, i: int) -> range:
        """Return the fragments that are read in one go with i: all parts of its row group, or i alone."""
        known = self._known
        if known.row_start[i] < 0:
            return range(i, i + 1)

        def is_same(k: int) -> bool:
            return bool(known.file[k] == known.file[i] and known.start[k] == known.start[i])

        first = last = i
        while first > 0 and is_same(first - 1):
            first -= 1
        while last + 1 < len(self) and is_same(last + 1):
            last += 1
        return range(first, last + 1)

    def read(
        self, i: int, *, on_stage: OnStage = ignore_stage, on_fetched: Callable[[], object] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield (j, rows of fragment j) for every j of `unit(i)`, in order, filtered exactly.

        Decodes in the calling thread. A huge row group streams: a window of each column and one part are in memory,
        not the row group. Close the iterator to leave early.

        Args:
            i: Number of a fragment.
            on_stage: Called with a stage ("fetch", "decode"), its start and stop in ns of `time.perf_counter_ns`, and
                the bytes it gave.
            on_fetched: Called when all bytes of the unit are here and none of them is decoded yet, where that is so:
                not where it streams, or is read by and by from a local disk.

        Raises:
            SourceError: The rows cannot be fetched or decoded.
            SourceChangedError: The file is no longer the one that was listed.
        """
        for j, table in self._read(i, self._rows, on_stage, on_fetched):
            start = time.perf_counter_ns()
            if self._cut.expression is not None:
                table = table.filter(self._mask(table), null_selection_behavior="drop")
                if table.num_rows != self.num_samples[j]:
                    raise SourceError(
                        f"{self.fragments[j]}: {table.num_rows:,} rows pass the filter where {self.num_samples[j]:,} "
                        "did when they were counted: open the data set again with refresh=True",
                        url=self.fragments[j].url,
                    )
            table = flatten(table).select(self.schema.names)
            if self._cut.expression is not None:
                on_stage("decode", start, time.perf_counter_ns(), 0)
            yield j, table
            del table

    def check_unchanged(self, i: int) -> None:
        """Look up the file of fragment i in the storage.

        Raises:
            SourceChangedError: It is no longer the one that was listed.
            SourceMissingError: It is gone.
        """
        check_unchanged(self.files[int(self._known.file[i])], self._storage)

    def count(self, *, num_threads: int) -> npt.NDArray[np.int64]:
        """Return how many rows of each fragment pass the filter, by reading the filter's columns alone. Shape [K].

        Raises:
            SourceError: They cannot be read.
        """
        counts = self.num_rows.copy()
        if self._cut.expression is None:
            return counts
        want = self._want(pa.schema([]))
        units = sorted({self.unit(i)[0] for i in range(len(self))})
        same: dict[object, bool] = {}

        def work(u: int) -> None:
            i = units[u]
            if not want.names:  # decided by the path alone
                file = self._file(i)
                if file.partition not in same:
                    table = self._finished(_rows_without_columns(1), file, want, where="")
                    same[file.partition] = pc.sum(self._mask(table)).as_py() == 1
                for j in self.unit(i):
                    counts[j] = self.num_rows[j] if same[file.partition] else 0
                return
            for j, table in self._read(i, want, ignore_stage):
                counts[j] = pc.sum(self._mask(table)).as_py() or 0

        for_each(len(units), work, num_threads=num_threads)
        return counts

    def types_of(self, columns: Sequence[str]) -> pa.Schema:
        """Return the types of columns of the files or their paths, whether or not the data set delivers them.

        Raises:
            FieldError: There is no such column.
        """
        return choose(flat_fields([*self._known.schema, *self._known.partitions]), list(columns))

    def read_columns(self, i: int, columns: pa.Schema) -> Iterator[tuple[int, pa.Table, npt.NDArray[np.int64] | None]]:
        """Yield (j, rows that pass, which rows of the fragment these are) for every j of `unit(i)`, of a few columns.

        Args:
            i: Number of a fragment.
            columns: What `types_of` returned.

        Raises:
            SourceError: The rows cannot be read.
        """
        want = self._want(columns)
        for j, table in self._read(i, want, ignore_stage):
            kept = None
            if self._cut.expression is not None:
                mask = pc.fill_null(self._mask(table), False)
                kept = np.flatnonzero(mask.to_numpy())
                table = table.filter(mask)
            yield j, flatten(table).select(columns.names) if len(columns) else table, kept

    def group_rows(self, i: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row groups that fragment i is read from, and the rows that each gives it. Shape [G] each."""
        known = self._known
        if known.row_start[i] >= 0:
            return known.start[i : i + 1], known.num_rows[i : i + 1]
        file = self._file(i)
        checked = self._footers.check(file.info)
        needed = survivors(checked, file, self._cut, self._footers)
        groups = np.array([g for g in range(int(known.start[i]), int(known.stop[i])) if g in needed], np.int64)
        return groups, checked.numbers.groups[groups, thrift.NUM_ROWS]

    def place(self, i: int, row: int) -> str:
        """Return file, row group and row of a row of fragment i, counted before the filter, for messages."""
        groups, sizes = self.group_rows(i)
        starts = np.cumsum(sizes) - sizes
        g = int(np.searchsorted(starts, row, side="right")) - 1
        row += max(int(self._known.row_start[i]), 0) - int(starts[g])
        return f"{self.fragments[i].url} row group {groups[g]}, row {row}"

    def _want(self, columns: pa.Schema) -> Want:
        """Return what must be read for `columns` and the filter."""
        filter_names = [name for name, _ in flat_fields(self._filter_columns)]
        every = {*columns.names, *filter_names}
        partitions = pa.schema([field for field in self._known.partitions if field.name in every])
        names = tuple(sorted(every - set(partitions.names)))
        return Want(columns=columns, read=restrict(self._known.schema, names), names=names, partitions=partitions)

    def _file(self, i: int) -> Listed:
        return self._known.files[int(self._known.file[i])]

    def _mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return which rows pass; a filter may name members of structs by their dotted names too."""
        fields = []
        columns = []
        flat = None
        for field in self._filter_columns:
            if table.schema.get_field_index(field.name) < 0:
                flat = flatten(table) if flat is None else flat
                columns.append(flat.column(field.name))
            else:
                columns.append(table.column(field.name))
            fields.append(pa.field(field.name, columns[-1].type))
        with decoding("", where="the filter"):
            return passes(pa.Table.from_arrays(columns, schema=pa.schema(fields)), self._cut.expression)

    def _read(
        self, i: int, want: Want, on_stage: OnStage, on_fetched: Callable[[], object] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of the unit of i, before the filter, structs as structs."""
        file = self._file(i)
        unit = self.unit(i)
        footer = self._footers.get(file.info)
        leaves = footer.checked.layout.leaves(want.names)
        if not leaves:
            for j in unit:
                table = _rows_without_columns(int(self.num_rows[j]))
                yield j, self._finished(table, file, want, where=str(self.fragments[j]))
        elif self._known.row_start[i] >= 0:
            yield from self._read_parts(unit, file, footer, leaves, want, on_stage)
        else:
            yield i, self._read_whole(i, file, footer, leaves, want, on_stage, on_fetched)

    def _read_whole(
        self,
        i: int,
        file: Listed,
        footer: Footer,
        leaves: Sequence[int],
        want: Want,
        on_stage: OnStage,
        on_fetched: Callable[[], object] | None,
    ) -> pa.Table:
        where = str(self.fragments[i])
        needed = survivors(footer.checked, file, self._cut, self._footers)
        groups = [g for g in range(int(self._known.start[i]), int(self._known.stop[i])) if g in needed]
        chunks = self._chunks(footer, groups, leaves, file.info)
        watch = Stopwatch()
        ranges = self._ranges(file.info, chunks, watch)
        if on_fetched is not None:
            start = time.perf_counter_ns()
            on_fetched()
            watch.pause(start, time.perf_counter_ns())
        try:
            table = decode_row_groups(
                ranges,
                footer.metadata,
                row_groups=groups,
                paths=[footer.checked.layout.paths[leaf] for leaf in leaves],
                num_rows=int(self.num_rows[i]),
                where=where,
                url=file.info.url,
            )
        finally:
            if self._is_local:
                # After reading: what was read is then from the version that was listed, or it is not handed over; and
                # where it could not be decoded, another version is the reason to tell.
                check_unchanged(file.info, self._storage)
        table = self._finished(table, file, want, where=where)
        watch.stop(on_stage, fetched_bytes=ranges.num_bytes, decoded_bytes=table.nbytes)
        return table

    def _ranges(self, info: ObjectInfo, chunks: Sequence[Span], watch: Stopwatch) -> Ranges:
        """Return the file with what is needed of it: fetched, or to be read by and by where it is local."""
        num_bytes = sum(stop - start for start, stop in chunks)
        if self._is_local and num_bytes >= _BY_AND_BY_BYTES * len(chunks):
            return Ranges(info, self._storage, (), on_wait=watch.wait)
        start = time.perf_counter_ns()
        spans = plan_ranges(chunks, size_bytes=info.size_bytes)
        ranges = (fetch_local if self._is_local else fetch)(info, self._storage, spans)
        watch.wait(start, time.perf_counter_ns())
        return ranges

    def _read_parts(
        self, unit: range, file: Listed, footer: Footer, leaves: Sequence[int], want: Want, on_stage: OnStage
    ) -> Iterator[tuple[int, pa.Table]]:
        group = int(self._known.start[unit[0]])
        where = f"{file.info.url} row group {group}"
        chunks = self._chunks(footer, [group], leaves, file.info)
        check_unchanged(file.info, self._storage)
        watch = Stopwatch()
        stream = Stream(
            file.info,
            self._storage,
            chunks,
            window_bytes=self._cut.chunk_bytes,
            num_threads=0 if self._is_local else _STREAM_THREADS,
            on_wait=watch.wait,
        )
        reported = 0
        try:
            parts = decode_parts(
                stream,
                footer.metadata,
                row_group=group,
                paths=[footer.checked.layout.paths[leaf] for leaf in leaves],
                part_rows=[int(self.num_rows[j]) for j in unit],
                where=where,
                url=file.info.url,
            )
            for j in unit:
                watch.start()
                table = next(parts, None)
                if table is None:
                    raise SourceError(f"{where} ends before its last part", url=file.info.url)
                table = self._finished(table, file, want, where=str(self.fragments[j]))
                watch.stop(on_stage, fetched_bytes=stream.num_bytes - reported, decoded_bytes=table.nbytes)
                reported = stream.num_bytes
                # What was read so far is from the version that was listed, or it is not handed over.
                check_unchanged(file.info, self._storage)
                yield j, table
                del table
            for _ in parts:  # runs the check for surplus rows
                pass
        finally:
            stream.close()

    @staticmethod
    def _chunks(footer: Footer, groups: Sequence[int], leaves: Sequence[int], info: ObjectInfo) -> list[Span]:
        return [
            column_chunk(
                footer.checked.numbers.chunks[g, leaf].tolist(),
                size_bytes=info.size_bytes,
                where=f"{info.url} row group {g}: column {footer.checked.layout.paths[leaf]}",
                url=info.url,
            )
            for g in groups
            for leaf in leaves
        ]

    def _finished(self, table: pa.Table, file: Listed, want: Want, *, where: str) -> pa.Table:
        """Return `table` with the columns all files share and those of its partition."""
        num_rows = table.num_rows
        table = align(table, want.read, where=where, url=file.info.url) if len(want.read) else table
        for field in want.partitions:
            value = partition_value(file, field)
            column = pa.nulls(num_rows, field.type) if not value.is_valid else pa.repeat(value, num_rows)
            table = table.append_column(field, column)
        return table


def _rows_without_columns(num_rows: int) -> pa.Table:
    """Return a table of rows whose one column nobody asks for: Arrow tables without columns have no rows."""
    return pa.table({"": pa.nulls(num_rows)})


class _Fragments(Sequence[Fragment]):
    """The fragments of a catalogue, each made when it is asked for: there may be millions."""

    def __init__(self, known: Survey) -> None:
        self._known = known

    def __len__(self) -> int:
        return len(self._known.file)

    @overload
    def __getitem__(self, i: int) -> Fragment: ...
    @overload
    def __getitem__(self, i: slice) -> list[Fragment]: ...
    def __getitem__(self, i: int | slice) -> Fragment | list[Fragment]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        known = self._known
        row_start = int(known.row_start[i])
        return Fragment(
            url=known.files[int(known.file[i])].info.url,
            row_groups=range(int(known.start[i]), int(known.stop[i])),
            rows=None if row_start < 0 else (row_start, int(known.row_stop[i])),
        )
