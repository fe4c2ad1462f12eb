"""Arrays and tensors are the same values, for every dtype and shape."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stoker import Entry, Ragged, Spec
from stoker.loader.gather import Assembled
from stoker.torch import to_nested
from stoker.torch.tensors import as_tensor, cut, fields_of, torch_dtype

pytestmark = pytest.mark.torch

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
]  # fmt: skip
SHAPES = [(), (1,), (3,), (2, 3), (0,), (2, 0), (1, 1, 4)]


def spec_of(kinds) -> Spec:
    return Spec(tuple(Entry(name=f"f{i}", dtype=np.dtype(d), shape=shape) for i, (d, shape) in enumerate(kinds)))


def random_records(spec, num_samples: int) -> np.ndarray:
    rng = np.random.default_rng(num_samples)
    records = rng.integers(0, 2, (num_samples, spec.record_bytes), dtype=np.uint8)  # a bool is 0 or 1, NaN is unlikely
    assert records.flags.c_contiguous
    return records


def assert_same(tensor, array) -> None:
    assert tuple(tensor.shape) == array.shape
    assert tensor.dtype == torch_dtype(array.dtype)
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fields_of_a_record_tensor_equal_the_numpy_views(dtype):
    for shape, num_samples in product(SHAPES, [0, 1, 5]):
        spec = spec_of([("uint8", (3,)), (dtype, shape), ("float64", ()), ("bool", (2,))])
        records = random_records(spec, num_samples)
        views = Assembled(spec, num_samples, records, {}).views()
        fields = fields_of(torch.from_numpy(records), spec)
        assert list(fields) == list(views)
        for name, view in views.items():
            assert_same(fields[name], view)
            assert_same(as_tensor(view), view)


@given(
    kinds=st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=12),
    num_samples=st.integers(0, 9),
    first=st.integers(0, 3),
)
def test_fields_of_any_spec_equal_the_numpy_views_wherever_the_records_begin(kinds, num_samples, first):
    spec = spec_of(kinds)
    if spec.record_bytes == 0:
        return
    memory = random_records(spec, first + num_samples)
    views = Assembled(spec, num_samples, memory[first:], {}).views()
    for name, tensor in fields_of(torch.from_numpy(memory)[first:], spec).items():
        assert_same(tensor, views[name])


@given(
    kinds=st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=12),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    first=st.integers(0, 3),
)
def test_fields_of_several_batches_are_those_of_each(kinds, sizes, first):
    spec = spec_of(kinds)
    if spec.record_bytes == 0:
        return
    records = torch.from_numpy(random_records(spec, first + sum(sizes)))[first:]
    fields = fields_of(records, spec)
    rows = zip(*(cut(field, sizes) for field in fields.values()), strict=True)
    each = [dict(zip(fields, row, strict=True)) for row in rows]
    for batch, alone in zip(each, records.split(sizes), strict=True):
        expected = fields_of(alone, spec)
        assert list(batch) == list(expected)
        for name, tensor in batch.items():
            assert_same(tensor, expected[name].numpy())
            assert not tensor.numel() or tensor.data_ptr() == expected[name].data_ptr()
    tensors = [tensor for batch in each for tensor in batch.values()]
    tensors[0].zero_()  # nobody else's version
    assert [tensor._version for tensor in tensors[1:]] == [0] * (len(tensors) - 1)


def test_fields_are_views_of_one_storage_and_see_what_is_written():
    spec = spec_of([("float32", (4,)), ("int64", ())])
    records = torch.zeros((6, spec.record_bytes), dtype=torch.uint8)
    fields = fields_of(records, spec)
    assert {field.untyped_storage().data_ptr() for field in fields.values()} == {records.untyped_storage().data_ptr()}
    fields["f1"].fill_(7)
    assert fields_of(records, spec)["f1"].tolist() == [7] * 6
    assert not fields["f0"].any()


def test_tensors_share_memory_where_they_can():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:3]
    tensor = as_tensor(array)
    array[0, 0] = 99
    assert tensor[0, 0] == 99


def test_what_torch_cannot_look_at_is_copied():
    backwards = np.arange(4)[::-1]
    assert as_tensor(backwards).tolist() == [3, 2, 1, 0]
    read_only = np.broadcast_to(np.float32(2), (3,))
    assert as_tensor(read_only).tolist() == [2, 2, 2]
    unaligned = np.zeros(3, dtype=[("a", "u1"), ("b", "<i4")])["b"]
    assert as_tensor(unaligned).tolist() == [0, 0, 0]
    assert as_tensor(np.float64(1.5)).shape == ()
    assert as_tensor(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(TypeError):
        as_tensor(np.array(["text"]))


def test_to_nested_gives_each_sample_its_own_length():
    ragged = Ragged(torch.arange(6), torch.tensor([0, 2, 2, 6]))
    nested = to_nested(ragged)
    assert [part.tolist() for part in nested.unbind()] == [[0, 1], [], [2, 3, 4, 5]]
    matrix = Ragged(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 4]))
    assert [tuple(part.shape) for part in to_nested(matrix).unbind()] == [(1, 2), (3, 2)]
    with pytest.raises(ValueError, match="one ragged dimension"):
        to_nested(Ragged(ragged, torch.tensor([0, 3])))
