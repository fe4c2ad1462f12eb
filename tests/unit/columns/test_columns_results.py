"""What a transform may return, and what it may not."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.delivered import WHERE, delivered, loader_of
from tests.strategies import examples

from stoker import Field, FieldMismatchError, Ragged


def test_arrays_come_out_as_they_went_in():
    columns = {
        f"{dtype} {shape}": np.arange(5 * np.prod(shape, dtype=int)).reshape(5, *shape).astype(dtype)
        for dtype in ("bool", "int8", "uint64", "float16", "float32", "float64")
        for shape in ((), (3,), (2, 0))
    }
    found = delivered(columns)
    assert list(found) == list(columns)
    for name, array in columns.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)


def test_strides_and_byte_order_do_not_matter():
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    odd = {"a": array[:, ::2], "b": array.astype(">i4"), "c": np.asfortranarray(array), "d": array[::-1]}
    found = delivered(odd)
    for name, values in odd.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == np.int32


def test_times_of_numpy_have_the_units_of_arrow():
    columns = {
        "day": np.array(["2020-01-02"], "M8[D]"),
        "ns": np.array(["2020-01-02"], "M8[ns]"),
        "span": np.array([90], "m8[m]"),
    }
    with loader_of(columns) as loader:
        assert [entry.unit for entry in loader.spec] == ["s since 1970", "ns since 1970", "s"]
        (batch,) = loader
    assert [batch[name].tolist() for name in columns] == [[1577923200], [1577923200 * 10**9], [5400]]


@examples(8)
@given(st.lists(st.datetimes(min_value=dt.datetime(1970, 1, 1)), min_size=1, max_size=5))
def test_numpy_and_arrow_times_become_the_same_integers(times):
    values = np.array(times, "M8[us]")
    with loader_of({"numpy": values, "arrow": pa.array(times, pa.timestamp("us"))}) as loader:
        assert {entry.unit for entry in loader.spec} == {"us since 1970"}
        (batch,) = loader
    assert batch["arrow"].tolist() == batch["numpy"].tolist() == values.view(np.int64).tolist()


def test_not_a_time_and_masked_values_are_nulls():
    columns = {
        "t": np.array(["2020-01-02", "NaT"], "M8[ms]"),
        "m": np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, True], [False, False]]),
    }
    arrays = delivered(columns, {"t": Field(fill=-1), "m": Field(fill=9)})
    assert arrays["t"].tolist() == [1577923200000, -1]
    assert arrays["m"].tolist() == [[1, 9], [3, 4]]


def test_strings_of_numpy_are_strings():
    words = ["a", "né", ""]
    kinds = {"U": np.array(words), "O": np.array(words, object), "S": np.char.encode(np.array(words), "utf-8")}
    if hasattr(np.dtypes, "StringDType"):
        kinds["T"] = np.array(words, np.dtypes.StringDType())
    fields = {name: Field(num_bytes=3) for name in kinds}
    for array in delivered(kinds, fields).values():
        assert [bytes(row).rstrip(b"\0").decode() for row in array] == words
    coded = delivered({"x": np.array([["a", "b"], ["b", "b"]])}, {"x": Field(vocabulary=["a", "b"])})
    assert coded["x"].tolist() == [[0, 1], [1, 1]]


def test_none_among_objects_is_null():
    columns = {"x": np.array(["a", None], object)}
    assert delivered(columns, {"x": Field(vocabulary=["a"], fill=7)})["x"].tolist() == [0, 7]


def test_ragged_arrays_and_arrow_arrays_and_tables_are_taken():
    inner = Ragged(np.arange(5.0), np.array([0, 2, 2, 5], np.int32))
    columns = {
        "r": Ragged(np.ones((3, 2), np.int8), np.array([0, 1, 3])),
        "rr": Ragged(inner, np.array([0, 1, 3])),
        "a": pa.array([[1], [2, 3]]),
        "c": pa.chunked_array([["x"], ["y"]]),
    }
    arrays = delivered(columns)
    assert arrays["r"].values.shape == (3, 2)
    assert arrays["rr"].offsets.tolist() == [0, 1, 3]
    assert arrays["rr"].values.offsets.tolist() == [0, 2, 2, 5]
    assert arrays["a"].offsets.tolist() == [0, 1, 3]
    assert bytes(arrays["c"].values) == b"xy"
    batch = pa.record_batch({"x": pa.array([1, 2])})
    assert delivered(batch)["x"].tolist() == delivered(pa.table(batch))["x"].tolist() == [1, 2]


def test_fields_apply_to_results_as_to_columns():
    columns = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}
    assert delivered(columns, {"ab": Field("float32", columns=["b", "a"])})["ab"].tolist() == [[3, 1], [4, 2]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1, 2], "the transform returned a list; return a mapping"),
        (None, "the transform returned a NoneType"),
        ({}, "returned no arrays"),
        ({"x": [1, 2]}, "'x' of the transform's result is a list; give a NumPy array"),
        ({"x": np.array(3)}, "'x' of the transform's result is a single value"),
        ({1: np.zeros(3)}, "the name 1 of an array is no string"),
        ({"x": np.zeros(3), "y": np.zeros(2)}, "differ in their number of rows: 'x' has 3, 'y' has 2"),
        ({"x": np.array([{}, 1], object)}, "Python objects"),
        ({"x": np.array([1, 2], object)}, r"Python objects \(int64\) that are no strings; give numbers a NumPy dtype"),
        ({"x": np.zeros(2, complex)}, "complex128, which is no number"),
        ({"x": np.zeros(2, [("a", "i4")])}, "which is no number"),
        ({"x": np.zeros(2, np.longdouble)}, "use float64"),
        ({"x": np.zeros(2, "m8[M]")}, "months differ in length"),
        ({"x": np.zeros(2, "M8[ps]")}, "use one of s, ms, us, ns"),
        ({"x": Ragged(np.zeros(3), np.array([0, 2]))}, "has offsets that do not cut its 3 values"),
        ({"x": Ragged(np.zeros(3), np.array([0, 2, 1, 3]))}, "has offsets"),
        ({"x": Ragged(np.zeros(3), np.array([0.0, 3.0]))}, "has offsets"),
        ({"x": Ragged([1, 2, 3], np.array([0, 3]))}, "has values that are a list"),
    ],
)
def test_a_result_that_is_no_arrays_of_rows_says_what_to_return(columns, message):
    with pytest.raises(FieldMismatchError, match=message) as caught:
        loader_of(columns, num_rows=3)
    assert caught.value.fragment == WHERE
    assert WHERE in str(caught.value)


def test_what_a_sample_is_depends_on_types_alone():
    specs = []
    for words in (np.array([], object), np.array(["a", None], object), np.array(["ab"])):
        with loader_of({"x": words}, {"x": Field(fill="")}) as loader:
            specs.append(loader.spec)
    assert specs[0] == specs[1] == specs[2]


def test_fragments_may_come_in_other_types_that_become_the_same():
    results = [[1, 2], [1.5, 2.5], [3, 4], [True, False]]

    def transform(table):
        first = table["row"][0].as_py()
        return {"x": np.array(results[first // 2]), "row": table["row"].to_numpy()}

    found = delivered(transform, {"x": Field("float32")}, num_rows=8, fragment_rows=2)
    assert found["x"].tolist() == [1, 2, 1.5, 2.5, 3, 4, 1, 0]
