"""What footers say of nulls is what is there, wherever they say anything."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from stoker import Dataset
from stoker.testing import MemoryStorage

ROW = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(0, 9),
        "s": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2),
        "w": st.none() | st.sampled_from(["x", "y"]),
    }
)
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.struct([("x", pa.int64())])),
        ("l", pa.list_(pa.int64())),
        ("w", pa.string()),
    ]
)


@given(
    files=st.lists(st.lists(ROW, min_size=1, max_size=30), min_size=1, max_size=3),
    group=st.integers(1, 30),
    chunk_size=st.sampled_from([1, 100, 500, 1 << 20]),
    with_statistics=st.sampled_from([True, False, ["a"]]),
    lacks_column=st.booleans(),
    filters=st.sampled_from([None, [("a", ">=", 3)]]),
)
def test_known_null_counts_are_those_of_the_rows(files, group, chunk_size, with_statistics, lacks_column, filters):
    storage = MemoryStorage()
    for i, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        if lacks_column and i:
            table = table.drop_columns(["w"])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=group, write_statistics=with_statistics)
        storage.put(f"t/{i}.parquet", sink.getvalue().to_pybytes())
    catalogue = Dataset("t", storage=storage, chunk_size=chunk_size, filters=filters).open()
    seen = {j: table for i in range(len(catalogue)) for j, table in catalogue.read(i)}
    for name, counts in catalogue.null_counts.items():
        assert len(counts) == len(catalogue.files)
        for f, count in enumerate(counts.tolist()):
            there = sum(seen[j].column(name).null_count for j in np.flatnonzero(catalogue.file_of_chunk == f).tolist())
            assert count in (-1, there), (name, f)
            is_told = with_statistics is True or (name == "a" and with_statistics == ["a"])
            lacks = lacks_column and name == "w" and f
            if name in ("a", "w") and filters is None and (lacks or is_told):
                assert count == there, (name, f)
