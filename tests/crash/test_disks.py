"""Real disks that are full or read-only; skipped where this user may not mount one."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from tests.strategies import write_files

import stoker
from stoker import CacheError
from stoker.cli import main
from stoker.testing import write_parquet

NUM_ROWS = 22_000  # of a file, which is a chunk: five of them are more than a megabyte


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@contextmanager
def mounted(folder, options):
    folder.mkdir()
    if shutil.which("mount") is None or not run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)):
        pytest.skip("this user may not mount a disk")
    try:
        yield folder
    finally:
        gc.collect()
        assert run("umount", str(folder)), "something on the disk is still open"


@pytest.fixture
def disk(tmp_path):
    """A tmpfs of one megabyte."""
    with mounted(tmp_path / "disk", "size=1m") as folder:
        yield folder


def dataset_of(folder, num_files):
    for i in range(num_files):
        write_parquet(folder / f"{i:02}.parquet", {"id": np.arange(i * NUM_ROWS, (i + 1) * NUM_ROWS)})
    return stoker.Dataset(folder, chunk_size="180kB")


def loader_of(dataset, cache, **options):
    return stoker.Loader(dataset, batch_size=1000, num_threads=1, cache=cache, **options)


def epoch(loader):
    """Load an epoch, look at its rows, and return what the loader did."""
    before = loader.stats()
    assert [row for batch in loader for row in batch["id"].tolist()] == list(range(loader.num_samples))
    return loader.stats().since(before)


def chunks(cache):
    return sorted((cache / "chunks").iterdir())


def damage(path):
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def test_on_a_full_disk_chunks_are_used_from_memory_until_there_is_room(disk, tmp_path, caplog, capsys):
    cache = disk / "cache"
    dataset = dataset_of(tmp_path / "data", 8)
    with loader_of(dataset, cache) as loader:
        for _ in range(2):
            epoch(loader)
            assert list((cache / "tmp").iterdir()) == []
    kept = chunks(cache)
    assert 3 < len(kept) < 8
    kept[0].unlink()
    with loader_of(dataset, cache) as loader:
        epoch(loader)
    assert len(chunks(cache)) == len(kept)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # each loader once
    assert caplog.text.count(f"the disk of {cache} is full") == 2
    assert "bytes are free" in caplog.text
    assert "give a cache_limit that leaves room" in caplog.text
    assert main(["cache", "verify", str(cache)]) == 0


def test_a_full_disk_makes_room_from_data_sets_that_nobody_uses(disk, tmp_path):
    cache = disk / "cache"
    for name in ("first", "second"):
        with loader_of(dataset_of(tmp_path / name, 5), cache) as loader:
            epoch(loader)
            assert len(chunks(cache)) == 5
            assert epoch(loader).num_built == 0
            assert loader.stats().num_evicted == (5 if name == "second" else 0)


def test_a_disk_without_inodes_says_so(tmp_path, caplog):
    with (
        mounted(tmp_path / "disk", "nr_inodes=20") as disk,
        loader_of(dataset_of(tmp_path / "d", 20), disk / "c") as one,
    ):
        epoch(one)
    assert "no inodes left" in caplog.text


def test_a_cache_on_a_disk_that_became_read_only_is_still_read(disk, tmp_path, caplog, capsys):
    cache, dataset = disk / "cache", dataset_of(tmp_path / "data", 3)
    with loader_of(dataset, cache) as loader:
        epoch(loader)
    damage(chunks(cache)[0])
    chunks(cache)[1].unlink()
    assert run("mount", "-o", "remount,ro", str(disk))
    with loader_of(dataset, cache) as loader:
        epoch(loader)
        stats = loader.stats()
        assert (stats.num_built, stats.num_mended) == (2, 1)  # what cannot be removed is not there either
    assert len(caplog.records) == 1
    assert "read-only" in caplog.text
    assert main(["cache", "verify", str(cache), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["num_chunks"], len(found["damaged"])) == (2, 1)
    assert main(["cache", "verify", str(cache), "--fix"]) == 1
    assert "nothing can be removed" in capsys.readouterr().err
    with pytest.raises(CacheError, match="this user may write to"):
        loader_of(dataset, disk / "another")


def test_a_scrub_of_a_disk_that_became_read_only_does_not_say_that_it_removed_what_is_damaged(disk, tmp_path, caplog):
    cache, dataset = disk / "cache", dataset_of(tmp_path / "data", 2)
    with loader_of(dataset, cache) as loader:
        epoch(loader)
    damage(path := chunks(cache)[0])
    assert run("mount", "-o", "remount,ro", str(disk))
    with loader_of(dataset, stoker.Cache(cache, scrub="1GB")):
        while "removed" not in caplog.text:
            pass
    assert path.exists()
    assert "it cannot be removed, and is made again" in caplog.text


def used_bytes(folder):
    """Return the bytes that a disk has given away, deleted files that are still mapped included."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def test_two_jobs_never_take_more_of_the_disk_than_the_limit_and_a_chunk_while_a_third_one_is_evicted(tmp_path):
    disk, limit, chunk_bytes = tmp_path / "disk", 150_000, 40_000

    def job(name, limit):
        files = write_files(tmp_path / name, [3000], row_group_size=200)
        dataset = stoker.Dataset(files, chunk_size=15_000)
        cache = stoker.Cache(disk / "cache", limit=limit)
        return stoker.Loader(dataset, batch_size=100, shuffle=True, window=3, num_threads=2, cache=cache)

    def besides():
        """What is no chunk: notes, footers, and the rest of each file's last page."""
        files = [path for path in (disk / "cache").rglob("*") if not path.is_symlink() and path.is_file()]
        chunks = [path for path in files if path.parent.name in ("chunks", "tmp")]
        return sum(4096 + path.stat().st_size for path in {*files} - {*chunks}) + 4096 * (len(chunks) + 40)

    with mounted(disk, "size=64m"):
        with job("third", limit) as loader:
            list(loader)
        with job("first", limit) as first, job("second", limit // 2) as second:
            for _ in range(4):
                for _ in zip(first, second, strict=True):
                    assert used_bytes(disk) <= limit + chunk_bytes + besides()
            both = [first.stats(), second.stats()]
            assert sum(stats.num_evicted for stats in both)  # of the third one, while the others train
            assert max(path.stat().st_size for path in (disk / "cache" / "chunks").iterdir()) <= chunk_bytes
            assert all(stats.num_missed for stats in both)  # it does not all fit
            assert sum(path.stat().st_size for path in (disk / "cache" / "chunks").iterdir()) > limit // 2
