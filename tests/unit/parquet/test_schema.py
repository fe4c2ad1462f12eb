"""One schema for many files."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import FieldError
from stoker.parquet.schema import Layout, align, choose_columns, fixed_width_bytes, flat_fields, flatten, restrict
from stoker.parquet.unify import unify


def layout(schema):
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    return Layout.of(pq.read_metadata(sink))


def unified(*schemas):
    return unify([(layout(pa.schema(schema)), f"file-{i}") for i, schema in enumerate(schemas)])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int16(), pa.int8(), pa.int16()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.int8()}), pa.struct({"a": pa.int32(), "b": pa.int8()})),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
    ],
)
def test_types_widen_to_hold_every_file(one, other, both):
    for pair in ((one, other), (other, one)):
        found = unified(*[[("x", type_)] for type_ in pair]).field("x").type
        if pa.types.is_struct(both):
            assert {found.field(i).name for i in range(found.num_fields)} == {"a", "b"}
        elif pa.types.is_list(both):
            assert found.value_type == both.value_type
        else:
            assert found == both


def test_columns_of_later_files_come_last():
    assert unified([("a", pa.int32())], [("b", pa.int8()), ("a", pa.int32())]).names == ["a", "b"]


def test_types_that_do_not_go_together_name_column_and_files():
    with pytest.raises(FieldError, match=r"'x' is string in file-2 and int64 in file-0") as caught:
        unified([("x", pa.int32())], [("x", pa.int64())], [("x", pa.string())])
    assert caught.value.columns == ("x",)


def test_a_name_twice_in_one_file_is_an_error():
    schema = pa.schema([("u.a", pa.int8()), ("u", pa.struct({"a": pa.int8()}))])
    with pytest.raises(FieldError, match=r"two columns named 'u\.a'"):
        unify([(layout(schema), "f")])


AVAILABLE = [("a", pa.int8()), ("user.age", pa.int8()), ("user.city", pa.string()), ("Label", pa.int8())]


def test_columns_come_in_the_order_they_are_named_and_structs_whole():
    assert choose_columns(AVAILABLE, ["user", "a"]).names == ["user.age", "user.city", "a"]
    assert choose_columns(AVAILABLE, None).names == ["a", "user.age", "user.city", "Label"]
    assert choose_columns(AVAILABLE, ["user.city", "user"]).names == ["user.city", "user.age"]


def test_unknown_columns_are_all_named_with_what_is_near():
    with pytest.raises(
        FieldError, match=r"'label' \(did you mean 'Label'\?\); 'user\.ages' \(did you mean 'user\.age'\?\); 'zzz'\."
    ) as caught:
        choose_columns(AVAILABLE, ["label", "a", "user.ages", "zzz"])
    assert caught.value.columns == ("label", "user.ages", "zzz")


NESTED = pa.schema([("a", pa.int8()), ("u", pa.struct([("x", pa.int8()), ("s", pa.struct([("y", pa.int8())]))]))])


def test_structs_are_taken_apart_by_dots():
    assert [name for name, _ in flat_fields(NESTED)] == ["a", "u.x", "u.s.y"]
    assert flat_fields(restrict(NESTED, ["u.s.y"])) == [("u.s.y", pa.int8())]
    assert restrict(NESTED, []).names == []


def test_a_null_struct_gives_nulls():
    table = pa.table({"u": pa.array([{"x": 1, "s": {"y": 2}}, None, {"x": None, "s": None}], NESTED.field("u").type)})
    flat = flatten(table)
    assert flat.to_pydict() == {"u.x": [1, None, None], "u.s.y": [2, None, None]}


def test_a_file_is_brought_into_the_common_form():
    schema = pa.schema(
        [("b", pa.int64()), ("u", pa.struct([("x", pa.int64()), ("z", pa.string())])), ("new", pa.int8())]
    )
    table = pa.table({"u": [{"x": 1}, None], "b": pa.array([1, 2], pa.int8())})
    aligned = align(table, schema, where="w")
    assert aligned.schema == schema
    assert aligned.to_pylist() == [{"b": 1, "u": {"x": 1, "z": None}, "new": None}, {"b": 2, "u": None, "new": None}]


def test_sliced_structs_are_aligned_too():
    schema = pa.schema([("u", pa.struct([("x", pa.int64())]))])
    table = pa.table({"u": pa.array([{"x": i} if i % 2 else None for i in range(9)], pa.struct({"x": pa.int8()}))})
    assert align(table.slice(3, 4), schema, where="w").to_pylist() == table.slice(3, 4).to_pylist()


def test_a_value_that_does_not_fit_names_fragment_and_column():
    with pytest.raises(FieldError, match=r"column 'b' is int64 in f row group 0, and double"):
        align(pa.table({"b": [2**53 + 1]}), pa.schema([("b", pa.float64())]), where="f row group 0")


@pytest.mark.parametrize(
    ("type_", "width"),
    [
        (pa.int64(), 8),
        (pa.bool_(), 1),
        (pa.list_(pa.float32(), 16), 64),
        (pa.fixed_shape_tensor(pa.float32(), (2, 3)), 24),
        (pa.binary(5), 5),
        (pa.string(), 0),
        (pa.list_(pa.int8()), 0),
        (pa.dictionary(pa.int32(), pa.string()), 4),
        (pa.null(), 0),
    ],
)
def test_widths_are_what_a_value_surely_takes(type_, width):
    assert fixed_width_bytes(type_) == width


def test_leaves_are_found_by_column():
    found = layout(pa.schema([("a", pa.int8()), ("l", pa.list_(pa.int8())), ("lx", pa.int8()), *list(NESTED)[1:]]))
    assert found.leaves(["l", "u.s"]) == [1, 4]
    assert found.leaves(["u"]) == [3, 4]
    assert found.leaves(["nope"]) == []
