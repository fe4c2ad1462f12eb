"""Context-parallel ranks: the same samples, each its part of every sequence, as arrays and as tensors."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import Ragged

LENGTH = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    (folder / "data").mkdir()
    ids = np.arange(90)
    tokens = ids[:, None] * 100 + np.arange(LENGTH)
    table = pa.table(
        {
            "id": ids,
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), LENGTH),
            "embedded": pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(tokens.reshape(-1), 2).astype(np.float32)), 2),
                LENGTH,
            ),
            "document": pa.array([list(range(i * 100, i * 100 + i % 7)) for i in ids.tolist()]),
        }
    )
    pq.write_table(table, folder / "data" / "x.parquet", row_group_size=30)
    return folder


def dataset_of(place) -> stoker.Dataset:
    return stoker.Dataset(place / "data", chunk_size=4000, fields={"embedded": stoker.Field(shape=(LENGTH, 2))})


def options_of(place, **options):
    return {"global_batch_size": 20, "shuffle": True, "seed": 1, "cache": place / "cache"} | options


def parts_of(world_size, layout, fields=("tokens", "embedded")):
    return [
        stoker.SequenceShard(rank=rank, world_size=world_size, fields=fields, layout=layout)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(("world_size", "layout"), [(1, "zigzag"), (2, "contiguous"), (3, "zigzag"), (4, "contiguous")])
def test_the_parts_of_all_ranks_are_the_whole_batch(place, world_size, layout):
    with stoker.Loader(dataset_of(place), **options_of(place)) as loader:
        whole = list(loader)
    for one in parts_of(world_size, layout):
        with stoker.Loader(dataset_of(place), **options_of(place, sequence_shard=one)) as loader:
            for part, batch in zip(loader, whole, strict=True):
                assert part.keys() == batch.keys()
                np.testing.assert_array_equal(part["id"], batch["id"])
                for name in ("tokens", "embedded"):
                    np.testing.assert_array_equal(part[name], batch[name][:, one.positions(LENGTH)])
                np.testing.assert_array_equal(part["document"].values, batch["document"].values)


def test_data_and_context_parallel_ranks_share_a_batch_out_in_both_directions(place):
    with stoker.Loader(dataset_of(place), **options_of(place)) as loader:
        whole = [batch["tokens"].copy() for batch in loader]
    rows = []
    for rank in range(2):
        columns = []
        for one in parts_of(3, "contiguous"):
            options = options_of(place, rank=rank, world_size=2, sequence_shard=one)
            with stoker.Loader(dataset_of(place), **options) as loader:
                columns.append([batch["tokens"].copy() for batch in loader])
        rows.append([np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)])
    for batch, parts in zip(whole, zip(*rows, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), batch)


def test_packed_rows_are_cut_with_their_segments_and_positions(place):
    packed = {"sequence": stoker.Pack("document", length=8, pad=-1)}
    fields = ("document", "segment_ids", "positions")
    with stoker.Loader(dataset_of(place), **options_of(place, **packed)) as loader:
        whole = list(loader)
    for one in parts_of(2, "zigzag", fields):
        with stoker.Loader(dataset_of(place), **options_of(place, sequence_shard=one, **packed)) as loader:
            for part, batch in zip(loader, whole, strict=True):
                for name in fields:
                    np.testing.assert_array_equal(part[name], batch[name][:, one.positions(8)])


def test_mixtures_are_cut_too(place):
    mixture = stoker.Mixture({"a": dataset_of(place), "b": dataset_of(place)}, weights={"a": 2, "b": 1})
    with stoker.Loader(mixture, **options_of(place)) as loader:
        whole = [batch["tokens"].copy() for batch in loader]
    for one in parts_of(2, "zigzag"):
        with stoker.Loader(mixture, **options_of(place, sequence_shard=one)) as loader:
            for part, batch in zip(loader, whole, strict=True):
                np.testing.assert_array_equal(part["tokens"], batch[:, one.positions(LENGTH)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ("words",)}, "no field 'words' to cut; there are id, tokens, embedded, document"),
        ({"fields": ("document",)}, "document: int64.* any length.* packing"),
        ({"fields": ("id",)}, "id: int64 is one value a sample"),
        ({"fields": ("tokens",), "world_size": 5}, "12. cannot be cut into 5 equal pieces"),
        ({"fields": ("tokens",), "world_size": 4, "layout": "zigzag"}, "multiple of 8, such as 16"),
    ],
)
def test_what_cannot_be_cut_is_said_before_the_first_batch(place, options, message):
    shard = stoker.SequenceShard(**({"rank": 0, "world_size": 2} | options))
    with pytest.raises(ValueError, match=message):
        stoker.Loader(dataset_of(place), **options_of(place, sequence_shard=shard))


def test_the_argument_must_be_a_sequence_shard(place):
    with pytest.raises(TypeError, match="SequenceShard"):
        stoker.Loader(dataset_of(place), **options_of(place, sequence_shard=(0, 2)))


def test_what_augment_makes_of_a_sequence_is_cut(place):
    one = parts_of(2, "contiguous", ("tokens",))[1]
    longer = options_of(place, sequence_shard=one, augment=lambda batch, _: batch | {"tokens": batch["tokens"][:, :6]})
    with stoker.Loader(dataset_of(place), **longer) as loader:
        assert next(iter(loader))["tokens"].shape == (20, 3)


@pytest.mark.parametrize(
    "augment",
    [
        lambda batch, _: batch | {"tokens": batch["tokens"][:, :5]},
        lambda batch, _: batch | {"tokens": batch["tokens"][:, 0]},
        lambda batch, _: {"id": batch["id"]},
    ],
    ids=["odd", "one value a sample", "not there"],
)
def test_what_augment_makes_of_a_sequence_that_cannot_be_cut_is_refused(place, augment):
    one = parts_of(2, "contiguous", ("tokens",))[1]
    with (
        stoker.Loader(dataset_of(place), **options_of(place, sequence_shard=one, augment=augment)) as loader,
        pytest.raises(ValueError, match=r"'tokens' is .* after augment"),
    ):
        next(iter(loader))


# ---------------------------------------------------------------------- torch


@pytest.mark.torch
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_tensors_are_cut_here_and_in_workers(place, layout):
    torch = pytest.importorskip("torch")
    from stoker.torch import TorchDataset, TorchLoader
    from stoker.torch.delivery import DeviceDelivery

    with stoker.Loader(dataset_of(place), **options_of(place)) as loader:
        whole = list(loader)

    def check(batches, one):
        for part, batch in zip(batches, whole, strict=True):
            assert part["id"].tolist() == batch["id"].tolist()
            for name in ("tokens", "embedded"):
                assert part[name].tolist() == batch[name][:, one.positions(LENGTH)].tolist()
            assert isinstance(part["document"], Ragged)

    for one in parts_of(2, layout):
        with TorchLoader(dataset_of(place), **options_of(place, sequence_shard=one)) as loader:
            check(loader, one)
        dataset = TorchDataset(dataset_of(place), **options_of(place, sequence_shard=one))
        check(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1), one)
        dataset.set_epoch(0)
        check(torch.utils.data.DataLoader(dataset, batch_size=None), one)
        dataset.close()

        class OnStream(stoker.Loader):
            def _make_delivery(self):
                return DeviceDelivery(PromptStream(torch))

        with OnStream(dataset_of(place), **options_of(place, sequence_shard=one)) as loader:
            check(loader, one)


class PromptStream:
    """A side stream that copies at once."""

    def __init__(self, torch) -> None:
        self._torch = torch

    def allocate(self, num_bytes):
        return np.empty(num_bytes, dtype=np.uint8)

    @contextmanager
    def copies(self):
        yield

    def copy(self, array):
        return self._torch.from_numpy(array).clone()

    def mark(self):
        return self

    def query(self):
        return True

    def current(self):
        return 0

    def wait(self, mark, tensors):
        assert all(isinstance(tensor, self._torch.Tensor) for tensor in tensors)
