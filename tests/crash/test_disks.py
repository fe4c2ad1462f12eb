"""Real disks that are full or read-only; skipped where this user may not mount one."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess

import pytest
from tests.strategies import write_files
from tests.unit.cache.chunk_files import read_arrays
from tests.unit.cache.samples import SPEC, arrays_of, key, same_fields

import stoker
from stoker import CacheError, CacheFullError, ChunkCorruptError
from stoker.cache import admin
from stoker.cache.store import Store

N = 3000


def put(store, i, **options):
    return store.publish(key(i), arrays_of(SPEC, N, i), SPEC, num_samples=N, **options)


def use(store, name, numbers):
    store.register(name, name=name, urls=[], keys=lambda: [key(i) for i in numbers])


def damage(path):
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path):
    """A tmpfs of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or not run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        pytest.skip("this user may not mount a disk")
    yield folder
    assert run("umount", str(folder)), "something on the disk is still open"


def fill_up(store, name, numbers):
    use(store, name, numbers)
    for done, i in enumerate(numbers):
        try:
            put(store, i, must_be_kept=True)
        except CacheFullError:
            return done
    raise AssertionError("the disk is larger than that")


def test_a_full_disk_names_path_need_and_rest_and_keeps_every_chunk(disk):
    with Store(disk / "cache") as store:
        done = fill_up(store, "a", range(20))
        assert done == 4
        with pytest.raises(CacheFullError, match=rf"disk of {store.path} is full.*bytes are free.*cache_limit"):
            put(store, 19, must_be_kept=True)
        assert list((disk / "cache" / "tmp").iterdir()) == []
        assert admin.verify(store).corrupt == ()
        for i in range(done):
            assert same_fields(read_arrays(store.path_of(key(i))), arrays_of(SPEC, N, i))


def test_a_full_disk_makes_room_from_data_sets_that_nobody_uses(disk):
    with Store(disk / "cache") as store:
        done = fill_up(store, "a", range(20))
    with Store(disk / "cache") as store:
        use(store, "b", range(30, 40))
        for i in range(30, 30 + done):
            put(store, i, must_be_kept=True)
        assert sum(store.has(key(i)) for i in range(30, 40)) == done
        assert store.counts()["num_evicted"] == done


def test_on_a_full_disk_chunks_are_used_from_memory_until_there_is_room(disk, caplog):
    with Store(disk / "cache") as store:
        use(store, "a", range(40))
        for _ in range(2):
            for i in range(40):
                if not store.has(key(i)):
                    put(store, i)
                with store.open(key(i)) as chunk:
                    assert same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, i))
        assert len(list((disk / "cache" / "chunks").iterdir())) == 4
        store.discard(key(0))
        put(store, 30)
        assert store.size_of(key(30)) is not None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"the disk of {disk / 'cache'} is full" in caplog.text


def test_a_disk_without_inodes_says_so(tmp_path, caplog):
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or not run("mount", "-t", "tmpfs", "-o", "nr_inodes=20", "tmpfs", str(folder)):
        pytest.skip("this user may not mount a disk")
    try:
        with Store(folder / "cache") as store:
            use(store, "a", range(20))
            for i in range(20):
                put(store, i)
                with store.open(key(i)) as chunk:
                    assert chunk.header.num_samples == N
    finally:
        assert run("umount", str(folder)), "something on the disk is still open"
    assert "no inodes left" in caplog.text


def test_a_cache_on_a_disk_that_became_read_only_is_still_read(disk, caplog):
    with Store(disk / "cache") as store:
        use(store, "a", range(3))
        put(store, 0)
        put(store, 1)
    damage(store.path_of(key(1)))
    assert run("mount", "-o", "remount,ro", str(disk))
    with Store(disk / "cache") as store:
        use(store, "a", range(3))
        with store.open(key(0)) as chunk:
            assert same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, 0))
        assert store.try_lock(key(2)) is not None
        with pytest.raises(CacheError, match="read-only"):
            put(store, 2, must_be_kept=True)
        with pytest.raises(ChunkCorruptError):
            store.open(key(1))
        for i in (1, 2):  # what cannot be removed is not there either
            assert not store.has(key(i))
            put(store, i)
            with store.open(key(i)) as chunk:
                assert same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, i))
        report = admin.verify(store)
        assert (report.num_chunks, len(report.corrupt)) == (2, 1)
        with pytest.raises(CacheError, match="nothing can be removed"):
            admin.verify(store, fix=True)
        assert len(caplog.records) == 1
        assert run("mount", "-o", "remount,rw", str(disk))
    assert run("mount", "-o", "remount,ro", str(disk))
    with pytest.raises(CacheError, match="this user may write to"):
        Store(disk / "another")


def test_a_scrub_of_a_disk_that_became_read_only_does_not_say_that_it_removed_what_is_damaged(disk, caplog):
    with Store(disk / "cache") as store:
        put(store, 0)
        damage(path := store.path_of(key(0)))
    assert run("mount", "-o", "remount,ro", str(disk))
    with Store(disk / "cache", scrub_bytes_s=1 << 30) as store:
        while store.size_of(key(0)) is not None:  # until it is known to be damaged
            pass
    assert path.exists()
    assert "it cannot be removed, and is made again" in caplog.text


def used_bytes(folder):
    """Return the bytes that a disk has given away, deleted files that are still mapped included."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def test_two_jobs_never_take_more_of_the_disk_than_the_limit_and_a_chunk_while_a_third_one_is_evicted(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or not run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)):
        pytest.skip("this user may not mount a disk")
    limit, chunk_bytes = 150_000, 40_000

    def loader_of(name, limit):
        files = write_files(tmp_path / name, [3000], row_group_size=200)
        dataset = stoker.Dataset(files, chunk_size=15_000)
        cache = stoker.Cache(disk / "cache", limit=limit)
        return stoker.Loader(dataset, batch_size=100, shuffle=True, window=3, num_threads=2, cache=cache)

    def besides():
        """What is no chunk: notes, footers, and the rest of each file's last page."""
        files = [path for path in (disk / "cache").rglob("*") if not path.is_symlink() and path.is_file()]
        chunks = [path for path in files if path.parent.name in ("chunks", "tmp")]
        return sum(4096 + path.stat().st_size for path in {*files} - {*chunks}) + 4096 * (len(chunks) + 40)

    try:
        with loader_of("third", limit) as loader:
            list(loader)
        with loader_of("first", limit) as first, loader_of("second", limit // 2) as second:
            for _ in range(4):
                for _ in zip(first, second, strict=True):
                    assert used_bytes(disk) <= limit + chunk_bytes + besides()
            both = [first.stats(), second.stats()]
            assert sum(stats.num_evicted for stats in both)  # of the third one, while the others train
            assert max(path.stat().st_size for path in (disk / "cache" / "chunks").iterdir()) <= chunk_bytes
            assert all(stats.num_missed for stats in both)  # it does not all fit
            assert sum(path.stat().st_size for path in (disk / "cache" / "chunks").iterdir()) > limit // 2
    finally:
        gc.collect()
        assert run("umount", str(disk)), "something on the disk is still open"
