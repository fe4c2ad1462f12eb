"""The tables of a chunk against NumPy: records, lists side by side and runs, whatever arrays their fields lie in."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples
from tests.unit.cache.chunk_files import write_chunk
from tests.unit.cache.samples import arrays_of, entry, same_fields, specs

from stoker import Field, FieldError, Ragged, Spec
from stoker.cache.tables import find_begins, make_strips, record_packer, take_rows
from stoker.columns import Converter, Pieces, joined, plan_spec, to_arrays

# ---------------------------------------------------------------------- records


SOURCES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]


def packed(fields, spec, num_samples, *, step):
    """All records, packed in blocks of `step` rows over bytes that are not zero."""
    packer = record_packer(fields, spec)
    blocks = []
    for start in range(0, num_samples, step):
        stop = min(start + step, num_samples)
        block = np.full((stop - start) * spec.record_bytes, 0xA5, np.uint8)
        packer.pack(block, start, stop)
        blocks.append(block)
    return np.concatenate([np.zeros(0, np.uint8), *blocks])


@given(spec=specs(), num_samples=st.integers(0, 200), step=st.integers(1, 150))
def test_every_field_of_every_row_is_where_the_spec_says_and_nothing_else_is_touched(spec, num_samples, step):
    arrays = arrays_of(spec, num_samples)
    expected = np.full(num_samples * spec.record_bytes, 0xA5, np.uint8)
    if spec.record_bytes:
        records = expected.view(spec.record_dtype)
        for item in spec.fixed:
            records[item.name] = arrays[item.name]
        assert packed(arrays, spec, num_samples, step=step).tobytes() == expected.tobytes()


@given(
    kinds=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=6),
    dtype=st.sampled_from([None, "int64", "uint64", "float32", "float64"]),
    sizes=st.lists(st.integers(1, 90), max_size=4),
    step=st.integers(1, 150),
    data=st.data(),
)
def test_columns_stacked_while_packing_are_the_stacked_array(kinds, dtype, sizes, step, data):
    seed = data.draw(st.integers(0, 9))
    rng = np.random.default_rng(seed)
    num_samples = sum(sizes)

    def column(kind):
        low = -100 if dtype != "uint64" and kind[0] != "u" else 0
        values = rng.integers(low, 100, num_samples).astype(kind)
        borders = np.cumsum([0, *sizes])
        return pa.chunked_array([values[a:b] for a, b in itertools.pairwise(borders)], pa.from_numpy_dtype(kind))

    if dtype is None:
        kinds = kinds[:1] * len(kinds)
    columns = {f"c{i}": column(kind) for i, kind in enumerate(kinds)}
    table = pa.table({**columns, "id": pa.chunked_array([np.arange(num_samples)])})
    fields = {"x": Field(dtype, columns="c*")}
    spec = plan_spec(table.schema, fields)
    stacked = Converter(fields).convert(table, where="")
    assert isinstance(stacked["x"], Pieces)
    whole = to_arrays(table, fields, where="")
    expected = packed(whole, spec, num_samples, step=step)
    assert packed(stacked, spec, num_samples, step=step).tobytes() == expected.tobytes()
    assert whole["x"].dtype == spec["x"].dtype
    for j, name in enumerate(columns):
        np.testing.assert_array_equal(whole["x"][:, j], table[name].to_numpy())


def test_columns_of_unequal_length_are_refused_before_anything_is_read_by_address():
    spec = Spec((entry("x", "float64", shape=(2,)),))
    for shape, part, told in (
        ((3, 2), (np.zeros(3), np.zeros(2)), "one length"),
        ((3,), (np.zeros(6)[::2],), "contig"),
    ):
        with pytest.raises(ValueError, match=told):
            record_packer({"x": Pieces(np.dtype("float64"), shape, [part])}, spec)


def test_records_that_do_not_fit_their_block_are_refused():
    spec = Spec((entry("x", "int64"),))
    packer = record_packer({"x": np.arange(9)}, spec)
    with pytest.raises(ValueError, match="do not fit"):
        packer.pack(np.zeros(8 * 8, np.uint8), 0, 9)


# ---------------------------------------------------------------------- lists side by side


@examples(15)
@given(spec=specs(), num_samples=st.integers(0, 40), step=st.integers(1, 40))
def test_strips_laid_some_at_a_time_are_the_lists_of_each_row_side_by_side(spec, num_samples, step):
    arrays = arrays_of(spec, num_samples)
    if (strips := make_strips(spec, arrays)) is None:
        return
    _, begins, lay = strips
    lists = [arrays[one.name] for one in spec.strip]
    for start in range(0, num_samples, step):
        stop = min(start + step, num_samples)
        rows = (
            b"".join(one.values[slice(*one.offsets[i : i + 2])].tobytes() for one in lists) for i in range(start, stop)
        )
        laid = np.empty(begins[stop] - begins[start], np.uint8)
        lay(laid, start, stop)
        assert laid.tobytes() == b"".join(row + bytes(-len(row) % 8) for row in rows)


def test_lists_that_cannot_be_counted_are_refused():
    spec = Spec((entry("a", "int8", num_levels=1), entry("b", "int64", num_levels=1)))
    values = Pieces.of([np.zeros(1 << 22, np.int8)] * 1025)  # as if they were 4 GiB
    many, none = Ragged(values, np.array([0, len(values)])), Ragged(np.zeros(0, np.int64), np.zeros(2, np.int64))
    with pytest.raises(FieldError, match="chunk_size="):
        make_strips(spec, {"a": many, "b": none})


# ---------------------------------------------------------------------- in several arrays


def cut(field, rows):
    """A field with its rows, or the values of its rows, in several arrays."""
    if not isinstance(field, Ragged):
        borders = [0, *rows, len(field)]
        return Pieces.of([field[a:b].copy() for a, b in itertools.pairwise(borders)])
    return Ragged(cut(field.values, [int(field.offsets[row]) for row in rows]), field.offsets)


def written(arrays, spec, num_samples):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chunk"
        write_chunk(path, arrays, spec, num_samples=num_samples)
        return path.read_bytes()


@examples(30)
@given(
    spec=specs(),
    num_samples=st.integers(0, 60),
    is_shared=st.booleans(),
    data=st.data(),
)
def test_a_chunk_of_pieces_is_the_chunk_of_the_whole(spec, num_samples, is_shared, data):
    if is_shared:
        key = spec.entries[0].name
        spec = Spec((*spec.entries[:-1], replace(spec.entries[-1], deduplicated_by=key)))
    arrays = arrays_of(spec, num_samples)
    rows = st.lists(st.integers(0, num_samples), max_size=4).map(sorted)
    pieces = {name: cut(field, data.draw(rows)) for name, field in arrays.items()}
    assert written(pieces, spec, num_samples) == written(arrays, spec, num_samples)
    assert same_fields({name: joined(field) for name, field in pieces.items()}, arrays)
    begins = [find_begins(list(fields.values()), num_rows=num_samples) for fields in (pieces, arrays)]
    np.testing.assert_array_equal(*begins)


def table_in_batches(num_rows, num_batches):
    rng = np.random.default_rng(3)
    lists = np.concatenate([[0], np.cumsum(rng.integers(0, 9, num_rows))]).astype(np.int32)
    whole = pa.table(
        {
            "id": rng.integers(0, 1 << 40, num_rows),
            "small": rng.integers(0, 100, num_rows).astype(np.int8),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(num_rows * 4)), 4),
            "history": pa.ListArray.from_arrays(pa.array(lists), pa.array(rng.integers(0, 9, int(lists[-1])))),
            "word": pa.array([f"word {i}" * (i % 5) for i in range(num_rows)]),
            "some": pa.array(rng.random(num_rows), mask=rng.random(num_rows) < 0.2),
        }
    )
    step = num_rows // num_batches
    return pa.concat_tables([whole.slice(i, step) for i in range(0, num_rows, step)])


def test_columns_of_several_batches_stay_where_they_were_decoded():
    table = table_in_batches(60_000, 3)
    fields = {"some": Field(fill=0.5, mask=True), "vector": Field("float32", storage_dtype="float16")}
    found = Converter(fields).convert(table, where="")
    assert isinstance(found["id"], Pieces)
    assert isinstance(found["vector"], Pieces)
    assert isinstance(found["history"].values, Pieces)
    assert isinstance(found["small"], np.ndarray)  # so few bytes are joined
    assert np.shares_memory(found["id"].arrays[1], np.asarray(table["id"].chunk(1)))
    spec = plan_spec(table.schema, fields)
    whole = {name: joined(field) for name, field in found.items()}
    assert written(found, spec, len(table)) == written(whole, spec, len(table))
    delivered = to_arrays(table, fields, where="")
    assert same_fields({**delivered, "vector": delivered["vector"].astype("f2")}, whole)


# ---------------------------------------------------------------------- runs


def repeated(arrays, lengths):
    """Each row of some arrays, so many times."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return {name: take_rows(array, rows) for name, array in arrays.items()}


lengths_of_runs = st.lists(st.integers(1, 6), max_size=12)


def rows_of(field, num_rows):
    """Each row of a field as bytes: the slow way."""
    if isinstance(field, Pieces):
        field = field.whole()
    if not isinstance(field, Ragged):
        return [field[i].tobytes() for i in range(num_rows)]
    inner = rows_of(field.values, len(field.values))
    return [tuple(inner[field.offsets[i] : field.offsets[i + 1]]) for i in range(num_rows)]


@given(spec=specs(), lengths=lengths_of_runs, seed=st.integers(0, 5))
def test_a_run_begins_where_any_field_changes_and_nowhere_else(spec, lengths, seed):
    arrays = repeated(arrays_of(spec, len(lengths), seed), lengths)
    fields, num_rows = list(arrays.values()), sum(lengths)
    rows = list(zip(*(rows_of(field, num_rows) for field in fields), strict=True))
    expected = [i == 0 or rows[i] != rows[i - 1] for i in range(num_rows)]
    assert find_begins(fields, num_rows=num_rows).tolist() == expected


@given(
    columns=st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=3),
    cut=st.integers(1, 5),
)
def test_a_stacked_field_is_compared_as_what_it_becomes(columns, cut):
    narrow, wide = ([np.array(column, dtype=dtype) for column in columns] for dtype in ("int8", "int64"))
    parts = [column[:cut].copy() for column in narrow], [column[cut:].copy() for column in wide]
    stack = Pieces(np.dtype("int64"), (6, len(columns)), parts)
    begins = find_begins([stack], num_rows=6)
    np.testing.assert_array_equal(begins, find_begins([stack.whole()], num_rows=6))


def test_equal_numbers_of_other_bits_are_not_the_same():
    zeros = np.array([0.0, -0.0, np.nan, np.nan], dtype=np.float32)
    assert find_begins([zeros], num_rows=4).tolist() == [True, True, True, False]
    wide = np.stack([zeros] * 3, axis=1)
    assert find_begins([wide], num_rows=4).tolist() == [True, True, True, False]
