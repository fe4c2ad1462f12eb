"""Contracts 1 to 3 on the whole path: real files, cache, threads, batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import check_samples, examples, file_sizes, sample_table, write_files

import stoker
from stoker.testing import MemoryStorage, write_parquet

SIZES = [100, 0, 257, 64, 1, 300]


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield write_files(Path(path) / "data", SIZES, row_group_size=50)


@examples(14)
@given(
    sizes=file_sizes,
    lanes=st.integers(1, 4),
    part=st.integers(1, 150),
    world_size=st.integers(1, 5),
    window=st.sampled_from([None, "all", 1, 2, 5]),
    shuffle=st.booleans(),
    chunk_size=st.sampled_from([1000, 5000, "32MiB"]),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
)
def test_every_sample_comes_exactly_once_over_all_ranks_and_lanes(
    sizes, lanes, part, world_size, window, shuffle, chunk_size, remainder
):
    total = sum(sizes)
    lanes = max(1, min(lanes, total))
    options = {"global_batch_size": lanes * part, "lanes": lanes, "remainder": remainder}
    with tempfile.TemporaryDirectory() as path:
        dataset = stoker.Dataset(write_files(Path(path) / "data", sizes), chunk_size=chunk_size)
        seen, steps = [], set()
        for rank in range(world_size):
            with stoker.Loader(
                dataset, shuffle=shuffle, window=window, rank=rank, world_size=world_size, cache=Path(path) / "cache",
                **options,
            ) as loader:  # fmt: skip
                batches = list(loader)
                assert len(batches) == len(loader)
            steps.add(len(batches))
            for batch in batches:
                check_samples(batch)
                seen += batch["id"][batch.get("sample_mask", slice(None))].tolist()
        (num_steps,) = steps
        if remainder == "drop":
            assert len(seen) == num_steps * lanes * part
            assert len(set(seen)) == len(seen) > total - lanes * part
        else:
            assert sorted(seen) == list(range(total))
        if not shuffle and world_size == lanes == 1:
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


# ---------------------------------------------------------------------- lanes


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
def test_a_node_builds_only_the_chunks_of_its_own_lanes(remainder, tmp_path):
    """12 files of one chunk each, 3 lanes of 4 files: rank r of 3 needs lane r, rank 0 of 1 all of them."""
    storage = MemoryStorage()
    for i in range(12):
        write_parquet(storage, sample_table(50, first=50 * i), url=f"lake/{i:02}.parquet")
    dataset = stoker.Dataset("lake", storage=storage)
    options = {"global_batch_size": 96, "lanes": 3, "remainder": remainder, "shuffle": True, "window": 2}

    def used(rank, world_size):
        cache = tmp_path / f"cache-{rank}-{world_size}"
        with stoker.Loader(dataset, cache=cache, rank=rank, world_size=world_size, **options) as loader:
            lanes = {int(i) // 200 for _ in range(2) for batch in loader for i in batch["id"]}
            return lanes, loader.stats().num_built

    # The first chunk is built wherever a loader is made, to find out what a sample is.
    assert [used(rank, 3) for rank in range(3)] == [({0}, 4), ({1}, 5), ({2}, 5)]
    assert used(0, 1) == ({0, 1, 2}, 12)
    assert used(1, 6) == ({0}, 4)  # half of lane 0


def test_padding_repeats_each_lanes_beginning_and_is_masked(folder):
    options = {"lanes": 3, "global_batch_size": 60, "remainder": "pad", "shuffle": True, "window": 2}
    with stoker.Loader(stoker.Dataset(folder, chunk_size=4000), **options) as loader:
        batches = list(loader)
    assert {len(batch["id"]) for batch in batches} == {60}
    masks = np.concatenate([batch["sample_mask"] for batch in batches])
    ids = np.concatenate([batch["id"] for batch in batches])
    assert all(batch["sample_mask"].all() for batch in batches[:-1])
    for lane in range(3):  # lane by lane: what pads the last batch is what its part of the first began with
        part = slice(20 * lane, 20 * lane + 20)
        padded = batches[-1]["id"][part][~batches[-1]["sample_mask"][part]]
        np.testing.assert_array_equal(padded, batches[0]["id"][part][: len(padded)])
    assert sorted(ids[masks].tolist()) == list(range(sum(SIZES)))
