"""Contract 8: where the cache is smaller than the data, what fits is kept and hits every epoch, whatever the order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.strategies import check_samples, write_files

import stoker


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [400] * 40, row_group_size=400)


def chunk_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*.safetensors"))


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25])
def test_the_hit_ratio_is_the_share_that_fits(folder, tmp_path, share):
    dataset = stoker.Dataset(folder, chunk_size=20_000)
    options = {"batch_size": 100, "shuffle": True, "window": 8, "num_threads": 2}
    with stoker.Loader(dataset, cache=tmp_path / "whole", **options) as loader:
        expected = [batch["id"].tolist() for _ in range(3) for batch in loader]
        num_chunks = loader.stats().num_built
    whole = chunk_bytes(tmp_path / "whole")
    limit = int(whole * share)

    got, built = [], []
    with stoker.Loader(dataset, cache=tmp_path / "small", cache_limit=limit, **options) as loader:
        for _ in range(3):
            before = loader.stats().num_built
            for batch in loader:
                check_samples(batch)
                got.append(batch["id"].tolist())
            built.append(loader.stats().num_built - before)
            assert chunk_bytes(tmp_path / "small") <= limit
    assert got == expected
    # The reserve for chunks on their way through takes its part: (2 · 2 + 2) chunk sizes, at most half the limit.
    reserve = min(6 * 20_000, limit // 2)
    kept = int((limit - reserve) / whole * num_chunks)
    for num_built in built[1:]:
        assert num_built <= num_chunks - kept + 2
        assert num_built >= num_chunks - int(limit / whole * num_chunks) - 1
