"""Contract 1 over everything that may vary at once: ranks, threads, processes, cold, warm and uncached."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.strategies import write_files

import stoker
from stoker.fields.spec import Ragged

SIZES = [100, 0, 257, 64, 1, 178]  # 600: the last of the batches of 48 is half full
WORLD_SIZES = [1, 2, 3, 4, 6, 7, 8, 16]
OPTIONS = {"global_batch_size": 48, "shuffle": True, "seed": 3, "window": 4}


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as path:
        write_files(Path(path) / "data", SIZES, row_group_size=50)
        yield Path(path)


def dataset_of(place, **options) -> stoker.Dataset:
    return stoker.Dataset(place / "data", chunk_size=4000, **options)


def flat(field) -> list[np.ndarray]:
    """Return a field's values and the lengths of its lists: what can be put side by side over ranks."""
    return [*flat(field.values), np.diff(field.offsets)] if isinstance(field, Ragged) else [np.asarray(field)]


def steps_of(dataset, *, world_size: int, **options) -> list[bytes]:
    """Return a digest of each global batch: the ranks' batches one behind the other."""
    ranks = []
    for rank in range(world_size):
        with stoker.Loader(dataset, rank=rank, world_size=world_size, **(OPTIONS | options)) as loader:
            ranks.append(
                [{name: [part.copy() for part in flat(field)] for name, field in batch.items()} for batch in loader]
            )
            assert len(ranks[-1]) == len(loader)
    digests = []
    for step in zip(*ranks, strict=True):
        digest = hashlib.sha256()
        for name in step[0]:
            for parts in zip(*(batch[name] for batch in step), strict=True):
                digest.update(name.encode() + np.concatenate(parts).tobytes())
        digests.append(digest.digest())
    return digests


@pytest.fixture(scope="module")
def expected(place):
    """One rank, one thread, no look-ahead, no cache folder, as plain as can be."""
    digests = steps_of(dataset_of(place), world_size=1, num_threads=1, prefetch=0)
    assert len(digests) == len(set(digests)) == 13
    return digests


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_global_batches_are_the_same_for_any_world_size_cold_warm_and_uncached(place, expected, world_size, tmp_path):
    for cache in (tmp_path / "cache", tmp_path / "cache", None):
        assert steps_of(dataset_of(place), world_size=world_size, cache=cache) == expected


@pytest.mark.parametrize("num_threads", range(1, 17))
def test_global_batches_are_the_same_for_any_number_of_threads(place, expected, num_threads):
    for world_size, prefetch in ((1, num_threads), (3, 16)):
        options = {"num_threads": num_threads, "prefetch": prefetch, "cache": place / "threads"}
        assert steps_of(dataset_of(place), world_size=world_size, **options) == expected
    assert steps_of(dataset_of(place), world_size=1, num_threads=num_threads) == expected


@pytest.mark.slow
def test_global_batches_are_the_same_for_all_of_them_together(place, expected, tmp_path):
    for world_size, num_threads, is_cached in product(WORLD_SIZES, (1, 2, 5, 16), (True, False)):
        cache = tmp_path / f"{world_size}-{num_threads}" if is_cached else None
        for _ in range(1 + is_cached):
            got = steps_of(dataset_of(place), world_size=world_size, num_threads=num_threads, cache=cache)
            assert got == expected, (world_size, num_threads, is_cached)


def doubled(table: pa.Table) -> dict[str, np.ndarray]:
    return {"id": table["id"].to_numpy(), "double": table["id"].to_numpy() * 2}


def test_a_transform_in_any_number_of_processes_gives_the_same_global_batches(place, tmp_path):
    dataset = dataset_of(place, transform=doubled, transform_version="1")
    plain = steps_of(dataset, world_size=1, num_threads=1, prefetch=0)
    for num_processes, world_size in ((1, 3), (3, 1)):
        options = {"transform_in": "processes", "num_threads": num_processes, "world_size": world_size}
        cache = tmp_path / f"cache-{num_processes}"
        assert steps_of(dataset, cache=cache, **options) == plain  # cold
        assert steps_of(dataset, cache=cache, **options) == plain  # warm
    assert steps_of(dataset, transform_in="processes", num_threads=2, world_size=1) == plain  # no folder


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_the_hash_seed_of_other_processes_changes_nothing(place, expected, hash_seed):
    script = (
        "import sys; from pathlib import Path; from tests.laws.test_same_bytes import dataset_of, steps_of\n"
        "print([d.hex() for d in steps_of(dataset_of(Path(sys.argv[1])), world_size=2)])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, str(place)], check=True, capture_output=True, text=True,
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(p for p in ["", *sys.path] if p)},
    ).stdout  # fmt: skip
    assert printed.strip() == str([digest.hex() for digest in expected])
