"""An opened data set: what its fragments are, and their rows."""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.description import Description
from stoker.dataset.filters import passes
from stoker.dataset.rows import RowReader
from stoker.dataset.runs import RunRule, Runs
from stoker.dataset.survey import Selection, Survey, check_types, read_layouts
from stoker.errors import FieldError, SourceError
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.hashing import fingerprint
from stoker.host.forks import cached_property
from stoker.metrics.stages import NO_STAGES, Stages
from stoker.parquet.decode import ShareOut, one_by_one
from stoker.parquet.footers import Footer, Footers
from stoker.parquet.schema import choose_columns, flat_fields, flatten, select_flat, size_of_tables
from stoker.storage.each import map_each
from stoker.storage.failures import decoding
from stoker.storage.storage import ObjectInfo, Storage
from stoker.storage.urls import scheme_of

# A part of every key: raise it when the same source and recipe become other rows, or the same rows in another layout.
_KEY_VERSION = 4
# Keys that stay, once they were made: each is asked for half a dozen times while its chunk is built and opened, and
# once an epoch.
_MAX_KEYS = 1 << 18

OnCount: TypeAlias = Callable[[int, int, int], object]
"""Told how many fragments a pass over a few columns has read, of how many, and the rows in them that pass."""


class Catalogue(RowReader):
    """Everything about a data set that is known before any row is decoded, and the way to its rows.

    Made by `Dataset.open`. Safe to use from several threads. F files, K fragments.

    Attributes:
        schema: The columns the transform sees: chosen, structs taken apart, partition columns last unless `columns`
            names them elsewhere.
        num_rows: Rows in each source fragment, without row groups that no row of which can pass. int64, shape [K].
        num_samples: Rows that pass the filter and that its table has still. int64, shape [K].
        null_counts: Column -> nulls in each file as the footers say, -1 where they do not. int64, shape [F] each.
        num_builders: Threads that a loader builds with to begin with; None leaves that to it.
        runs: Runs of rows, where fragments were cut between them just now; whoever keeps them elsewhere sets it None.
    """

    def __init__(
        self,
        dataset: Description,
        known: Survey,
        chosen: Selection,
        footers: Footers,
        storage: Storage,
        *,
        store: Mapping[str, object],
        kept_together: RunRule | None = None,
    ) -> None:
        is_remote = dataset.storage is not None or scheme_of(known.files[0].info.url) != "file"
        super().__init__(known, chosen, footers, storage, is_remote=is_remote)
        self.dataset, self._store = dataset, store
        self.num_builders: int | None = None
        self.runs: Runs | None = None
        self.kept_together = kept_together
        self.listed = known.files
        self.files: tuple[ObjectInfo, ...] = tuple(file.info for file in known.files)
        self.file_bytes = sum(info.size_bytes for info in self.files)
        self.file_of_chunk: Int64 = known.fragments["file"].copy()
        self.schema = chosen.columns
        self.num_rows: Int64 = known.fragments["num_rows"].copy()
        self.num_samples = known.num_samples
        self.null_counts: Mapping[str, Int64] = dict(zip(chosen.stored, known.nulls.T, strict=True))
        # Whether the filter asks for what paths say alone: then a file's rows pass all, or none.
        asked = {*chosen.filter_columns.names}
        self._is_by_path = bool(asked) and asked <= {*chosen.partitions.names}
        self._keys: dict[int, str] = {}
        # Where it is some of another catalogue's: these, and how often each was there before.
        self._sample: tuple[Int64, Int64] | None = None

    def __len__(self) -> int:
        return len(self.survey.fragments)

    def __repr__(self) -> str:
        return (
            f"<Catalogue of {self.dataset!r}: {len(self.files):,} files, {len(self):,} fragments, "
            f"{int(self.num_samples.sum()):,} samples>"
        )

    def sharing(self, share: Mapping[str, Sequence[str]]) -> Catalogue:
        """Return the same fragments of the same files, with fields shared as `Dataset(deduplicate=...)` says."""
        other = copy.copy(self)
        other.dataset = copy.copy(self.dataset)
        other.dataset.deduplicate = {key: tuple(patterns) for key, patterns in share.items()}
        for made_of_it in ("_recipe", "fingerprint"):
            other.__dict__.pop(made_of_it, None)
        other._keys = {}
        return other

    def sampled(
        self, units: Sequence[range], *, num_times: int = 1, is_new: bool = True, num_builders: int | None = None
    ) -> Catalogue:
        """Return the fragments of some `unit`s, several times over: what an epoch of any length is measured on.

        Where it `is_new`, a fragment is another chunk each time, which no cache has.
        """
        once = np.array([i for unit in units for i in unit], np.int64)
        numbers, again = np.tile(once, num_times), np.repeat(np.arange(num_times) * is_new, len(once))
        known = replace(self.survey, fragments=self.survey.fragments[numbers], num_samples=self.num_samples[numbers])
        made_of = (self.dataset, known, self._chosen, self._footers, self._storage)
        other = Catalogue(*made_of, store=self._store, kept_together=self.kept_together)
        other._times, other.num_builders, other._sample = self._times, num_builders, (numbers, again)
        other.file_bytes = self.file_bytes * len(other) // max(1, len(self))
        return other

    @cached_property
    def _recipe(self) -> str:
        """Everything but the source itself that decides what chunk comes from a fragment."""
        table, names = self.survey.table, [*self.schema.names, *self._chosen.filter_columns.names]
        return fingerprint(
            "recipe",
            {
                "version": _KEY_VERSION,
                "schema": [[field.name, str(field.type)] for field in self.schema],
                # The same files may have other names for them in another version.
                **({} if table is None else {"names": table.naming_of(names)}),
                **self.dataset.recipe(),
            },
        )

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that stand for its chunks: every file as it is now and where it lies, and what is made of it.

        The order depends on less: see `stoker.sampling.position`.
        """
        table = self.survey.table
        return fingerprint(
            "dataset",
            {
                "recipe": self._recipe,
                "chunk_bytes": self.dataset.chunk_bytes,
                "store": self._store,
                "files": [self._source(file) for file in range(len(self.files))],
                **({} if table is None else {"table": [table.version, table.schema_id]}),
                **({} if self.kept_together is None else {"runs": self.kept_together.to_json()}),
                **({} if self._sample is None else {"sample": [one.tolist() for one in self._sample]}),
            },
        )

    def key(self, i: int) -> str:
        """Return 32 hex digits that stand for the chunk made of fragment i: all that decides its content, and no more.

        So another data set with a fragment of the same key may use the same chunk.
        """
        if i in self._keys:
            return self._keys[i]
        file, start, stop, row_start, row_stop, _ = self.survey.fragments[i].tolist()
        deleted, again = self.deleted(i), 0 if self._sample is None else int(self._sample[1][i])
        key = fingerprint(
            "chunk",
            {
                **({"deleted": hashlib.blake2b(deleted.tobytes()).hexdigest()} if len(deleted) else {}),
                **({"again": again} if again else {}),
                "recipe": self._recipe,
                "store": self._store,
                "source": self._source(file),
                "partition": self.listed[file].partition,
                "row_groups": [start, stop],
                "rows": [row_start, row_stop],
            },
        )
        if len(self._keys) < _MAX_KEYS:
            self._keys[i] = key
        return key

    def _source(self, file: int) -> list[object]:
        """Return what is known of a file that would be different, were it another one."""
        info = self.files[file]
        return [info.url, info.size_bytes, info.version, self.survey.footers[file]]

    def footer(self, file: int) -> Footer:
        """Return what the footer of a file says; where it was not kept, that takes one or two reads of the source."""
        return self._footers.get(self.files[file])

    def read(
        self,
        i: int,
        *,
        on_stage: Stages = NO_STAGES,
        on_fetched: Callable[[], object] | None = None,
        coded: Collection[str] = (),
        share_out: ShareOut = one_by_one,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield (j, rows of fragment j) for every j of `unit(i)`, in order, filtered exactly.

        Decodes in the calling thread, unless told otherwise. A huge row group streams: a window of each column and one
        part are in memory, not the row group. Close the iterator to leave early.

        Args:
            i: Number of a fragment.
            on_stage: Told of the stages "fetch" and "decode".
            on_fetched: Called when all bytes of the unit are here and none of them is decoded yet; never where it
                streams, or is read by and by from a local disk.
            coded: Columns of strings that may come as Arrow's dictionary.
            share_out: Calls the function that decodes some columns, of a row group that streams: see `parts`.

        Raises:
            SourceError: The rows cannot be fetched or decoded.
            SourceChangedError: The file is no longer the one that was listed.
        """
        coded = frozenset(coded).difference(self._chosen.filter_columns.names)
        for j, table in self.read_stored(i, self._chosen, on_stage, on_fetched, coded, share_out):
            start = time.perf_counter_ns()
            picked = self._picked(j, table)
            if picked is not None:
                table = table.filter(picked)
                if table.num_rows != self.num_samples[j]:
                    raise SourceError(
                        f"{self.fragments[j]}: {table.num_rows:,} rows pass the filter where {self.num_samples[j]:,} "
                        "did when they were counted: open the data set again with refresh=True",
                        url=self.fragments[j].url,
                    )
            table = select_flat(table, self.schema)
            if picked is not None:
                on_stage("decode", start, time.perf_counter_ns(), 0)
            yield j, table
            del table

    @cached_property
    def size_of(self) -> Callable[[pa.Table], int]:
        """Returns about how many bytes a table takes as the transform sees it."""
        return size_of_tables(self.schema)

    def count(self, *, num_threads: int) -> Int64:
        """Return how many rows of each fragment are delivered, by reading the filter's columns alone. Shape [K]."""
        counts = np.zeros(len(self), np.int64)

        def take(j: int, table: pa.Table, rows: Int64 | None) -> None:
            counts[j] = table.num_rows if rows is None else len(rows)

        self.read_every(pa.schema([]), take, num_threads=num_threads)
        return counts

    def types_of(self, columns: Sequence[str], *, num_threads: int) -> pa.Schema:
        """Return the types of columns of the files or their paths, whether or not the data set delivers them.

        Raises:
            FieldError: There is no such column, it is a struct, or no type holds it in all files.
            SourceError: A footer, which tells of columns that the data set does not read, cannot be read.
        """
        found = choose_columns(flat_fields([*self.survey.schema, *self.survey.partitions]), list(columns))
        for name in set(columns).difference(found.names):
            members = [one for one in found.names if one.startswith(f"{name}.")]
            what = f"{name!r} is {len(members)} columns: {', '.join(members)}; name those that count"
            raise FieldError(what, columns=[name])
        others = set(found.names).difference(self._chosen.names, self.survey.partitions.names)
        if others and self.survey.table is None:  # those that the data set reads were looked at when it was opened
            check_types(self.listed, read_layouts(self.listed, self._footers, num_threads=num_threads), others)
        return found

    def read_every(
        self,
        columns: pa.Schema,
        take: Callable[[int, pa.Table, Int64 | None], object],
        *,
        num_threads: int,
        on_progress: OnCount | None = None,
    ) -> None:
        """Call `take` with every fragment's number, its rows that pass, and which of its rows these are (None: all).

        Fragments come in no order, from several threads at once. Where no column is wanted, rows that do not pass are
        among them. One thread at a time tells of progress.
        """
        chosen = replace(self._chosen, columns=columns)
        mutex = threading.Lock()
        num_done = num_rows = 0

        def work(i: int) -> None:
            nonlocal num_done, num_rows
            for j, table in self.read_stored(i, chosen):
                picked, rows = self._picked(j, table), None
                if picked is not None:
                    rows = np.flatnonzero(picked.to_numpy())
                if len(columns):
                    table = select_flat(table if picked is None else table.filter(picked), columns)
                take(j, table, rows)
                with mutex:
                    num_done, num_rows = num_done + 1, num_rows + (table.num_rows if rows is None else len(rows))
                    if on_progress is not None:
                        on_progress(num_done, len(self), num_rows)

        map_each(self._units[:-1].tolist(), work, num_threads=num_threads)  # by the first fragment of each

    @property
    def passes_all(self) -> bool:
        """Whether every row of every file is delivered: no filter, and none is deleted."""
        return self._chosen.expression is None and not any(file.deleted for file in self.listed)

    def source_rows(self, i: int, rows: Int64) -> tuple[Int64, Int64]:
        """Return row group, and row there, of rows of fragment i, counted before the filter. Shape [B] each."""
        groups, first, sizes = self.group_rows(i)
        starts = np.cumsum(sizes) - sizes
        at = np.searchsorted(starts, rows, side="right") - 1
        return groups[at], rows - starts[at] + first[at]

    def place(self, i: int, row: int) -> str:
        """Return file, row group and row of a row of fragment i, counted before the filter, for messages."""
        (group,), (number,) = self.source_rows(i, np.array([row]))
        return f"{self.fragments[i].url} row group {group}, row {number}"

    def deleted(self, i: int) -> Int64:
        """Return the rows of fragment i that its table has no more, counted within it, ascending."""
        file = self.file_of(i)
        if not file.deleted:
            return np.zeros(0, np.int64)
        rows = np.frombuffer(file.deleted, "<i8")
        group_starts = offsets_of(self._footers.get(file.info).groups["num_rows"])
        groups, first, sizes = self.group_rows(i)
        starts = group_starts[groups] + first
        low, high = np.searchsorted(rows, starts), np.searchsorted(rows, starts + sizes)
        shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), high - low)
        return np.asarray(rows[ranges(low, offsets_of(high - low))] - shifts)

    def kept(self, i: int) -> Int64 | None:
        """Return the other rows of fragment i; None where none is deleted."""
        deleted = self.deleted(i)
        return np.delete(np.arange(int(self.num_rows[i])), deleted) if len(deleted) else None

    def _picked(self, i: int, table: pa.Table) -> pa.ChunkedArray | None:
        """Return which rows of fragment i are delivered; None where all are."""
        deleted, picked = self.deleted(i), None
        if self._chosen.expression is not None and self._is_by_path:
            passes_all = pc.all(self._mask(table.slice(0, 1))).as_py()
            picked = None if passes_all else pa.chunked_array([np.zeros(table.num_rows, np.bool_)])
        elif self._chosen.expression is not None:
            picked = self._mask(table)
        if len(deleted):
            is_kept = np.ones(table.num_rows, np.bool_)
            is_kept[deleted] = False
            kept = pa.chunked_array([is_kept])
            picked = kept if picked is None else pc.and_(picked, kept)
        return picked

    def _mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return which rows pass; a filter may name members of structs by their dotted names too."""
        names = self._chosen.filter_columns.names
        every = table if {*names} <= {*table.column_names} else flatten(table)
        columns = [(table if name in table.column_names else every).column(name) for name in names]
        # Of a filter that asks for no column: Arrow's tables without columns have no rows.
        asked = pa.Table.from_arrays(columns or [pa.nulls(table.num_rows)], names=names or [""])
        with decoding("", where="the filter"):
            mask = passes(asked, self._chosen.expression)
        return pc.fill_null(mask, False)
