"""Filters on a column that files hold in two types: each row is asked in the type that they share."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, FieldError

EARLY, LATE = dt.datetime(2024, 1, 1), dt.datetime(2025, 1, 1)
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
