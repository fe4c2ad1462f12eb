"""Contract 1 over everything that may vary at once: ranks, threads, processes, cold, warm and uncached."""

from __future__ import annotations

import hashlib
import tempfile
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from tests.laws.test_mixture_loader import mixture_of, write_mixed
from tests.laws.test_units_loader import KINDS as UNITS
from tests.laws.units_data import write
from tests.strategies import flat, write_files

import stoker

SIZES = [100, 0, 257, 64, 1, 178]  # 600: the last of the batches of 48 is half full


class Kind(NamedTuple):
    """A kind of loader: its options, how many steps an epoch has at least, and the numbers of ranks that are tried."""

    options: dict
    num_steps: int
    world_sizes: tuple[int, ...] = (2, 7)


KINDS = {
    "rows": Kind({"global_batch_size": 48, "window": 4}, 13, (1, 3)),
    "two lanes": Kind({"global_batch_size": 84, "lanes": 2}, 8),
    "three lanes, padded": Kind({"global_batch_size": 84, "lanes": 3, "remainder": "pad"}, 8),
    "four lanes, without the rest": Kind({"global_batch_size": 84, "lanes": 4, "remainder": "drop"}, 7),
    "mixture until the first": Kind({"global_batch_size": 48}, 6, (3,)),
    "mixture until the last, in lanes": Kind({"global_batch_size": 48, "lanes": 3}, 11, (2, 7)),
    # What offsets of groups say is of one rank alone.
    **{kind: Kind({"batch_size": 7, **options}, 3, (1,)) for kind, options in UNITS.items()},
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as path:
        write_files(Path(path) / "data", SIZES, row_group_size=50)
        write_mixed(Path(path))
        yield Path(path)


def dataset_of(place, **options) -> stoker.Dataset:
    return stoker.Dataset(place / "data", chunk_size=4000, **options)


def data_of(kind, place):
    if kind in UNITS:
        rng = np.random.default_rng(1)
        files = [([(int(rng.integers(4)), int(rng.integers(1, 12))) for _ in range(20)], 30) for _ in range(3)]
        return write(place / "units", {"files": files, "chunk_size": 3000, "is_filtered": True, "seed": 3})
    if kind.startswith("mixture"):
        return mixture_of(place, until="first" if kind.endswith("first") else "last")
    return dataset_of(place)


def steps_of(data, kind="rows", *, world_size: int = 1, **options) -> list[bytes]:
    """Return a digest of each global batch of two epochs: the ranks' batches one behind the other."""
    ranks = []
    options = {"shuffle": True, "seed": 3, "window": 2} | KINDS[kind].options | options
    for rank in range(world_size):
        with stoker.Loader(data, rank=rank, world_size=world_size, **options) as loader:
            epochs = [list(loader) for _ in range(2)]
            assert {len(epoch) for epoch in epochs} == {len(loader)}
            ranks.append([batch for epoch in epochs for batch in epoch])
    digests = []
    for step in zip(*ranks, strict=True):
        digest = hashlib.sha256()
        for name in step[0]:
            for parts in zip(*(flat(batch[name]) for batch in step), strict=True):
                digest.update(name.encode() + np.concatenate(parts).tobytes())
        digests.append(digest.digest())
    return digests


@pytest.fixture(scope="module")
def expected(place):
    """Of each kind: one rank, one thread, no look-ahead, no cache folder, as plain as can be."""
    found = {kind: steps_of(data_of(kind, place), kind, num_threads=1, prefetch=0) for kind in KINDS}
    for kind, digests in found.items():
        assert len(digests) == len(set(digests)) >= 2 * KINDS[kind].num_steps
    return found


@pytest.mark.parametrize(("kind", "world_size"), [(kind, n) for kind, of in KINDS.items() for n in of.world_sizes])
def test_global_batches_are_the_same_for_any_world_size_cold_warm_and_uncached(
    place, expected, kind, world_size, tmp_path
):
    data = data_of(kind, place)
    for cache in (tmp_path / "cache", tmp_path / "cache", None):
        assert steps_of(data, kind, world_size=world_size, cache=cache) == expected[kind]


@pytest.mark.parametrize("num_threads", [2, 16])
@kinds
def test_global_batches_are_the_same_for_any_number_of_threads(place, expected, kind, num_threads):
    data = data_of(kind, place)
    for prefetch in (1, num_threads, 24):  # the last one: several at a time
        options = {"num_threads": num_threads, "prefetch": prefetch, "cache": place / f"{kind}-{num_threads}"}
        assert steps_of(data, kind, **options) == expected[kind]
    assert steps_of(data, kind, num_threads=num_threads) == expected[kind]


def test_another_seed_is_another_order(place, expected):
    assert steps_of(dataset_of(place), seed=4) != expected["rows"]


@pytest.mark.slow
def test_global_batches_are_the_same_for_all_of_them_together(place, expected, tmp_path):
    for world_size, num_threads, is_cached in product((1, 2, 3, 4, 6, 7, 8, 16), (1, 2, 5, 16), (True, False)):
        cache = tmp_path / f"{world_size}-{num_threads}" if is_cached else None
        for _ in range(1 + is_cached):
            got = steps_of(dataset_of(place), world_size=world_size, num_threads=num_threads, cache=cache)
            assert got == expected["rows"], (world_size, num_threads, is_cached)


def doubled(table: pa.Table) -> dict[str, np.ndarray]:
    return {"id": table["id"].to_numpy(), "double": table["id"].to_numpy() * 2}


def test_a_transform_in_any_number_of_processes_gives_the_same_global_batches(place, tmp_path):
    dataset = dataset_of(place, transform=doubled, transform_version="1")
    plain = steps_of(dataset, num_threads=1, prefetch=0)
    options = {"transform_in": "processes", "num_threads": 2, "cache": tmp_path / "cache"}
    assert steps_of(dataset, world_size=2, **options) == plain  # cold, then warm
    assert steps_of(dataset, transform_in="processes", num_threads=1) == plain  # no folder
