"""Filters: what is refused, what they need, what identifies them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stoker import Dataset
from stoker.dataset.filters import needed_columns, parse_filter, passes

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("user", pa.struct([("age", pa.int32()), ("home", pa.struct([("zip", pa.string())]))])),
        ("ab", pa.float64()),
        ("x.y", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ("a > 3", TypeError, "list of"),
        (3, TypeError, "list of"),
        ([], ValueError, "empty"),
        ([[]], ValueError, "empty"),
        ([("a", 3)], TypeError, "name, operator, value"),
        (["a"], TypeError, "list of"),
        ([(1, "=", 3)], TypeError, "named by a text"),
        ([("a", "=>", 3)], ValueError, "unknown operator '=>'"),
        ([("a", "in", 3)], TypeError, "list of values"),
        ([("a", "in", "DE")], TypeError, "list of values"),
        ([("a", "=", None)], TypeError, "is_null"),
        ([("a", "=", np.datetime64("NaT"))], TypeError, "is_null"),
        ([("a", ">", pd.NaT)], TypeError, "is_null"),
        ([("a", "=", object())], TypeError, "cannot be compared"),
        (pc.field(0) > 3, ValueError, "by their names"),
    ],
)
def test_a_wrong_filter_is_refused_before_anything_is_read(wrong, error, says):
    with pytest.raises(error, match=says):
        parse_filter(wrong)


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        *((np.datetime64("12000-01-01", unit), "years 1 to 9999") for unit in ("Y", "M", "W", "D", "h", "s", "us")),
        (np.datetime64("-0001-01-01", "D"), "years 1 to 9999"),
        (np.datetime64(2**62, "D"), "years 1 to 9999"),
        *((np.datetime64(1, unit), "nanosecond at the finest") for unit in ("ps", "fs", "as")),
        (pa.scalar(2**40, pa.timestamp("s")), "years 1 to 9999"),
        (pa.scalar(2**30, pa.date32()), "years 1 to 9999"),
        *((np.timedelta64(3, unit), "a duration in weeks or a shorter unit") for unit in ("M", "Y", "ps", "generic")),
        (np.timedelta64(2**62, "W"), "a duration in weeks or a shorter unit"),
        (pa.scalar(2**62, pa.duration("s")), "a duration in weeks or a shorter unit"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: ("<", value), lambda value: ("in", [value])])
def test_a_time_that_python_cannot_say_is_refused_with_its_column_and_a_way_out(value, way_out, wrap):
    with pytest.raises(ValueError, match=way_out) as caught:
        Dataset("lake", filters=[("when", *wrap(value))])
    assert "'when'" in str(caught.value)
    assert (repr(value) if isinstance(value, np.generic) else str(value.type)) in str(caught.value)


def test_no_filter_is_none():
    assert parse_filter(None) is None


@pytest.mark.parametrize(
    "same", [[("a", "==", 3)], [["a", "=", np.int64(3)]], [[("a", "=", 3)]], [("a", "=", pa.scalar(3))]]
)
def test_one_filter_written_differently_is_the_same(same):
    same = [tuple(c) if isinstance(c, list) and isinstance(c[0], str) else c for c in same]
    assert parse_filter(same).to_json() == parse_filter([("a", "=", 3)]).to_json()


def test_a_time_of_another_library_is_the_same_as_that_of_python():
    for time, others in (
        (dt.datetime(2024, 1, 1), [pd.Timestamp(2024, 1, 1), np.datetime64("2024-01-01T00", "h")]),
        (dt.timedelta(hours=1), [pd.Timedelta("1h"), np.timedelta64(60, "m"), pa.scalar(3600, pa.duration("s"))]),
    ):
        for other in others:
            assert parse_filter([("a", "<", other)]).to_json() == parse_filter([("a", "<", time)]).to_json()
    for nanosecond in (pd.Timedelta(1, "ns"), np.timedelta64(1, "ns"), pa.scalar(1, pa.duration("ns"))):
        found = parse_filter([("a", "<", nanosecond)])
        assert found.to_json() == parse_filter([("a", "<", np.timedelta64(1, "ns"))]).to_json()
        assert str(found) == "a < 1 (duration[ns])"
    # A set is put in the order of such texts: what Arrow writes takes pandas.
    several = parse_filter([("a", "in", {np.timedelta64(2, "ns"), np.timedelta64(10, "ns")})])
    assert str(several) == "a in (10 (duration[ns]), 2 (duration[ns]))"


def test_filters_that_differ_in_anything_differ_in_identity():
    filters = [
        [("a", "=", np.timedelta64(1, "ns"))],
        [("a", "=", np.timedelta64(2, "ns"))],
        [("a", "=", np.datetime64(1, "ns"))],
        [("a", "=", 3)],
        [("a", "=", 3.0)],
        [("a", "=", "3")],
        [("a", "=", True)],
        [("a", "!=", 3)],
        [("b", "=", 3)],
        [("a", "in", [3])],
        [("a", "=", dt.date(2024, 1, 1))],
        [("a", "=", dt.datetime(2024, 1, 1))],
        [[("a", "=", 3)], [("a", "=", 4)]],
        [[("a", "=", 3), ("a", "=", 4)]],
        pc.field("a") == 3,
        pc.field("a").isin(list(range(1000))),
        pc.field("a").isin([*range(500), -1, *range(501, 1000)]),
    ]
    assert len({str(parse_filter(f).to_json()) for f in filters}) == len(filters)


def test_a_set_of_values_has_one_identity():
    assert (
        parse_filter([("b", "in", {"x", "y", "z"})]).to_json() == parse_filter([("b", "in", {"z", "y", "x"})]).to_json()
    )


@pytest.mark.parametrize(
    ("filters", "needed"),
    [
        ([("a", ">", 3)], {"a"}),
        ([("ab", ">", 3)], {"ab"}),
        ([("user.age", ">", 3)], {"user.age"}),
        ([("user.home.zip", "=", "x"), ("b", "=", "y")], {"user.home.zip", "b"}),
        ([("x.y", "=", 3)], {"x.y"}),
        (pc.field("user", "home", "zip") == "x", {"user.home.zip"}),
        ((pc.field("a") > 3) | pc.field("b").is_null(), {"a", "b"}),
        (pc.field("b") == "user ab", {"b"}),
        (pc.scalar(True), set()),
    ],
)
def test_only_the_columns_of_the_filter_are_needed(filters, needed):
    expression = parse_filter(filters).bind(SCHEMA)

    def leaves(fields, above=""):
        return {
            leaf
            for f in fields
            for leaf in (leaves(f.type, f"{above}{f.name}.") if pa.types.is_struct(f.type) else {above + f.name})
        }

    assert leaves(needed_columns(SCHEMA, expression)) == needed


def test_a_struct_that_is_asked_for_as_a_whole_is_needed():
    found = needed_columns(SCHEMA, parse_filter(pc.field("user").is_null()).bind(SCHEMA))
    assert found.names == ["user"]


@pytest.mark.parametrize(
    "wrong", [[("nope", "=", 3)], [("user.nope", "=", 3)], [("a", ">", "x")], pc.field("a") + 1, pc.field("nope") > 1]
)
def test_a_filter_that_does_not_fit_the_columns_is_a_value_error(wrong):
    with pytest.raises(ValueError, match=r"filters|match|No match"):
        parse_filter(wrong).bind(SCHEMA)


def test_a_filter_that_does_not_fit_the_columns_is_named_beside_the_reason():
    with pytest.raises(ValueError, match=r"^filters: .*nowhere.*is_valid\(nowhere\)") as caught:
        parse_filter(pc.field("nowhere").is_valid()).bind(pa.schema([("here", pa.int32())]))
    assert "\n" not in str(caught.value)


def test_rows_keep_their_order():
    table = pa.table({"a": np.arange(3_000_000)})
    mask = passes(table, pc.bit_wise_and(pc.field("a"), 1) == 0)
    kept = table.filter(mask)["a"].to_numpy()
    assert (np.diff(kept) > 0).all()


def test_a_null_does_not_pass():
    table = pa.table({"a": pa.array([1, None, 3])})
    assert passes(table, pc.field("a") > 1).to_pylist() == [False, None, True]


NAN = float("nan")


@pytest.mark.parametrize(
    ("filters", "num_rows"),
    [
        ([("x", "!=", 0.0)], 1),
        ([("x", "not in", [0.0, 1.0])], 1),
        ([[("n", "=", 9)], [("x", "!=", 0.0)]], 1),
        ([[("n", "=", 1), ("x", "!=", 0.0)]], 1),
        ([("x", "=", 0.0)], 1),
        ([("x", ">", 0.0)], 0),
        (~(pc.field("x") <= 0.0), 1),
        (pc.field("x") != 0.0, 1),
        (pc.field("x").is_nan(), 1),
        (pc.field("s", "y") != 0.0, 1),
        (pc.field("x").is_null(nan_is_null=True), 1),
        ((pc.field("x") > 0.0) | (pc.field("n") == 9), 0),
    ],
    ids=str,
)
def test_rows_that_are_nan_are_not_pruned_by_statistics_that_leave_them_out(filters, num_rows, tmp_path):
    table = pa.table({"x": [0.0, NAN], "n": [1, 1], "s": [{"y": 0.0}, {"y": NAN}]})
    pq.write_table(table, tmp_path / "a.parquet")
    catalogue = Dataset(tmp_path, columns=["n"], filters=filters).open()
    assert catalogue.num_samples.sum() == num_rows
    expression = filters if isinstance(filters, pc.Expression) else pq.filters_to_expression(filters)
    assert table.filter(expression).num_rows == num_rows


@pytest.mark.parametrize(
    "filters",
    [
        [("n", ">", 1)],
        [("n", ">", 1), ("x", "!=", 0.0)],
        [("x", ">", 1.0)],
        [("n", "!=", 1)],
        pc.field("x") > 1.0,
        ~(pc.field("n") == 1),
        (pc.field("x") > 1.0) & (pc.field("n") == 1),
    ],
    ids=str,
)
def test_row_groups_that_hold_nothing_are_pruned_all_the_same(filters, tmp_path):
    pq.write_table(pa.table({"x": [0.0, NAN], "n": [1, 1]}), tmp_path / "a.parquet")
    assert len(Dataset(tmp_path, filters=filters).open()) == 0
