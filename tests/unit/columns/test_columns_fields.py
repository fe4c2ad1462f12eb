"""What fields ask for: names, stacks, casts, words, nulls, and the errors that say what to do."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.delivered import WHERE, delivered, loader_of, spec_of

from stoker import Dataset, Field, FieldError, Loader


def one(array: pa.Array, **options: object):
    return delivered(pa.table({"x": array}), {"x": Field(**options)})["x"]


def names(schema: object, fields: dict[str, Field]) -> list[str]:
    return [str(entry) for entry in spec_of(schema, fields)]


def floats(*columns: str) -> list[tuple[str, pa.DataType]]:
    return [(name, pa.float32()) for name in columns]


def check_refused(cases) -> None:
    """Check that one error has a line for each case: types of columns, what their field asks for, and what is told.

    Of several types, the columns are stacked.
    """
    schema, fields = [], {}
    for i, (kinds, options, _) in enumerate(cases):
        is_stack = isinstance(kinds, tuple)
        columns = [f"{i:02}_{j}" for j, _ in enumerate(kinds)] if is_stack else [f"{i:02}_"]
        schema += zip(columns, kinds if is_stack else [kinds], strict=True)
        fields[f"x{i}"] = Field(columns=columns if is_stack else columns[0], **options)
    with pytest.raises(FieldError) as caught:
        spec_of(schema, fields)
    _, *lines = str(caught.value).splitlines()
    for i, (line, (_, _, told)) in enumerate(zip(lines, cases, strict=True)):
        assert told in line
        assert f"{i:02}_" in line or f"'x{i}'" in line


# Names


def test_columns_that_no_field_names_come_as_they_are_in_schema_order():
    fields = {"d": Field(columns="d*", mask=True), "b": Field("float64", mask=True)}
    assert names(floats("a", "d1", "b", "d2", "c"), fields) == [
        "a: float32",
        "d: float32[2]",
        "d_mask: bool[2]",
        "b: float64",
        "b_mask: bool",
        "c: float32",
    ]


def test_columns_stack_in_the_order_of_the_patterns_and_then_of_the_schema():
    table = pa.table({"a1": [1.0], "b2": [2.0], "a3": [3.0], "b4": [4.0]})
    assert delivered(table, {"x": Field(columns=["b*", "a3", "a*"])})["x"].tolist() == [[2.0, 4.0, 3.0, 1.0]]


def test_one_name_renames_a_column_while_a_pattern_or_a_sequence_of_one_stacks_it():
    schema = floats("a")
    assert names(schema, {"x": Field(columns="a")}) == ["x: float32"]
    assert names(schema, {"x": Field(columns=["a"])}) == ["x: float32[1]"]
    assert names(schema, {"x": Field(columns="a*")}) == ["x: float32[1]"]


def test_a_column_whose_name_looks_like_a_pattern_is_a_name():
    assert names(floats("a[0]", "a0"), {"x": Field(columns="a[0]")}) == ["x: float32", "a0: float32"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pric": Field()}, r"field 'pric' names no column; did you mean 'price'\?"),
        ({"x": Field(columns="prize")}, r"field 'x': columns='prize' names no column; did you mean 'price'\?"),
        ({"x": Field(columns=["price", "cost_*"])}, r"field 'x': columns='cost_\*' names no column"),
        ({"user": Field()}, r"did you mean 'user.id' or 'user.age'\?"),
        ({"zzz": Field()}, r"there are 'price', 'user.id', 'user.age'"),
        ({"a": Field(columns="price"), "b": Field(columns="p*")}, r"both field 'a' and field 'b' use it"),
        ({"price": Field(columns="user.id")}, r"this column comes under the same name"),
    ],
)
def test_names_that_lead_nowhere_are_errors_with_a_suggestion(fields, message):
    with pytest.raises(FieldError, match=message):
        spec_of(floats("price", "user.id", "user.age"), fields)


def test_a_mask_does_not_take_the_name_of_a_column():
    with pytest.raises(FieldError, match="its mask would be called 'a_mask'"):
        spec_of(floats("a", "a_mask"), {"a": Field(mask=True)})


def test_two_columns_of_one_name_are_an_error():
    with pytest.raises(FieldError, match="two columns of this name"):
        spec_of([pa.field("a", pa.int8()), pa.field("a", pa.int16())])


# Stacks


def test_a_stack_of_several_dtypes_has_the_one_that_holds_them_exactly():
    stacks = [
        (pa.int32(), pa.int64(), "int64"),
        (pa.int16(), pa.float32(), "float32"),
        (pa.int32(), pa.float32(), "float64"),
        (pa.bool_(), pa.int8(), "int8"),
        (pa.uint32(), pa.int32(), "int64"),
        (pa.float32(), pa.float64(), "float64"),
    ]
    schema = [(f"c{i}_{j}", kind) for i, (*kinds, _) in enumerate(stacks) for j, kind in enumerate(kinds)]
    found = names(schema, {f"x{i}": Field(columns=f"c{i}_*") for i, _ in enumerate(stacks)})
    assert found == [f"x{i}: {dtype}[2]" for i, (*_, dtype) in enumerate(stacks)]


def test_columns_that_cannot_stand_side_by_side_say_why():
    check_refused(
        [
            ((pa.int64(), pa.float32()), {}, "no dtype holds exactly; say which one"),
            ((pa.int64(), pa.uint64()), {}, "no dtype holds exactly"),
            ((pa.timestamp("us"), pa.timestamp("ms")), {}, "different units"),
            ((pa.date32(), pa.int32()), {}, "different units"),
            ((pa.decimal128(9, 2), pa.decimal128(9, 3)), {"dtype": "int64"}, "different units"),
            ((pa.list_(pa.float32(), 2), pa.float32()), {}, "only columns of one number a row can be stacked"),
            ((pa.list_(pa.float32()), pa.float32()), {}, "only columns of one number a row can be stacked"),
            ((pa.string(), pa.string()), {"num_bytes": 4}, "only columns of one number a row can be stacked"),
            ((pa.float32(), pa.float32()), {"shape": (3,)}, "does not hold the 2 columns"),
        ]
    )


def test_an_explicit_dtype_stacks_what_has_no_common_one():
    table = pa.table({"c0": pa.array([1], pa.int64()), "c1": [0.5], "c2": pa.array([3], pa.date32())})
    stacked = delivered(table, {"x": Field("float32", columns="c*")})["x"]
    assert stacked.tolist() == [[1.0, 0.5, 3.0]]
    assert stacked.dtype == np.float32


def test_a_stack_may_have_a_shape_and_so_has_its_mask():
    table = pa.table({f"c{i}": pa.array([i, None]) for i in range(6)})
    arrays = delivered(table, {"x": Field(columns="c*", shape=(2, 3), mask=True)})
    assert arrays["x"].tolist() == [[[0, 1, 2], [3, 4, 5]], [[0] * 3] * 2]
    assert arrays["x_mask"].tolist() == [[[True] * 3] * 2, [[False] * 3] * 2]


def test_columns_of_words_stack_as_their_codes():
    table = pa.table({"c0": ["a", "b"], "c1": pa.array(["b", "b"]).dictionary_encode()})
    field = Field("int8", columns="c*", vocabulary=["a", "b"])
    assert delivered(table, {"x": field})["x"].tolist() == [[0, 1], [1, 1]]


def test_a_stack_of_many_rows_in_odd_chunks_is_its_columns():
    rng = np.random.default_rng(5)
    columns = {f"c{i}": rng.random(10_001) for i in range(3)}
    whole = pa.table(columns)
    table = pa.concat_tables([whole[:4097], whole[4097:4098], whole[4098:]])
    stacked = delivered(table, {"x": Field(columns="c*")})["x"]
    np.testing.assert_array_equal(stacked, np.stack(list(columns.values()), axis=1))


def test_a_number_too_large_for_the_dtype_of_a_stack_names_its_column_and_row():
    table = pa.table({"c0": [1.0, 2.0, 3.0], "c1": [1.0, 2.0, 1e300]})
    with pytest.raises(FieldError, match=r"column 'c1': 1e\+300 is too large.*float32 \(row 2,"):
        loader_of(table, {"x": Field("float32", columns="c*")})


def test_nulls_among_many_columns_are_an_error_that_names_each_of_them():
    table = pa.table({f"c{j}": pa.array([1, None if j in (3, 20) else 2]) for j in range(40)})
    with pytest.raises(FieldError) as caught:
        loader_of(table, {"x": Field(columns="c*")})
    assert caught.value.columns == ("c3", "c20")


# Casts


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (pa.array([1.0, 2.5]), "int32", r"2\.5 is no whole number, so it cannot become int32 \(row 1,"),
        (pa.array([1.0, float("nan")]), "int32", r"nan is not in its range, .*\(row 1,.* Use a float dtype, or"),
        (pa.array([2.0**31]), "int32", "is not in its range"),
        (pa.array([2.0**63]), "int64", "is not in its range"),
        (pa.array([1, 300]), "uint8", r"300 is not in its range, so it cannot become uint8 \(row 1,"),
        (pa.array([-1]), "uint64", "-1 is not in its range"),
        (pa.array([2**63], pa.uint64()), "int64", "9223372036854775808 is not in its range"),
        (pa.array([0, 2]), "bool", "2 is neither 0 nor 1"),
        (pa.array([1e300]), "float32", "too large"),
        (pa.array([70000]), "float16", "too large"),
        (pa.array([[1], [2, 300]]), "uint8", r"300 is not in its range.*\(row 1,"),
        (pa.array([[1, 2], [3, 300]], pa.list_(pa.int64(), 2)), "uint8", r"300 is not in its range.*\(row 1,"),
    ],
)
def test_a_cast_that_would_change_a_number_names_it(values, dtype, message):
    with pytest.raises(FieldError, match=message) as caught:
        one(values, dtype=dtype)
    assert caught.value.columns == ("x",)
    assert WHERE in str(caught.value)


def test_a_cast_gives_the_number_or_the_float_nearest_to_it():
    casts = [
        (pa.array([1.0, -3.0]), "int8", [1, -3]),
        (pa.array([-(2.0**63), 0.0]), "int64", [-(2**63), 0]),
        (pa.array([0.1, -0.0]), "float32", [float(np.float32(0.1)), 0.0]),
        (pa.array([2**53 + 1, 7]), "float32", [float(np.float32(2**53)), 7.0]),
        (pa.array([float("inf"), 1.5]), "float32", [float("inf"), 1.5]),
        (pa.array([0, 1]), "bool", [False, True]),
        (pa.array([True, False]), "float32", [1.0, 0.0]),
        (pa.array([1.0, 2.0], pa.float16()), "int64", [1, 2]),
    ]
    table = pa.table({f"c{i}": values for i, (values, _, _) in enumerate(casts)})
    found = delivered(table, {f"c{i}": Field(dtype) for i, (_, dtype, _) in enumerate(casts)})
    assert [array.tolist() for array in found.values()] == [expected for _, _, expected in casts]


def test_what_stands_under_nulls_is_never_cast():
    data = pa.py_buffer(np.array([1.5, 2.0]))
    array = pa.Array.from_buffers(pa.float64(), 2, [pa.py_buffer(b"\x02"), data])
    assert one(array, dtype="int32", fill=7).tolist() == [7, 2]


# Words


def test_an_unknown_word_is_named_with_its_row():
    array = pa.chunked_array([["DE"], ["FR", "né"]])
    with pytest.raises(FieldError, match=r"column 'x': 'né' is not among the 2 values .*row 2.*unknown="):
        one(array, vocabulary=["FR", "DE"])
    with pytest.raises(FieldError, match=r"5 is not among"):
        one(pa.array([1, 5]), vocabulary=[1, 2])


def test_a_word_of_the_dictionary_that_no_row_uses_may_be_unknown():
    array = pa.array(["a", "zz", "a"]).dictionary_encode()
    assert one(array.take([0, 2]), vocabulary=["a"]).tolist() == [0, 0]
    with pytest.raises(FieldError, match="'zz'"):
        one(array, vocabulary=["a"])


def test_a_null_in_the_dictionary_is_a_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["a", None]))
    assert one(array, vocabulary=["b", "a"], fill="b").tolist() == [1, 0, 0, 1]
    with pytest.raises(FieldError, match="2 nulls"):
        one(array.take([0, 1, 1]), vocabulary=["b", "a"])


def test_integers_have_a_vocabulary_whatever_their_width():
    words = [300, -1, 7]
    field = {"vocabulary": words, "unknown": 9}
    assert one(pa.array([7, 5, -1], pa.int8()), **field).tolist() == [2, 9, 1]
    assert one(pa.array([300, 2**64 - 1], pa.uint64()), **field).tolist() == [0, 9]


def test_few_words_of_a_large_vocabulary_have_the_same_codes():
    words = [f"w{i}" for i in range(1000)]
    few, many = pa.array(["w7", "w999", "no", None]), pa.array(words[::-1])
    assert one(few, vocabulary=words, unknown=-5, fill="w1").tolist() == [7, 999, -5, 1]
    assert one(many, vocabulary=words).tolist() == list(range(1000))[::-1]
    numbers = list(range(0, 2000, 2))
    assert one(pa.array([4, 5]), vocabulary=numbers, unknown=-5).tolist() == [2, -5]


def test_string_hashes_are_frozen():
    array = pa.array(["", "a", "abc", "né", "user-1234567890"])
    expected = [
        3244421341483603138,
        16629034431890738719,
        8696274497037089104,
        7947388042202808800,
        14310096341219902353,
    ]
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.string_view())
    asked = list(itertools.product(kinds, (1 << 62, 1_000_003)))
    table = pa.table({f"c{i}": array.cast(kind) for i, (kind, _) in enumerate(asked)})
    found = delivered(table, {f"c{i}": Field(hash_buckets=num) for i, (_, num) in enumerate(asked)})
    assert [found[f"c{i}"].tolist() for i, _ in enumerate(asked)] == [[h % num for h in expected] for _, num in asked]


def test_integer_hashes_are_frozen_and_the_same_for_every_width():
    expected = [16294208416658607535, 10451216379200822465, 16490336266968443936]
    columns = {
        **{str(kind): pa.array([0, 1, -1], kind) for kind in (pa.int8(), pa.int32(), pa.int64())},
        "uint64": pa.array([0, 1, 2**64 - 1], pa.uint64()),
        "uint16": pa.array([0, 1, 0], pa.uint16()),
    }
    nums = {name: 97 if name == "uint16" else 1 << 62 for name in columns}
    found = delivered(pa.table(columns), {name: Field(hash_buckets=num) for name, num in nums.items()})
    for name, num in nums.items():
        assert found[name].tolist()[:2] == [h % num for h in expected[:2]]
    assert {found[name][2] for name in columns if name != "uint16"} == {found["int8"][2]}


def test_a_value_longer_than_num_bytes_names_its_row_and_length():
    with pytest.raises(FieldError, match=r"column 'x': a value of 4 bytes, more than num_bytes=3 \(row 1,"):
        one(pa.array(["abc", "abcd"]), num_bytes=3)


def test_options_that_do_not_fit_the_type_are_errors_before_any_row():
    check_refused(
        [
            (pa.string(), {"dtype": "int32"}, "say how with vocabulary=, hash_buckets= or num_bytes="),
            (pa.float32(), {"vocabulary": [1]}, "vocabulary= is for strings and integers"),
            (pa.bool_(), {"hash_buckets": 3}, "hash_buckets= is for strings and integers"),
            (pa.int32(), {"num_bytes": 3}, "num_bytes= is for strings and binary"),
            (pa.binary(4), {"num_bytes": 3}, "its values have 4 bytes"),
            (pa.string(), {"vocabulary": [1]}, "holds 1, but the column holds strings"),
            (pa.int32(), {"vocabulary": ["a"]}, "give integers"),
            (pa.string(), {"dtype": "uint8", "hash_buckets": 257}, "the code 256 does not fit uint8"),
            (pa.string(), {"dtype": "uint8", "vocabulary": ["a"], "unknown": -1}, "the code -1 does not fit uint8"),
            (pa.decimal128(5, 2), {"dtype": "bool"}, "decimals cannot become bool"),
            (pa.list_(pa.int8(), 4), {"shape": (3,)}, "does not hold the 4 values"),
            (pa.list_(pa.list_(pa.int8(), 4)), {"shape": (6,)}, "no whole number of values"),
            (pa.list_(pa.list_(pa.int8())), {"shape": (6,)}, "give every dimension"),
            (pa.int8(), {"fill": "a"}, "must be a number"),
            (pa.int8(), {"fill": 300}, "is no int8"),
            (pa.int8(), {"fill": float("nan")}, "is no int8; use another fill, or a dtype that holds it"),
            (pa.float32(), {"fill": 1e300}, "too large for float32"),
            (pa.string(), {"fill": 0}, "must be a string here; fill=''"),
            (pa.string(), {"fill": "abcd", "num_bytes": 3}, "has 4 bytes, more than 3"),
            (pa.string(), {"fill": "z", "vocabulary": ["a"]}, "is not in the vocabulary"),
            (pa.string(), {"fill": 9, "hash_buckets": 9}, "is no bucket of 9"),
            (pa.int8(), {"fill": 1000, "vocabulary": [1]}, "fill=1000"),
        ]
    )


# Nulls


def test_nulls_without_an_answer_name_all_their_columns_and_the_place():
    table = pa.table({"a": [1, None], "b": [1, 2], "c": ["x", None]})
    with pytest.raises(
        FieldError, match=f"column 'a' has 1 null; column 'c' has 1 null in {WHERE}. Give the field"
    ) as caught:
        loader_of(table)
    assert caught.value.columns == ("a", "c")


def test_footers_that_count_nulls_give_the_error_that_the_rows_give(tmp_path):
    table = pa.table(
        {
            "d1": pa.array([1] * 1240, pa.int8()),
            "d2": pa.array([1] * 6 + [None] * 1234, pa.int8()),
            "m": pa.array([None] * 4 + [1] * 1236),
            "f": pa.array([None] * 5 + [1] * 1235),
        }
    )
    fields = {"d": Field(columns="d*"), "m": Field(mask=True), "f": Field(fill=0)}
    told = []
    for with_statistics in (True, False):
        pq.write_table(table, tmp_path / "a.parquet", write_statistics=with_statistics)
        with pytest.raises(FieldError, match=r"column 'd2' has 1,234 nulls in .*a\.parquet") as caught:
            Loader(Dataset(tmp_path / "a.parquet", fields=fields), batch_size=2)
        told.append(str(caught.value))
    assert " row group 0" not in told[0]
    assert told[0] == told[1].replace(" row group 0", "")


def test_of_many_columns_with_nulls_a_message_counts_the_first_and_names_all():
    columns = {f"c{i}": pa.array([None] * (i + 1) + [7] * (59 - i), pa.int8()) for i in range(60)}
    with pytest.raises(FieldError) as raised:
        loader_of(pa.table(columns))
    assert raised.value.columns == tuple(columns)
    message = str(raised.value)
    assert all(repr(name) in message for name in columns)
    assert "column 'c7' has 8 nulls; 52 more have 1,794: 'c8', 'c9', " in message
    assert f"'c59' in {WHERE}" in message


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, None]]),
        pa.array([[1, None]], pa.list_(pa.int64(), 2)),
        pa.array([[[1], None]]),
        pa.array([["a", None]]),
    ],
)
def test_nulls_inside_lists_need_a_fill_as_no_mask_shows_them(array):
    with pytest.raises(FieldError, match=r"column 'x' has 1 null inside its lists in lake"):
        one(array, mask=True)


def test_a_null_list_is_empty_where_there_is_a_fill():
    lists = one(pa.array([[1, None], None, []]), fill=-1)
    assert lists.values.tolist() == [1, -1]
    assert lists.offsets.tolist() == [0, 2, 2, 2]
    words = one(pa.array([["ab", None], None]), fill="z")
    assert words.offsets.tolist() == [0, 2, 2]
    assert bytes(words.values.values) == b"abz"


def test_a_null_list_of_fixed_bytes_is_filled_with_the_word():
    cases = [
        (pa.array([None, [b"abc"]], pa.list_(pa.binary(3), 1)), {}),
        (pa.array([None, ["abc"]]), {"shape": (1, 3)}),
        (pa.array([None, ["abc"]]), {"shape": (1, 3), "num_bytes": 3}),
        (pa.array([None, ["abc"]], pa.list_(pa.string(), 1)), {"num_bytes": 3}),
    ]
    table = pa.table({f"c{i}": array for i, (array, _) in enumerate(cases)})
    for answer, expected in (({"fill": "xyz"}, b"xyzabc"), ({"mask": True}, b"\0\0\0abc")):
        found = delivered(table, {f"c{i}": Field(**options, **answer) for i, (_, options) in enumerate(cases)})
        assert {found[name].tobytes() for name in table.column_names} == {expected}


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_null_among_binary_of_one_length_is_the_word_or_zeros(start):
    array = pa.array([b"abc", None, b"xyz", b"pqr"], pa.binary(3))[start:]
    fields = {"filled": Field(fill="z", num_bytes=5), "masked": Field(mask=True)}
    found = delivered(pa.table({"filled": array, "masked": array}), fields)
    assert found["filled"].tobytes() == b"abc\0\0z\0\0\0\0xyz\0\0pqr\0\0"[5 * start :]
    assert found["masked"].tobytes() == b"abc\0\0\0xyzpqr"[3 * start :]


def test_a_fill_is_itself_where_the_column_has_no_room_for_it():
    asked = {"float16": 1e6, "float32": 0.1, "int16": 0.5, "int8": 300.0, "int64": float("nan")}
    table = pa.table({kind: pa.array(np.array([1, 2, 3], kind), mask=np.array([False, True, False])) for kind in asked})
    found = delivered(table, {kind: Field("float64", fill=fill) for kind, fill in asked.items()})
    for kind, fill in asked.items():
        np.testing.assert_array_equal(found[kind], [1.0, fill, 3.0])


def test_a_fill_of_words_is_a_word_or_a_code():
    words, numbers = pa.array(["a", None]), pa.array([3, None])
    asked = [
        (words, Field(vocabulary=["a", "b"], fill="b"), [0, 1]),
        (words, Field(vocabulary=["a", "b"], fill=7), [0, 7]),
        (words, Field(vocabulary=["a"], unknown=5, fill="zz"), [0, 5]),
        (numbers, Field(vocabulary=[3, 4], fill=4), [0, 1]),
    ]
    columns = {f"c{i}": array for i, (array, _, _) in enumerate(asked)} | {"hashed": words}
    fields = {f"c{i}": field for i, (_, field, _) in enumerate(asked)}
    found = delivered(pa.table(columns), fields | {"hashed": Field(hash_buckets=100, fill="a")})
    assert [found[f"c{i}"].tolist() for i, _ in enumerate(asked)] == [expected for _, _, expected in asked]
    assert found["hashed"][0] == found["hashed"][1]


def test_run_ends_hide_no_nulls():
    array = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([1, None]))
    with pytest.raises(FieldError, match="2 nulls"):
        one(array)
    assert one(array, fill=0).tolist() == [1, 0, 0]
