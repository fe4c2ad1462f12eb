"""Fields whose rows lie in several arrays: a chunk of them is the chunk of what they are together."""

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
from tests.unit.cache.samples import arrays_of, same_fields, specs

from stoker import Field, FieldError, Ragged, Spec
from stoker.cache.tables import find_begins
from stoker.columns import Converter, Pieces, in_pieces, joined, plan_spec, to_arrays


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


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_pieces_have_the_rows_shape_and_dtype_of_the_whole(sizes):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 100, (size, 2)) for size in sizes]
    pieces = Pieces.of(arrays)
    np.testing.assert_array_equal(pieces.whole(), np.concatenate(arrays))
    assert pieces.shape == pieces.whole().shape
    assert pieces.dtype == pieces.whole().dtype


def test_an_array_is_one_piece_and_a_view():
    array = np.arange(10)
    assert np.shares_memory(in_pieces(array).arrays[0], array)


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


def test_an_error_in_a_later_piece_names_its_row():
    values = np.zeros(60_000)
    values[45_123] = 1e30
    table = pa.concat_tables([pa.table({"x": values}).slice(i, 20_000) for i in range(0, 60_000, 20_000)])
    with pytest.raises(FieldError, match=r"row 45123, counted from 0"):
        Converter({"x": Field("float32", storage_dtype="float16")}).convert(table, where="lake/a.parquet")
