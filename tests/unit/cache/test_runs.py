"""Runs: neighbours that are the same in every bit, kept once, and given back exactly."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.unit.cache.chunk_files import header_of, read_arrays, write_chunk
from tests.unit.cache.samples import arrays_of, entry, same_fields, specs

from stoker import Ragged, Spec
from stoker.cache.format import PAGE_BYTES
from stoker.cache.tables import find_begins, take_rows
from stoker.columns import Pieces


@st.composite
def shared_specs(draw):
    """A spec of which some fields are shared by one of two keys."""
    spec = draw(specs())
    names = [item.name for item in spec]
    owners = {name: draw(st.sampled_from([None, names[0], names[-1]])) for name in names}
    return Spec(tuple(replace(item, deduplicated_by=owners[item.name]) for item in spec))


def repeated(arrays, lengths):
    """Each row of some arrays, so many times."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return {name: take_rows(array, rows) for name, array in arrays.items()}


lengths_of_runs = st.lists(st.integers(1, 6), max_size=12)


@given(spec=shared_specs(), lengths=lengths_of_runs, seed=st.integers(0, 5))
def test_a_chunk_gives_back_what_was_shared_bit_for_bit(spec, lengths, seed):
    arrays = repeated(arrays_of(spec, len(lengths), seed), lengths)
    for item in spec:  # what samples have for themselves differs within runs
        if item.deduplicated_by is None:
            arrays[item.name] = arrays_of(spec, sum(lengths), seed + 1)[item.name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chunk.safetensors"
        write_chunk(path, arrays, spec, num_samples=sum(lengths))
        header = header_of(path)
        assert header.spec == spec
        assert same_fields(read_arrays(path), arrays)
        theirs = load_file(path)
        for name, place in header.arrays.items():
            assert theirs[name].shape == place.shape
            if name.endswith("records"):
                assert place.offset_bytes % PAGE_BYTES == 0
            if name.endswith(".records"):
                assert len(theirs[name]) <= len(lengths)


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


def test_a_chunk_that_shares_nothing_is_the_one_it_was(tmp_path):
    write_chunk(tmp_path / "a", {"x": np.arange(3)}, Spec((entry("x", "int64"),)), num_samples=3)
    text = (tmp_path / "a").read_bytes()
    assert b'"format_version":"4"' in text
    assert b"shared" not in text
