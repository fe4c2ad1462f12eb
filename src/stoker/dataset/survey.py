"""What opening a data set finds out: files, their common schema, fragments and counts; and keeping it for next time.

list      ── files ──► read footers ── layouts ──► unify ──► cut into fragments ──► count what passes
the storage           in parallel                            (pruned by statistics)   (with a filter only)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.arrow import array_of, numbers_in, strings_of
from stoker.dataset.filters import surviving_row_groups
from stoker.dataset.fragments import FragmentRange, plan_fragments
from stoker.dataset.listing import Listed, partition_fields, partition_value
from stoker.dataset.tables.table import LakeTable, check_files
from stoker.errors import SourceError
from stoker.fields.offsets import Int64
from stoker.host.forks import cached_property
from stoker.parquet.footer_numbers import row_group_bytes
from stoker.parquet.footers import Footer, Footers
from stoker.parquet.schema import Layout, flat_fields, restrict, size_of_tables
from stoker.parquet.unify import unify, unify_loosely
from stoker.storage.each import map_each
from stoker.storage.files import keep_tables, kept_tables
from stoker.storage.storage import ObjectInfo
from stoker.storage.urls import name_bytes, name_of

_MAGIC = b"STKCAT07"
_NOT_TOLD = -1
# Of one column chunk; what says more is believed as little as what says less than none.
_MOST_NULLS = 1 << 40
# Where a fragment lies: the number of its file, and a `FragmentRange` there.
_FRAGMENT_NAMES = ("file", *FragmentRange._fields)
_FRAGMENT = np.dtype([(name, np.int64) for name in _FRAGMENT_NAMES])


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything about a data set that is known before any row is read. F files, K fragments, C stored columns.

    Attributes:
        footers: Hash of the footer of each file.
        schema: Columns that the files share, structs as structs, without partition columns.
        fragments: Records of `file`, `start`, `stop`, `row_start`, `row_stop`, `num_rows`. Shape [K].
        num_samples: Rows that pass the filter. Shape [K].
        nulls: Nulls of each column of `Selection.stored` in each file, -1 where that is not known. Shape [F, C].
    """

    files: tuple[Listed, ...]
    footers: tuple[str, ...]
    schema: pa.Schema
    partitions: pa.Schema
    fragments: npt.NDArray[Any]
    num_samples: Int64
    nulls: Int64
    table: LakeTable | None = None


def read_layouts(files: Sequence[Listed], footers: Footers, *, num_threads: int) -> list[Layout]:
    """Return the layout of each file; those that are alike are one."""
    return map_each(files, lambda file: footers.get(file.info).layout, num_threads=num_threads)


def common_schema(
    files: Sequence[Listed], layouts: Sequence[Layout], table: LakeTable | None
) -> tuple[pa.Schema, pa.Schema]:
    """Return the schema that all files share or that of their table, and partition columns.

    A partition column takes the place of a column of that name in the files, as in Spark.
    """
    if table is not None:
        check_files(table, zip(files, layouts, strict=True))
        return table.columns()
    partitions = pa.schema(partition_fields(files))
    unified = unify_loosely({id(layout): layout for layout in layouts}.values())
    schema = pa.schema([field for field in unified if field.name not in partitions.names])
    return schema, partitions


def check_types(files: Sequence[Listed], layouts: Sequence[Layout], names: Collection[str]) -> None:
    """Raise a FieldError where no type holds a column, by its dotted name, of all files, or a file has it twice.

    Columns that nobody reads may be as they like.
    """
    distinct: dict[int, tuple[Layout, str]] = {}
    for file, layout in zip(files, layouts, strict=True):
        distinct.setdefault(id(layout), (layout, file.info.url))
    unify(list(distinct.values()), names=names)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which columns and rows of the files are read, and how large chunks are.

    Attributes:
        columns: The columns the transform sees, partition columns included.
        schema: Columns that the files share, structs as structs, without partition columns.
        filter_schema: What the filter may name.
        expression: Filter on rows, or None; on `filter_schema`.
        prunable: What of it may be asked of statistics, or None; see `Filter.prunable`.
        filter_columns: What of `filter_schema` it needs.
    """

    columns: pa.Schema
    schema: pa.Schema
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

    @cached_property
    def read(self) -> pa.Schema:
        """The part of `schema` with these names."""
        return restrict(self.schema, self.names)

    @cached_property
    def told(self) -> list[pa.Field]:
        """The partition columns that are needed, whose values paths or the log tell."""
        needed = {*self.columns.names, *self.filter_columns.names}
        return [field for field in self.partitions if field.name in needed]

    @cached_property
    def size_of(self) -> Callable[[pa.Table], int]:
        """Returns about how many bytes a table of what is read takes."""
        return size_of_tables(self.read)


def survivors(footer: Footer, file: Listed, chosen: Selection, footers: Footers) -> frozenset[int]:
    """Return the row groups of a file that may hold a row that passes the filter."""
    groups = frozenset(range(len(footer.groups)))
    if chosen.prunable is None or footer.layout.members is not None:  # the filter's names are not the footer's
        return groups
    if file.partition not in footer.survivors:
        values = [(pc.field(field.name), partition_value(file, field)) for field in chosen.partitions]
        by_path = [field == value if value.is_valid else field.is_null() for field, value in values]
        footer.survivors[file.partition] = surviving_row_groups(
            footers.bytes_of(file.info),
            len(groups),
            expression=chosen.prunable,
            schema=chosen.filter_schema,
            partition=reduce(and_, by_path) if by_path else None,
        )
    return footer.survivors[file.partition]


def _cut_file(
    file: Listed, chosen: Selection, footers: Footers, plan: Callable[[Sequence[tuple[int, int]]], list[FragmentRange]]
) -> list[FragmentRange]:
    """Return the fragments of one file; where its footer contradicts itself, a SourceError says so."""
    footer = footers.get(file.info)
    layout, url = footer.layout, file.info.url
    needed = survivors(footer, file, chosen, footers)
    read = partial(footers.read, file.info)  # where the footer does not tell how large rows are
    nums, leaves = footer.groups["num_rows"], layout.leaves(chosen.names)
    sizes = row_group_bytes(
        layout, nums, footer.chunks, leaves, sorted(needed), most_bytes=chosen.chunk_bytes, read=read
    )
    rows = [num if g in needed or num < 0 else 0 for g, num in enumerate(nums.tolist())]
    try:
        return plan(list(zip(rows, sizes.tolist(), strict=True)))
    except ValueError as error:
        raise SourceError(f"the footer of {url} is corrupt: {error}", url=url) from error


def _nulls(footer: Footer, chosen: Selection, *, is_picked: bool) -> list[int]:
    """Return the nulls of each stored column in a file, as far as its statistics say."""
    layout, counts = footer.layout, footer.chunks["null_count"]
    may_be_null = layout.max_definition_levels > 0
    is_odd = ((counts < 0) | (counts > _MOST_NULLS)).any(axis=0)
    total = counts.sum(axis=0)
    # In lists a null may be an empty list; of rows behind a filter, nobody knows which are null.
    is_vague = (layout.max_repetition_levels > 0) | is_picked
    by_leaf = np.where(is_odd | ((total > 0) & is_vague), _NOT_TOLD, total) * may_be_null
    known = by_leaf.tolist()
    # A column that the file lacks is all null, though a filter may leave no row of it.
    lacking = _NOT_TOLD if is_picked else int(footer.groups["num_rows"].sum())
    return [
        lacking if not own else known[own[0]] if len(own) == 1 else -any(known[leaf] for leaf in own)
        for own in map(layout.leaves_of, chosen.stored)
    ]


def survey(
    files: Sequence[Listed],
    chosen: Selection,
    footers: Footers,
    *,
    num_threads: int,
    plan: Callable[[int, Sequence[tuple[int, int]]], list[FragmentRange]] | None = None,
) -> Survey:
    """Cut every file into fragments; `num_samples` is `num_rows` still.

    Where to cut a file, `plan` says by its number and row groups; sizes alone do unless it is given.
    """
    nulls = np.zeros((len(files), len(chosen.stored)), np.int64)
    by_size = partial(plan_fragments, chunk_bytes=chosen.chunk_bytes)

    def look(i: int) -> tuple[list[FragmentRange], str]:
        footer = footers.get(files[i].info)
        pieces = _cut_file(files[i], chosen, footers, by_size if plan is None else partial(plan, i))
        is_picked = chosen.expression is not None or bool(files[i].deleted)
        nulls[i] = _nulls(footer, chosen, is_picked=is_picked)
        return pieces, footer.digest

    found = map_each(range(len(files)), look, num_threads=num_threads)
    fragments = np.array([(i, *piece) for i, (pieces, _) in enumerate(found) for piece in pieces], _FRAGMENT)
    return Survey(
        files=tuple(files),
        footers=tuple(digest for _, digest in found),
        schema=chosen.schema,
        partitions=chosen.partitions,
        fragments=fragments,
        num_samples=fragments["num_rows"].copy(),
        nulls=nulls,
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
            # Not a column each: of thousands each would be compressed by itself.
            "nulls": strings_of([counts.tobytes() for counts in known.nulls], pa.large_binary()),
        }
    )
    numbers = {name: known.fragments[name].copy() for name in _FRAGMENT_NAMES} | {"num_samples": known.num_samples}
    fragments = pa.table({name: array_of(column) for name, column in numbers.items()})
    columns = pa.schema([]) if known.table is None else known.table.to_schema()
    schemas = (pa.Table.from_batches([], schema) for schema in (known.schema, known.partitions, columns))
    keep_tables(path, _MAGIC, [files, fragments, *schemas], compression="zstd")


def kept_survey(path: Path) -> Survey | None:
    """Return what `keep_survey` wrote; None where nothing is kept, or what is kept is damaged."""
    tables = kept_tables(path, _MAGIC, "the data set is looked through again")
    if tables is None:
        return None
    files, found, schema, partitions, table = tables
    partition_of = {text: tuple(map(tuple, json.loads(text))) for text in files["partition"].unique().to_pylist()}
    columns = (files[name].to_pylist() for name in ("url", "size_bytes", "version", "partition", "deleted"))
    listed = [
        Listed(ObjectInfo(url=name_of(name), size_bytes=size, version=version), partition_of[text], deleted)
        for name, size, version, text, deleted in zip(*columns, strict=True)
    ]
    fragments = np.empty(len(found), _FRAGMENT)
    for name in _FRAGMENT_NAMES:
        fragments[name] = numbers_in(found[name])
    return Survey(
        files=tuple(listed),
        footers=tuple(files["footer"].to_pylist()),
        schema=schema.schema,
        partitions=partitions.schema,
        fragments=fragments,
        num_samples=numbers_in(found["num_samples"]),
        nulls=np.frombuffer(b"".join(files["nulls"].to_pylist()), np.int64).reshape(len(files), -1),
        table=LakeTable.from_schema(table.schema) if table.schema.metadata else None,
    )
