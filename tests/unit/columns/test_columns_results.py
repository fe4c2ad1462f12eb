"""What a transform may return, and what it may not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stoker import Field, FieldMismatchError, Ragged
from stoker.columns import Converter, as_table, plan_spec, to_arrays

WHERE = "lake/a.parquet row groups 0-1"


def results(columns: object, **fields: Field):
    return to_arrays(columns, fields, where=WHERE)


def spec_of(columns: object):
    return plan_spec(as_table(columns, where=WHERE).schema, {})


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 0), (0, 4)])
def test_arrays_come_out_as_they_went_in(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    out = results({"x": array})["x"]
    np.testing.assert_array_equal(out, array)
    assert (out.dtype, out.shape) == (array.dtype, array.shape)
    assert str(spec_of({"x": array})["x"]) == f"x: {dtype}" + (f"[{', '.join(map(str, shape[1:]))}]" * (len(shape) > 1))


def test_numbers_that_lie_in_order_are_not_copied():
    array = np.arange(12.0).reshape(4, 3)
    assert results({"x": array})["x"].ctypes.data == array.ctypes.data


def test_strides_and_byte_order_do_not_matter():
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for odd in (array[:, ::2], array.astype(">i4"), np.asfortranarray(array), array[::-1]):
        out = results({"x": odd})["x"]
        np.testing.assert_array_equal(out, odd)
        assert out.dtype == np.int32
        assert out.dtype.isnative
        assert out.flags.c_contiguous


def test_times_of_numpy_have_the_units_of_arrow():
    columns = {
        "day": np.array(["2020-01-02"], "M8[D]"),
        "ns": np.array(["2020-01-02"], "M8[ns]"),
        "span": np.array([90], "m8[m]"),
    }
    arrays = results(columns)
    assert [arrays[name].tolist() for name in columns] == [[1577923200], [1577923200 * 10**9], [5400]]
    assert [entry.unit for entry in spec_of(columns)] == ["s since 1970", "ns since 1970", "s"]


def test_not_a_time_and_masked_values_are_nulls():
    columns = {
        "t": np.array(["2020-01-02", "NaT"], "M8[ms]"),
        "m": np.ma.masked_array([[1, 2], [3, 4]], mask=[[False, True], [False, False]]),
    }
    arrays = results(columns, t=Field(fill=-1), m=Field(fill=9))
    assert arrays["t"].tolist() == [1577923200000, -1]
    assert arrays["m"].tolist() == [[1, 9], [3, 4]]


def test_strings_of_numpy_are_strings():
    words = ["a", "né", ""]
    kinds = {"U": np.array(words), "O": np.array(words, object), "S": np.char.encode(np.array(words), "utf-8")}
    if hasattr(np.dtypes, "StringDType"):
        kinds["T"] = np.array(words, np.dtypes.StringDType())
    fields = {name: Field(num_bytes=3) for name in kinds}
    for array in to_arrays(kinds, fields, where=WHERE).values():
        assert [bytes(row).rstrip(b"\0").decode() for row in array] == words
    coded = results({"x": np.array([["a", "b"], ["b", "b"]])}, x=Field(vocabulary=["a", "b"]))
    assert coded["x"].tolist() == [[0, 1], [1, 1]]


def test_none_among_objects_is_null():
    columns = {"x": np.array(["a", None], object)}
    assert results(columns, x=Field(vocabulary=["a"], fill=7))["x"].tolist() == [0, 7]


def test_ragged_arrays_and_arrow_arrays_and_tables_are_taken():
    inner = Ragged(np.arange(5.0), np.array([0, 2, 2, 5], np.int32))
    columns = {
        "r": Ragged(np.ones((3, 2), np.int8), np.array([0, 1, 3])),
        "rr": Ragged(inner, np.array([0, 1, 3])),
        "a": pa.array([[1], [2, 3]]),
        "c": pa.chunked_array([["x"], ["y"]]),
    }
    arrays = results(columns)
    assert arrays["r"].values.shape == (3, 2)
    assert arrays["rr"].offsets.tolist() == [0, 1, 3]
    assert arrays["rr"].values.offsets.tolist() == [0, 2, 2, 5]
    assert arrays["a"].offsets.tolist() == [0, 1, 3]
    assert bytes(arrays["c"].values) == b"xy"
    batch = pa.record_batch({"x": pa.array([1, 2])})
    assert results(batch)["x"].tolist() == results(pa.table(batch))["x"].tolist() == [1, 2]
    assert as_table(columns, where="").num_rows == as_table(batch, where="").num_rows == 2


def test_fields_apply_to_results_as_to_columns():
    columns = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}
    assert results(columns, ab=Field("float32", columns=["b", "a"]))["ab"].tolist() == [[3, 1], [4, 2]]


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
        results(columns)
    assert caught.value.fragment == WHERE
    assert WHERE in str(caught.value)


def test_a_converter_plans_anew_where_a_transform_returns_other_types():
    converter = Converter({"x": Field("float32")})
    for values in ([1, 2], [1.5, 2.5], [3, 4], [True, False]):
        found = converter.convert({"x": np.array(values), "y": np.arange(2)}, where="here")
        np.testing.assert_array_equal(found["x"], np.array(values, np.float32))
        assert found["x"].dtype == np.float32
    assert set(converter.convert({"x": np.arange(2.0)}, where="here")) == {"x"}
