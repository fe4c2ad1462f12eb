import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cache.samples import arrays_of, entry, specs

from stoker import Field, Spec
from stoker.cache.tables import record_packer
from stoker.columns import Converter, Pieces, plan_spec, to_arrays

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
