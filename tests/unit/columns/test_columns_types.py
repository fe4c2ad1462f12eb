"""Every Arrow type has an answer: what it becomes, or why not."""

from __future__ import annotations

import decimal
import uuid

import numpy as np
import pyarrow as pa
import pytest

from stoker import Field, FieldError, Ragged
from stoker.columns import as_table, plan_spec, plan_table, to_arrays

WHERE = "lake/a.parquet row groups 0-1"


def answers(kind: pa.DataType, **options: object) -> str:
    spec = plan_spec(pa.schema([("x", kind)]), {"x": Field(**options)} if options else {})
    return str(spec["x"]).removeprefix("x: ")


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (pa.int8(), "int8"),
        (pa.uint64(), "uint64"),
        (pa.float16(), "float16"),
        (pa.float64(), "float64"),
        (pa.bool_(), "bool"),
        (pa.bool8(), "bool"),
        (pa.timestamp("us", "Europe/Berlin"), "int64 (us since 1970 UTC)"),
        (pa.timestamp("ns"), "int64 (ns since 1970)"),
        (pa.date32(), "int32 (days since 1970)"),
        (pa.date64(), "int64 (ms since 1970)"),
        (pa.time32("ms"), "int32 (ms since midnight)"),
        (pa.time64("ns"), "int64 (ns since midnight)"),
        (pa.duration("s"), "int64 (s)"),
        (pa.decimal128(10, 2), "float64"),
        (pa.decimal256(60, 2), "float64"),
        (pa.list_(pa.float32(), 4), "float32[4]"),
        (pa.list_(pa.list_(pa.int8(), 3), 2), "int8[2, 3]"),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3]), "float32[2, 3]"),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3, 4], permutation=[2, 0, 1]), "float32[4, 2, 3]"),
        (pa.list_(pa.int64()), "int64[*]"),
        (pa.large_list_view(pa.int64()), "int64[*]"),
        (pa.list_(pa.large_list(pa.int64())), "int64[*][*]"),
        (pa.list_(pa.list_(pa.float32(), 3)), "float32[*][3]"),
        (pa.list_(pa.list_(pa.float32()), 3), "float32[*][*]"),
        (pa.string(), "uint8[*]"),
        (pa.large_binary(), "uint8[*]"),
        (pa.binary_view(), "uint8[*]"),
        (pa.list_(pa.string()), "uint8[*][*]"),
        (pa.binary(16), "uint8[16]"),
        (pa.uuid(), "uint8[16]"),
        (pa.json_(), "uint8[*]"),
        (pa.dictionary(pa.int8(), pa.string()), "uint8[*]"),
        (pa.dictionary(pa.int8(), pa.float32()), "float32"),
        (pa.run_end_encoded(pa.int32(), pa.int16()), "int16"),
        (pa.list_(pa.dictionary(pa.int8(), pa.int16())), "int16[*]"),
        (pa.opaque(pa.int32(), "a type", "a vendor"), "int32"),
    ],
)
def test_a_type_becomes(kind, answer):
    assert answers(kind) == answer


@pytest.mark.parametrize(
    ("kind", "options", "answer"),
    [
        (pa.decimal128(10, 2), {"dtype": "int64"}, "int64 (1e-2)"),
        (pa.decimal128(10, 0), {"dtype": "int32"}, "int32"),
        (pa.decimal128(10, -3), {"dtype": "int64"}, "int64 (1e3)"),
        (pa.timestamp("us"), {"dtype": "float32"}, "float32 (us since 1970)"),
        (pa.list_(pa.float64()), {"dtype": "float32", "shape": (8,)}, "float32[8]"),
        (pa.list_(pa.float32()), {"shape": (4, 2)}, "float32[4, 2]"),
        (pa.list_(pa.list_(pa.float32(), 3)), {"shape": (4, 3)}, "float32[4, 3]"),
        (pa.list_(pa.list_(pa.float32())), {"shape": (4, 3)}, "float32[4, 3]"),
        (pa.list_(pa.float32(), 6), {"shape": (2, 3)}, "float32[2, 3]"),
        (pa.string(), {"vocabulary": ["a"]}, "int64"),
        (pa.string(), {"dtype": "uint8", "vocabulary": ["a"]}, "uint8"),
        (pa.list_(pa.string()), {"hash_buckets": 9}, "int64[*]"),
        (pa.list_(pa.list_(pa.string())), {"vocabulary": ["a"]}, "int64[*][*]"),
        (pa.list_(pa.string(), 2), {"vocabulary": ["a"]}, "int64[2]"),
        (pa.list_(pa.string()), {"num_bytes": 5}, "uint8[*][5]"),
        (pa.list_(pa.string()), {"num_bytes": 5, "shape": (2, 5)}, "uint8[2, 5]"),
        (pa.string(), {"shape": (5,)}, "uint8[5]"),
        (pa.binary(3), {"num_bytes": 5}, "uint8[5]"),
        (pa.int32(), {"vocabulary": [3, 5]}, "int64"),
        (pa.timestamp("s"), {"hash_buckets": 10}, "int64"),
    ],
)
def test_a_type_becomes_what_its_field_asks_for(kind, options, answer):
    assert answers(kind, **options) == answer


REFUSED = {
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.int32())]), "dotted name"),
    "map": (pa.map_(pa.string(), pa.int32()), "a map"),
    "structs": (pa.list_(pa.struct([("a", pa.int32())])), "a list of structs"),
    "deep": (pa.list_(pa.list_(pa.list_(pa.int32()))), "more levels"),
    "deep_strings": (pa.list_(pa.list_(pa.string())), "vocabulary="),
    "union": (pa.dense_union([pa.field("a", pa.int32())]), "a union"),
    "null": (pa.null(), "its type is null"),
    "interval": (pa.month_day_nano_interval(), "interval"),
    "maps": (pa.list_(pa.map_(pa.string(), pa.int32()), 2), "a map"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_type_without_a_tensor_form_says_why(name):
    kind, reason = REFUSED[name]
    with pytest.raises(FieldError, match=reason) as caught:
        answers(kind)
    assert "column 'x'" in str(caught.value)
    assert "transform" in str(caught.value)


def test_one_error_lists_every_refused_column_in_the_order_of_the_schema():
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in REFUSED.items())])
    with pytest.raises(FieldError) as caught:
        plan_spec(schema, {"nothing": Field()})
    assert caught.value.columns == (*REFUSED, "nothing")
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + len(REFUSED) + 1
    assert lines[1].startswith("  column 'struct' (struct<a: int32, b: int32>): a struct is several columns in one")


def test_the_table_for_inspect_answers_refused_columns_too():
    schema = pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int8())), ("l", pa.list_(pa.int16()))])
    schema = schema.append(pa.field("d0", pa.float32())).append(pa.field("d1", pa.float32()))
    rows = plan_table(schema, {"d": Field(columns="d?", mask=True)}, values_per_sample={"l": 2.5})
    assert [row.column for row in rows] == schema.names
    assert [row.field for row in rows] == ["id", None, "l", "d", "d"]
    assert [row.becomes for row in rows] == ["int64", None, "int16[*]", "float32[2]", "float32[2]"]
    assert [row.sample_bytes for row in rows] == [8, None, 13.0, 5, 5]
    assert [row.is_exact for row in rows] == [True, False, False, True, True]
    assert "a map" in rows[1].problem


def one(array: pa.Array, **options: object):
    return to_arrays(pa.table({"x": array}), {"x": Field(**options)}, where=WHERE)["x"]


def test_numbers_without_nulls_are_views_of_arrow_memory():
    numbers = pa.array(np.arange(6.0))
    lists = pa.FixedSizeListArray.from_arrays(numbers, 3)
    ragged = pa.LargeListArray.from_arrays(pa.array([0, 2, 6]), numbers)
    address = numbers.buffers()[1].address
    assert one(numbers).ctypes.data == address
    assert one(lists).ctypes.data == address
    assert one(ragged).values.ctypes.data == address
    assert one(numbers[2:]).ctypes.data == address + 16


def test_a_permuted_tensor_has_its_logical_dimensions():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=[2, 0, 1])
    storage = pa.array([list(range(24)), list(range(24, 48))], pa.list_(pa.int32(), 24))
    expected = np.arange(48, dtype=np.int32).reshape(2, 2, 3, 4).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(one(pa.ExtensionArray.from_storage(kind, storage)), expected)
    np.testing.assert_array_equal(one(pa.ExtensionArray.from_storage(kind, storage)[1:]), expected[1:])


def test_a_permutation_that_is_its_own_inverse_is_as_pyarrow_has_it():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    tensor = pa.ExtensionArray.from_storage(kind, pa.array([list(range(6))], pa.list_(pa.int32(), 6)))
    np.testing.assert_array_equal(one(tensor), tensor.to_numpy_ndarray())


def test_a_null_tensor_is_the_fill_throughout():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 2], permutation=[1, 0])
    tensor = pa.ExtensionArray.from_storage(kind, pa.array([None, [1, 2, 3, 4]], pa.list_(pa.int32(), 4)))
    assert one(tensor, fill=9).tolist() == [[[9, 9], [9, 9]], [[1, 3], [2, 4]]]


def test_an_unscaled_decimal_is_exact_and_overflow_is_an_error():
    values = [decimal.Decimal("1.25"), decimal.Decimal("-90071992547409.93"), None]
    array = pa.array(values, pa.decimal128(38, 2))
    assert one(array, dtype="int64", fill=0).tolist() == [125, -9007199254740993, 0]
    with pytest.raises(FieldError, match=r"9007199254740993 is not in its range.*int32.*row 1"):
        one(array, dtype="int32", fill=0)
    wide = pa.array([decimal.Decimal(10**20)], pa.decimal128(38, 0))
    with pytest.raises(FieldError, match=r"100000000000000000000 has more digits"):
        one(wide, dtype="int64")


def test_a_decimal_beyond_float64_is_an_error():
    array = pa.Array.from_buffers(pa.decimal256(76, -300), 1, [None, pa.py_buffer((10**60).to_bytes(32, "little"))])
    with pytest.raises(FieldError, match="beyond float64"):
        one(array)


def test_uuid_and_bool8_and_json_are_their_bytes_and_truths():
    value = uuid.UUID(int=1 << 100)
    storage = pa.array([value.bytes], pa.binary(16))
    assert bytes(one(pa.ExtensionArray.from_storage(pa.uuid(), storage))[0]) == value.bytes
    truths = one(pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 7, None], pa.int8())), fill=True)
    assert truths.tolist() == [False, True, True, True]
    assert truths.dtype == np.bool_
    text = one(pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}'])))
    assert bytes(text.values) == b'{"a":1}'


class Point(pa.ExtensionType):
    """A type of a user's, which Python cannot hash."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "test.point")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_a_type_that_a_user_wrote_is_as_its_storage_alone_and_in_a_stack():
    points = pa.ExtensionArray.from_storage(Point(), pa.array([1, 2], pa.int32()))
    table = pa.table({"p": points, "a": points, "b": points})
    arrays = to_arrays(table, {"both": Field(columns=["a", "b"])}, where=WHERE)
    assert arrays["p"].tolist() == [1, 2]
    assert arrays["both"].tolist() == [[1, 1], [2, 2]]


def test_a_column_that_is_called_as_a_type_says_nothing_of_columns_of_that_type():
    points = pa.ExtensionArray.from_storage(Point(), pa.array([1, 2], pa.int32()))
    table = pa.table({"int64": points, "a": pa.array([2**40, 3], pa.int64())})
    arrays = to_arrays(table, {"both": Field(columns=["int64", "a"])}, where=WHERE)
    assert arrays["both"].tolist() == [[1, 2**40], [2, 3]]


def test_nan_is_a_number_and_no_null():
    assert np.isnan(one(pa.array([np.nan]))).all()


def test_a_table_without_rows_gives_arrays_of_the_planned_shapes():
    schema = pa.schema(
        [
            ("f", pa.list_(pa.float32(), 4)),
            ("r", pa.list_(pa.list_(pa.int16()))),
            ("s", pa.string()),
            ("a", pa.int8()),
            ("b", pa.int16()),
        ]
    )
    fields = {"ab": Field(columns=["b", "a"], mask=True), "s": Field(num_bytes=3, mask=True)}
    for table in (schema.empty_table(), pa.Table.from_batches([], schema=schema)):
        arrays = to_arrays(table, fields, where=WHERE)
        assert list(arrays) == [entry.name for entry in plan_spec(schema, fields)]
        assert arrays["f"].shape == (0, 4)
        assert arrays["ab"].shape == arrays["ab_mask"].shape == (0, 2)
        assert arrays["ab"].dtype == np.int16
        assert arrays["s"].shape == (0, 3)
        assert arrays["s_mask"].shape == (0,)
        ragged = arrays["r"]
        assert isinstance(ragged, Ragged)
        assert ragged.offsets.tolist() == ragged.values.offsets.tolist() == [0]
        assert ragged.values.values.dtype == np.int16


def test_lists_of_one_length_become_an_array_and_another_length_names_its_row():
    array = pa.chunked_array([[[1, 2], [3, 4]], [[5, 6], [7]]], pa.list_(pa.int64()))
    assert one(array[:3], shape=(2,)).tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(FieldError, match=r"column 'x': a list of length 1, but shape= asks for 2 values \(row 3,"):
        one(array, shape=(2,))
    nested = pa.array([[[1], [2]], [[3], [4, 5]]])
    with pytest.raises(FieldError, match=r"a list of length 2.*row 1"):
        one(nested, shape=(2, 1))


def test_a_null_list_of_one_length_is_the_fill_throughout():
    array = pa.array([None, [1, None], [3, 4]])
    assert one(array, shape=(2,), fill=-1).tolist() == [[-1, -1], [1, -1], [3, 4]]


def test_a_spec_depends_on_types_alone():
    empty, full = np.array([], object), np.array(["a", None], object)
    tables = [as_table({"x": array}, where=WHERE) for array in (empty, full, np.array(["ab"]))]
    assert len({plan_spec(table.schema, {}) for table in tables}) == 1
