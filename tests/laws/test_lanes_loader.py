"""Lanes on the whole path: every sample once, each node its own chunks, padding lane by lane."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples, sample_table, write_files

import stoker
from stoker.testing import MemoryStorage, write_parquet

SIZES = [100, 0, 257, 64, 1, 301]
NUM_SAMPLES = sum(SIZES)
OPTIONS = {"shuffle": True, "seed": 3, "window": 2}


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as path:
        write_files(Path(path) / "data", SIZES, row_group_size=50)
        yield Path(path)


def dataset_of(place, **options) -> stoker.Dataset:
    return stoker.Dataset(place / "data", chunk_size=4000, **options)


def batches_of(dataset, **options) -> list[dict]:
    with stoker.Loader(dataset, **(OPTIONS | options)) as loader:
        batches = list(loader)
        assert len(batches) == len(loader)
        return batches


@examples(7)
@given(
    lanes=st.integers(1, 4),
    world_size=st.integers(1, 4),
    part=st.integers(1, 40),
    remainder=st.sampled_from(["keep", "pad"]),
    shuffle=st.booleans(),
)
def test_every_sample_comes_once_over_all_lanes_and_ranks(place, lanes, world_size, part, remainder, shuffle):
    seen, steps = [], set()
    for rank in range(world_size):
        batches = batches_of(
            dataset_of(place), lanes=lanes, world_size=world_size, rank=rank, remainder=remainder, shuffle=shuffle,
            global_batch_size=lanes * part, cache=place / "cache",
        )  # fmt: skip
        steps.add(len(batches))
        for batch in batches:
            seen += batch["id"][batch.get("sample_mask", slice(None))].tolist()
    assert sorted(seen) == list(range(NUM_SAMPLES))
    assert len(steps) == 1


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


def test_padding_repeats_each_lanes_beginning_and_is_masked(place):
    options = {"lanes": 3, "global_batch_size": 60, "remainder": "pad", "cache": place / "cache"}
    batches = batches_of(dataset_of(place), **options)
    assert {len(batch["id"]) for batch in batches} == {60}
    masks = np.concatenate([batch["sample_mask"] for batch in batches])
    ids = np.concatenate([batch["id"] for batch in batches])
    assert masks.sum() == NUM_SAMPLES
    assert all(batch["sample_mask"].all() for batch in batches[:-1])
    for lane in range(3):  # lane by lane: what pads the last batch is what its part of the first began with
        part = slice(20 * lane, 20 * lane + 20)
        padded = batches[-1]["id"][part][~batches[-1]["sample_mask"][part]]
        np.testing.assert_array_equal(padded, batches[0]["id"][part][: len(padded)])
    assert sorted(ids[masks].tolist()) == list(range(NUM_SAMPLES))
