import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Dataset, Entry, Field, Spec

DTYPES = ["bool", "int8", "uint16", "float16", "int32", "float32", "int64", "float64"]

entries = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=2), st.sampled_from([0, 0, 0, 1, 2])),
    max_size=12,
).map(
    lambda items: Spec(
        tuple(
            Entry(name=f"f{i}", dtype=np.dtype(dtype), shape=tuple(shape), num_levels=levels)
            for i, (dtype, shape, levels) in enumerate(items)
        )
    )
)


@given(entries)
def test_fields_lie_in_a_record_aligned_and_without_overlap(spec):
    taken = np.zeros(spec.record_bytes, dtype=int)
    for entry in spec.fixed:
        offset = spec.record_offsets[entry.name]
        assert offset % entry.dtype.itemsize == 0
        taken[offset : offset + entry.value_bytes] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == sum(entry.value_bytes for entry in spec.fixed)


@given(entries)
def test_records_stay_aligned_and_straddle_no_cache_line_needlessly(spec):
    size = spec.record_bytes
    assert size % max((e.dtype.itemsize for e in spec.fixed if e.value_bytes), default=1) == 0
    assert (size <= 64 and (size & (size - 1)) == 0) or size % 64 == 0
    if size:
        assert spec.record_dtype.itemsize == size


@given(entries)
def test_a_spec_survives_json(spec):
    assert Spec.from_json(spec.to_json()) == spec


def test_two_fields_of_one_name_are_refused():
    entry = Entry(name="a", dtype=np.dtype("int8"))
    with pytest.raises(ValueError, match="'a'"):
        Spec((entry, entry))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dtype": "float33"}, ValueError, "no NumPy dtype"),
        ({"dtype": "str"}, ValueError, "cannot be a tensor"),
        ({"dtype": "float128"}, ValueError, "float128"),
        ({"vocabulary": ["a"], "hash_buckets": 3}, ValueError, "give one"),
        ({"hash_buckets": 0}, ValueError, "at least 1"),
        ({"num_bytes": True}, TypeError, "integer"),
        ({"unknown": 0}, ValueError, "vocabulary"),
        ({"vocabulary": "abc"}, TypeError, "sequence of values"),
        ({"vocabulary": ["a", "a"]}, ValueError, "twice"),
        ({"vocabulary": [1.5]}, TypeError, "strings or integers"),
        ({"shape": (-1,)}, ValueError, "at least 0"),
        ({"columns": ""}, ValueError, "names no column; leave it out for the column of the field's own name"),
        ({"columns": []}, ValueError, "names no column; leave it out"),
    ],
)
def test_a_contradictory_field_is_refused_with_a_reason(arguments, error, words):
    with pytest.raises(error, match=words):
        Field(**arguments)


def test_one_column_and_a_list_of_one_column_are_different_fields():
    assert Field(columns="x").to_json() != Field(columns=["x"]).to_json()


def test_a_vocabulary_from_numpy_is_the_same_as_one_of_python_values():
    assert Field(vocabulary=np.unique([3, 1, 2])).to_json() == Field(vocabulary=[1, 2, 3]).to_json()


@pytest.mark.parametrize(
    ("text", "size"), [(7, 7), ("7", 7), ("1kB", 1000), ("1 KiB", 1024), ("1.5GiB", 3 << 29), ("500gb", 500 * 10**9)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert Dataset("nowhere", chunk_size=text).chunk_bytes == size


@pytest.mark.parametrize(
    ("text", "error"), [("many", ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_what_is_no_size_is_refused_by_the_argument_s_name(text, error):
    with pytest.raises(error, match="chunk_size"):
        Dataset("nowhere", chunk_size=text)
