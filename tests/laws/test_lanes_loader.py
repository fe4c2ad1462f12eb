"""Lanes, ranks, threads and processes on the whole path: the same global batches, and each node its own chunks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import sample_table, write_files

import stoker
from stoker.fields.spec import Ragged
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


def join(parts) -> np.ndarray | Ragged:
    """Return ranks' parts of one field, one behind the other."""
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Ragged(join([part.values for part in parts]), np.concatenate([[0], np.cumsum(lengths)]))


def as_bytes(array) -> bytes:
    if isinstance(array, Ragged):
        return as_bytes(array.values) + as_bytes(array.offsets)
    return np.ascontiguousarray(array).tobytes()


def batches_of(dataset, **options) -> list[dict]:
    with stoker.Loader(dataset, **(OPTIONS | options)) as loader:
        batches = list(loader)
        assert len(batches) == len(loader)
        return batches


def global_batches(dataset, *, world_size: int, **options) -> list[list[bytes]]:
    """Return each step's fields: the ranks' batches one behind the other, as bytes."""
    ranks = [batches_of(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    return [[as_bytes(join([batch[name] for batch in step])) for name in step[0]] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_global_batches_do_not_depend_on_the_world_size(place, lanes, remainder):
    options = {"lanes": lanes, "remainder": remainder, "global_batch_size": 84, "cache": place / "cache"}
    expected = global_batches(dataset_of(place), world_size=1, **options)
    assert len(expected) == (8 if remainder == "drop" else 9)
    for world_size in (2, 3, 4, 7):
        assert global_batches(dataset_of(place), world_size=world_size, **options) == expected


@settings(max_examples=20)
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


@settings(max_examples=20)
@given(
    lanes=st.integers(1, 4),
    cuts=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_resumes_on_other_ranks_and_batch_sizes_keep_each_lanes_order(place, lanes, cuts):
    options = OPTIONS | {"lanes": lanes, "cache": place / "cache"}
    dataset = dataset_of(place)
    lane_of = {}
    uncut: dict[int, list[int]] = {lane: [] for lane in range(lanes)}
    with stoker.Loader(dataset, global_batch_size=lanes, **options) as loader:
        borders = np.cumsum([0, *loader._order.lane_sizes])
        for lane in range(lanes):
            lane_of |= dict.fromkeys(range(borders[lane], borders[lane + 1]), lane)
        for batch in loader:
            for i in batch["id"].tolist():
                uncut[lane_of[i]].append(i)

    got: dict[int, list[int]] = {lane: [] for lane in range(lanes)}
    state = None
    for num_steps, part, world_size in [*cuts, (10**9, 30, 1)]:
        states = set()
        mine: list[list[list[int]]] = []
        for rank in range(world_size):
            with stoker.Loader(
                dataset, global_batch_size=lanes * part, rank=rank, world_size=world_size, **options
            ) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(state))
                batches: list[list[int]] = []
                while len(batches) < num_steps and loader.epoch == 0:
                    for batch in loader:
                        batches.append(batch["id"].tolist())
                        if len(batches) == num_steps:
                            break
                mine.append(batches)
                states.add(json.dumps(loader.state_dict()))
        assert len(states) == 1
        state = states.pop()
        for step in zip(*mine, strict=True):
            for i in (i for ids in step for i in ids):
                got[lane_of[i]].append(i)
        if json.loads(state)["epoch"] == 1:
            break
    assert got == uncut


class WatchedStorage(MemoryStorage):
    """Objects in memory; remembers which of their bytes were read."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[str, list[tuple[int, int]]] = {}

    def read(self, url, offset, num_bytes):
        self.ranges.setdefault(url, []).append((offset, offset + num_bytes))
        return super().read(url, offset, num_bytes)


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
def test_a_node_reads_only_the_chunks_of_its_own_lanes(remainder, tmp_path):
    """12 files of one chunk each, 3 lanes of 4 files: rank r of 3 needs lane r, rank 0 of 1 all of them."""
    storage = WatchedStorage()
    for i in range(12):
        write_parquet(storage, sample_table(50, first=50 * i), url=f"lake/{i:02}.parquet")
    dataset = stoker.Dataset("lake", storage=storage)
    options = {"global_batch_size": 96, "lanes": 3, "remainder": remainder, "shuffle": True, "window": 2}
    dataset.open()
    footers = {url: list(ranges) for url, ranges in storage.ranges.items()}

    def urls_read(rank, world_size):
        storage.ranges.clear()
        cache = tmp_path / f"cache-{rank}-{world_size}"
        with stoker.Loader(dataset, cache=cache, rank=rank, world_size=world_size, **options) as loader:
            ids = [int(i) for _ in range(2) for batch in loader for i in batch["id"]]
            num_chunks = loader.stats().num_built
        return {url for url, ranges in storage.ranges.items() if len(ranges) > len(footers[url])}, ids, num_chunks

    urls = [f"lake/{i:02}.parquet" for i in range(12)]
    for rank in range(3):
        read, ids, num_chunks = urls_read(rank, 3)
        own = set(urls[4 * rank : 4 * rank + 4])
        assert read - {urls[0]} == own - {urls[0]}
        assert {i // 200 for i in ids} == {rank}
        assert num_chunks == len(own | {urls[0]})
    read, ids, num_chunks = urls_read(0, 1)
    assert num_chunks == 12
    read, ids, num_chunks = urls_read(1, 6)  # half of lane 0
    assert {i // 200 for i in ids} == {0}
    assert num_chunks == 4


def doubled(table: pa.Table) -> dict[str, np.ndarray]:
    return {"id": table["id"].to_numpy(), "double": table["id"].to_numpy() * 2}


def test_a_transform_in_processes_gives_what_it_gives_in_threads(place, tmp_path):
    dataset = dataset_of(place, transform=doubled, transform_version="1")
    expected = global_batches(dataset, world_size=1, batch_size=60, cache=tmp_path / "threads")
    options = {"batch_size": 60, "transform_in": "processes", "num_threads": 2}
    assert global_batches(dataset, world_size=1, cache=tmp_path / "processes", **options) == expected
    assert global_batches(dataset, world_size=1, **options) == expected


@pytest.mark.parametrize("num_threads", [1, 2, 5, 16])
def test_lanes_give_the_same_bytes_on_any_number_of_threads(place, num_threads):
    options = {"lanes": 3, "global_batch_size": 30, "world_size": 2}
    expected = global_batches(dataset_of(place), cache=place / "cache", num_threads=1, prefetch=1, **options)
    for prefetch in (1, 20):
        got = global_batches(dataset_of(place), num_threads=num_threads, prefetch=prefetch, **options)
        assert got == expected


PRINT_DIGEST = """
import hashlib, sys, numpy as np, stoker
dataset = stoker.Dataset(sys.argv[1], chunk_size=4000, fields={"word": stoker.Field(hash_buckets=1000)})
digest = hashlib.sha256()
with stoker.Loader(dataset, batch_size=50, shuffle=True, window=2, lanes=2) as loader:
    for batch in loader:
        for name, field in batch.items():
            for part in field.arrays if isinstance(field, stoker.Ragged) else [field]:
                digest.update(np.ascontiguousarray(part).tobytes())
    print(digest.hexdigest(), sorted(loader.state_dict().items()))
"""


def test_pythons_hash_seed_changes_nothing(place):
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST, str(place / "data")], check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        ).stdout
        for seed in ("0", "1", "4242")
    }  # fmt: skip
    assert len(printed) == 1


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
