"""Chunks that stay on a device: batches are the same, and what lies there does not cross again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import check_samples, write_files
from tests.unit.test_torch_sharing import PromptStream

torch = pytest.importorskip("torch")

import stoker
from stoker import Ragged
from stoker.torch import TorchLoader
from stoker.torch.cuda import ResidentRows
from stoker.torch.delivery import DeviceDelivery

pytestmark = pytest.mark.torch

NUM_ROWS = 500
OPTIONS = {"batch_size": 32, "shuffle": True, "seed": 5, "window": 3, "num_threads": 2}


class Stream(PromptStream):
    device = torch.device("cpu")


class ResidentLoader(stoker.Loader):
    """A loader to a device that copies at once, with so many bytes for chunks."""

    def __init__(self, dataset, *, limit_bytes, **options):
        self.stream = Stream()
        self.rows = ResidentRows(self.stream, limit_bytes=limit_bytes)
        super().__init__(dataset, **options)

    def _make_delivery(self):
        return DeviceDelivery(self.stream, resident=self.rows)


@pytest.fixture
def dataset(tmp_path):
    return stoker.Dataset(write_files(tmp_path / "data", [300, 0, 200]), chunk_size=4_000)


def content(batch):
    return {
        name: [np.asarray(part) for part in field.arrays] if isinstance(field, Ragged) else [np.asarray(field)]
        for name, field in batch.items()
    }


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, parts in content(other).items():
            for mine, right in zip(content(one)[name], parts, strict=True):
                assert mine.dtype == right.dtype
                np.testing.assert_array_equal(mine, right)


def check_epochs(dataset, limit, options):
    """Three epochs with rows on the device are those of a plain loader, and no more than `limit` bytes lie there."""
    with stoker.Loader(dataset, **options) as loader:
        expected = [list(loader) for _ in range(3)]
    with ResidentLoader(dataset, limit_bytes=limit, **options) as loader:
        for epoch in expected:
            assert_same(list(loader), epoch)
        assert loader.rows.num_bytes <= limit


@pytest.mark.parametrize("limit", [64, 10_000, 1 << 20], ids=["nothing fits", "some", "all"])
@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({}, None),
        ({"remainder": "pad"}, None),
        ({"rank": 1, "world_size": 3}, None),
        ({"lanes": 2}, None),
        ({"remainder": "pad"}, ["id", "half", "flag", "vector"]),  # records alone
    ],
    ids=str,
)
def test_batches_are_the_same_whatever_lies_on_the_device(dataset, tmp_path, columns, limit, changed):
    dataset.columns = columns
    check_epochs(dataset, limit, OPTIONS | changed | {"cache": tmp_path / "cache"})


def test_fields_that_are_kept_narrow_are_widened_there(tmp_path):
    fields = {"half": stoker.Field(storage_dtype="float16"), "id": stoker.Field(storage_dtype="int32")}
    dataset = stoker.Dataset(write_files(tmp_path / "data", [300]), fields=fields, chunk_size=4_000)
    check_epochs(dataset, 10_000, OPTIONS | {"cache": tmp_path / "cache"})


def test_lists_of_lists_cross_beside_what_lies_there(tmp_path):
    nested = [[[i] * (i % 3)] * (i % 4) for i in range(NUM_ROWS)]
    pq.write_table(pa.table({"id": range(NUM_ROWS), "nested": nested}), tmp_path / "data.parquet", row_group_size=100)
    dataset = stoker.Dataset(tmp_path / "data.parquet", chunk_size=800)
    check_epochs(dataset, 2_000, OPTIONS | {"cache": tmp_path / "cache"})


def test_what_lies_there_does_not_cross_again(dataset, tmp_path):
    dataset.columns = ["id", "half", "flag", "vector"]
    with ResidentLoader(dataset, limit_bytes=1 << 20, cache=tmp_path / "cache", **OPTIONS) as loader:
        stream, crossed = loader.stream, []
        for _ in range(3):
            stream.num_bytes = 0
            for batch in loader:
                if "history" in batch:
                    check_samples(batch)
            crossed.append(stream.num_bytes)
        assert loader.rows.num_bytes == NUM_ROWS * loader.spec.record_bytes
        # From then on a row is its place alone.
        assert crossed[1] == crossed[2] == NUM_ROWS * 8


def test_half_the_room_keeps_half_of_the_rows_there(dataset, tmp_path):
    dataset.columns = ["id", "half", "flag", "vector"]
    with stoker.Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        width = loader.spec.record_bytes
    limit = NUM_ROWS * width // 2
    with ResidentLoader(dataset, limit_bytes=limit, cache=tmp_path / "cache", **OPTIONS) as loader:
        for _ in loader:
            pass
        loader.stream.num_bytes = 0
        for _ in loader:
            pass
        num_there = loader.rows.num_bytes // width
        assert limit - 64 * width * 2 < loader.rows.num_bytes <= limit  # chunks are whole
        # The records of the others, and of each row where it goes; of what lies there, where that is, too.
        others = (NUM_ROWS - num_there) * width
        assert others + 8 * NUM_ROWS <= loader.stream.num_bytes <= others + 16 * NUM_ROWS


def test_it_goes_on_from_a_saved_position(dataset, tmp_path):
    options = OPTIONS | {"cache": tmp_path / "cache"}
    with stoker.Loader(dataset, **options) as loader:
        expected = [*loader, *loader]
    with ResidentLoader(dataset, limit_bytes=20_000, **options) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(5)]
        state = loader.state_dict()
    with ResidentLoader(dataset, limit_bytes=20_000, **options) as loader:
        loader.load_state_dict(state)
        assert_same([*first, *loader, *loader], expected)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"augment": lambda batch, _: batch}, "augment="),
        ({"group_by": "flag"}, "group_by="),
        ({"sequence": stoker.NGram(length=2)}, "sequence="),
    ],
)
def test_what_changes_rows_does_not_go_with_it(dataset, options, what):
    with pytest.raises(ValueError, match=what):
        ResidentLoader(dataset, limit_bytes=1 << 20, batch_size=8, **options)


def test_a_mixture_sharing_and_lists_alone_do_not_go_with_it(dataset, tmp_path):
    with pytest.raises(ValueError, match="Mixture"):
        ResidentLoader(stoker.Mixture({"a": dataset}), limit_bytes=1 << 20, batch_size=8)
    shared = stoker.Dataset(dataset.sources[0], deduplicate={"flag": ["half"]})
    with pytest.raises(ValueError, match="deduplicate"):
        ResidentLoader(shared, limit_bytes=1 << 20, batch_size=8)
    dataset.columns = ["history"]
    with pytest.raises(ValueError, match="all lists"):
        ResidentLoader(dataset, limit_bytes=1 << 20, batch_size=8)


def test_room_for_less_than_a_record_is_an_error(dataset):
    with pytest.raises(ValueError, match="one record has"):
        ResidentLoader(dataset, limit_bytes=1, batch_size=8)


def test_on_the_cpu_there_is_nothing_to_keep_them_on(dataset):
    with pytest.raises(ValueError, match="leave it out"):
        TorchLoader(dataset, batch_size=8, resident="1GB")
