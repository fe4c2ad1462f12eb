"""What conditions mean: SQL's null, IEEE's numbers, and literals that fit the column or are refused by name."""

from __future__ import annotations

import datetime as dt
import math
import operator
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, FieldError

NAN, UTC = float("nan"), dt.UTC
SLOW = [pytest.mark.slow]
COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, some: any(value == one for one in some),
    "not in": lambda value, some: all(value != one for one in some),
}


def at(*args):
    return dt.datetime(2024, 2, 29, *args)


# Type -> values, and literals to compare them with.
CASES = [
    (pa.int8(), [-128, 0, 1, 127, None], [0, 1, 1.0, 1.5, -0.5, 300, -129, 2**70, -(2**70), NAN, math.inf, -math.inf]),
    (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1, None], [2**53 + 1, float(2**53), 1e19, 2**63, -1.5]),
    (pa.uint64(), [0, 2**63, 2**64 - 1, None], [-1, 0, 2**63, 2**64 - 1, 2**64, 0.5]),
    (pa.float64(), [-0.0, 0.0, 1.5, NAN, math.inf, None], [0, 0.0, -0.0, 1.5, NAN, math.inf, Decimal("1.5")]),
    (pa.float32(), [-0.0, 0.0, 1.5, NAN, None], [0, 0.0, -0.0, 1.5, NAN]),
    (pa.float16(), [-0.0, 1.5, NAN, None], [0.0, 1.5, NAN]),
    (pa.decimal128(5, 2), [Decimal("-1.25"), Decimal("0.10"), None], [0, 0.1, -1.25, Decimal("0.1"), Decimal("0.100")]),
    (pa.bool_(), [True, False, None], [True, False]),
    (pa.string(), ["", "a", "b", None], ["", "a", b"b", "c"]),
    (pa.string_view(), ["", "a", "b", None], ["a", "c"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], ["a", "c"]),
    (pa.binary(), [b"", b"a", None], [b"a", "a"]),
    (pa.binary(2), [b"ab", b"cd", None], [b"ab", "cd"]),
    (
        pa.timestamp("ms"),
        [at(1), at(1, 2, 3, 4000), None],
        [at(1), dt.date(2024, 2, 29), *(np.datetime64(at(1), unit) for unit in ("us", "m", "h", "D"))],
    ),
    (pa.timestamp("ns", "UTC"), [at(1).replace(tzinfo=UTC), None], [at(1).replace(tzinfo=UTC)]),
    (pa.date32(), [dt.date(2024, 2, 29), None], [dt.date(2024, 2, 29), at(0), dt.date(1970, 1, 1)]),
    (pa.time64("us"), [dt.time(1), dt.time(1, 2, 3, 4), None], [dt.time(1), dt.time(1, 2, 3, 4)]),
    (
        pa.duration("ms"),
        [dt.timedelta(1), None],
        [dt.timedelta(1), np.timedelta64(1, "s"), np.timedelta64(3600, "24s")],
    ),
    (pa.duration("ns"), [dt.timedelta(0), dt.timedelta(microseconds=1)], [pd.Timedelta(1, "ns"), pd.Timedelta(1001)]),
]


def as_python(kind, literal):
    """Return a literal as it compares with what `to_pylist` gives."""
    literal = literal.item() if isinstance(literal, np.datetime64 | np.timedelta64) else literal
    if pa.types.is_timestamp(kind) and not isinstance(literal, dt.datetime):
        return dt.datetime.combine(literal, dt.time())
    if pa.types.is_date(kind) and isinstance(literal, dt.datetime):
        return literal.date()
    if pa.types.is_decimal(kind):
        return Decimal(repr(literal)) if isinstance(literal, float) else Decimal(literal)
    if isinstance(literal, Decimal):
        return float(literal)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return literal.encode() if isinstance(literal, str) else literal
    return literal.decode() if isinstance(literal, bytes) else literal


def count(path, filters):
    return int(Dataset(path, columns=["id"], filters=filters).open().num_samples.sum())


@pytest.mark.parametrize(
    ("place", "kind", "values", "literals"),
    [
        pytest.param(place, *case, id=f"{place} {case[0]}", marks=[] if place == "x" or case in CASES[::5] else SLOW)
        for place in ("x", "u.y")
        for case in CASES
    ],
)
def test_conditions_mean_what_sql_and_ieee_say(tmp_path, kind, values, literals, place):
    column = pa.array([None if v is None else np.float16(v) for v in values] if kind == pa.float16() else values, kind)
    if place == "u.y":
        if "view" in str(kind):
            pytest.skip("pyarrow writes no views inside of structs")
        column = pa.StructArray.from_arrays([column], ["y"])
    table = pa.table({"id": range(len(values)), "x" if place == "x" else "u": column})
    paths = {}
    for name, options in (("groups", {"row_group_size": 1}), ("bare", {"write_statistics": False})):
        paths[name] = tmp_path / f"{name}.parquet"
        pq.write_table(table, paths[name], **options)
    for op, compare in COMPARE.items():
        is_among = op in ("in", "not in")
        for literal in [[], literals, literals[:1], literals[-1:]] if is_among else literals:
            right = [as_python(kind, one) for one in literal] if is_among else as_python(kind, literal)
            want = sum(value is not None and compare(value, right) for value in values)
            for name, path in paths.items():
                assert count(path, [(place, op, literal)]) == want, (op, literal, name)


WRONG = [
    (pa.decimal128(5, 2), Decimal("1.255"), "does not fit"),
    (pa.decimal128(5, 2), Decimal("12345.6"), "does not fit"),
    (pa.decimal128(5, 2), 10**90, "does not fit"),
    (pa.decimal128(5, 2), NAN, "cannot be compared"),
    (pa.decimal128(5, 2), "1.25", "cannot be compared"),
    (pa.timestamp("ms"), at(1, 2, 3, 4), "does not fit"),
    (pa.timestamp("ns"), dt.datetime(9999, 1, 1), "does not fit"),
    (pa.timestamp("ms"), at(1).replace(tzinfo=UTC), "without a tzinfo"),
    (pa.timestamp("ms", "UTC"), at(1), "with a tzinfo"),
    (pa.timestamp("ms", "UTC"), dt.date(2024, 2, 29), "with a tzinfo"),
    (pa.timestamp("ms"), "2024-02-29", "give a datetime"),
    (pa.timestamp("us"), np.datetime64("2024-02-29T00:00:00.000000001", "ns"), "does not fit"),
    (pa.date32(), at(1), "give a datetime.date"),
    (pa.time32("ms"), dt.time(1, 2, 3, 4), "does not fit"),
    (pa.duration("s"), dt.timedelta(microseconds=1), "does not fit"),
    (pa.duration("us"), pd.Timedelta(100_000_001, "ns"), "does not fit"),
    (pa.float32(), 1e300, "does not fit"),
    (pa.int8(), "a", "cannot be compared"),
    (pa.int8(), True, "cannot be compared"),
    (pa.bool_(), 1, "cannot be compared"),
    (pa.string(), 1, "cannot be compared"),
    (pa.string(), b"\xff", "does not fit"),
    (pa.binary(2), b"abc", "does not fit"),
    (pa.list_(pa.int8()), 1, "one of its members"),
]


@pytest.mark.parametrize(("kind", "literal", "says"), WRONG, ids=[f"{kind} {value!r}" for kind, value, _ in WRONG])
def test_a_literal_that_does_not_fit_names_column_type_and_value(tmp_path, kind, literal, says):
    pq.write_table(pa.table({"id": [1], "x": pa.array([None], kind)}), tmp_path / "a.parquet")
    for op in COMPARE:
        value = [literal] if op in ("in", "not in") else literal
        with pytest.raises(ValueError, match=r"^filters: column 'x' is ") as caught:
            Dataset(tmp_path, filters=[("x", op, value)]).open()
        assert says in str(caught.value)
        assert str(kind) in str(caught.value)
        if says != "one of its members":
            assert repr(literal) in str(caught.value) or "9999" in str(caught.value) or "00000001" in str(caught.value)


@pytest.mark.parametrize(
    "filters", [[("prise", "=", 1)], [("user.aga", "=", 1)], pc.field("prise") > 1, pc.field("user", "aga") > 1]
)
def test_an_unknown_column_is_named_with_what_is_near(tmp_path, filters):
    pq.write_table(pa.table({"price": [1], "user": [{"age": 2}]}), tmp_path / "a.parquet")
    with pytest.raises(FieldError, match=r"^filters: no file has the column .*did you mean '(price|user\.age)"):
        Dataset(tmp_path, filters=filters).open()


def test_an_expression_that_cannot_be_asked_is_refused_when_it_is_opened(tmp_path):
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us", "UTC"))}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"^filters: "):
        Dataset(tmp_path, filters=pc.field("t") > dt.datetime(2024, 1, 1)).open()


# ---------------------------------------------------------------------- columns that files hold in two types

PAIRS = [
    (pa.int8(), pa.int64(), [1, 100, None], 100),
    (pa.int64(), pa.float64(), [1, 100, None], 100),
    (pa.uint64(), pa.int64(), [1, 100, None], 100),
    (pa.float32(), pa.float64(), [0.5, 2.0, None], 2.0),
    (pa.int64(), pa.decimal128(5, 2), [1, 100, None], Decimal(100)),
    (pa.decimal128(5, 2), pa.decimal128(20, 6), [Decimal("1.25"), Decimal(2), None], Decimal("1.25")),
    (pa.string(), pa.string_view(), ["a", "b", None], "b"),
    (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], "b"),
    (pa.binary(), pa.binary(1), [b"a", b"b", None], b"b"),
    (
        pa.timestamp("ms"),
        pa.timestamp("us"),
        [dt.datetime(2024, 1, 1), dt.datetime(2025, 1, 1), None],
        dt.datetime(2025, 1, 1),
    ),
    (pa.date32(), pa.date64(), [dt.date(2024, 1, 1), dt.date(2025, 1, 1), None], dt.date(2025, 1, 1)),
    (pa.time32("ms"), pa.time64("us"), [dt.time(1), dt.time(2), None], dt.time(2)),
    (pa.null(), pa.int64(), [None, None], 1),
]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("one", "other", "values", "literal"), PAIRS, ids=[f"{a} and {b}" for a, b, _, _ in PAIRS])
def test_a_filter_holds_for_both_files(tmp_path, one, other, values, literal, statistics):
    for name, kind in (("a", one), ("b", other)):
        table = pa.table({"x": pa.array(values, kind), "id": range(len(values))})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1, write_statistics=statistics)
    here = [value for value in values if value is not None] * 2
    wanted = {
        "=": sum(value == literal for value in here),
        "!=": sum(value != literal for value in here),
        "<": sum(value < literal for value in here),
        ">=": sum(value >= literal for value in here),
    }
    for op, num in wanted.items():
        assert Dataset(tmp_path, columns=["id"], filters=[("x", op, literal)]).open().num_samples.sum() == num, op
    assert Dataset(tmp_path, filters=[("x", "in", [literal])]).open().num_samples.sum() == wanted["="]
    assert Dataset(tmp_path, filters=[("x", "not in", [literal])]).open().num_samples.sum() == wanted["!="]


@pytest.mark.parametrize("statistics", [True, False])
def test_a_value_that_fits_no_common_type_is_refused_when_the_data_set_is_opened(tmp_path, statistics):
    for name, column in (("a", pa.array([1.5])), ("b", pa.array([1, 2**53 + 1]))):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{name}.parquet", write_statistics=statistics)
    with pytest.raises(FieldError, match=r"column 'x' is int64 in .*b\.parquet.* and double for all.*9007199254740993"):
        Dataset(tmp_path).open()
