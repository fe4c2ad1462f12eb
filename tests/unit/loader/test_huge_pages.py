"""Chunks keep the huge pages that they were written in, however a window maps them."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker._native import ChunkMap, bring_in
from stoker.cache import format as chunk_format
from stoker.cache import store
from stoker.host.huge import HUGE_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="maps are looked at in /proc")

NUM_ROWS = 40_000


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            **{f"x{i}": rng.integers(0, 1 << 40, NUM_ROWS) for i in range(30)},
            "tags": [np.arange(i % 40, dtype=np.int64) for i in range(NUM_ROWS)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=NUM_ROWS // 4)
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("stands", [True, False], ids=["standing", "window by window"])
def test_chunks_are_mapped_as_far_from_a_huge_page_as_they_lie_in_their_file(data, tmp_path, stands):
    dataset = stoker.Dataset(data, chunk_size="10MiB")
    # All chunks fit into the smaller limit, but not twice: none stays mapped.
    options = {"cache": tmp_path / "c", "cache_limit": "1GB" if stands else "24MB"}
    with stoker.Loader(dataset, batch_size=1_000, shuffle=True, window=2, **options) as loader:
        for batches in (iter(loader), iter(loader)):
            next(batches)
            mapped = _mapped(tmp_path / "c" / "chunks")
            assert len(mapped) >= 2
            large = [(address, offset) for address, size, offset in mapped if size >= HUGE_BYTES]
            assert large
            assert all((address - offset) % HUGE_BYTES == 0 for address, offset in large)
            if _keeps_huge_pages(tmp_path):
                assert sum(_huge_bytes(tmp_path / "c")) >= HUGE_BYTES
            for _ in batches:
                pass


def test_a_cache_that_is_used_after_a_start_of_the_machine_has_its_huge_pages(data, tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_format, "_LEAST_BYTES_S", 0.0)  # whatever pages cost here
    chunk_format._costs_much.clear()
    dataset, cache = stoker.Dataset(data), tmp_path / "c"
    with stoker.Loader(dataset, batch_size=1_000, cache=cache) as loader:
        for _ in loader:
            pass
    # As after a start: nothing is in the page cache, and no chunk has been checked.
    store._verified.clear()
    for mark in (cache / "checked").iterdir():
        mark.unlink()
    for path in cache.rglob("*.safetensors"):
        _push_out(path)
    with stoker.Loader(dataset, batch_size=1_000, cache=cache) as loader:
        batches = iter(loader)
        next(batches)
        if not _reads_huge_pages(tmp_path):
            pytest.skip("this system reads no huge pages into its page cache")
        sizes = [size for _, size, _ in _mapped(cache) if size >= HUGE_BYTES]
        assert sizes
        assert sum(_huge_bytes(cache)) >= sum(size // HUGE_BYTES * HUGE_BYTES for size in sizes) // 2


def _push_out(path):
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _reads_huge_pages(folder):
    """Return whether a file that is only on disk can be read into huge pages here."""
    path = folder / "control"
    path.write_bytes(bytes(2 * HUGE_BYTES))
    _push_out(path)
    with path.open("rb") as file:
        bring_in(file.fileno(), 0, 2 * HUGE_BYTES)
        mapped = ChunkMap(file.fileno(), 2 * HUGE_BYTES)
    try:
        assert not any(mapped.view()[:: mmap.PAGESIZE])
        return sum(_huge_bytes(path)) == 2 * HUGE_BYTES
    finally:
        path.unlink()


def _mapped(folder):
    """Return address, bytes and offset in the file of what is mapped of a folder's files."""
    found = []
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            if str(folder) in line:
                borders, _, offset = line.split()[:3]
                begin, end = (int(border, 16) for border in borders.split("-"))
                found.append((begin, end - begin, int(offset, 16)))
    return found


def _huge_bytes(folder):
    """Return the bytes of each map of a folder's files that are entered as huge pages."""
    found, is_ours = [], False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            name, *values = line.split()
            if not name.endswith(":"):
                is_ours = str(folder) in line
            elif is_ours and name == "FilePmdMapped:":
                found.append(int(values[0]) << 10)
    return found


def _keeps_huge_pages(folder):
    """Return whether this system has huge pages in the page cache: of a file written in one call, mapped and read."""
    path = folder / "control"
    with path.open("w+b") as file:
        os.pwrite(file.fileno(), bytes(2 * HUGE_BYTES), 0)
        mapped = ChunkMap(file.fileno(), 2 * HUGE_BYTES)
    try:
        assert not any(mapped.view()[:: mmap.PAGESIZE])
        return sum(_huge_bytes(path)) > 0
    finally:
        path.unlink()
