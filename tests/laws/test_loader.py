"""Contracts 1 to 3 on the whole path: real files, cache, threads, batches."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import check_samples, file_sizes, write_files

import stoker
from stoker.fields.spec import Ragged


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


@settings(max_examples=25)
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


def run(folder, **options):
    options = {"batch_size": 48, "shuffle": True, "seed": 3, "window": 4} | options
    dataset = stoker.Dataset(folder, chunk_size=options.pop("chunk_size", 4000))
    with stoker.Loader(dataset, **options) as loader:
        return [[batch_bytes(batch) for batch in loader] for _ in range(2)]


def test_cold_warm_and_uncached_runs_give_the_same_bytes_on_any_number_of_threads(folder, tmp_path):
    expected = run(folder, num_threads=1, prefetch=1)
    assert expected[0] != expected[1]
    assert run(folder, num_threads=1, prefetch=0) == expected  # in the calling thread
    for num_threads in (1, 3, 16):
        cache = tmp_path / f"cache-{num_threads}"
        assert run(folder, num_threads=num_threads, prefetch=num_threads, cache=cache) == expected  # cold, then warm
        assert run(folder, num_threads=num_threads, cache=cache) == expected  # warm from the start
        assert run(folder, num_threads=num_threads) == expected  # no folder


def test_another_seed_is_another_order(folder):
    assert run(folder, seed=3) != run(folder, seed=4)


@settings(max_examples=20)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 120), st.integers(1, 4)), min_size=1, max_size=5),
    shuffle=st.booleans(),
)
def test_a_chain_of_resumes_on_other_ranks_and_batch_sizes_gives_the_uncut_order(
    folder, tmp_path_factory, cuts, shuffle
):
    cache = tmp_path_factory.getbasetemp() / "resume-cache"
    dataset = stoker.Dataset(folder, chunk_size=4000)
    options = {"shuffle": shuffle, "seed": 9, "window": 3, "cache": cache}
    with stoker.Loader(dataset, batch_size=NUM_SAMPLES, **options) as loader:
        uncut = np.concatenate([batch["id"] for _ in range(2) for batch in loader]).tolist()

    got, state = [], None
    for num_steps, batch_size, world_size in [*cuts, (10**9, 50, 1)]:
        batches, states = [], set()
        for rank in range(world_size):
            with stoker.Loader(dataset, batch_size=batch_size, rank=rank, world_size=world_size, **options) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(state))
                    assert loader.state_dict() == json.loads(state)
                mine = []
                while loader.epoch < 2 and len(mine) < num_steps:
                    for batch in loader:
                        mine.append(batch["id"].copy())
                        if len(mine) == num_steps:
                            break
                batches.append(mine)
                states.add(json.dumps(loader.state_dict()))
        assert len(states) == 1
        state = states.pop()
        got += [int(i) for step in zip(*batches, strict=True) for part in step for i in part]
        if json.loads(state)["epoch"] >= 2:
            break
    assert got == uncut


@settings(max_examples=15)
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
