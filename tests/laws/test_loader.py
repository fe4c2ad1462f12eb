"""Contracts 1 to 3 on the whole path: real files, cache, threads, batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import check_samples, examples, file_sizes, write_files

import stoker
from stoker import Ragged


def flat_bytes(array) -> bytes:
    if isinstance(array, Ragged):
        return flat_bytes(array.values) + flat_bytes(array.offsets)
    return np.ascontiguousarray(array).tobytes()


def batch_bytes(batch) -> bytes:
    return b"".join(name.encode() + flat_bytes(array) for name, array in batch.items())


SIZES = [100, 0, 257, 64, 1, 300]


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield write_files(Path(path) / "data", SIZES, row_group_size=50)


NUM_SAMPLES = 722


@examples(9)
@given(
    sizes=file_sizes,
    batch_size=st.integers(1, 200),
    world_size=st.integers(1, 5),
    window=st.sampled_from([None, "all", 1, 2, 5]),
    shuffle=st.booleans(),
    chunk_size=st.sampled_from([1000, 5000, "32MiB"]),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
)
def test_every_sample_comes_exactly_once_over_all_ranks(
    sizes, batch_size, world_size, window, shuffle, chunk_size, remainder
):
    with tempfile.TemporaryDirectory() as path:
        dataset = stoker.Dataset(write_files(Path(path) / "data", sizes), chunk_size=chunk_size)
        seen, steps = [], set()
        for rank in range(world_size):
            with stoker.Loader(
                dataset, batch_size=batch_size, shuffle=shuffle, window=window, remainder=remainder,
                rank=rank, world_size=world_size, cache=Path(path) / "cache",
            ) as loader:  # fmt: skip
                batches = list(loader)
                assert len(batches) == len(loader)
            steps.add(len(batches))
            for batch in batches:
                check_samples(batch)
                ids = batch["id"]
                seen += (ids[batch["sample_mask"]] if remainder == "pad" else ids).tolist()
        total = sum(sizes)
        assert len(steps) == 1
        if remainder == "drop":
            assert len(seen) == total // (batch_size * world_size) * batch_size * world_size
            assert len(set(seen)) == len(seen)
        else:
            assert sorted(seen) == list(range(total))
        if not shuffle and world_size == 1:
            assert seen == list(range(len(seen)))


@examples(5)
@given(
    lanes=st.sampled_from([1, 2, 3]),
    per_lane=st.integers(1, 40),
    world_size=st.integers(1, 5),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    epoch=st.integers(0, 2),
)
def test_explaining_a_step_and_finding_a_row_are_each_others_inverse(
    folder, lanes, per_lane, world_size, remainder, epoch
):
    options = {"shuffle": True, "window": 3, "lanes": lanes, "global_batch_size": lanes * per_lane}
    dataset, used = stoker.Dataset(folder, chunk_size=4000), {}
    for rank in range(world_size):
        shard = stoker.Shard(rank, world_size)
        with stoker.Loader(dataset, shard=shard, remainder=remainder, **options) as loader:
            for step in range(len(loader)):
                for row in loader.explain(step, epoch=epoch):
                    if not row.is_padding:
                        used[row.url, row.row_group, row.row] = (step, rank)
            if rank == world_size - 1:
                for file, size in zip(sorted(folder.iterdir()), SIZES, strict=True):
                    for place in [(str(file), k // 50, k % 50) for k in range(0, size, 7)]:
                        found = loader.find(*place, epoch=epoch)
                        assert (found.step, found.rank) == used.get(place, (None, None))
