"""Contract 8: where the cache is smaller than the data, what fits is kept and hits every epoch, whatever the order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.strategies import check_samples, write_files

import stoker


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [400] * 40, row_group_size=400)


def chunk_bytes(cache: Path) -> int:
    """Return the bytes of all chunks, those being written included."""
    total = 0
    for path in (*cache.glob("tmp/*"), *cache.glob("chunks/*")):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.parametrize("share", [0.1, 0.35, 0.65, 0.9])
def test_the_share_of_hits_is_the_share_that_fits(folder, tmp_path, share):
    dataset = stoker.Dataset(folder, chunk_size=20_000)
    options = {"batch_size": 100, "shuffle": True, "window": 8, "num_threads": 2}
    with stoker.Loader(dataset, cache=tmp_path / "whole", **options) as loader:
        expected = [batch["id"].tolist() for _ in range(3) for batch in loader]
        num_chunks = loader.stats().num_built
    whole = chunk_bytes(tmp_path / "whole")
    limit = int(whole * share)

    got = []
    with stoker.Loader(dataset, cache=tmp_path / "small", cache_limit=limit, **options) as loader:
        for epoch in range(3):
            before = loader.stats()
            for batch in loader:
                check_samples(batch)
                got.append(batch["id"].tolist())
                assert chunk_bytes(tmp_path / "small") <= limit
            used = loader.stats().since(before)
            assert used.num_reused + used.num_missed == num_chunks
            if epoch:
                assert abs(used.hit_share - share) <= 1 / num_chunks
                assert used.num_built <= used.num_missed  # some may still be in memory
            else:
                assert used.hit_share == 0
    assert got == expected


@pytest.mark.parametrize("limit", [None, "1GB"])
def test_where_all_of_it_fits_every_later_epoch_hits_and_a_replaced_chunk_misses(folder, tmp_path, limit):
    dataset = stoker.Dataset(folder, chunk_size=20_000)
    with stoker.Loader(dataset, batch_size=100, shuffle=True, cache=tmp_path / "cache", cache_limit=limit) as loader:
        shares = []
        for _ in range(3):
            before = loader.stats()
            assert len(list(loader)) == len(loader)
            shares.append((loader.stats().since(before)).hit_share)
    assert shares == [0, 1, 1]
