"""Deduplicated fields as tensors: expanded on the device, or handed over once; the same as without sharing."""

import time
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.test_sharing import write
from tests.strategies import examples
from tests.unit.cache.samples import SPEC, arrays_of, same
from tests.unit.cache.test_runs import repeated

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import stoker
from stoker import Deduplicated, Ragged
from stoker.cache.tables import take_rows
from stoker.torch import TorchDataset, TorchLoader
from stoker.torch.copies import expand_ragged, expand_rows, expanded_totals
from stoker.torch.delivery import DeviceDelivery
from stoker.torch.tensors import as_tensor

pytestmark = pytest.mark.torch

QUERY = {"query_id": ["q_*"]}
SHARE = {"query_id": ["q_*"], "user": ["u_*"]}


class PromptStream:
    """A device that copies at once, and counts the bytes."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_copies = 0
        self.memory = []

    def allocate(self, num_bytes):
        return np.empty(num_bytes, dtype=np.uint8)

    @contextmanager
    def copies(self):
        yield

    def copy(self, array):
        self.num_bytes += array.nbytes
        self.num_copies += 1
        return torch.from_numpy(array).clone()

    def mark(self):
        return self

    def query(self):
        return True

    def current(self):
        return 0

    def wait(self, mark, tensors):
        self.memory += tensors


class OnPromptDevice(stoker.Loader):
    def _make_delivery(self):
        self.stream = PromptStream()
        return DeviceDelivery(self.stream)


def dataset_in(folder, share, *, num_queries=30, length=8):
    runs = [(i % 7, length) for i in range(num_queries)]
    write(folder, {"files": [(runs, 50)], "noise": 0, "seed": 1, "narrow": False})
    return stoker.Dataset(folder, deduplicate=share, chunk_size=3000)


def plain(field):
    """A field of tensors as arrays of its own."""
    if isinstance(field, Ragged | Deduplicated):
        return field.map(plain)
    return np.ascontiguousarray(field.numpy())


def expanded(field):
    return take_rows(field.values, field.index.astype(np.int64)) if isinstance(field, Deduplicated) else field


def batches(loader):
    with loader:
        return [{name: expanded(plain(field)) for name, field in batch.items()} for batch in loader]


def check_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name in one:
            assert same(one[name], other[name]), name


OPTIONS = {"batch_size": 32, "shuffle": True, "seed": 5}


@pytest.mark.parametrize("order", [{}, {"group_by": "query_id", "batch_size": 4}])
@pytest.mark.parametrize("shared", ["expand", "unique"])
def test_tensors_are_those_without_sharing(tmp_path, shared, order):
    options = OPTIONS | order
    expected = batches(TorchLoader(dataset_in(tmp_path, None), **options))
    dataset = dataset_in(tmp_path, SHARE)
    check_same(batches(TorchLoader(dataset, deduplicated=shared, **options)), expected)
    check_same(batches(OnPromptDevice(dataset, deduplicated=shared, **options)), expected)
    with OnPromptDevice(dataset, deduplicated=shared, **options) as loader:
        for batch in loader:
            check_memory_is_told(batch, loader.stream)


def check_memory_is_told(batch, stream):
    """Check that the allocator is told of all memory that a batch has."""
    known = {one.untyped_storage().data_ptr() for one in stream.memory}
    assert {tensor.untyped_storage().data_ptr() for field in batch.values() for tensor in tensors_of(field)} <= known


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_ranks_that_share_samples_get_their_part_of_each_sequence(tmp_path, layout):
    tokens = np.arange(90 * 12).reshape(90, 12)
    rows = {"id": np.arange(90), "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 12)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=30)
    for rank in range(2):
        part = stoker.SequenceShard(rank=rank, world_size=2, fields="tokens", layout=layout)
        with OnPromptDevice(stoker.Dataset(tmp_path), sequence_shard=part, **OPTIONS) as loader:
            for batch in loader:
                expected = tokens[batch["id"].numpy()][:, part.positions(12)]
                assert batch["tokens"].tolist() == expected.tolist()
                check_memory_is_told(batch, loader.stream)


@pytest.mark.parametrize("options", [{}, {"deduplicated": "expand"}, {"deduplicated": "unique"}], ids=str)
@pytest.mark.parametrize(
    ("order", "is_narrow"),
    [
        ({}, False),
        ({"group_by": "query_id", "batch_size": 4}, False),
        ({"group_by": "query_id", "batch_size": 4}, True),
        ({"weights": "query_id"}, True),
    ],
    ids=str,
)
def test_batches_that_were_made_together_cross_as_one(tmp_path, options, order, is_narrow):
    # Lists of lists cross by themselves.
    names = ["own_list", "q_number", "query_id", "q_list", "user", "q_word", "u_flag", "own", "q_vector"]
    narrow = {"q_number": "float16", "q_list": "int16", "own": "bfloat16", "own_list": "int32"} if is_narrow else {}
    fields = {name: stoker.Field(storage_dtype=storage_dtype) for name, storage_dtype in narrow.items()}

    def made(share):
        dataset_in(tmp_path, None)
        return stoker.Dataset(tmp_path, deduplicate=share, chunk_size=3000, columns=names, fields=fields)

    expected = batches(TorchLoader(made(None), **OPTIONS | order))
    num_together, stream = [], PromptStream()

    class Counting(DeviceDelivery):
        def prepare_together(self, together):
            num_together.append(len(together.sizes))
            return super().prepare_together(together)

    class OnCounting(stoker.Loader):
        def _make_delivery(self):
            return Counting(stream)

    share = SHARE if options else None
    with OnCounting(made(share), prefetch=12, num_threads=1, **OPTIONS | order | options) as loader:
        found, until_s = [], time.monotonic() + 20
        for batch in loader:
            while not found and loader.stats().stages["batch"].num_calls < 4 and time.monotonic() < until_s:
                time.sleep(0.001)  # a loop that takes its time: some are made in one go meanwhile
            found.append({name: expanded(plain(field)) for name, field in batch.items()})
            check_memory_is_told(batch, stream)
    check_same(found, expected)
    assert max(num_together) > 1
    assert loader.stats().stages["copy"].num_calls == sum(num_together)


@pytest.mark.parametrize("order", [{}, {"group_by": "query_id", "batch_size": 4}])
@pytest.mark.parametrize("shared", [None, "expand", "unique"])
def test_a_mixture_arrives_as_it_does_on_the_cpu(tmp_path, shared, order):
    names = ["q_number", "query_id", "q_list", "user", "u_flag", "own"]

    def mixture():
        share = SHARE if shared else None
        sets = {name: dataset_in(tmp_path / name, share, num_queries=num) for name, num in (("a", 20), ("b", 11))}
        for dataset in sets.values():
            dataset.columns = names
        return stoker.Mixture(sets, weights={"a": 2, "b": 1})

    options = OPTIONS | order | ({"deduplicated": shared} if shared else {})
    expected = batches(TorchLoader(mixture(), **options))
    check_same(batches(OnPromptDevice(mixture(), **options)), expected)


def tensors_of(field):
    return field.arrays if isinstance(field, Ragged | Deduplicated) else [field]


def test_what_a_batch_shares_is_copied_to_the_device_once(tmp_path):
    num_bytes = {}
    for name, share in (("plain", None), ("shared", SHARE)):
        with OnPromptDevice(dataset_in(tmp_path, share), batch_size=4, shuffle=True, group_by="query_id") as loader:
            for _ in loader:
                pass
        num_bytes[name] = loader.stream.num_bytes
    assert num_bytes["shared"] < 0.65 * num_bytes["plain"]


def test_a_batch_with_few_repeats_is_expanded_before_the_copy(tmp_path):
    # Every run one row, so keys come again only far apart, as runs of their own.
    sets = {name: dataset_in(tmp_path / name, share, length=1) for name, share in (("a", None), ("b", QUERY))}
    num_copies = {}
    for name, dataset in sets.items():
        with OnPromptDevice(dataset, **OPTIONS) as loader:
            for batch in loader:
                assert not any(isinstance(field, Deduplicated) for field in batch.values())
        num_copies[name] = loader.stream.num_copies
    assert num_copies["a"] == num_copies["b"], "no place of any sample is copied"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shared", ["expand", "unique"])
def test_workers_hand_over_shared_fields(tmp_path, num_workers, shared):
    options = OPTIONS | {"cache": tmp_path / "cache"}
    expected = batches(TorchLoader(dataset_in(tmp_path / "data", None), **options))
    with TorchDataset(dataset_in(tmp_path / "data", SHARE), deduplicated=shared, **options) as dataset:
        found = [
            {name: expanded(plain(field)) for name, field in batch.items()}
            for batch in DataLoader(dataset, batch_size=None, num_workers=num_workers)
        ]
    check_same(found, expected)


@examples(10)
@given(index=st.lists(st.integers(0, 5), max_size=20), seed=st.integers(0, 5))
def test_expanded_tensors_are_expanded_arrays(index, seed):
    arrays = arrays_of(SPEC, 6, seed)
    where = np.array(index, dtype=np.int32)
    for field in repeated(arrays, [1] * 6).values():
        expected = take_rows(field, where.astype(np.int64))
        places = torch.from_numpy(where)
        if isinstance(field, Ragged):
            found = expand_ragged(field.map(as_tensor), places, expanded_totals(field, where))
        else:
            found = expand_rows(as_tensor(field), places)
        assert same(plain(found), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "bool", "float16"])
@pytest.mark.parametrize("width", [1, 8, 24])
def test_rows_of_any_dtype_are_expanded(dtype, width):
    rows = np.arange(5 * width).reshape(5, width).astype(dtype)
    index = np.array([4, 0, 0, 2], dtype=np.int32)
    found = expand_rows(torch.from_numpy(rows), torch.from_numpy(index))
    assert same(found.numpy(), rows[index])
