"""Where the columns of a batch lie, asked of all at once: what Arrow says of each by itself."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cache.test_pack import packed

from stoker import Field, FieldError
from stoker._native import ExportedBatch
from stoker.columns import BatchColumns, Converter, plan_spec

VALUES = {
    pa.int8(): [1, None, 3, 4],
    pa.float64(): [1.0, 2.0, 3.0, 4.0],
    pa.bool_(): [True, None, False, True],
    pa.string(): ["a", "bc", None, ""],
    pa.list_(pa.int32()): [[1], [], None, [2, 3]],
    pa.dictionary(pa.int32(), pa.string()): ["a", None, "b", "a"],
    pa.struct([("x", pa.int32())]): [{"x": 1}, None, {"x": None}, {"x": 2}],
    pa.decimal128(9, 2): [None] * 4,
    pa.null(): [None] * 4,
}


@given(kinds=st.lists(st.sampled_from(list(VALUES)), max_size=9), first=st.integers(0, 3), num=st.integers(0, 4))
def test_an_exported_batch_knows_which_columns_have_nulls(kinds, first, num):
    columns = [pa.array(VALUES[kind], kind) for kind in kinds]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(kinds))]).slice(first, num)
    exported = ExportedBatch(batch.__arrow_c_array__()[1])
    found = exported.with_nulls(np.arange(len(kinds))[::-1].copy())
    # Nobody may have counted those of a slice.
    assert {len(kinds) - 1 - i for i in found} >= {i for i, column in enumerate(batch.columns) if column.null_count}
    if first == 0 and num == 4:
        assert len(found) == sum(column.null_count > 0 for column in batch.columns)
    with pytest.raises(IndexError, match="no such column"):
        exported.with_nulls(np.array([len(kinds)]))


@given(
    kind=st.sampled_from(["int8", "uint16", "int32", "int64", "float32", "float64"]),
    dtype=st.sampled_from([None, "int64", "float64"]),
    num_columns=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    begin=st.integers(0, 5),
    with_null=st.sampled_from([None, 0, 7]),
    step=st.integers(1, 150),
)
def test_many_columns_are_packed_as_they_stand(kind, dtype, num_columns, sizes, begin, with_null, step):
    num_rows = sum(sizes)
    if dtype == "int64" and kind[0] == "f":
        dtype = "float64"
    rows = np.arange(num_rows * num_columns).reshape(num_rows, num_columns) % 100
    expected = rows.astype(dtype or kind)
    columns: dict[str, pa.ChunkedArray] = {"id": pa.chunked_array([np.arange(num_rows)])}
    for j in range(num_columns):
        values, pieces, start = rows[:, j].astype(kind), [], 0
        for size in sizes:
            # Values behind others, as those of a part are.
            there = np.concatenate([np.full(begin, 99, kind), values[start : start + size]])
            is_null = np.zeros(len(there), np.bool_)
            is_null[begin] = with_null is not None and with_null == j and start == 0
            pieces.append(pa.array(there, mask=is_null if is_null.any() else None).slice(begin))
            start += size
        columns[f"c{j}"] = pa.chunked_array(pieces)
        if with_null == j:
            expected[0, j] = 55
    table = pa.table(columns)
    fields = {"x": Field(dtype, columns="c*", fill=None if with_null is None else 55)}
    spec = plan_spec(table.schema, fields)
    found = Converter(fields).convert(table, where="")
    records = packed(found, spec, num_rows, step=step).view(spec.record_dtype)
    np.testing.assert_array_equal(records["x"].reshape(num_rows, -1), expected)
    starts = found["x"].starts
    for i, part in enumerate(found["x"].parts):
        is_whole = with_null is None or with_null >= num_columns or i > 0
        assert isinstance(part, BatchColumns) == (is_whole and num_columns >= 16 and _is_as_stored(kind, dtype))
        assert len(part) == len(list(part)) == num_columns
        np.testing.assert_array_equal(part[-1], expected[starts[i] : starts[i + 1], -1])


def _is_as_stored(kind: str, dtype: str | None) -> bool:
    """Whether a column stays as it is until records are packed: integers are widened there."""
    return dtype in (None, kind) or (dtype == "int64" and kind in ("int8", "uint16", "int32"))


def test_a_null_among_many_columns_is_an_error_that_names_its_column():
    table = pa.table({f"c{j}": pa.array([1, None if j in (3, 20) else 2]) for j in range(40)})
    with pytest.raises(FieldError, match=r"c3.*\n?.*c20"):
        Converter({"x": Field(columns="c*")}).convert(table, where="lake/a.parquet")


FIRST_BATCHES = """
import sys
from stoker import Dataset, Field, Loader

folder = sys.argv[1]
dataset = Dataset(folder + "/a.parquet", fields={"w": Field(vocabulary=["b", "a"]), "y": Field(columns=["x"])})
for _ in range(2):  # looked through, and kept
    with Loader(dataset, cache=folder + "/cache", batch_size=10) as loader:
        assert len(list(loader)) == 10
print("pandas" in sys.modules)
"""


def test_no_batch_waits_for_an_import_of_pandas(tmp_path):
    pytest.importorskip("pandas")
    lists = [[i] * (i % 3) for i in range(100)]
    pq.write_table(pa.table({"x": range(100), "w": ["a", "b"] * 50, "h": lists}), tmp_path / "a.parquet")
    command = [sys.executable, "-c", FIRST_BATCHES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
