"""Contract 8: where the cache is smaller than the data, what fits is kept and hits every epoch, whatever the order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.strategies import check_samples, write_files

import stoker


def chunk_bytes(cache: Path) -> int:
    """Return the bytes of all chunks, those being written included."""
    total = 0
    for path in (*cache.glob("tmp/*"), *cache.glob("chunks/*")):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


OPTIONS = {"batch_size": 100, "shuffle": True, "window": 8, "num_threads": 2}
NUM_EPOCHS = 3


@pytest.mark.parametrize("limits", [(0.35,), pytest.param((0.1, 0.65, 0.9), marks=pytest.mark.slow)])
def test_the_share_of_hits_is_within_a_point_of_the_share_that_fits(tmp_path, limits):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [100] * 120, row_group_size=100), chunk_size=5_000)
    with stoker.Loader(dataset, cache=tmp_path / "whole", **OPTIONS) as loader:
        expected = [batch["id"].tolist() for _ in range(NUM_EPOCHS) for batch in loader]
        num_chunks = loader.stats().num_built
    assert num_chunks >= 100  # one more or less is no point
    whole = chunk_bytes(tmp_path / "whole")
    for share in limits:
        limit, cache, got, shares = int(whole * share), tmp_path / str(share), [], []
        with stoker.Loader(dataset, cache=cache, cache_limit=limit, **OPTIONS) as loader:
            for _ in range(NUM_EPOCHS):
                before = loader.stats()
                for batch in loader:
                    check_samples(batch)
                    got.append(batch["id"].tolist())
                    assert chunk_bytes(cache) <= limit
                used = loader.stats().since(before)
                assert used.num_reused + used.num_missed == num_chunks
                assert used.num_built <= used.num_missed  # some may still be in memory
                shares.append(used.hit_share)
        assert got == expected
        assert shares[0] == 0
        assert shares[1:] == pytest.approx([share, share], abs=0.01)  # to keep what was used last would give far less


@pytest.mark.parametrize("limit", [None, "1GB"])
def test_where_all_of_it_fits_every_later_epoch_hits(tmp_path, limit):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [400] * 40, row_group_size=400), chunk_size=20_000)
    with stoker.Loader(dataset, batch_size=100, shuffle=True, cache=tmp_path / "cache", cache_limit=limit) as loader:
        shares = []
        for _ in range(3):
            before = loader.stats()
            assert len(list(loader)) == len(loader)
            shares.append((loader.stats().since(before)).hit_share)
    assert shares == [0, 1, 1]
