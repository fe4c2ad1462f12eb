"""Every Arrow type has an answer: what it becomes, or why not."""

from __future__ import annotations

import decimal
import json
import subprocess
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.delivered import delivered, spec_of

from stoker import Field, FieldError
from stoker.cli import main

BECOMES = [
    (pa.int8(), {}, "int8"),
    (pa.uint64(), {}, "uint64"),
    (pa.float16(), {}, "float16"),
    (pa.float64(), {}, "float64"),
    (pa.bool_(), {}, "bool"),
    (pa.bool8(), {}, "bool"),
    (pa.timestamp("us", "Europe/Berlin"), {}, "int64 (us since 1970 UTC)"),
    (pa.timestamp("ns"), {}, "int64 (ns since 1970)"),
    (pa.date32(), {}, "int32 (days since 1970)"),
    (pa.date64(), {}, "int64 (ms since 1970)"),
    (pa.time32("ms"), {}, "int32 (ms since midnight)"),
    (pa.time64("ns"), {}, "int64 (ns since midnight)"),
    (pa.duration("s"), {}, "int64 (s)"),
    (pa.decimal128(10, 2), {}, "float64"),
    (pa.decimal256(60, 2), {}, "float64"),
    (pa.list_(pa.float32(), 4), {}, "float32[4]"),
    (pa.list_(pa.list_(pa.int8(), 3), 2), {}, "int8[2, 3]"),
    (pa.fixed_shape_tensor(pa.float32(), [2, 3]), {}, "float32[2, 3]"),
    (pa.fixed_shape_tensor(pa.float32(), [2, 3, 4], permutation=[2, 0, 1]), {}, "float32[4, 2, 3]"),
    (pa.list_(pa.int64()), {}, "int64[*]"),
    (pa.large_list_view(pa.int64()), {}, "int64[*]"),
    (pa.list_(pa.large_list(pa.int64())), {}, "int64[*][*]"),
    (pa.list_(pa.list_(pa.float32(), 3)), {}, "float32[*][3]"),
    (pa.list_(pa.list_(pa.float32()), 3), {}, "float32[*][*]"),
    (pa.string(), {}, "uint8[*]"),
    (pa.large_binary(), {}, "uint8[*]"),
    (pa.binary_view(), {}, "uint8[*]"),
    (pa.list_(pa.string()), {}, "uint8[*][*]"),
    (pa.binary(16), {}, "uint8[16]"),
    (pa.uuid(), {}, "uint8[16]"),
    (pa.json_(), {}, "uint8[*]"),
    (pa.dictionary(pa.int8(), pa.string()), {}, "uint8[*]"),
    (pa.dictionary(pa.int8(), pa.float32()), {}, "float32"),
    (pa.run_end_encoded(pa.int32(), pa.int16()), {}, "int16"),
    (pa.list_(pa.dictionary(pa.int8(), pa.int16())), {}, "int16[*]"),
    (pa.opaque(pa.int32(), "a type", "a vendor"), {}, "int32"),
    # What a field asks for.
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
]


def test_every_type_becomes_what_the_docs_say_and_its_field_asks_for():
    schema = [(f"c{i}", kind) for i, (kind, _, _) in enumerate(BECOMES)]
    fields = {f"c{i}": Field(**options) for i, (_, options, _) in enumerate(BECOMES) if options}
    found = [(kind, str(entry)) for (_, kind), entry in zip(schema, spec_of(schema, fields), strict=True)]
    assert found == [(kind, f"c{i}: {answer}") for i, (kind, _, answer) in enumerate(BECOMES)]


REFUSED = {
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.int32())]), "a struct is several columns in one"),
    "map": (pa.map_(pa.string(), pa.int32()), "a map"),
    "structs": (pa.list_(pa.struct([("a", pa.int32())])), "a list of structs"),
    "deep": (pa.list_(pa.list_(pa.list_(pa.int32()))), "more levels"),
    "deep_strings": (pa.list_(pa.list_(pa.string())), "vocabulary="),
    "union": (pa.dense_union([pa.field("a", pa.int32())]), "a union"),
    "null": (pa.null(), "its type is null"),
    "interval": (pa.month_day_nano_interval(), "interval"),
    "maps": (pa.list_(pa.map_(pa.string(), pa.int32()), 2), "a map"),
}


def test_one_error_lists_every_refused_column_in_the_order_of_the_schema_and_says_why():
    schema = [("id", pa.int64()), *((name, kind) for name, (kind, _) in REFUSED.items())]
    with pytest.raises(FieldError) as caught:
        spec_of(schema, {"nothing": Field()})
    assert caught.value.columns == (*REFUSED, "nothing")
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == len(REFUSED) + 1
    for line, (name, (kind, reason)) in zip(lines, REFUSED.items(), strict=False):
        assert line.startswith(f"  column {name!r} ({kind}): ")
        assert reason in line
        assert "transform" in line


def test_inspect_answers_refused_columns_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = {
        "id": [1, 2],
        "m": pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int8())),
        "l": pa.array([[1, 2, 3], [4, 5]], pa.list_(pa.int16())),
        "d0": pa.array([0.5, 1], pa.float32()),
        "d1": pa.array([0.5, 1], pa.float32()),
    }
    pq.write_table(pa.table(columns), "a.parquet")
    text = "import stoker\nd = stoker.Dataset('a.parquet', fields={'d': stoker.Field(columns='d?', mask=True)})\n"
    (tmp_path / "with_a_map.py").write_text(text)
    assert main(["inspect", "with_a_map.py:d", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["columns"]
    assert [row["column"] for row in rows] == list(columns)
    assert [row["field"] for row in rows] == ["id", None, "l", "d", "d"]
    assert [row["becomes"] for row in rows] == ["int64", None, "int16[*]", "float32[2]", "float32[2]"]
    assert [row["sample_bytes"] for row in rows] == [8, None, 13.0, 5, 5]
    assert [row["is_exact"] for row in rows] == [True, False, False, True, True]
    assert "a map" in rows[1]["problem"]


def one(array: pa.Array, *, fragment_rows: int | None = None, **options: object):
    return delivered(pa.table({"x": array}), {"x": Field(**options)}, fragment_rows=fragment_rows)["x"]


@pytest.mark.parametrize("fragment_rows", [1, None])
def test_a_permuted_tensor_has_its_logical_dimensions(fragment_rows):
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=[2, 0, 1])
    storage = pa.array([list(range(24)), list(range(24, 48))], pa.list_(pa.int32(), 24))
    expected = np.arange(48, dtype=np.int32).reshape(2, 2, 3, 4).transpose(0, 3, 1, 2)
    tensor = pa.ExtensionArray.from_storage(kind, storage)
    np.testing.assert_array_equal(one(tensor, fragment_rows=fragment_rows), expected)


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
    arrays = delivered(pa.table({"p": points, "a": points, "b": points}), {"both": Field(columns=["a", "b"])})
    assert arrays["p"].tolist() == [1, 2]
    assert arrays["both"].tolist() == [[1, 1], [2, 2]]


def test_a_column_that_is_called_as_a_type_says_nothing_of_columns_of_that_type():
    points = pa.ExtensionArray.from_storage(Point(), pa.array([1, 2], pa.int32()))
    table = pa.table({"int64": points, "a": pa.array([2**40, 3], pa.int64())})
    assert delivered(table, {"both": Field(columns=["int64", "a"])})["both"].tolist() == [[1, 2**40], [2, 3]]


def test_nan_is_a_number_and_no_null():
    assert np.isnan(one(pa.array([np.nan]))).all()


def test_a_part_of_which_no_row_passes_becomes_arrays_without_rows():
    table = pa.table(
        {
            "f": pa.array([[1, 2, 3, 4]] * 6, pa.list_(pa.float32(), 4)),
            "r": pa.array([[[1], []]] * 6, pa.list_(pa.list_(pa.int16()))),
            "s": ["a", None] * 3,
            "a": pa.array([1, None] * 3, pa.int8()),
            "b": pa.array([3, 4] * 3, pa.int16()),
        }
    )
    fields = {"ab": Field(columns=["b", "a"], mask=True), "s": Field(num_bytes=3, mask=True)}
    found = delivered(table, fields, filters=[("row", "<", 2)], chunk_size=16)  # of a row group in three parts
    expected = delivered(table[:2], fields)
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    assert found["ab"].tolist() == [[3, 1], [4, 0]]


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
