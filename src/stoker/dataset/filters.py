"""Which rows are wanted: the user's filter in one form, its identity, and what it needs to be evaluated.

A condition (name, operator, value) means what SQL says: null passes none of them, `in` is `=` of one of the values and
`not in` is `!=` of all, so that -0.0 equals 0.0, and NaN nothing. An expression means what pyarrow says.

A filter is used twice. On statistics, to leave out whole row groups: there it may keep too much, never too little. On
rows, exactly: a row stays where the expression is true, not where it is false or null, as in SQL and in pyarrow.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.arrow import dtype_of
from stoker.parquet.schema import flat_fields, leaf_types, restrict, unknown_columns

_COMPARE: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", *_COMPARE, "in", "not in")
_VALUES = (str, bytes, bool, int, float, Decimal, date, datetime, time, timedelta)

# What pyarrow says of a column that is not there.
_UNKNOWN = re.compile(r"No match for FieldRef\.[^\n]*? in ")
_NAME = re.compile(r"Name\(([^()]*)\)")

# Functions in an expression that are not true of NaN if their value set, printed with them, has none.
_FALSE_OF_NAN = {"is_in", "is_null"}

Condition: TypeAlias = "tuple[str, str, Any]"


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter that was checked as far as it can be without a schema: what the user gave, tuples or an expression.

    `conditions` are alternatives of conditions that must all hold.
    """

    conditions: tuple[tuple[Condition, ...], ...] | None = None
    expression: pc.Expression | None = None

    def to_json(self) -> object:
        """Return everything that decides which rows pass, for fingerprints."""
        if self.conditions is not None:
            return [[[name, op, _value_json(value)] for name, op, value in all_of] for all_of in self.conditions]
        assert self.expression is not None
        # Not str(expression): it shortens long value sets, and two filters would look the same.
        content = self.expression.__reduce__()[1][0].to_pybytes()
        return {"expression": hashlib.blake2b(content, digest_size=16).hexdigest()}

    def bind(self, schema: pa.Schema) -> pc.Expression:
        """Return the expression over a table of `schema`, whose dotted names reach into structs.

        Raises:
            ValueError: A column is not there, or a comparison makes no sense for its type.
        """
        expression = self.expression if self.conditions is None else _any_of(schema, self.conditions)
        try:
            passes(schema.empty_table(), expression)
            # Some of it is looked at only where there are rows: one of nulls, in the columns that it may mean.
            shown = str(expression)
            named = [field for field in schema if field.name in shown]
            passes(pa.table([pa.nulls(1, field.type) for field in named], schema=pa.schema(named)), expression)
        except (pa.ArrowException, TypeError, KeyError) as error:  # before ValueError: pyarrow's own are such, too
            if (name := _missing(error)) is not None:
                text = "" if self.conditions is not None else f" (in {self})"
                raise unknown_columns([name], _names(schema), what="filters: ", where=text) from error
            raise ValueError(f"filters: {str(error).splitlines()[0]} in {self}") from error
        return expression

    def prunable(self, schema: pa.Schema, bound: pc.Expression) -> pc.Expression | None:
        """Return what may be asked of statistics: true wherever the filter is. None where they can say nothing.

        Statistics leave NaN out: a row group of 0.0 and NaN counts as all 0.0, and yet it has a row that is not 0.0. So
        what is true of NaN is left out of the question.
        """
        if self.conditions is None:
            leaves = [kind for field in needed_columns(schema, bound) for kind in leaf_types(field.type)]
            return None if any(map(pa.types.is_floating, leaves)) and _may_hold_of_nan(bound) else bound
        kept = [[one for one in all_of if not _holds_of_nan(schema, *one)] for all_of in self.conditions]
        return _any_of(schema, kept) if all(kept) else None

    def __str__(self) -> str:
        if self.conditions is None:
            return str(self.expression)
        shown = ([f"{name} {op} {_shown(value)}" for name, op, value in all_of] for all_of in self.conditions)
        return " or ".join(map(" and ".join, shown))


def parse_filter(filters: object) -> Filter | None:
    """Return the filter the user wrote, or None for no filter.

    It is a pyarrow expression, a list of tuples (name, operator, value) that must all hold, or a list of such lists,
    one of which must hold.
    """
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        if "FieldPath(" in str(filters):
            raise ValueError("filters: name columns by their names; their numbers differ from file to file")
        return Filter(expression=filters)
    if isinstance(filters, str | bytes) or not isinstance(filters, Sequence):
        raise TypeError(
            "filters must be a pyarrow expression or a list of (name, operator, value), such as "
            f"[('country', 'in', ['DE', 'FR'])], not {filters!r}"
        )
    if not filters:
        raise ValueError("filters is empty; leave it out to read every row")
    alternatives = [filters] if isinstance(filters[0], tuple) else filters
    for all_of in alternatives:
        if not isinstance(all_of, Sequence) or isinstance(all_of, str | bytes):
            raise TypeError(f"filters: expected a list of (name, operator, value), not {all_of!r}")
        if not all_of:
            raise ValueError("filters: a list of conditions is empty")
    return Filter(conditions=tuple(tuple(map(_parse_condition, all_of)) for all_of in alternatives))


def _parse_condition(condition: object) -> Condition:
    if not isinstance(condition, tuple | list) or len(condition) != 3:
        raise TypeError(f"filters: expected (name, operator, value), not {condition!r}")
    name, op, value = condition
    if not isinstance(name, str):
        raise TypeError(f"filters: a column is named by a text, not {name!r}")
    if op not in OPERATORS:
        raise ValueError(f"filters: unknown operator {op!r} for {name!r}; there are {', '.join(OPERATORS)}")
    if op in ("in", "not in"):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise TypeError(f"filters: {name!r} {op} needs a list of values, not {value!r}")
        values = [_parse_value(name, v) for v in value]
        if isinstance(value, set | frozenset):
            values.sort(key=_shown)
        return name, op, tuple(values)
    return name, "==" if op == "=" else op, _parse_value(name, value)


def _parse_value(name: str, value: object) -> object:
    try:
        found = _plain(value)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        is_length = isinstance(value, np.timedelta64 | timedelta | pa.DurationScalar)
        way_out = "a duration in weeks or a shorter unit" if is_length else "a time of the years 1 to 9999"
        what = f"filters: {name!r} cannot be compared with {_shown(value)}"
        raise ValueError(f"{what}: give {way_out}, to the nanosecond at the finest") from error
    if not isinstance(found, (*_VALUES, pa.Scalar)):
        hint = "; to select nulls write pyarrow.compute.field(...).is_null()" if found is None else ""
        raise TypeError(f"filters: {name!r} cannot be compared with {found!r}{hint}")
    return found


def _plain(value: object) -> object:
    """Return a value as Python has it, a time with nanoseconds as Arrow has it, and NaT as None."""
    given: Any = value
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = _time_of(value)
    elif isinstance(value, datetime) and value != value:  # NaT of pandas
        return None
    elif isinstance(value, datetime) and hasattr(value, "to_pydatetime"):  # of pandas, with nanoseconds
        kind = pa.timestamp("ns", None if value.tzinfo is None else "UTC")
        value = pa.scalar(given.value, kind) if given.nanosecond else given.to_pydatetime()
    elif isinstance(value, timedelta) and hasattr(value, "to_pytimedelta"):
        value = pa.scalar(given.value, pa.duration("ns")) if given.nanoseconds else given.to_pytimedelta()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, pa.Scalar):
        is_in_ns = value.is_valid and getattr(value.type, "unit", "") == "ns" and hasattr(value, "value")
        if is_in_ns and value.value % 1000:
            return value
        value = (value.cast(_in_us(value.type)) if is_in_ns else value).as_py()
    return value


def _time_of(value: np.datetime64 | np.timedelta64) -> object:
    """Return a time of NumPy's as Arrow has it, a day or what has no time of the day as a date, and NaT as None."""
    if np.isnat(value):
        return None
    unit, _ = np.datetime_data(value.dtype)
    is_day = unit in ("Y", "M", "W", "D") and isinstance(value, np.datetime64)
    # Arrow takes no notice of how many of a unit one step is.
    unit = "D" if is_day else "s" if unit in ("W", "D", "h", "m") else unit
    found = value.astype(f"{value.dtype.kind}8[{unit}]")
    if found.astype(value.dtype) != value or (is_day and not isinstance(found.item(), date)):  # it wraps around
        raise OverflowError(f"{value} is out of range")
    return found.item() if is_day else pa.scalar(found)


def _in_us(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _value_json(value: object) -> object:
    if isinstance(value, tuple):
        return [_value_json(v) for v in value]
    return [type(value).__name__, _shown(value)]


def _shown(value: object) -> str:
    """Return a value as Python writes it, or as a number where it has nanoseconds: for these, Arrow asks pandas."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    return f"{getattr(value, 'value', '...')} ({value.type})" if isinstance(value, pa.Scalar) else repr(value)


def _any_of(schema: pa.Schema, alternatives: Iterable[Iterable[Condition]]) -> pc.Expression:
    all_of = (reduce(operator.and_, (_condition(schema, *one) for one in conditions)) for conditions in alternatives)
    return reduce(operator.or_, all_of)


def _condition(schema: pa.Schema, name: str, op: str, value: Any) -> pc.Expression:
    """Return a condition as an expression: true or false of each value, and never true of null."""
    field, kind = pc.field(*steps(schema, name)), _type_of(schema, name)
    if pa.types.is_null(kind):
        return _none(field)
    many = [_literal(name, kind, one) for one in (value if op in ("in", "not in") else [value])]
    if pa.types.is_float16(kind):  # which Arrow does not compare
        kind = pa.float32()
        field, many = field.cast(kind), [one.cast(kind) for one in many if isinstance(one, pa.Scalar)]
    if op in ("in", "not in"):
        return _among(field, kind, many, is_in=op == "in")
    (right,) = many
    return _COMPARE[op](field, right) if isinstance(right, pa.Scalar) else _beyond(field, kind, op, right)


def _none(field: pc.Expression) -> pc.Expression:
    return field.is_null() & field.is_valid()


def _beyond(field: pc.Expression, kind: pa.DataType, op: str, value: float) -> pc.Expression:
    """Return how the integers of a column compare with a number that none of them is."""
    if op == "!=":
        return field.is_valid()
    if op == "==" or value != value:  # NaN
        return _none(field)
    low, high = _bounds(kind)
    below = high if value > high else low - 1 if value < low else math.floor(value)  # the greatest one below it
    if below < low:
        return _none(field) if op in ("<", "<=") else field.is_valid()
    limit = pa.scalar(below, kind)
    return field <= limit if op in ("<", "<=") else field > limit


def _among(
    field: pc.Expression, kind: pa.DataType, values: Sequence[pa.Scalar | float], *, is_in: bool
) -> pc.Expression:
    """Return whether a value equals one of some: as `=` would say of each, or `!=` of all."""
    found = [value for value in values if isinstance(value, pa.Scalar)]
    if pa.types.is_floating(kind):
        found = [value for value in found if value.as_py() == value.as_py()]  # NaN equals nothing
        if any(value.as_py() == 0 for value in found):
            found += [pa.scalar(dtype_of(kind).type(zero), kind) for zero in (0.0, -0.0)]
    if not found:
        return _none(field) if is_in else field.is_valid()
    is_one = field.isin(pa.array(found, kind))
    return is_one if is_in else field.is_valid() & ~is_one


def _missing(error: Exception) -> str | None:
    """Return the dotted name of the column that pyarrow misses; None where it says something else."""
    unknown = _UNKNOWN.search(str(error))
    return None if unknown is None else ".".join(_NAME.findall(unknown[0]))


def _holds_of_nan(schema: pa.Schema, name: str, op: str, _: object) -> bool:
    """Return whether a condition is true of NaN."""
    return op in ("!=", "not in") and bool(pa.types.is_floating(_type_of(schema, name)))


def _type_of(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column, or of a member of a struct, without its dictionary."""
    kind = pa.struct(schema)
    for step in steps(schema, name):
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            raise unknown_columns([name], _names(schema), what="filters: ")
        kind = kind.field(step).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _names(schema: pa.Schema) -> list[str]:
    return list(dict.fromkeys(name for name, _ in flat_fields(schema)))


def _may_hold_of_nan(expression: pc.Expression) -> bool:
    """Return whether an expression is perhaps true of NaN: it is not where it only compares, and negates nothing."""
    text = str(expression).replace("nan_is_null=false", "")
    functions = set(re.findall(r"(\w+)\(", text))
    return not functions <= _FALSE_OF_NAN or any(word in text.lower() for word in ("!=", "nan", "..."))


def steps(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Return the way to `name`: itself where a column has this name, else through structs by its dots."""
    if schema.get_field_index(name) >= 0:
        return (name,)
    parts = name.split(".")
    for i in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:i])
        index = schema.get_field_index(head)
        if index >= 0 and pa.types.is_struct(schema.field(index).type):
            struct = schema.field(index).type
            return (head, *steps(pa.schema(list(struct)), ".".join(parts[i:])))
    return (name,)


def passes(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    """Return one bool a row: whether `expression`, which must be a condition, is true, false or null there."""
    import pyarrow.acero as acero  # pyarrow.dataset, which it pulls in, imports pandas where that is installed

    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["passes"])),
        ]
    )
    # One thread: rows stay in their order, which pyarrow promises of no more, and the caller brings the threads.
    mask = plan.to_table(use_threads=False).column(0)
    if not pa.types.is_boolean(mask.type):
        raise ValueError(f"filters: {expression} gives {mask.type}, not true or false")
    return mask


def needed_columns(schema: pa.Schema, expression: pc.Expression) -> pa.Schema:
    """Return the smallest part of `schema` that `expression` can be evaluated on; structs lose unused members.

    Found by asking which column it misses, one after the other: exact, whatever the expression is.
    """
    leaves, names = [name for name, _ in flat_fields(schema)], set[str]()
    while True:
        part = restrict(schema, names)
        try:
            passes(part.empty_table(), expression)
        except (pa.ArrowException, TypeError, KeyError, ValueError) as error:
            missing = _missing(error)
            found = {leaf for leaf in leaves if leaf == missing or leaf.startswith(f"{missing}.")} - names
            if not found:  # a name that the message does not tell
                return schema
            names |= found
        else:
            return part


def _literal(name: str, kind: pa.DataType, value: Any) -> pa.Scalar | float:
    """Return a value in the type of a column.

    decimal(5, 2)   1.25, Decimal("1.25")     Decimal("1.255") does not fit
    timestamp[ms]   datetime, date            a microsecond does not fit
    float32         0.1                       the nearest float32
    int8            1, 1.0                    1.5 and 300 are no int8: they come back as they are
    """
    types = pa.types
    if types.is_integer(kind) and isinstance(value, int | float) and not isinstance(value, bool):
        return _integer(kind, value)
    if types.is_floating(kind) and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _float(name, kind, value)
    if types.is_nested(kind):
        raise ValueError(f"filters: column {name!r} is {kind}, which is no single value: name one of its members")
    try:
        converted = _converted(kind, value)
        if converted is not None:
            return converted if converted.type.equals(kind) else converted.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
        raise _does_not_fit(name, kind, value, str(error).splitlines()[0]) from error
    what = f"filters: column {name!r} is {kind}, and cannot be compared with {_shown(value)}"
    raise ValueError(what + _hint(kind, value))


def _does_not_fit(name: str, kind: pa.DataType, value: object, reason: str) -> ValueError:
    return ValueError(f"filters: column {name!r} is {kind}, and {_shown(value)} does not fit it: {reason}")


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type."""
    limits = np.iinfo(dtype_of(kind))
    return limits.min, limits.max


def _integer(kind: pa.DataType, value: float) -> pa.Scalar | float:
    low, high = _bounds(kind)
    return pa.scalar(int(value), kind) if low <= value <= high and value == int(value) else value


def _float(name: str, kind: pa.DataType, value: float | Decimal) -> pa.Scalar:
    dtype = dtype_of(kind)
    with np.errstate(over="ignore"):
        try:
            found = dtype.type(float(value))
        except OverflowError:
            found = dtype.type(math.inf)
    if np.isinf(found) and not (isinstance(value, float) and math.isinf(value)):
        raise _does_not_fit(name, kind, value, "it is larger than any number of this type")
    return pa.scalar(found, kind)


def _converted(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """Return a value as Arrow has it, still to be cast; None where it is of another sort than the column."""
    types = pa.types
    if isinstance(value, pa.Scalar):  # a time with nanoseconds
        is_alike = types.is_duration(kind) and types.is_duration(value.type)
        is_alike |= types.is_timestamp(kind) and types.is_timestamp(value.type) and value.type.tz == kind.tz
        return value if is_alike else None
    if types.is_decimal(kind):
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return None
        # What is written is meant: of the float 0.1 this, and not 0.1000000000000000055.
        exact = Decimal(repr(value) if isinstance(value, float) else value)
        return pa.scalar(exact) if exact.is_finite() else None
    if types.is_timestamp(kind):
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        is_alike = isinstance(value, datetime) and (value.tzinfo is None) == (kind.tz is None)
        return pa.scalar(value, pa.timestamp("us", kind.tz)) if is_alike else None
    if types.is_date(kind):
        if isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
            value = value.date()
        is_alike = isinstance(value, date) and not isinstance(value, datetime)
    elif types.is_string(kind) or types.is_large_string(kind):
        is_alike = isinstance(value, str | bytes)
    elif types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        value = value.encode() if isinstance(value, str) else value
        is_alike = isinstance(value, bytes)
    elif types.is_boolean(kind) or types.is_time(kind):
        is_alike = isinstance(value, bool if types.is_boolean(kind) else time)
    else:
        is_alike = types.is_duration(kind) and isinstance(value, timedelta)
    return pa.scalar(value) if is_alike else None


def _hint(kind: pa.DataType, value: object) -> str:
    if not pa.types.is_temporal(kind):
        return ""
    if pa.types.is_timestamp(kind):
        if isinstance(value, date | pa.Scalar):
            return ": give a datetime with a tzinfo" if kind.tz is not None else ": give a datetime without a tzinfo"
        return ": give a datetime.datetime"
    if pa.types.is_date(kind):
        return ": give a datetime.date, which has no time of the day"
    return ": give a datetime.time" if pa.types.is_time(kind) else ": give a datetime.timedelta"


def surviving_row_groups(
    footer: pa.Buffer, num_groups: int, *, expression: pc.Expression, schema: pa.Schema, partition: pc.Expression | None
) -> frozenset[int]:
    """Return the row groups that may hold a row that passes, by the statistics in a footer; no source is read.

    Statistics that pyarrow cannot use prove nothing: then it is all of them.

    Args:
        footer: A Parquet file without its data: the magic number, the footer, its length, the magic number.
        num_groups: Row groups of the file.
        expression: What may be asked of them; see `Filter.prunable`.
        schema: Of the data set, partition columns included.
        partition: What is true of every row of the file.
    """
    import pyarrow.dataset as ds  # imports pandas where that is installed

    every = frozenset(range(num_groups))
    told = {} if partition is None else {"partition_expression": partition}
    try:
        fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer), **told)
        return every.intersection(group.id for group in fragment.subset(expression, schema=schema).row_groups)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return every
