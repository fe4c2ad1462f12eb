"""Batches as torch tensors: in a loop of one's own, in a data set, and on a device of the test's own."""

from __future__ import annotations

import re
import tempfile
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import check_same, contents, ids_of
from tests.strategies import arrays_in, check_samples, examples, write_files

torch = pytest.importorskip("torch")

from tests.device import DeviceLoader

import stoker
from stoker import Ragged
from stoker.testing import MemoryStorage, write_parquet
from stoker.torch import TorchDataset, TorchLoader, to_nested

pytestmark = pytest.mark.torch

NUMBERS = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
]  # fmt: skip
SHAPES = [(), (1,), (3,), (8,), (2, 3), (0,), (2, 0), (1, 1, 4)]
WAYS = ("ahead", "in the calling thread", "in a data set", "to a device")


def loader_of(way, dataset, cache, **options):
    """Return what gives the batches of a data set as tensors."""
    if way == "in a data set":
        return TorchDataset(dataset, cache=cache, **options)
    if way == "to a device":
        return DeviceLoader(dataset, **options)
    return TorchLoader(dataset, **options, **({} if way == "ahead" else {"prefetch": 0}))


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [100, 0, 33], row_group_size=40)


def wide_table(num_rows: int) -> pa.Table:
    rng = np.random.default_rng(1)
    columns: dict[str, object] = {}
    for name in NUMBERS:
        columns[name] = rng.integers(0, 2, num_rows).astype(name)
        columns[f"{name}_list"] = pa.FixedSizeListArray.from_arrays(
            pa.array(rng.integers(0, 2, num_rows * 3).astype(name)), 3
        )
    lengths = rng.integers(0, 4, num_rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    inner = pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * offsets[-1] + 1, 2, dtype=np.int32)),
                                     pa.array(np.arange(2 * offsets[-1], dtype=np.float32)))  # fmt: skip
    columns["ragged"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.arange(offsets[-1], dtype=np.int16)))
    columns["nested"] = pa.ListArray.from_arrays(pa.array(offsets), inner)
    return pa.table(columns)


@pytest.mark.parametrize("way", WAYS)
def test_tensors_equal_arrays_for_every_dtype_and_nesting(tmp_path, way):
    pq.write_table(wide_table(50), tmp_path / "wide.parquet")
    dataset = stoker.Dataset(tmp_path / "wide.parquet")
    options = {"batch_size": 16, "shuffle": True, "seed": 4}
    with stoker.Loader(dataset, **options) as plain, loader_of(way, dataset, tmp_path / "cache", **options) as loader:
        expected, found = list(plain), list(loader)
    check_same(contents(found), expected)
    for tensors, arrays in zip(found, expected, strict=True):
        lengths = [len(part) for part in to_nested(tensors["ragged"]).unbind()]
        assert lengths == np.diff(arrays["ragged"].offsets).tolist()


def transform_to(kinds):
    """Return a transform that makes fields of some dtypes and shapes, lists of such or one, the same for three rows."""

    def transform(table):
        ids = table["id"].to_numpy() // 3
        fields = {"key": ids}
        for i, (dtype, shape, is_list) in enumerate(kinds):
            lengths = ids % 4 if is_list else np.ones_like(ids)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            values = np.repeat(ids, lengths)[:, None] * 31 + np.arange(i, i + np.prod(shape, dtype=int))
            values = (values % (2 if dtype == "bool" else 125)).astype(dtype).reshape(len(values), *shape)
            fields[f"f{i}"] = Ragged(values, offsets) if is_list else values
        return fields

    return transform


@examples(40)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(NUMBERS), st.sampled_from(SHAPES), st.booleans()), min_size=1, max_size=12
    ),
    num_rows=st.integers(1, 50),
    batch_size=st.integers(1, 9),
    way=st.sampled_from(WAYS),
    deduplicated=st.sampled_from([None, "expand", "unique"]),
)
def test_tensors_equal_arrays_for_fields_of_any_kind_side_by_side(kinds, num_rows, batch_size, way, deduplicated):
    storage = MemoryStorage()
    write_parquet(storage, {"id": range(num_rows)}, url="lake/a.parquet")
    told = {"storage": storage, "transform": transform_to(kinds), "transform_version": "1"}
    options = {"batch_size": batch_size, "shuffle": True, "seed": 4, "num_threads": 1}
    with stoker.Loader(stoker.Dataset("lake", **told), **options) as loader:
        expected = contents(loader)
    if deduplicated is not None:
        told["deduplicate"], options["deduplicated"] = {"key": ["*"]}, deduplicated
    with (
        tempfile.TemporaryDirectory() as cache,
        loader_of(way, stoker.Dataset("lake", **told), cache, **options) as loader,
    ):
        check_same(contents(loader), expected)


def test_batches_that_are_kept_stay_intact(folder):
    with TorchLoader(stoker.Dataset(folder, chunk_size=4000), batch_size=10, shuffle=True, num_threads=3) as loader:
        kept = list(loader)
        ids = [batch["id"] for batch in loader]  # one field keeps the whole batch's memory
    for batch in kept:
        check_samples(batch)
    assert sorted(torch.cat([batch["id"] for batch in kept]).tolist()) == list(range(133))
    assert sorted(torch.cat(ids).tolist()) == list(range(133))


def test_fields_are_views_of_the_record_and_can_be_made_contiguous(folder):
    with TorchLoader(stoker.Dataset(folder), batch_size=8) as loader:
        batch = next(iter(loader))
    assert batch["vector"].stride()[0] > 3
    assert batch["vector"].contiguous().stride() == (3, 1)
    (batch["vector"] * torch.ones(3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence": stoker.NGram(length=2)},
        {"group_by": "flag", "deduplicated": "unique"},
        {"remainder": "pad"},
    ],
    ids=["rows", "windows", "unique", "padded"],
)
@pytest.mark.parametrize("way", WAYS)
def test_each_field_is_a_tensor_of_its_own_to_write_to_beside_gradients(tmp_path, options, way):
    share = {"flag": ["vector"]} if "deduplicated" in options else None
    dataset = stoker.Dataset(write_files(tmp_path / "data", [60]), deduplicate=share)
    with loader_of(way, dataset, tmp_path / "cache", batch_size=4, **options) as loader:
        batch = next(islice(loader, 5, None))  # not the first, which comes alone
    found = [field for name in batch for field in arrays_in(batch[name])]
    floats = [field for field in found if field.dtype == torch.float32]
    assert len(found) > len(floats) > 0
    weight = torch.ones((), requires_grad=True)
    loss = sum((field * weight).sum() for field in floats)
    for field in found:
        if field.dtype != torch.float32:
            field.zero_()  # nothing that the gradient needs: all that it needs is in the others
    loss.backward()
    assert weight.grad is not None
    for field in floats:
        field.mul_(weight)
        assert field.requires_grad


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_without_samples_in_the_last_step_gets_an_empty_batch(folder, tmp_path, way):
    for rank, last in ((0, 0), (1, 1)):
        options = {"global_batch_size": 132, "rank": rank, "world_size": 2}
        with loader_of(way, stoker.Dataset(folder), tmp_path / "cache", **options) as loader:
            batches = list(loader)
        assert [len(batch["id"]) for batch in batches] == [66, last]
        assert batches[1]["vector"].shape == (last, 3)
        assert batches[1]["history"].offsets.tolist()[0] == 0


def test_arrays_of_augment_become_tensors_of_their_memory_or_copies_where_torch_cannot_look_at_it(folder):
    kept = np.arange(12, dtype=np.float32).reshape(4, 3)

    def augment(batch, rng):
        return {
            "back": batch["id"][::-1],
            "flag": batch["flag"],
            "tensor": torch.ones(2),
            "history": batch["history"],
            "shared": kept[:, 1:],
            "read only": np.broadcast_to(np.float32(2), (3,)),
            "unaligned": np.ones(3, dtype=[("a", "u1"), ("b", "<i4")])["b"],
            "number": np.float64(1.5),
        }

    with TorchLoader(stoker.Dataset(folder), batch_size=4, augment=augment, prefetch=0) as loader:
        batch = next(iter(loader))
    kept[0, 1] = 99
    assert batch["back"].tolist() == [3, 2, 1, 0]
    assert batch["tensor"].tolist() == [1, 1]
    assert batch["shared"].tolist() == kept[:, 1:].tolist()
    assert batch["read only"].tolist() == [2, 2, 2]
    assert batch["unaligned"].tolist() == [1, 1, 1]
    assert batch["number"].shape == ()
    text = TorchLoader(
        stoker.Dataset(folder), batch_size=4, augment=lambda batch, _: batch | {"text": np.array(["a"] * 4)}
    )
    with text as loader, pytest.raises(TypeError):
        next(iter(loader))


@pytest.mark.parametrize("way", WAYS)
def test_padding_is_marked_by_a_bool_tensor(folder, tmp_path, way):
    with loader_of(way, stoker.Dataset(folder), tmp_path / "cache", batch_size=50, remainder="pad") as loader:
        masks = [batch["sample_mask"] for batch in loader]
    assert [mask.dtype for mask in masks] == [torch.bool] * 3
    assert [int(mask.sum()) for mask in masks] == [50, 50, 33]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "gpu"}, ValueError, "none that torch knows"),
        ({"device": "meta"}, ValueError, "not supported"),
        ({"device": "cuda:99"}, ValueError, "no device cuda:99"),
        ({"device": 0}, TypeError, "device"),
        ({"resident": "1GB"}, ValueError, "leave it out"),
    ],
    ids=str,
)
def test_a_wrong_device_is_said_before_anything_is_read(options, error, words):
    with pytest.raises(error, match=words):
        TorchLoader(stoker.Dataset("nowhere"), batch_size=8, **options)


# ---------------------------------------------------------------------- device meshes


class Mesh:
    """What a DeviceMesh says of itself."""

    def __init__(self, shape, names, rank):
        self.mesh = torch.arange(int(np.prod(shape))).reshape(shape)
        self.mesh_dim_names = names
        self._rank = rank

    def get_coordinate(self):
        found = (self.mesh == self._rank).nonzero()
        return found[0].tolist() if len(found) else None


@pytest.mark.parametrize("data_dims", [("dp", "shard"), ("shard", "dp"), (0, 1)])
def test_the_ranks_of_one_model_replica_get_the_same_batch(data_dims):
    shards = [
        stoker.Shard.from_mesh(Mesh((2, 2, 2), ("dp", "shard", "tp"), rank), data_dims=data_dims) for rank in range(8)
    ]
    assert [shard.rank for shard in shards] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {shard.world_size for shard in shards} == {4}
    assert stoker.Shard.from_mesh(Mesh((2, 4), ("dp", "tp"), 6), data_dims="dp") == stoker.Shard(1, 2)
    assert stoker.Shard.from_mesh(Mesh((8,), ("tp",), 6), data_dims=()) == stoker.Shard(0, 1)


def test_a_mesh_without_such_a_dimension_or_this_process_is_refused():
    mesh = Mesh((2, 2), ("dp", "tp"), 0)
    with pytest.raises(ValueError, match=r"no dimension 'pp'.*'dp', 'tp'"):
        stoker.Shard.from_mesh(mesh, data_dims=("pp",))
    with pytest.raises(ValueError, match="twice"):
        stoker.Shard.from_mesh(mesh, data_dims=("dp", 0))
    with pytest.raises(ValueError, match="not in the mesh"):
        stoker.Shard.from_mesh(Mesh((2, 2), None, 9), data_dims=(0,))


IN_THE_CALLING_THREAD = {
    "rows": {"shuffle": True},
    "padded": {"remainder": "pad", "rank": 1, "world_size": 3},
    "uneven ranks": {"batch_size": None, "global_batch_size": 7, "rank": 1, "world_size": 3},
    "lanes": {"shuffle": True, "lanes": 2, "batch_size": 4},
    "groups": {"shuffle": True, "group_by": "flag"},
    "windows": {"shuffle": True, "sequence": stoker.NGram(length=2)},
    "packed": {"sequence": stoker.Pack("history", length=8, per_segment=["id", "vector"])},
    "shared": {"deduplicated": "unique"},
}


@pytest.mark.parametrize("how", IN_THE_CALLING_THREAD)
def test_batches_that_the_calling_thread_makes_together_are_those_of_arrays(tmp_path, how):
    share = {"flag": ["vector", "history"]} if how == "shared" else None
    dataset = stoker.Dataset(write_files(tmp_path / "data", [100, 0, 33]), chunk_size=4000, deduplicate=share)
    options = {"batch_size": 3, "seed": 4, "prefetch": 0} | IN_THE_CALLING_THREAD[how]
    with stoker.Loader(dataset, **options) as plain, TorchLoader(dataset, **options) as loader:
        kept = list(loader)  # each of them whole, whatever came after it
        check_same(contents(kept, expands=False), contents(plain, expands=False))


class Wrapped(torch.utils.data.IterableDataset):
    """What somebody writes who wants a loader inside a DataLoader."""

    def __init__(self, folder, **options):
        self._folder, self._options = folder, options

    def __iter__(self):
        with stoker.Loader(stoker.Dataset(self._folder), batch_size=10, num_threads=1, **self._options) as loader:
            yield from loader


class Told(Wrapped):
    """Gives the text of the error instead of raising it: a DataLoader waits five seconds for a worker that failed."""

    def __iter__(self):
        with pytest.raises(ValueError, match="batches") as caught:
            next(super().__iter__())
        yield str(caught.value)


def test_the_steps_of_the_next_pass_are_those_that_it_has(folder):
    with (
        TorchLoader(stoker.Dataset(folder), batch_size=48) as loader,
        TorchLoader(stoker.Dataset(folder), batch_size=48) as resumed,
    ):
        assert loader.next_steps().num_steps == len(loader) > 2
        for _ in zip(range(2), loader, strict=False):
            pass
        resumed.load_state_dict(loader.state_dict())
        assert resumed.next_steps().num_steps == len(list(resumed)) == len(loader) - 2


def test_a_loader_in_each_worker_of_a_data_loader_is_an_error_unless_each_has_a_share(folder):
    workers = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}
    for said in torch.utils.data.DataLoader(Told(folder), **workers):
        assert re.search(r"each of them would deliver all batches(.|\n)*TorchDataset", said)

    class Deduplicated(Wrapped):
        def __iter__(self):
            self._options["rank"] = torch.utils.data.get_worker_info().id
            return super().__iter__()

    shared = torch.utils.data.DataLoader(Deduplicated(folder, world_size=2), **workers)
    assert sorted(ids_of(shared)) == list(range(133))
