"""One schema for many files: the types that hold all, the columns that are asked for, and rows in that form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.delivered import read

from stoker import Dataset, FieldError
from stoker.testing import MemoryStorage, write_parquet


def lake(*tables, **options):
    """A data set of a file for each table."""
    storage = MemoryStorage()
    for i, table in enumerate(tables):
        write_parquet(storage, table, url=f"lake/{i}.parquet")
    return Dataset("lake", storage=storage, **options)


def test_types_widen_to_hold_every_file():
    widened = [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int16(), pa.int8(), pa.int16()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
    ]
    files = [pa.schema([(f"x{i}", kinds[k]) for i, kinds in enumerate(widened)]).empty_table() for k in range(2)]
    structs = [
        pa.table({"u": pa.array([], pa.struct({name: kind}))}) for name, kind in (("a", pa.int32()), ("b", pa.int8()))
    ]
    for pair in ((0, 1), (1, 0)):
        schema = lake(*(files[k] for k in pair)).open().schema
        assert schema.types == [both for _, _, both in widened]
        found = lake(*(structs[k] for k in pair)).open().schema
        assert {field.name: field.type for field in found} == {"u.a": pa.int32(), "u.b": pa.int8()}


def test_columns_of_later_files_come_last():
    assert lake({"a": [1]}, {"b": [1], "a": [1]}).open().schema.names == ["a", "b"]


def test_types_that_do_not_go_together_name_column_and_files():
    tables = [{"x": pa.array([1], pa.int32())}, {"x": [1]}, {"x": ["a"]}]
    with pytest.raises(FieldError, match=r"'x' is string in lake/2\.parquet and int64 in lake/0\.parquet") as caught:
        lake(*tables).open()
    assert caught.value.columns == ("x",)


def test_a_name_twice_in_one_file_is_an_error():
    with pytest.raises(FieldError, match=r"lake/0\.parquet has two columns named 'u\.a'"):
        lake({"u.a": [1], "u": [{"a": 1}]}).open()


NESTED = {
    "a": [1, 2, 3],
    "l": [[1], [], [2, 3]],
    "lx": [4, 5, 6],
    "u": [{"x": 1, "s": {"y": 2}}, None, {"x": None, "s": None}],
    "Label": [0, 1, 0],
    "user": [7, 8, 9],
}


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (None, ["a", "l", "lx", "u.x", "u.s.y", "Label", "user"]),
        (["u", "a"], ["u.x", "u.s.y", "a"]),
        (["u.s.y", "u"], ["u.s.y", "u.x"]),
        (["l", "u.s"], ["l", "u.s.y"]),
        (["u.s.y"], ["u.s.y"]),
    ],
)
def test_columns_come_in_the_order_they_are_named_and_structs_taken_apart(columns, names):
    flat = {"u.x": [1, None, None], "u.s.y": [2, None, None]}
    table = read(lake(NESTED, columns=columns))
    assert table.schema.names == names
    assert table.to_pydict() == {name: flat.get(name) or NESTED[name] for name in names}


def test_unknown_columns_are_all_named_with_what_is_near():
    told = r"'label' \(did you mean 'Label'\?\); 'u\.xs' \(did you mean 'u\.x' or 'u\.s\.y'\?\); 'zzz'\."
    with pytest.raises(FieldError, match=told) as caught:
        lake(NESTED, columns=["label", "a", "u.xs", "zzz"]).open()
    assert caught.value.columns == ("label", "u.xs", "zzz")


@pytest.mark.parametrize("chunk_size", ["32MiB", 4])
def test_files_are_brought_into_the_common_form_whole_and_by_parts(chunk_size):
    new = pa.table({"b": pa.array([0], pa.int64()), "u": [{"x": 2**40, "z": "a"}], "new": pa.array([7], pa.int8())})
    structs = pa.array([{"x": i} if i % 2 else None for i in range(9)], pa.struct({"x": pa.int8()}))
    old = pa.table({"u": structs, "b": pa.array(range(9), pa.int8())})
    table = read(lake(new, old, chunk_size=chunk_size))
    assert table.schema == pa.schema([("b", pa.int64()), ("u.x", pa.int64()), ("u.z", pa.string()), ("new", pa.int8())])
    rows = [(i, i if i % 2 else None, None, None) for i in range(9)]
    assert [tuple(row.values()) for row in table.to_pylist()] == [(0, 2**40, "a", 7), *rows]


def test_a_value_that_does_not_fit_names_fragment_and_column():
    with pytest.raises(FieldError, match=r"column 'b' is int64 in lake/0\.parquet row group 0, and double"):
        lake({"b": [2**53 + 1]}, {"b": [0.5]}).open()


FLOATS = pa.array(np.zeros(16 * 1024, np.float32))


@pytest.mark.parametrize(
    ("array", "width"),
    [
        (pa.array(np.zeros(1024, np.int64)), 8),
        (pa.array(np.zeros(1024, np.bool_)), 1),
        (pa.array([b"12345"] * 1024, pa.binary(5)), 5),
        (pa.FixedSizeListArray.from_arrays(FLOATS, 16), 64 + 4),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1024, 2, 3), np.float32)), 24 + 4),
    ],
    ids=lambda one: str(getattr(one, "type", one)),
)
def test_a_chunk_has_as_many_values_as_chunk_size_holds_once_decoded(array, width):
    catalogue = lake({"x": array}, chunk_size=128 * width).open()
    assert catalogue.num_rows.tolist() == [128] * 8
