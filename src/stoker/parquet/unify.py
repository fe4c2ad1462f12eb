"""One type for a column that files hold in several, and whether each file's values surely fit it (pure).

int32, int64            int64                  every value fits
int64, float64          float64                integers beyond 2^53 do not: somebody has to look
string, string_view     string                 the same values, laid out otherwise
int64, string           none: an error
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from stoker.arrow import TIME_UNITS, is_list, parts_of, type_around, unencoded
from stoker.errors import FieldError
from stoker.parquet.schema import Layout, flat_fields, plain_schema, restrict

# Digits of the largest integer of so many bits, and bits that a float holds exactly.
_DIGITS = {8: 3, 16: 5, 32: 10, 63: 19, 64: 20}
_EXACT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
_MOST_DIGITS, _MOST_DIGITS_128 = 76, 38


def unify(layouts: Sequence[tuple[Layout, str]], *, names: Collection[str] | None = None) -> pa.Schema:
    """Return the schema that every file's columns fit in: all columns, or those of some dotted names.

    Layouts come with the URL of a file each. Two of them without a common type for a column are a `FieldError`, and so
    is a name that a file has twice.
    """
    wanted = None if names is None else _with_rivals(names, [layout for layout, _ in layouts])
    schemas = [(one.schema if wanted is None else restrict(one.schema, wanted), url) for one, url in layouts]
    found: dict[str, pa.DataType] = {}
    first: dict[str, str] = {}  # URL of the first file that has it
    for schema, url in schemas:
        flat = [name for name, _ in flat_fields(schema)]
        if len(set(flat)) != len(flat):
            twice = next(name for name in flat if flat.count(name) > 1)
            text = f"{url} has two columns named {twice!r}: rename one, or leave them out with columns=[...]"
            raise FieldError(text, columns=[twice])
        for field in schema:
            known = found.setdefault(field.name, field.type)
            first.setdefault(field.name, url)
            both = common_type(known, field.type)
            if both is None:
                raise FieldError(
                    f"column {field.name!r} is {field.type} in {url} and {known} in {first[field.name]}: no type "
                    "holds both; rewrite one of them, or leave the column out with columns=[...]",
                    columns=[field.name],
                )
            found[field.name] = both
    return plain_schema(pa.schema(list(found.items())))


def _with_rivals(names: Collection[str], layouts: Sequence[Layout]) -> set[str]:
    """Return wanted names, and those in their place in other files: `x.a` of a struct beside an `x` that is none."""
    flat = [{name for name, _ in flat_fields(layout.schema)} for layout in layouts]
    every, found = set[str]().union(*flat), set(names)
    for name in every:
        for i in (i for i, letter in enumerate(name) if letter == "." and name[:i] in every):
            pair = {name, name[:i]}
            # A file that has both has a column with a dot in its name.
            if not pair.isdisjoint(names) and not any(pair <= of_file for of_file in flat):
                found |= pair
    return found


def unify_loosely(layouts: Iterable[Layout]) -> pa.Schema:
    """Return the same, with the first type of a column where no type holds all: it may be one that nobody wants."""
    return plain_schema(pa.schema(list(_first_of(pa.struct([]), *(pa.struct(one.schema) for one in layouts)))))


def _first_of(*kinds: pa.DataType) -> pa.DataType:
    """Return the type that holds all, or the first where none does: of structs, member by member."""
    if all(map(pa.types.is_struct, kinds)):
        members: dict[str, list[pa.DataType]] = {}
        for field in itertools.chain(*kinds):
            members.setdefault(field.name, []).append(field.type)
        return pa.struct([(name, _first_of(*several)) for name, several in members.items()])
    found, *others = kinds
    for kind in others:
        both = common_type(found, kind)
        found = found if both is None else both
    return found


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both; None where there is none."""
    if one.equals(other):
        return one
    if not _is_alike(one, other):
        return None
    one, other = unencoded(one), unencoded(other)
    types = pa.types
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        members: dict[str, pa.DataType | None] = {}
        for field in [*one, *other]:
            known = members.get(field.name, field.type)
            members[field.name] = None if known is None else common_type(known, field.type)
        return None if None in members.values() else pa.struct(list(members.items()))
    if _are_lists(one, other):
        value = common_type(*parts_of(one), *parts_of(other))
        if value is None:
            return None
        is_large = types.is_large_list(one) or types.is_large_list(other)
        sizes = {getattr(kind, "list_size", None) for kind in (one, other)}
        if len(sizes) == 1 and not is_large:
            return type_around(one, [value])
        return pa.large_list(value) if is_large else pa.list_(value)
    if types.is_decimal(one) or types.is_decimal(other):
        return _common_decimal(one, other)
    if types.is_timestamp(one) and types.is_timestamp(other):
        if (one.tz is None) != (other.tz is None):
            return None
        # The instant is the same, whatever zone it is shown in.
        return pa.timestamp(max(one.unit, other.unit, key=TIME_UNITS.index), one.tz if one.tz == other.tz else "UTC")
    try:
        merged = pa.unify_schemas([pa.schema([("x", one)]), pa.schema([("x", other)])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return merged.field(0).type


def _are_lists(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether both are lists, or both are maps, which are lists of structs."""
    return (is_list(one) and is_list(other)) or (pa.types.is_map(one) and pa.types.is_map(other))


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether what extension types say of their values is no contradiction, such as UUIDs of 16 bytes and as text."""
    extensions = [kind for kind in (one, other) if isinstance(kind, pa.BaseExtensionType)]
    if not extensions or any(pa.types.is_null(kind) for kind in (one, other)):
        return True
    stored = [unencoded(kind) for kind in (one, other)]
    is_text = all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in stored)
    return len(extensions) == 1 and (stored[0].equals(stored[1]) or is_text)


def _common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the decimal that holds both without rounding; beside floats a double, as all decimals are delivered."""
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        return pa.float64()
    scale = whole = 0
    for kind in (one, other):
        if pa.types.is_decimal(kind):
            scale, whole = max(scale, kind.scale), max(whole, kind.precision - kind.scale)
        elif pa.types.is_integer(kind):
            whole = max(whole, _DIGITS[63 if kind == pa.int64() else kind.bit_width])
        else:
            return None
    digits = scale + whole
    if digits > _MOST_DIGITS:
        return None
    is_wide = digits > _MOST_DIGITS_128 or any(pa.types.is_decimal256(kind) for kind in (one, other))
    return pa.decimal256(digits, scale) if is_wide else pa.decimal128(digits, scale)


def surely_fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of one type fits another one that `common_type` gave for it."""
    types = pa.types
    source, target = unencoded(source), unencoded(target)
    if source.equals(target) or types.is_null(source):
        return True
    if types.is_struct(source) and types.is_struct(target):
        return all(surely_fits(field.type, target.field(field.name).type) for field in source)
    if _are_lists(source, target):
        return all(map(surely_fits, parts_of(source), parts_of(target)))
    if types.is_integer(source) and types.is_integer(target):
        bits = target.bit_width - (types.is_signed_integer(target) and types.is_unsigned_integer(source))
        return bool(bits >= source.bit_width)
    if types.is_integer(source) and types.is_floating(target):
        return bool(source.bit_width - types.is_signed_integer(source) <= _EXACT_BITS[target])
    if types.is_timestamp(source) or types.is_duration(source):
        return bool(source.unit == target.unit)
    return True


def limits(source: pa.DataType, target: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the least and greatest value of one type that surely fit another one; None where these say nothing."""
    least: int
    if pa.types.is_integer(source) and pa.types.is_floating(target):
        most = 2 ** _EXACT_BITS[target]
        least = -most if pa.types.is_signed_integer(source) else 0
    elif pa.types.is_integer(source) and pa.types.is_int64(target):
        least, most = 0, 2**63 - 1
    elif pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        most = (2**63 - 1) // 1000 ** (TIME_UNITS.index(target.unit) - TIME_UNITS.index(source.unit))
        least = -most
    else:
        return None
    return pa.scalar(least, source), pa.scalar(most, source)
