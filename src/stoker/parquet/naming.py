"""Columns that a table calls otherwise than its files do: found by their ids, or by the names that its log tells.

    table     user: struct<age (id 3), town (id 5)>, clicks (id 4)
    file      user: struct<age (id 3), city (id 5)>, hits (id 4), old (id 2)
    members   user -> user (age -> age, city -> town), hits -> clicks                      `old` is no column any more

The fields of a table's schema carry what they are found by as metadata, as those of a file carry their ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from stoker.arrow import around, is_list, parts_in

ID = b"PARQUET:field_id"
NAMES = b"stoker:names"
DEFAULT = b"stoker:default"


class Member(NamedTuple):
    """A column of a file, or a part of one, as a table calls it.

    Inside are members of a struct, the values of a list, keys and values of a map; None where all is as in the file.
    """

    stored: str  # its name in the file
    name: str  # and in the table
    inside: tuple[Member, ...] | None = None

    @property
    def is_alike(self) -> bool:
        """Whether the file calls it the same."""
        return self.stored == self.name and self.inside is None


def named(stored: Sequence[pa.Field], wanted: Sequence[pa.Field], *, by_id: bool) -> tuple[Member, ...] | None:
    """Return how a table calls the columns of a file; None where both call them alike. Ids tell, where it has some."""
    members = _members(stored, wanted, by_id=by_id and has_ids(stored))
    lost = {field.name for field in wanted} - {member.name for member in members}
    is_alike = all(member.is_alike for member in members) and not lost & {field.name for field in stored}
    return None if is_alike else members


def has_ids(fields: Iterable[pa.Field]) -> bool:
    """Whether a file tells the ids of its columns."""
    return any(ID in (field.metadata or {}) or has_ids(_children(field.type)) for field in fields)


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) or is_list(kind) else []


def _members(stored: Sequence[pa.Field], wanted: Sequence[pa.Field], *, by_id: bool) -> tuple[Member, ...]:
    known: dict[object, pa.Field] = {}
    for field in stored:
        known.setdefault((field.metadata or {}).get(ID) if by_id else field.name, field)
    found = []
    for field in wanted:
        about = field.metadata or {}
        keys = [about.get(ID, b"")] if by_id else json.loads(about[NAMES]) if NAMES in about else [field.name]
        own = next((known[key] for key in keys if key in known), None)
        if own is not None:
            inside = _inside(own.type, field.type, by_id=by_id)
            if inside != ():  # a struct of which nothing is left is one that the file does not have
                found.append(Member(own.name, field.name, inside))
    return tuple(found)


def _inside(stored: pa.DataType, wanted: pa.DataType, *, by_id: bool) -> tuple[Member, ...] | None:
    mine, theirs = _children(stored), _children(wanted)
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        members = _members(mine, theirs, by_id=by_id)
    elif len(mine) != len(theirs) or pa.types.is_struct(stored) or pa.types.is_struct(wanted):
        return None
    else:
        inside = [_inside(own.type, field.type, by_id=by_id) for own, field in zip(mine, theirs, strict=True)]
        members = tuple(Member(field.name, field.name, one) for field, one in zip(theirs, inside, strict=True))
    return None if len(members) == len(mine) and all(member.is_alike for member in members) else members


def renamed(table: pa.Table, members: Sequence[Member]) -> pa.Table:
    """Return columns of a file with the names of the table; what is no column of the table is left out."""
    here = [member for member in members if member.stored in table.schema.names]
    if not here:
        return table.select([])
    columns = [table.column(member.stored) for member in here]
    for i, (column, member) in enumerate(zip(columns, here, strict=True)):
        if member.inside is not None:
            chunks = column.chunks or [pa.nulls(0, column.type)]
            columns[i] = pa.chunked_array([_renamed(chunk, member.inside) for chunk in chunks])
    return pa.Table.from_arrays(columns, names=[member.name for member in here])


def _renamed(array: pa.Array, inside: tuple[Member, ...] | None) -> pa.Array:
    if inside is None:
        return array
    kind = array.type
    if pa.types.is_struct(kind):
        here = [member for member in inside if kind.get_field_index(member.stored) >= 0]
        arrays = [_renamed(array.field(kind.get_field_index(member.stored)), member.inside) for member in here]
        fields = [pa.field(member.name, one.type) for member, one in zip(here, arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        keys_and_items = zip(parts_in(array.values), inside, strict=True)
        return around(array, [around(array.values, [_renamed(part, one.inside) for part, one in keys_and_items])])
    return around(array, [_renamed(array.values, inside[0].inside)])
