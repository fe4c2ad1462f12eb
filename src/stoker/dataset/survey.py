"""What opening a data set finds out: files, their common schema, fragments and counts; and keeping it for next time.

list      ── files ──► read footers ── layouts ──► unify ──► cut into fragments ──► count what passes
the storage           in parallel                            (pruned by statistics)   (with a filter only)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.arrow import array_of, numbers_in, strings_of
from stoker.dataset.filters import surviving_row_groups
from stoker.dataset.fragments import FragmentRange, RowGroup, plan_fragments
from stoker.dataset.kept import keep, kept
from stoker.dataset.listing import Listed, partition_fields, partition_value
from stoker.dataset.tables.table import LakeTable, check_files
from stoker.errors import SourceError
from stoker.fields.offsets import Int64
from stoker.parquet.footer_numbers import row_group_bytes
from stoker.parquet.footers import Footer, Footers
from stoker.parquet.schema import Layout, flat_fields
from stoker.parquet.unify import unify
from stoker.storage.each import for_each
from stoker.storage.storage import ObjectInfo
from stoker.storage.urls import name_bytes, name_of

_MAGIC = b"STKCAT06"
_NOT_TOLD = -1
# Of one column chunk; what says more is believed as little as what says less than none.
_MOST_NULLS = 1 << 40


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything about a data set that is known before any row is read. K is the number of fragments.

    Attributes:
        files: The files, by URL.
        footers: Hash of the footer of each file.
        schema: Columns that the files share, structs as structs, without partition columns.
        partitions: Partition columns.
        file: Number of the file of each fragment. Shape [K].
        start: Its first row group. Shape [K].
        stop: Its last row group + 1. Shape [K].
        row_start: First row, where it is part of a row group, else -1. Shape [K].
        row_stop: Last row + 1, else -1. Shape [K].
        num_rows: Rows that are read for it. Shape [K].
        num_samples: Rows that pass the filter. Shape [K].
        null_counts: Column -> nulls among its rows, -1 where that is not known. Shape [K] each.
        table: The table that the files belong to, or None.
    """

    files: tuple[Listed, ...]
    footers: tuple[str, ...]
    schema: pa.Schema
    partitions: pa.Schema
    file: Int64
    start: Int64
    stop: Int64
    row_start: Int64
    row_stop: Int64
    num_rows: Int64
    num_samples: Int64
    null_counts: Mapping[str, Int64]
    table: LakeTable | None = None

    def take(self, numbers: Int64) -> Survey:
        """Return some of the fragments, each as often as its number is there."""
        nulls = {name: counts[numbers] for name, counts in self.null_counts.items()}
        return replace(self, null_counts=nulls, **{name: getattr(self, name)[numbers] for name in _ARRAYS})


_ARRAYS = ("file", "start", "stop", "row_start", "row_stop", "num_rows", "num_samples")


def read_layouts(
    files: Sequence[Listed], footers: Footers, table: LakeTable | None, *, num_threads: int
) -> tuple[pa.Schema, pa.Schema]:
    """Read every footer; return the schema that all files share or that of their table, and partition columns.

    A partition column takes the place of a column of that name in the files, as in Spark.

    Raises:
        SourceError: A footer cannot be read.
        FieldError: The files' schemas contradict each other.
    """
    layouts: list[Layout | None] = [None] * len(files)

    def work(i: int) -> None:
        layouts[i] = footers.get(files[i].info).layout

    for_each(len(files), work, num_threads=num_threads)
    found = [layout for layout in layouts if layout is not None]
    if table is not None:
        check_files(table, zip(files, found, strict=True))
        return table.columns()
    distinct: dict[int, tuple[Layout, str]] = {}
    for layout, file in zip(found, files, strict=True):
        distinct.setdefault(id(layout), (layout, file.info.url))
    partitions = pa.schema(partition_fields(files))
    unified = unify(list(distinct.values()))
    schema = pa.schema([field for field in unified if field.name not in partitions.names])
    return schema, partitions


def partition_expression(file: Listed, partitions: pa.Schema) -> pc.Expression | None:
    """Return what is true of every row of `file` because of its path."""
    expression = None
    for field in partitions:
        value = partition_value(file, field)
        is_so = pc.field(field.name) == value if value.is_valid else pc.field(field.name).is_null()
        expression = is_so if expression is None else expression & is_so
    return expression


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How files are cut into fragments, and what of them is read.

    Attributes:
        columns: The columns the transform sees, partition columns included.
        partitions: Partition columns.
        chunk_bytes: Size of a chunk aimed at.
        filter_schema: What the filter may name.
        expression: Filter on rows, or None; on `filter_schema`.
        prunable: What of it may be asked of statistics, or None; see `Filter.prunable`.
        filter_columns: What of `filter_schema` it needs.
    """

    columns: pa.Schema
    partitions: pa.Schema
    chunk_bytes: int
    filter_schema: pa.Schema
    expression: pc.Expression | None
    prunable: pc.Expression | None
    filter_columns: pa.Schema

    @cached_property
    def stored(self) -> list[str]:
        """Names of the columns that lie in the files."""
        return [name for name in self.columns.names if name not in self.partitions.names]

    @cached_property
    def names(self) -> list[str]:
        """Dotted names of all that is read: these columns, and those of the filter."""
        filtered = [name for name, _ in flat_fields(self.filter_columns) if name not in self.partitions.names]
        return [*self.stored, *filtered]


def survivors(footer: Footer, file: Listed, cut: Cut, footers: Footers) -> frozenset[int]:
    """Return the row groups of a file that may hold a row that passes the filter."""
    groups = frozenset(range(len(footer.numbers.groups)))
    if cut.prunable is None or footer.layout.members is not None:  # the filter's names are not the footer's
        return groups
    if file.partition not in footer.survivors:
        footer.survivors[file.partition] = surviving_row_groups(
            footers.bytes_of(file.info),
            len(groups),
            expression=cut.prunable,
            schema=cut.filter_schema,
            partition=partition_expression(file, cut.partitions),
        )
    return footer.survivors[file.partition]


def _cut_file(
    file: Listed, cut: Cut, footers: Footers, plan: Callable[[Sequence[RowGroup]], list[FragmentRange]]
) -> tuple[list[FragmentRange], Int64]:
    """Return the fragments of one file, and the nulls of each column in each of them: a row a column.

    Raises:
        SourceError: The footer contradicts itself, or the file cannot be read.
    """
    footer = footers.get(file.info)
    layout, numbers, url = footer.layout, footer.numbers, file.info.url
    needed = survivors(footer, file, cut, footers)
    read = partial(footers.read, file.info)  # where the footer does not tell how large rows are
    sizes = row_group_bytes(
        layout, numbers, layout.leaves(cut.names), sorted(needed), most_bytes=cut.chunk_bytes, read=read
    )
    rows = numbers.groups["num_rows"].tolist()
    groups = [RowGroup(*row_group, g in needed) for g, row_group in enumerate(zip(rows, sizes.tolist(), strict=True))]
    try:
        pieces = plan(groups)
    except ValueError as error:
        raise SourceError(f"the footer of {url} is corrupt: {error}", url=url) from error
    is_picked = cut.expression is not None or bool(file.deleted)
    return pieces, _nulls(layout, pieces, numbers.chunks["null_count"], sorted(needed), cut, is_picked=is_picked)


def _nulls(
    layout: Layout, pieces: Sequence[FragmentRange], counts: Int64, needed: Sequence[int], cut: Cut, *, is_picked: bool
) -> Int64:
    """Return the nulls of each column in each fragment, as far as the footer's statistics say: a row a column.

    Args:
        layout: Of the file.
        pieces: Its fragments.
        counts: What the footer says of each row group and leaf.
        needed: Row groups that are read.
        cut: How the file was cut.
        is_picked: Whether only some of its rows are delivered.
    """
    may_be_null = layout.max_definition_levels > 0
    is_odd = may_be_null & ((counts < 0) | (counts > _MOST_NULLS))
    told = np.zeros((2, len(counts) + 1, counts.shape[1]), np.int64)
    read = np.asarray(needed, np.int64)
    told[0, read + 1] = np.where(may_be_null & ~is_odd, counts, 0)[read]
    told[1, read + 1] = is_odd[read]
    # Of all row groups before each, so that those of a fragment are a difference.
    before = np.cumsum(told, axis=1)
    start, stop, row_start = np.array([piece[:3] for piece in pieces], np.int64).reshape(-1, 3).T
    nulls, odd = before[:, stop] - before[:, start]
    # In lists a null may be an empty list; of a part, or behind a filter, nobody knows which rows are null.
    is_vague = (layout.max_repetition_levels > 0) | (row_start >= 0)[:, None] | is_picked
    by_leaf = np.where((odd > 0) | ((nulls > 0) & is_vague), _NOT_TOLD, nulls).T
    found = np.empty((len(cut.stored), len(pieces)), np.int64)
    # The file may have no such column: all null, though a filter may leave no row of it.
    found[:] = [_NOT_TOLD if is_picked else piece.num_rows for piece in pieces]
    for i, name in enumerate(cut.stored):
        own = layout.leaves_of(name)
        if len(own) == 1:
            found[i] = by_leaf[own[0]]
        elif own:
            found[i] = np.where((by_leaf[own] == 0).all(axis=0), 0, _NOT_TOLD)
    return found


def survey(
    files: Sequence[Listed],
    schema: pa.Schema,
    cut: Cut,
    footers: Footers,
    *,
    num_threads: int,
    plan: Callable[[int, Sequence[RowGroup]], list[FragmentRange]] | None = None,
) -> Survey:
    """Cut every file into fragments; `num_samples` is `num_rows` still.

    Args:
        files: The files.
        schema: Columns that they share.
        cut: How to cut them.
        footers: Their footers.
        num_threads: Threads that look at footers.
        plan: Where to cut a file, by its number and row groups; by size alone unless told.

    Raises:
        SourceError: A footer contradicts itself.
    """
    found: list[tuple[list[FragmentRange], Int64] | None] = [None] * len(files)
    by_size = partial(plan_fragments, chunk_bytes=cut.chunk_bytes)

    def work(i: int) -> None:
        found[i] = _cut_file(files[i], cut, footers, by_size if plan is None else partial(plan, i))

    for_each(len(files), work, num_threads=num_threads)
    pieces: list[tuple[int, FragmentRange]] = []
    nulls: list[Int64] = []
    for i, result in enumerate(found):
        assert result is not None
        pieces += [(i, piece) for piece in result[0]]
        nulls.append(result[1])
    columns = np.array([piece for _, piece in pieces], np.int64).reshape(-1, 5).T.copy()
    start, stop, row_start, row_stop, num_rows = columns
    return Survey(
        files=tuple(files),
        footers=tuple(footers.get(file.info).digest for file in files),
        schema=schema,
        partitions=cut.partitions,
        file=np.array([i for i, _ in pieces], np.int64),
        start=start,
        stop=stop,
        row_start=row_start,
        row_stop=row_stop,
        num_rows=num_rows,
        num_samples=num_rows.copy(),
        null_counts=dict(zip(cut.stored, np.concatenate(nulls, axis=1), strict=True)),
    )


def keep_survey(path: Path, known: Survey) -> None:
    """Write `known` to one small file; a disk that does not take it is a warning."""
    files = pa.table(
        {
            "url": strings_of([name_bytes(file.info.url) for file in known.files], pa.binary()),
            "size_bytes": array_of(np.array([file.info.size_bytes for file in known.files], np.int64)),
            "version": strings_of([file.info.version for file in known.files], pa.string()),
            "footer": strings_of(known.footers, pa.string()),
            "partition": strings_of([json.dumps(file.partition) for file in known.files], pa.string()),
            "deleted": strings_of([file.deleted for file in known.files], pa.large_binary()),
        }
    )
    fragments = pa.table({name: array_of(getattr(known, name)) for name in _ARRAYS})
    # Not a column each: of thousands each would be compressed by itself.
    counts = np.concatenate([*known.null_counts.values(), np.zeros(0, np.int64)])
    offsets = array_of(np.arange(len(known.null_counts) + 1, dtype=np.int64) * len(known.file))
    names = strings_of(list(known.null_counts), pa.string())
    nulls = pa.table({"column": names, "nulls": pa.LargeListArray.from_arrays(offsets, array_of(counts))})
    columns = pa.schema([]) if known.table is None else known.table.to_schema()
    schemas = (pa.Table.from_batches([], schema) for schema in (known.schema, known.partitions, columns))
    keep(path, _MAGIC, [files, fragments, nulls, *schemas], compression="zstd")


def kept_survey(path: Path) -> Survey | None:
    """Return what `keep_survey` wrote; None where nothing is kept, or what is kept is damaged."""
    tables = kept(path, _MAGIC, "the data set is looked through again")
    if tables is None:
        return None
    files, fragments, nulls, schema, partitions, table = tables
    columns = (files[name].to_pylist() for name in ("url", "size_bytes", "version", "partition", "deleted"))
    partition_of: dict[str, tuple[tuple[str, str | None], ...]] = {}
    listed = []
    for name, size, version, text, deleted in zip(*columns, strict=True):
        if text not in partition_of:
            partition_of[text] = tuple((key, value) for key, value in json.loads(text))
        info = ObjectInfo(url=name_of(name), size_bytes=size, version=version)
        listed.append(Listed(info=info, partition=partition_of[text], deleted=deleted))
    counts = numbers_in(pc.list_flatten(nulls["nulls"])).reshape(len(nulls), len(fragments))
    return Survey(
        files=tuple(listed),
        footers=tuple(files["footer"].to_pylist()),
        schema=schema.schema,
        partitions=partitions.schema,
        table=LakeTable.from_schema(table.schema) if table.schema.metadata else None,
        null_counts=dict(zip(nulls["column"].to_pylist(), counts, strict=True)),
        **{name: numbers_in(fragments[name]) for name in _ARRAYS},
    )
