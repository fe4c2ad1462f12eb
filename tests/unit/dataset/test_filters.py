"""Filters: what is refused, what they need, what identifies them."""

from __future__ import annotations

import datetime as dt
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, SourceError
from stoker.testing import MemoryStorage, write_parquet


def identity(filters):
    """Return what stands for a filter wherever one is told from another."""
    return Dataset("lake", filters=filters).recipe()["filter"]


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
        Dataset("lake", filters=wrong)


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


@pytest.mark.parametrize(
    "same", [[("a", "==", 3)], [["a", "=", np.int64(3)]], [[("a", "=", 3)]], [("a", "=", pa.scalar(3))]]
)
def test_one_filter_written_differently_is_the_same(same):
    same = [tuple(c) if isinstance(c, list) and isinstance(c[0], str) else c for c in same]
    assert identity(same) == identity([("a", "=", 3)])


def test_a_time_of_another_library_is_the_same_as_that_of_python():
    for time, others in (
        (dt.datetime(2024, 1, 1), [pd.Timestamp(2024, 1, 1), np.datetime64("2024-01-01T00", "h")]),
        (dt.timedelta(hours=1), [pd.Timedelta("1h"), np.timedelta64(60, "m"), pa.scalar(3600, pa.duration("s"))]),
    ):
        for other in others:
            assert identity([("a", "<", other)]) == identity([("a", "<", time)])
    for nanosecond in (pd.Timedelta(1, "ns"), np.timedelta64(1, "ns"), pa.scalar(1, pa.duration("ns"))):
        filters = [("a", "<", nanosecond)]
        assert identity(filters) == identity([("a", "<", np.timedelta64(1, "ns"))])
        assert "filters='a < 1 (duration[ns])'" in repr(Dataset("lake", filters=filters))
    # A set is put in the order of such texts: what Arrow writes takes pandas.
    several = Dataset("lake", filters=[("a", "in", {np.timedelta64(2, "ns"), np.timedelta64(10, "ns")})])
    assert "filters='a in (10 (duration[ns]), 2 (duration[ns]))'" in repr(several)


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
    assert len({str(identity(one)) for one in filters}) == len(filters)


def test_a_set_of_values_has_one_identity():
    assert identity([("b", "in", {"x", "y", "z"})]) == identity([("b", "in", {"z", "y", "x"})])


ROWS = pa.table(
    {
        "id": [0, 1, 2],
        "a": [1, 5, 9],
        "b": ["user ab", "y", None],
        "user": [{"age": 20, "home": {"zip": "x"}}, {"age": 40, "home": {"zip": "z"}}, None],
        "ab": [1.0, 5.0, 2.0],
        "x.y": [2, 3, 4],
    }
)


@pytest.mark.parametrize(
    ("filters", "needed", "num_rows"),
    [
        ([("a", ">", 3)], {"a"}, 2),
        ([("ab", ">", 3)], {"ab"}, 1),
        ([("user.age", ">", 3)], {"user.age"}, 2),
        ([("user.home.zip", "=", "x"), ("b", "=", "y")], {"user.home.zip", "b"}, 0),
        ([("x.y", "=", 3)], {"x.y"}, 1),
        (pc.field("user", "home", "zip") == "x", {"user.home.zip"}, 1),
        (pc.field("user").is_null(), {"user.age", "user.home.zip"}, 1),
        ((pc.field("a") > 5) | pc.field("b").is_null(), {"a", "b"}, 1),
        (pc.field("b") == "user ab", {"b"}, 1),
        (pc.scalar(True), set(), 3),
        (pc.scalar(False), set(), 0),
    ],
)
def test_only_the_columns_of_the_filter_are_needed_to_count_rows(filters, needed, num_rows):
    sink = io.BytesIO()
    pq.write_table(ROWS, sink, write_statistics=False, use_dictionary=False)
    group = pq.read_metadata(sink).row_group(0)
    columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}

    def opened(sound):
        content = bytearray(sink.getvalue())
        for name in columns.keys() - sound:
            first = columns[name].data_page_offset
            content[first : first + columns[name].total_compressed_size] = bytes(columns[name].total_compressed_size)
        return Dataset("a", storage=MemoryStorage({"a": bytes(content)}), columns=["id"], filters=filters).open()

    assert opened(needed).num_samples.sum() == num_rows
    for name in needed:
        with pytest.raises(SourceError):
            opened(needed - {name})


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ([("nope", "=", 3)], "'nope'"),
        ([("user.nope", "=", 3)], "'user.nope'"),
        ([("a", ">", "x")], "cannot be compared with 'x'"),
        (pc.field("a") + 1, "gives int64, not true or false"),
        (pc.field("nope") > 1, r"'nope'.*\(nope > 1\)"),
        (pc.field("nope").is_valid(), r"'nope'.*is_valid\(nope\)"),
    ],
)
def test_a_filter_that_does_not_fit_the_columns_is_named_beside_the_reason(filters, says):
    storage = MemoryStorage()
    write_parquet(storage, ROWS, url="a")
    with pytest.raises(ValueError, match=f"^filters: .*{says}") as caught:
        Dataset("a", storage=storage, filters=filters).open()
    assert "\n" not in str(caught.value)


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
