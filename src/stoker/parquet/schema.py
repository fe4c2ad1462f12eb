"""One schema for many files: choose columns, and bring each file's columns into its form.

files      user: struct<age: int32>, clicks: list<int64>       one file of an older schema
           user: struct<age: int64, city: string>              a newer one without clicks
unified    user: struct<age: int64, city: string>, clicks: list<int64>
columns    user.age: int64, user.city: string, clicks          what the transform sees
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.arguments import near
from stoker.arrow import parts_of, plain_array, plain_type
from stoker.errors import FieldError
from stoker.fields.offsets import Bools, Int64
from stoker.host.forks import cached_property
from stoker.parquet.naming import Member, renamed
from stoker.words import some_of

# Physical types by their numbers in the format, their names there, and the bytes of one value; 0 where they differ.
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED_BYTES = range(8)
_NAMES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_PHYSICAL = dict(zip(_NAMES, enumerate((1, 4, 8, 12, 4, 8, 0, 0)), strict=True))
_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
# What Arrow says of strings that offsets of 32 bits do not reach the end of.
_TOO_LARGE = re.compile("overflow|too large|capacity", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """How one file lays out its columns; most files of a data set share one. L leaf columns, shape [L] each."""

    schema: pa.Schema  # what pyarrow makes of it, without metadata
    paths: tuple[str, ...]  # of each leaf, by its number: "clicks.list.element"
    physical_types: Int64  # by their numbers in the format; -1 for an unknown one
    widths: Int64  # bytes of one value; 0 where they differ
    decoded_widths: Int64  # the same in Arrow
    max_definition_levels: Int64  # 0 where a leaf cannot be null
    max_repetition_levels: Int64  # 0 where a leaf lies in no list
    time_units: tuple[str, ...]  # what one step of a timestamp is as it is stored, as Arrow says it; "" of other leaves
    fields: pa.Schema  # with their ids
    members: tuple[Member, ...] | None = None  # what the columns are called in their table, where that is otherwise

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> Layout:
        """Return the layout that a footer describes; a name or time zone that is no text is a UnicodeDecodeError."""
        parquet = metadata.schema
        leaves = [parquet.column(i) for i in range(len(parquet.names))]
        fields = parquet.to_arrow_schema().remove_metadata()
        schema = plain_schema(fields)
        for field in schema:
            _check_zones(field.type)
        physical = [_PHYSICAL.get(leaf.physical_type, (-1, 0)) for leaf in leaves]
        widths = [width or leaf.length or 0 for leaf, (_, width) in zip(leaves, physical, strict=True)]
        decoded = [fixed_width_bytes(kind) for field in schema for kind in leaf_types(field.type)]
        return cls(
            schema=schema,
            paths=tuple(leaf.path for leaf in leaves),
            physical_types=np.array([number for number, _ in physical], np.int64),
            widths=np.array(widths, np.int64),
            decoded_widths=np.array(decoded if len(decoded) == len(widths) else widths, np.int64),
            max_definition_levels=np.array([leaf.max_definition_level for leaf in leaves], np.int64),
            max_repetition_levels=np.array([leaf.max_repetition_level for leaf in leaves], np.int64),
            time_units=tuple(_time_unit(leaf) for leaf in leaves),
            fields=fields,
        )

    def leaves(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the leaves that columns are made of, ascending, by their dotted names in the table."""
        return sorted({i for name in names for i in self.leaves_of(name)})

    def leaves_of(self, name: str) -> Sequence[int]:
        """Return the same for one name."""
        return self._leaves_by_name.get(name, ())

    @cached_property
    def is_text(self) -> Bools:
        """Where leaves are strings or binary, and no decimals. Shape [L]."""
        found: Bools = (self.physical_types == BYTES) & (self.decoded_widths == 0)
        return found

    @cached_property
    def leaves_by_column(self) -> Sequence[Sequence[int]]:
        """The leaves of each column of `schema`, whatever it and its leaves are called."""
        numbers = iter(range(len(self.paths)))
        return [[number for _, number in zip(leaf_types(field.type), numbers, strict=False)] for field in self.schema]

    @cached_property
    def _leaves_by_name(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        numbers = iter(range(len(self.paths)))

        def walk(fields: Iterable[pa.Field], members: Sequence[Member] | None, names: tuple[str, ...] | None) -> None:
            known = None if members is None else {member.stored: member for member in members}
            for field in fields:
                member = Member(field.name, field.name) if known is None else known.get(field.name)
                called = None
                if names is not None and member is not None:
                    called = (*names, f"{names[-1]}.{member.name}" if names else member.name)
                if _is_open_struct(field.type):
                    walk(field.type, None if member is None else member.inside, called)
                    continue
                for number in itertools.islice(numbers, len(leaf_types(field.type))):
                    for name in called or ():
                        found.setdefault(name, []).append(number)

        walk(self.schema, self.members, ())
        return found

    def named(self, table: pa.Table) -> pa.Table:
        """Return columns of the file under the names of their table, if it has one."""
        return table if self.members is None else renamed(table, self.members)

    def named_schema(self) -> pa.Schema:
        """Return its schema under these names."""
        return self.schema if self.members is None else self.named(pa.Table.from_batches([], self.schema)).schema

    def stored_names(self, names: Collection[str]) -> Collection[str]:
        """Return what the file calls columns of the table."""
        return names if self.members is None else {member.stored for member in self.members if member.name in names}


def _time_unit(leaf: pq.ColumnSchema) -> str:
    if leaf.logical_type.type != "TIMESTAMP":
        return ""
    return _TIME_UNITS.get(json.loads(leaf.logical_type.to_json()).get("timeUnit"), "")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with names and types only: writers differ in metadata and in what they call nullable.

    Views and run ends are ways to lay out the same values in memory: they are read as what they are views of.
    """
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def _check_zones(kind: pa.DataType) -> None:
    """Ask every timestamp for its zone: one that is no text would raise wherever it is asked for first."""
    if pa.types.is_timestamp(kind):
        _ = kind.tz
    for part in parts_of(kind):
        _check_zones(part)


def flat_fields(fields: Iterable[pa.Field]) -> list[tuple[str, pa.DataType]]:
    """Return dotted name and type of every column once structs are taken apart, in order."""
    found: list[tuple[str, pa.DataType]] = []
    for field in fields:
        if _is_open_struct(field.type):
            found += [(f"{field.name}.{name}", type_) for name, type_ in flat_fields(field.type)]
        else:
            found.append((field.name, field.type))
    return found


def _is_open_struct(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_)) and type_.num_fields > 0


def choose_columns(available: Sequence[tuple[str, pa.DataType]], columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns that `columns` names, in its order; a struct's name means all its members.

    A `FieldError` lists each name that is not there with the nearest ones that are.
    """
    if columns is None:
        return pa.schema(available)
    types = dict(available)
    chosen: dict[str, pa.DataType] = {}
    missing = []
    for name in columns:
        members = [name] if name in types else [flat for flat in types if flat.startswith(name + ".")]
        if not members:
            missing.append(name)
        chosen.update((member, types[member]) for member in members)
    if missing:
        raise unknown_columns(missing, list(types))
    return pa.schema(list(chosen.items()))


def unknown_columns(missing: Sequence[str], available: Sequence[str], *, what: str = "", where: str = "") -> FieldError:
    """Return the error for columns that no file has, with what it is about before and behind."""
    lines = [f"{name!r}" + (f" ({hint})" if (hint := near(name, available)) else "") for name in missing]
    text = f"{what}no file has the column {'; '.join(lines)}{where}. There are: {some_of(available, 12)}"
    return FieldError(text, columns=missing)


def restrict(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return the part of `schema` (structs as structs) that the dotted `names` need."""
    wanted = set(names)
    kept = (_restricted(field, field.name, wanted) for field in schema)
    return pa.schema([field for field in kept if field is not None])


def _restricted(field: pa.Field, name: str, wanted: set[str]) -> pa.Field | None:
    if not _is_open_struct(field.type):
        return field if name in wanted else None
    kept = [part for m in field.type if (part := _restricted(m, f"{name}.{m.name}", wanted)) is not None]
    return field.with_type(pa.struct(kept)) if kept else None


def align(table: pa.Table, schema: pa.Schema, *, where: str) -> pa.Table:
    """Return the columns of `schema` from `table`: widened where types differ, null where it has no such column.

    Nothing is copied where a type is already right. A value that does not fit is a `FieldError`.
    """
    if table.schema.equals(schema, check_metadata=True):  # as nearly always
        return table
    if table.schema.equals(schema):  # what a writer noted beside its columns is not handed on
        return pa.Table.from_arrays(table.columns, schema=schema)
    columns = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type))
            continue
        column = table.column(index)
        if column.type.equals(field.type):
            columns.append(column)
            continue
        try:
            parts = [part for chunk in column.chunks for part in _aligned_parts(chunk, field.type)]
            columns.append(pa.chunked_array(parts, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise FieldError(
                f"column {field.name!r} is {column.type} in {where}, and {field.type} for all files together, which "
                f"not every value fits: {str(error).splitlines()[0]}. Write it in one type in all files, leave it out "
                "(columns= without it), or read the files apart, as one Dataset each in a stoker.Mixture",
                columns=[field.name],
            ) from error
    if not columns:
        return table.select([])
    return pa.Table.from_arrays(columns, schema=schema)


def _aligned_parts(array: pa.Array, type_: pa.DataType) -> list[pa.Array]:
    """Return an array in another type: as one, or in as many parts as it takes to hold strings beyond 2 GiB."""
    try:
        return [_aligned_array(array, type_)]
    except pa.ArrowInvalid as error:
        if len(array) < 2 or not _TOO_LARGE.search(str(error)):
            raise
    half = len(array) // 2
    return [*_aligned_parts(array.slice(0, half), type_), *_aligned_parts(array.slice(half), type_)]


def _aligned_array(array: pa.Array, type_: pa.DataType) -> pa.Array:
    array = plain_array(array)
    if array.type.equals(type_):
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(type_):
        places = [(array.type.get_field_index(member.name), member.type) for member in type_]
        members = [  # `field` gives them without the struct's own nulls
            pa.nulls(len(array), kind) if i < 0 else _aligned_array(array.field(i), kind) for i, kind in places
        ]
        fields = [member.with_nullable(True) for member in type_]
        made = pa.StructArray.from_arrays(members, fields=fields, mask=array.is_null())
        return made if made.type.equals(type_) else made.cast(type_)
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(type_):
        return _aligned_array(array.dictionary_decode(), type_)
    return array.cast(type_)


def flatten(table: pa.Table) -> pa.Table:
    """Return `table` with structs taken apart into dotted columns; a null struct gives nulls."""
    while any(_is_open_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def select_flat(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns that `schema` names, with structs taken apart; their types may be others."""
    return table if table.schema.equals(schema) else flatten(table).select(schema.names)


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the Parquet leaves that a type is stored as, in their order."""
    parts = parts_of(kind)
    return [leaf for part in parts for leaf in leaf_types(part)] if parts or pa.types.is_struct(kind) else [kind]


def fixed_width_bytes(kind: pa.DataType) -> int:
    """Return the bytes one value takes in memory; 0 where that depends on the value, or it is made of others."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 0


def size_of_tables(schema: pa.Schema) -> Callable[[pa.Table], int]:
    """Return what says how many bytes, about, a table of a schema takes: of thousands of columns it asks few."""
    widths = {field.name: fixed_width_bytes(field.type) for field in schema}
    row_bytes, others = sum(widths.values()), [name for name, width in widths.items() if not width]
    return lambda table: int(table.num_rows * row_bytes + sum(table.column(name).nbytes for name in others))
