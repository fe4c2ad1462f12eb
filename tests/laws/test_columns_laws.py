"""Laws of columns to arrays: as a slow reader would see each row, however the column is cut and encoded."""

from __future__ import annotations

import decimal
import fractions
import itertools
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tests.delivered import delivered
from tests.strategies import examples

from stoker import Field, Ragged


def integers(kind: pa.DataType) -> st.SearchStrategy[int]:
    info = np.iinfo(str(kind))
    return st.integers(int(info.min), int(info.max))


def unscaled(kind: pa.DataType) -> st.SearchStrategy[int]:
    limit = 10**kind.precision - 1
    return st.integers(-limit, limit)


def decimals(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Decimals from their unscaled integers, which pa.array does not take."""
    width = kind.bit_width // 8
    data = b"".join((value or 0).to_bytes(width, "little", signed=True) for value in values)
    there = pa.array([value is not None for value in values], pa.bool_())
    return pa.Array.from_buffers(kind, len(values), [there.buffers()[1], pa.py_buffer(data)])


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TIMES = [
    *(pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "Europe/Berlin")),
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
]
DECIMALS = [
    pa.decimal128(9, 2),
    pa.decimal128(38, 30),
    pa.decimal128(38, -3),
    pa.decimal256(76, 10),
    *([pa.decimal32(9, 3), pa.decimal64(18, 18)] if hasattr(pa, "decimal32") else []),
]
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
BINARY = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]


@st.composite
def leaves(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[object], st.SearchStrategy[object]]:
    """An Arrow type, what its values may be, and what may stand for its nulls."""
    kind = draw(
        st.sampled_from([*INTEGERS, pa.bool_(), pa.float32(), pa.float64(), *TIMES, *DECIMALS, *STRINGS, *BINARY])
    )
    number = st.sampled_from([0, 1])
    if pa.types.is_integer(kind):
        return kind, integers(kind), number
    if pa.types.is_boolean(kind):
        return kind, st.booleans(), number
    if pa.types.is_floating(kind):
        return kind, st.floats(width=kind.bit_width), st.sampled_from([0, -1.5, math.inf])
    if pa.types.is_decimal(kind):
        return kind, unscaled(kind), st.sampled_from([0, 0.25])
    if kind in STRINGS:
        return kind, st.text(max_size=4), st.sampled_from(["", "né"])
    if kind in BINARY:
        size = 3 if kind == pa.binary(3) else None
        return kind, st.binary(min_size=size or 0, max_size=size or 4), st.sampled_from(["", "xyz"])
    whole = st.integers(0, 86_399) if pa.types.is_time(kind) else st.integers(-(2**31), 2**31 - 1)
    return kind, whole, number


def make(values: list[object], kind: pa.DataType) -> pa.Array:
    """As `pa.array`, where times and decimals are given as their integers."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        flat = [x for value in values if value is not None for x in value]
        lengths = [0 if value is None else len(value) for value in values]
        mask = pa.array([value is None for value in values], pa.bool_())
        if pa.types.is_fixed_size_list(kind):
            padded = [x for value in values for x in ([None] * kind.list_size if value is None else value)]
            lists = pa.FixedSizeListArray.from_arrays(make(padded, kind.value_type), kind.list_size, mask=mask)
            return lists if kind.list_size else pa.array(values, kind)
        child = make(flat, kind.value_type)
        cls, width = (pa.ListArray, pa.int32()) if pa.types.is_list(kind) else (pa.LargeListArray, pa.int64())
        return cls.from_arrays(pa.array(np.cumsum([0, *lengths]), width), child, mask=mask)
    if kind in TIMES:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(kind) if width == pa.int64() else pa.array(values, width).view(kind)
    if pa.types.is_decimal(kind):
        return decimals(values, kind)
    return pa.array(values, kind)


@st.composite
def columns(draw: st.DrawFn, num_rows: int) -> tuple[pa.Array, object, object]:
    """A column of any type, with nulls, a fill for them, and how it is encoded where it has no lists."""
    kind, values, fills = draw(leaves())
    is_words = kind in STRINGS or (kind in BINARY and kind != pa.binary(3))
    levels = draw(st.integers(0, 2 - is_words))
    maybe = st.none() | values if draw(st.booleans()) else values
    for _ in range(levels):
        shape = draw(st.sampled_from(["list", "large", "fixed"]))
        if shape == "fixed":
            size = draw(st.integers(1, 3))
            kind, maybe = pa.list_(kind, size), st.lists(maybe, min_size=size, max_size=size)
        else:
            kind = pa.list_(kind) if shape == "list" else pa.large_list(kind)
            maybe = st.lists(maybe, max_size=3)
        if draw(st.booleans()):
            maybe = st.none() | maybe
    rows = draw(st.lists(maybe, min_size=num_rows, max_size=num_rows))
    return make(rows, kind), draw(fills), draw(st.sampled_from(["plain", "dictionary", "run ends"]))


def encoded(plain: pa.Array, how: str) -> pa.Array:
    """The same rows in another encoding, where Arrow has one for their type."""
    kind = plain.type
    is_odd = pa.types.is_decimal(kind) and not pa.types.is_decimal128(kind)
    if how == "plain" or is_odd or pa.types.is_nested(kind) or kind in (pa.string_view(), pa.binary_view()):
        return plain
    return plain.dictionary_encode() if how == "dictionary" else pc.run_end_encode(plain)


def cut(draw: st.DrawFn, whole: pa.Array) -> pa.ChunkedArray:
    """The same rows as slices of longer arrays: no chunk begins where its buffers begin."""
    borders = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=2)))
    edges = [0, *borders, len(whole)]
    chunks = [whole[a:b] for a, b in itertools.pairwise(edges)]
    return pa.chunked_array(chunks, type=whole.type)


def leaf_answer(scalar: pa.Scalar, fill: object) -> object:
    """What one innermost value becomes, by Python."""
    if scalar.type in TIMES:
        return fill if not scalar.is_valid else scalar.value
    value = scalar.as_py()
    if value is None:
        value = fill
        if isinstance(value, str) and scalar.type == pa.binary(3):
            value = value.ljust(3, "\0")
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, str):
        return list(value.encode())
    return list(value) if isinstance(value, bytes) else value


def size_of(kind: pa.DataType) -> int:
    return kind.list_size if pa.types.is_fixed_size_list(kind) else 0


def answer(scalar: pa.Scalar, fill: object, *, is_ragged: bool) -> object:
    """What one sample becomes, by Python: nested lists."""
    kind = scalar.type
    if not (pa.types.is_nested(kind)):
        return leaf_answer(scalar, fill)
    inside = is_ragged and holds_lists(kind.value_type)
    if not scalar.is_valid:
        if is_ragged and (not pa.types.is_fixed_size_list(kind) or holds_lists(kind.value_type)):
            return []
        empty = pa.scalar(None, kind.value_type)
        return [answer(empty, fill, is_ragged=inside) for _ in range(size_of(kind))]
    return [answer(x, fill, is_ragged=inside) for x in scalar.values]


def holds_lists(kind: pa.DataType) -> bool:
    """Whether lists of varying length, or bytes of varying length, are in it."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return True
    if pa.types.is_fixed_size_list(kind):
        return holds_lists(kind.value_type)
    return kind in STRINGS or (kind in BINARY and kind != pa.binary(3))


def samples(array: np.ndarray | Ragged) -> list[object]:
    """The samples of a field as nested lists."""
    if not isinstance(array, Ragged):
        return array.tolist()
    assert array.offsets.dtype == np.int64
    assert array.offsets[0] == 0
    inner = samples(array.values)
    assert array.offsets[-1] == len(inner)
    return [inner[a:b] for a, b in zip(array.offsets, array.offsets[1:], strict=False)]


def same(left: object, right: object) -> bool:
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)


@examples(12)
@given(num_rows=st.integers(1, 8), fragment_rows=st.sampled_from([3, 8]), data=st.data())
def test_each_row_is_what_python_makes_of_it_however_it_is_cut_and_encoded(num_rows, fragment_rows, data):
    drawn = [data.draw(columns(num_rows)) for _ in range(4)]
    table = pa.table({f"x{i}": cut(data.draw, encoded(array, how)) for i, (array, _, how) in enumerate(drawn)})
    fields = {f"x{i}": Field(fill=fill, mask=True) for i, (_, fill, _) in enumerate(drawn)}
    found = delivered(table, fields, fragment_rows=fragment_rows)
    for i, (array, fill, _) in enumerate(drawn):
        expected = [answer(value, fill, is_ragged=holds_lists(array.type)) for value in array]
        assert same(samples(found[f"x{i}"]), expected)
        assert found[f"x{i}_mask"].tolist() == [value.is_valid for value in array]


@examples(20)
@given(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), min_size=1, max_size=8), st.data())
def test_values_under_null_lists_never_show(rows, data):
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    stored = [[99] * n if row is None else row for row, n in zip(rows, lengths, strict=True)]
    child = pa.array([x for row in stored for x in row], pa.int64())
    offsets = pa.array(np.cumsum([0, *map(len, stored)]), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, child, mask=pa.array([row is None for row in rows]))
    views = pa.ListViewArray.from_arrays(
        offsets[:-1], pa.array([len(row) for row in stored], pa.int32()), child, mask=lists.is_null()
    )
    start = data.draw(st.integers(0, len(rows) - 1))
    table = pa.table({"lists": lists, "views": views})[start:]
    arrays = delivered(table, {"lists": Field(fill=7), "views": Field(fill=7)})
    expected = [[7 if x is None else x for x in row or []] for row in rows[start:]]
    assert samples(arrays["lists"]) == expected
    assert samples(arrays["views"]) == expected


WORDS = st.sampled_from(["a", "bb", "né", ""])


@examples(20)
@given(
    st.lists(st.none() | WORDS, min_size=1, max_size=9),
    st.sampled_from([*STRINGS, *BINARY[:3]]),
    st.booleans(),
    st.data(),
)
def test_words_become_the_numbers_python_gives_them(rows, kind, is_dictionary, data):
    values = rows if kind in STRINGS else [None if row is None else row.encode() for row in rows]
    array = pa.array(values, kind)
    if is_dictionary and kind not in (pa.string_view(), pa.binary_view()):
        array = array.dictionary_encode()
    table = pa.table({"code": cut(data.draw, array), "bucket": array, "bytes": array})
    vocabulary = ["né", "a", "zz"]
    fields = {
        "code": Field("int16", vocabulary=vocabulary, unknown=-1, fill="zz"),
        "bucket": Field(hash_buckets=1000, fill=""),
        "bytes": Field(num_bytes=3, mask=True),
    }
    arrays = delivered(table, fields)
    filled = ["zz" if row is None else row for row in rows]
    assert arrays["code"].tolist() == [vocabulary.index(row) if row in vocabulary else -1 for row in filled]
    assert arrays["bucket"].tolist() == [xxhash.xxh3_64_intdigest((row or "").encode()) % 1000 for row in rows]
    assert arrays["bytes"].tolist() == [list((row or "").encode().ljust(3, b"\0")) for row in rows]


@examples(20)
@given(
    kinds=st.lists(st.sampled_from([*INTEGERS, pa.bool_(), pa.float32(), pa.float64()]), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float64"]),
    num_rows=st.integers(1, 6),
    data=st.data(),
)
def test_a_stack_is_its_columns_side_by_side(kinds, dtype, num_rows, data):
    columns = {}
    for i, kind in enumerate(kinds):
        values = st.booleans() if kind == pa.bool_() else st.integers(0, 100)
        if pa.types.is_floating(kind):
            values = st.floats(width=kind.bit_width, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100)
        rows = data.draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows))
        columns[f"c{i}"] = cut(data.draw, pa.array(rows, kind))
    arrays = delivered(pa.table(columns), {"all": Field(dtype, columns="c*", fill=-2, mask=True)})
    for j, column in enumerate(columns.values()):
        values = [-2 if x is None else x for x in column.to_pylist()]
        np.testing.assert_array_equal(arrays["all"][:, j], np.array(values, np.float64).astype(dtype))
        assert arrays["all_mask"][:, j].tolist() == column.is_valid().to_pylist()


@examples(20)
@given(
    kind=st.sampled_from(["int8", "uint16", "int32", "int64", "float32", "float64"]),
    dtype=st.sampled_from([None, "int64", "float64"]),
    num_columns=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    begin=st.integers(0, 5),
    null_column=st.sampled_from([None, 0, 7]),
)
def test_a_stack_of_many_columns_of_one_type_is_these_whole_or_with_a_null(
    kind, dtype, num_columns, sizes, begin, null_column
):
    num_rows = sum(sizes)
    if dtype == "int64" and kind[0] == "f":
        dtype = "float64"
    rows = np.arange(num_rows * num_columns).reshape(num_rows, num_columns) % 100
    expected = rows.astype(dtype or kind)
    columns = {"id": pa.chunked_array([np.arange(num_rows)])}
    for j in range(num_columns):
        pieces, start = [], 0
        for size in sizes:
            # Values behind others, as those of a part are.
            there = np.concatenate([np.full(begin, 99, kind), rows[start : start + size, j].astype(kind)])
            is_null = np.zeros(len(there), np.bool_)
            is_null[begin] = j == null_column and start == 0
            pieces.append(pa.array(there, mask=is_null if is_null.any() else None).slice(begin))
            start += size
        columns[f"c{j}"] = pa.chunked_array(pieces)
        if j == null_column:
            expected[0, j] = 55
    fields = {"x": Field(dtype, columns="c*", fill=None if null_column is None else 55)}
    np.testing.assert_array_equal(delivered(pa.table(columns), fields)["x"], expected)


@examples(8)
@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20))
def test_a_decimal_is_the_float_nearest_to_it(unscaled):
    scales = range(-5, 39)
    found = delivered(pa.table({str(scale): decimals(unscaled, pa.decimal128(38, scale)) for scale in scales}))
    for scale in scales:
        nearest = [float(fractions.Fraction(n) / fractions.Fraction(10) ** scale) for n in unscaled]
        assert found[str(scale)].tolist() == nearest


@examples(8)
@given(
    words=st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(max_size=300)), min_size=1, max_size=30),
    sizes=st.lists(st.integers(200, 5_000), max_size=5),
    num_buckets=st.integers(1, (1 << 62) - 1),
    first=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@example(words=[bytes(range(n)) for n in range(256)], sizes=[], num_buckets=(1 << 62) - 1, first=0, seed=0)
@example(words=[bytes(i % 7 for i in range(n)) for n in range(230, 260)], sizes=[], num_buckets=7, first=3, seed=0)
@example(words=[b""], sizes=[240, 241, 1023, 1024, 1025, 2047, 2048, 2049, 3072], num_buckets=10**15, first=0, seed=0)
def test_the_bucket_of_each_word_is_its_hash_however_long_it_is(words, sizes, num_buckets, first, seed):
    rng = np.random.default_rng(seed)
    every = [None] * first + words + [rng.bytes(size) for size in sizes]
    table = pa.table({str(kind): pa.array(every, kind)[first:] for kind in BINARY[:3]})
    found = delivered(table, {name: Field(hash_buckets=num_buckets, fill=0) for name in table.column_names})
    expected = [0 if word is None else xxhash.xxh3_64_intdigest(word) % num_buckets for word in every[first:]]
    assert all(array.tolist() == expected for array in found.values())
