"""Where runs begin: keys of any type, nulls, gaps in time."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import FieldError
from stoker.dataset.runs import RunRule, equals_before, num_distinct

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 1, 2, None, None, 2]),
        (pa.float64(), [0.5, NAN, NAN, None, None, 0.5]),
        (pa.float16(), [np.float16(1), np.float16(1), None, np.float16(2), np.float16(2), np.float16(2)]),
        (pa.string(), ["a", "a", "", None, None, "b"]),
        (pa.string_view(), ["a", "a", "", None, None, "b"]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "a", "b", None, None, "b"]),
        (pa.binary(2), [b"aa", b"aa", None, b"ab", b"ab", b"aa"]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 1), None, None, date(2026, 1, 2), date(2026, 1, 1)]),
        (pa.decimal128(5, 2), [Decimal("1.00"), Decimal("1.00"), None, None, Decimal("2.50"), Decimal("1.00")]),
        (pa.bool_(), [True, True, None, None, False, True]),
        (pa.null(), [None] * 6),
    ],
    ids=str,
)
def test_neighbours_of_any_type_are_equal_where_their_values_are(kind, values):
    def is_same(a, b) -> bool:
        return a is b or a == b or (a is not None and b is not None and a != a and b != b)

    column = pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:3], kind), pa.array(values[3:], kind)])
    expected = [is_same(a, b) for a, b in pairwise(values)]
    assert equals_before(column).tolist() == expected


keys = st.lists(st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from(["", "a", None])), max_size=30)


@given(keys=keys)
def test_a_run_of_several_columns_ends_where_any_of_them_changes(keys):
    table = pa.table({"a": pa.array([a for a, _ in keys], pa.int8()), "b": pa.array([b for _, b in keys], pa.string())})
    begins, is_wrong = RunRule(keys=("a", "b")).begins(table)
    assert begins.tolist() == [i == 0 or keys[i] != keys[i - 1] for i in range(len(keys))]
    assert not is_wrong.any()
    assert num_distinct(table, ["a", "b"]) == len(set(keys))


def test_a_gap_in_time_ends_a_run_and_going_back_within_a_key_is_wrong():
    rule = RunRule(keys=("k",), timestamp="t", max_gap=5)
    table = pa.table({"k": [1, 1, 1, 2, 2, 2], "t": [0, 5, 11, 3, 2, 4]})
    begins, is_wrong = rule.begins(table)
    assert begins.tolist() == [True, False, True, True, False, False]
    assert np.flatnonzero(is_wrong).tolist() == [4]  # row 3 is earlier than row 2, but of another key
    _, is_wrong = rule.begins(pa.table({"k": [1, 1], "t": pa.array([0, None], pa.int64())}))
    assert is_wrong.tolist() == [False, True]


@pytest.mark.parametrize(
    ("kind", "gap"), [("s", 2), ("ms", 2_000), ("us", 2_000_000), ("ns", 2_000_000_000)], ids=lambda v: str(v)
)
def test_a_timedelta_is_a_number_of_the_timestamps_own_steps(kind, gap):
    column = pa.array([0, gap, 2 * gap + 1], pa.int64()).cast(pa.timestamp(kind))
    rule = RunRule(keys=(), timestamp="t", max_gap=timedelta(seconds=2))
    assert rule.begins(pa.table({"t": column}))[0].tolist() == [True, False, True]
    days = pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 4)])
    rule = RunRule(keys=(), timestamp="t", max_gap=timedelta(days=1))
    assert rule.begins(pa.table({"t": days}))[0].tolist() == [True, False, True]


def test_columns_that_cannot_serve_are_refused_by_name():
    schema = pa.schema({"list": pa.list_(pa.int8()), "word": pa.string(), "n": pa.int64()})
    with pytest.raises(FieldError, match=r"'list' .*cannot be a key"):
        RunRule(keys=("list",)).check(schema)
    with pytest.raises(FieldError, match=r"'word'.*cannot be the timestamp"):
        RunRule(keys=(), timestamp="word").check(schema)
    with pytest.raises(FieldError, match=r"timedelta.*give a number"):
        RunRule(keys=(), timestamp="n", max_gap=timedelta(seconds=1)).check(schema)
