"""Laws of columns to arrays: as a slow reader would see each row, however the column is cut and encoded."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import itertools
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from stoker import Field, Ragged
from stoker.columns import as_table, plan_spec, to_arrays

WHERE = "lake/a.parquet row groups 0-1"


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
def columns(draw: st.DrawFn, max_levels: int = 2) -> tuple[pa.ChunkedArray, object]:
    """A column of any type, with nulls, cut into chunks that are slices, and a fill for its nulls."""
    kind, values, fills = draw(leaves())
    is_words = kind in STRINGS or (kind in BINARY and kind != pa.binary(3))
    levels = draw(st.integers(0, max(0, max_levels - is_words)))
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
    rows = draw(st.lists(maybe, max_size=8))
    return cut(draw, make(rows, kind)), draw(fills)


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


def check_against_spec(arrays, spec, num_rows):
    assert list(arrays) == [entry.name for entry in spec]
    for entry in spec:
        array, levels = arrays[entry.name], 0
        assert len(array.offsets) - 1 == num_rows if isinstance(array, Ragged) else len(array) == num_rows
        while isinstance(array, Ragged):
            array, levels = array.values, levels + 1
        assert (array.dtype, array.shape[1:], levels) == (entry.dtype, entry.shape, entry.num_levels)
        assert array.dtype.isnative
        assert array.flags.c_contiguous


@given(columns())
def test_each_row_is_what_python_makes_of_it(case):
    column, fill = case
    table = pa.table({"x": column})
    fields = {"x": Field(fill=fill, mask=True)}
    spec = plan_spec(table.schema, fields)
    arrays = to_arrays(table, fields, where=WHERE)
    check_against_spec(arrays, spec, table.num_rows)
    expected = [answer(value, fill, is_ragged=holds_lists(column.type)) for value in column]
    assert same(samples(arrays["x"]), expected)
    assert arrays["x_mask"].tolist() == [value.is_valid for value in column]


@given(columns(), st.data())
def test_slices_give_the_rows_of_the_whole_in_order(case, data):
    column, fill = case
    table = pa.table({"x": column})
    fields = {"x": Field(fill=fill)}
    middle = data.draw(st.integers(0, table.num_rows))
    parts = [to_arrays(part, fields, where=WHERE)["x"] for part in (table[:middle], table[middle:])]
    whole = to_arrays(table, fields, where=WHERE)["x"]
    assert same(samples(parts[0]) + samples(parts[1]), samples(whole))


@given(columns(max_levels=0), st.sampled_from(["dictionary", "run ends"]))
def test_an_encoding_changes_nothing(case, encoding):
    column, fill = case
    assume(not pa.types.is_decimal(column.type) or pa.types.is_decimal128(column.type))
    assume(column.type not in (pa.string_view(), pa.binary_view()))
    plain = column.combine_chunks()
    encoded = plain.dictionary_encode() if encoding == "dictionary" else pc.run_end_encode(plain)
    fields = {"x": Field(fill=fill, mask=True)}
    tables = [pa.table({"x": array})[1:] for array in (plain, encoded)]
    left, right = (to_arrays(table, fields, where=WHERE) for table in tables)
    assert plan_spec(tables[0].schema, fields) == plan_spec(tables[1].schema, fields)
    assert all(same(samples(left[name]), samples(right[name])) for name in left)


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
    start = data.draw(st.integers(0, len(rows)))
    table = pa.table({"lists": lists, "views": views})[start:]
    arrays = to_arrays(table, {"lists": Field(fill=7), "views": Field(fill=7)}, where=WHERE)
    expected = [[7 if x is None else x for x in row or []] for row in rows[start:]]
    assert samples(arrays["lists"]) == expected
    assert samples(arrays["views"]) == expected


WORDS = st.sampled_from(["a", "bb", "né", ""])


@given(st.lists(st.none() | WORDS, max_size=9), st.sampled_from([*STRINGS, *BINARY[:3]]), st.booleans(), st.data())
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
    arrays = to_arrays(table, fields, where=WHERE)
    check_against_spec(arrays, plan_spec(table.schema, fields), len(rows))
    filled = ["zz" if row is None else row for row in rows]
    assert arrays["code"].tolist() == [vocabulary.index(row) if row in vocabulary else -1 for row in filled]
    assert arrays["bucket"].tolist() == [xxhash.xxh3_64_intdigest((row or "").encode()) % 1000 for row in rows]
    assert arrays["bytes"].tolist() == [list((row or "").encode().ljust(3, b"\0")) for row in rows]


@st.composite
def scalar_columns(draw: st.DrawFn) -> pa.Table:
    num_rows = draw(st.integers(0, 6))
    kinds = draw(st.lists(st.sampled_from([*INTEGERS, pa.bool_(), pa.float32(), pa.float64()]), min_size=1, max_size=4))
    arrays = []
    for kind in kinds:
        values = st.booleans() if kind == pa.bool_() else st.integers(0, 100)
        if pa.types.is_floating(kind):
            values = st.floats(width=kind.bit_width, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100)
        rows = draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows))
        arrays.append(cut(draw, pa.array(rows, kind)))
    return pa.table(arrays, names=[f"c{i}" for i in range(len(kinds))])


@given(scalar_columns())
def test_a_stack_is_its_columns_side_by_side(table):
    fields = {"all": Field("float32", columns="c*", fill=-2, mask=True)}
    arrays = to_arrays(table, fields, where=WHERE)
    check_against_spec(arrays, plan_spec(table.schema, fields), table.num_rows)
    for j, column in enumerate(table.columns):
        values = [-2 if x is None else x for x in column.to_pylist()]
        np.testing.assert_array_equal(arrays["all"][:, j], np.array(values, np.float64).astype(np.float32))
        assert arrays["all_mask"][:, j].tolist() == column.is_valid().to_pylist()


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), max_size=20), st.integers(-5, 38))
def test_a_decimal_is_the_float_nearest_to_it(unscaled, scale):
    array = decimals(unscaled, pa.decimal128(38, scale))
    nearest = [float(fractions.Fraction(n) / fractions.Fraction(10) ** scale) for n in unscaled]
    assert to_arrays(pa.table({"x": array}), {}, where=WHERE)["x"].tolist() == nearest


@given(st.lists(st.datetimes(min_value=dt.datetime(1970, 1, 1)), max_size=5))
def test_numpy_and_arrow_times_become_the_same_integers(times):
    values = np.array(times, "M8[us]")
    arrow = to_arrays(pa.table({"t": pa.array(times, pa.timestamp("us"))}), {}, where=WHERE)
    numpy = to_arrays({"t": values}, {}, where=WHERE)
    assert arrow["t"].tolist() == numpy["t"].tolist() == values.view(np.int64).tolist()
    assert plan_spec(as_table({"t": values}, where=WHERE).schema, {})["t"].unit == "us since 1970"
