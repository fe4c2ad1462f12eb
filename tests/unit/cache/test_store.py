import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.processes import in_threads
from tests.unit.cache.chunk_files import about_of, read_arrays
from tests.unit.cache.samples import SPEC, arrays_of, key, same_fields

import stoker.cache.store
from stoker import Cache, CacheError, CacheFullError, ChunkCorruptError
from stoker.cache import admin
from stoker.cache.folder import Files, _fallocate
from stoker.cache.store import Store

N = 20


def put(store, i, *, seed=0, **options):
    return store.publish(key(i), arrays_of(SPEC, N, seed), SPEC, num_samples=N, about={"row": i}, **options)


def use(store, name, numbers):
    numbers = list(numbers)
    store.register(name, name=f"Dataset({name})", urls=[f"lake/{name}"], keys=lambda: [key(i) for i in numbers])


def there(store):
    return {i for i in range(64) if store.size_of(key(i)) is not None}


def seed_in(store, i):
    """Return which of the first arrays a chunk holds, kept or not."""
    with store.open(key(i)) as chunk:
        arrays = read_arrays(chunk.path)
    return next(seed for seed in range(9) if same_fields(arrays, arrays_of(SPEC, N, seed)))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(folder):
    with Store(folder) as store:
        yield store


def damage(path, offset=-40):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# ---------------------------------------------------------------------- chunks


def test_a_published_chunk_is_found_and_opened(store):
    assert not store.has(key(1))
    size_bytes = put(store, 1)
    assert store.has(key(1))
    assert store.path_of(key(1)).parent == store.path / "chunks"
    with store.open(key(1)) as chunk:
        assert chunk.header.num_samples == N
        assert about_of(store.path_of(key(1))) == {"row": 1, "key": key(1)}
        assert chunk.header.size_bytes == size_bytes == store.disk.folder.count_bytes()
        assert chunk.is_kept
        assert os.fstat(chunk.fd).st_size == size_bytes
    assert same_fields(read_arrays(store.path_of(key(1))), arrays_of(SPEC, N))
    assert list((store.path / "tmp").iterdir()) == []


def test_opening_what_is_not_there_is_a_key_error(store):
    with pytest.raises(KeyError, match=key(9)):
        store.open(key(9))


def test_a_discarded_chunk_is_gone_but_readable_where_it_is_open(store):
    put(store, 1)
    with store.open(key(1)) as chunk:
        assert store.discard(key(1))
        assert not store.has(key(1))
        assert len(os.pread(chunk.fd, 10, 0)) == 10
    assert not store.discard(key(1))
    assert store.disk.folder.count_bytes() == 0


def test_a_second_store_of_the_same_folder_sees_everything(store, folder):
    put(store, 1)
    with Store(folder) as other:
        assert other.has(key(1))
        put(other, 2)
    assert store.has(key(2))


@pytest.mark.parametrize("offset", [100, 4200, -40])
def test_a_corrupt_chunk_is_reported_once_and_then_missing(store, offset):
    put(store, 1)
    damage(store.path_of(key(1)), offset)
    with pytest.raises(ChunkCorruptError, match="discarded"):
        store.open(key(1))
    assert not store.has(key(1))
    put(store, 1)
    store.open(key(1)).close()
    counts = store.counts()
    assert (counts["num_built"], counts["num_mended"], counts["num_reused"]) == (2, 1, 0)


def test_checksums_are_compared_once_a_process_and_again_for_another_file(store, folder):
    put(store, 1)
    with Store(folder) as other:
        other.open(key(1)).close()
    path = store.path_of(key(1))
    about = path.stat()
    damage(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    store.open(key(1)).close()  # the same inode, time and size: not looked into again
    os.utime(path)
    with pytest.raises(ChunkCorruptError):
        store.open(key(1))


def test_another_process_trusts_a_mark_until_the_file_is_touched(folder):
    with Store(folder) as store:
        put(store, 1)
    stoker.cache.store._verified.clear()  # as a new process has it
    with Store(folder) as store, store.open(key(1)) as chunk:
        assert not chunk.was_read
    path = folder / "chunks" / f"{key(1)}.safetensors"
    before = path.stat()
    damage(path)
    while path.stat().st_ctime_ns == before.st_ctime_ns or path.stat().st_mtime_ns != before.st_mtime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    stoker.cache.store._verified.clear()
    with Store(folder) as store, pytest.raises(ChunkCorruptError):
        store.open(key(1))
    assert list((folder / "checked").iterdir()) == []


def test_uses_of_chunks_that_were_missing_are_told_from_others(store, folder):
    put(store, 1)
    with Store(folder) as other:
        assert not other.has(key(2))
        put(other, 2)
        for _ in range(3):
            for i in (1, 2):
                other.open(key(i)).close()
                other.count_uses(1, [key(i)])
        counts = other.counts()
        assert (counts["num_built"], counts["num_reused"], counts["num_missed"], counts["num_mended"]) == (1, 5, 1, 0)


def test_publishing_again_replaces_the_file_and_counts_it_once(store):
    put(store, 1)
    put(store, 1, seed=1)
    assert same_fields(read_arrays(store.path_of(key(1))), arrays_of(SPEC, N, 1))


def test_threads_that_publish_at_once_lose_nothing(store):
    in_threads(lambda i: put(store, i), range(16))
    assert there(store) == set(range(16))
    assert admin.verify(store).corrupt == ()


# ---------------------------------------------------------------------- the limit


@pytest.fixture
def size(tmp_path):
    with Store(tmp_path / "other") as store:
        return put(store, 0)


def test_what_fits_stays_whatever_comes_and_the_rest_is_in_memory_until_it_was_used(folder, size):
    with Store(folder, limit_bytes=6 * size) as store:
        use(store, "a", range(20))
        for _ in range(2):
            for i in range(20):
                if not store.has(key(i)):
                    put(store, i)
                assert seed_in(store, i) == 0
                store.count_uses(1, [key(i)])
            assert there(store) == set(range(6))
            assert store.disk.folder.count_bytes() == 6 * size
        counts = store.counts()
        assert (counts["num_evicted"], counts["num_reused"], counts["num_missed"]) == (0, 6, 34)
        assert not store.has(key(6))  # long ago
        assert store.has(key(19))
    with Store(folder) as store:
        assert not store.has(key(19))


def test_processes_find_what_others_have_in_memory(folder, size):
    with Store(folder, limit_bytes=size) as store, Store(folder, limit_bytes=size) as other:
        use(store, "a", range(9))
        for i in range(3):
            put(store, i)
        assert [seed_in(other, i) for i in range(3)] == [0, 0, 0]
        store.close()
        with pytest.raises(KeyError):
            other.open(key(2))


def test_a_number_that_a_crash_left_too_high_keeps_nothing_out(folder, size):
    with Store(folder, limit_bytes=2 * size) as store:
        use(store, "a", range(9))
        put(store, 0)
        (folder / "usage").write_bytes((100 * size).to_bytes(8, "little"))
        put(store, 1)
        put(store, 2)
        assert there(store) == {0, 1}
        store.path_of(key(1)).unlink()  # by hand: nobody accounts for it
        put(store, 3)
        assert there(store) == {0, 3}


def test_a_chunk_that_must_be_kept_is_refused_where_there_is_no_room(folder, size):
    with Store(folder, limit_bytes=2 * size) as store:
        use(store, "a", range(9))
        for i in range(2):
            put(store, i, must_be_kept=True)
        with pytest.raises(CacheFullError, match="raise cache_limit") as caught:
            put(store, 2, must_be_kept=True)
        assert caught.value.path == store.path
        assert f"{size:,}" in str(caught.value)
        assert there(store) == {0, 1}
        assert not store.has(key(2))
        assert list((folder / "tmp").iterdir()) == []


def test_a_chunk_larger_than_the_limit_is_said_once_and_used_from_memory(folder, size, caplog):
    with Store(folder, limit_bytes=size - 1) as store:
        for i in range(3):
            put(store, i)
        assert seed_in(store, 2) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "raise cache_limit" in caplog.text


def test_data_sets_that_nobody_uses_go_first_the_least_recently_opened_before(folder, size):
    for name, numbers in (("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5))):
        with Store(folder) as store:
            use(store, name, numbers)
            for i in numbers:
                put(store, i)
    os.utime(folder / "datasets" / "a")  # opened again since
    with Store(folder, limit_bytes=7 * size) as store:
        use(store, "d", range(10, 20))
        put(store, 10)
        assert there(store) == {0, 1, 2, 3, 4, 5, 10}
        put(store, 11)
        assert there(store) == {0, 1, 3, 4, 5, 10, 11}
        for i in (12, 13, 14, 15, 16):
            put(store, i)
        assert there(store) == {10, 11, 12, 13, 14, 15, 16}


def test_a_data_set_in_use_keeps_its_chunks_when_another_one_or_a_lower_limit_comes(folder, size):
    with Store(folder, limit_bytes=4 * size) as store, Store(folder, limit_bytes=2 * size) as other:
        use(store, "a", range(10))
        for i in range(4):
            put(store, i)
        use(other, "a", range(10))
        use(other, "b", range(10, 20))
        for i in range(10, 20):
            put(other, i)
            assert seed_in(other, i) == 0
        assert there(store) == {0, 1, 2, 3}


def test_a_shared_chunk_stays_while_one_of_its_data_sets_is_in_use(folder, size):
    with Store(folder) as store:
        use(store, "a", (0, 1))
        put(store, 0)
        put(store, 1)
    with Store(folder, limit_bytes=2 * size) as store:
        use(store, "b", (1, 2, 3))
        put(store, 2)
        assert there(store) == {1, 2}


def test_a_lower_limit_takes_effect_when_the_data_set_is_opened_by_nobody_else(folder, size):
    with Store(folder) as store:
        use(store, "a", range(6))
        for i in range(6):
            put(store, i)
        with Store(folder, limit_bytes=4 * size) as other:
            use(other, "a", range(6))
        assert len(there(store)) == 6
    with Store(folder, limit_bytes=4 * size) as store:
        use(store, "a", range(6))
        assert len(there(store)) == 4
        assert store.disk.folder.count_bytes() == 4 * size


# ---------------------------------------------------------------------- the disk


class FullDisk(Files):
    """A disk that refuses the n-th writes, for want of room or another reason."""

    def __init__(self, refused, number=errno.ENOSPC):
        self.refused, self.number = refused, number
        self.num_writes = 0

    def write(self, fd, data, *, offset):
        self.num_writes += 1
        if self.num_writes in self.refused:
            raise OSError(self.number, os.strerror(self.number))
        super().write(fd, data, offset=offset)


def test_a_limit_of_file_sizes_is_named_with_the_way_out(folder):
    files = FullDisk(refused=(), number=errno.EFBIG)
    with Store(folder, files=files) as store:
        files.refused = range(1000)
        with pytest.raises(CacheError, match=rf"{folder} cannot be written to: .*`ulimit -f`.*chunk_size"):
            put(store, 1)


def test_a_full_disk_is_said_once_and_tried_again_for_each_chunk(folder, caplog):
    files = FullDisk(refused=())
    with Store(folder, files=files) as store:
        use(store, "a", range(9))
        put(store, 0)
        files.refused = range(1000)
        with pytest.raises(CacheFullError, match=rf"disk of {folder} is full.*bytes are free.*cache_limit") as caught:
            put(store, 1, must_be_kept=True)
        assert isinstance(caught.value.__cause__, OSError)
        assert not store.has(key(1))
        files.num_writes, files.refused = 0, {1, 3}  # of the folder, not of memory
        for i in (1, 2):
            put(store, i)
        assert [seed_in(store, i) for i in (1, 2)] == [0, 0]
        assert there(store) == {0}
        assert list((folder / "tmp").iterdir()) == []
        files.refused = ()
        put(store, 3)
        assert there(store) == {0, 3}
    assert len(caplog.records) == 1
    assert f"disk of {folder} is full" in caplog.text


class FullDiskThatSaysSo(Files):
    """A disk that has no room for a large file, and says so before it is written."""

    def reserve(self, fd, size_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_found_before_anything_is_written(folder):
    num = 20_000
    with Store(folder, files=FullDiskThatSaysSo()) as store:
        put(store, 0)
        with pytest.raises(CacheFullError, match=r"disk.*full"):
            store.publish(key(2), arrays_of(SPEC, num), SPEC, num_samples=num, must_be_kept=True)
        assert list((folder / "tmp").iterdir()) == []


def test_room_that_was_found_is_the_files(tmp_path):
    files = Files()
    folder = os.open(tmp_path, os.O_RDONLY)
    fd = files.create(folder, "file", size_bytes=1 << 20)
    os.close(folder)
    try:
        if (fallocate := _fallocate()) is None or fallocate(fd, 0, 0, 1) != 0:
            pytest.skip("the file system finds no room ahead")
        files.reserve(fd, 1 << 20)
        found = os.fstat(fd)
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20
        files.write(fd, b"x", offset=1 << 19)
        assert os.pread(fd, 3, (1 << 19) - 1) == b"\0x\0"
    finally:
        os.close(fd)


@pytest.mark.skipif(_fallocate() is None or not Path("/dev/shm").is_dir(), reason="no disk says that it is full")
def test_only_a_full_disk_is_a_reason_not_to_write(tmp_path):
    with (
        tempfile.TemporaryFile(dir="/dev/shm") as file,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        Files().reserve(file.fileno(), 1 << 50)
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as file:  # no room is found for what may not be written to
        Files().reserve(file.fileno(), 1)


# ---------------------------------------------------------------------- the folder


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(CacheError, match=r"no Stoker cache.*holiday\.jpg"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cannot be used"):
        Store(tmp_path / "file")


@pytest.mark.parametrize("content", ["{", "[]", "", "\0" * 100, '{"version": 7}', "[" * 100_000])
def test_a_damaged_metadata_file_is_written_anew(store, folder, content):
    put(store, 1)
    (folder / "stoker-cache.json").write_text(content)
    with Store(folder) as other:
        assert there(other) == {1}
    assert json.loads((folder / "stoker-cache.json").read_text())["version"] == 2


def test_a_cache_of_another_version_is_refused(store, folder):
    (folder / "stoker-cache.json").write_text('{"format": "stoker-cache", "version": 99}')
    with pytest.raises(CacheError, match="another folder"):
        Store(folder)


def test_many_threads_may_open_a_new_folder_at_once(folder):
    for store in in_threads(Store, [folder] * 10):
        store.close()
    assert json.loads((folder / "stoker-cache.json").read_text())["version"] == 2
    assert [path.name for path in folder.iterdir() if path.name.count(".json.")] == []


def test_a_new_cache_says_that_it_is_one_all_at_once_and_whoever_is_first_has_said_it(folder):
    marker, was_there, others, made = folder / "stoker-cache.json", [], [], []

    class Looking(Files):
        def create(self, *names, **options):
            was_there.append(marker.exists())
            return super().create(*names, **options)

        def link(self, *names):
            was_there.append(marker.exists())
            others.append(Store(folder))  # comes first
            made.append((marker.stat().st_ino, marker.read_text()))
            super().link(*names)

    with Store(folder, files=Looking()):
        assert made == [(marker.stat().st_ino, marker.read_text())]
    assert not any(was_there)
    assert json.loads(made[0][1]) == {"format": "stoker-cache", "version": 2}
    assert marker.stat().st_nlink == 1
    assert list((folder / "tmp").iterdir()) == []
    others[0].close()


def test_a_file_system_without_second_names_has_caches_too(folder):
    class Without(Files):
        def link(self, *names):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    Store(folder, files=Without()).close()
    assert json.loads((folder / "stoker-cache.json").read_text())["version"] == 2
    assert list((folder / "tmp").iterdir()) == []


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(store, folder):
    dead = folder / "tmp" / f"{key(1)}.99-0"
    dead.write_bytes(b"half")
    assert store.disk.locks.try_lock("8") is not None  # as a writer of that name has it
    living = folder / "tmp" / f"{key(2)}.8-0"
    living.write_bytes(b"half")
    Store(folder).close()
    assert not dead.exists()
    assert living.exists()
    store.close()
    Store(folder).close()
    assert not living.exists()


# ---------------------------------------------------------------------- looking after it


def test_entries_show_data_sets_and_chunks_of_none(store, folder):
    use(store, "a", (0, 1, 2))
    put(store, 0)
    put(store, 2)
    put(store, 9)
    with Store(folder) as other:
        use(other, "b", (2, 3))
    entries = {entry.fingerprint: entry for entry in admin.entries(store)}
    assert list(entries["a"].chunks) == [key(0), key(2)]
    assert entries["a"].is_in_use
    assert entries["a"].urls == ("lake/a",)
    assert entries["a"].keys == (key(0), key(1), key(2))
    assert entries["a"].size_bytes == sum(store.path_of(key(i)).stat().st_size for i in (0, 2))
    assert not entries["b"].is_in_use
    assert list(entries["b"].chunks) == [key(2)]
    assert list(entries[""].chunks) == [key(9)]


def test_a_chunk_that_is_there_says_what_a_sample_is(store):
    assert store.spec_of([key(0), key(1)]) is None
    put(store, 1)
    assert store.spec_of([key(0), key(1)]) == SPEC


def test_a_data_set_whose_file_is_damaged_is_entered_anew(store, folder):
    use(store, "a", (0, 1))
    (folder / "datasets" / "a").write_text("{")
    assert admin.entries(store) == []
    with Store(folder) as other:
        use(other, "a", (0, 1))
    assert [entry.fingerprint for entry in admin.entries(store)] == ["a"]


def test_a_data_set_that_is_known_is_not_worked_out_again_but_counts_as_opened(store, folder):
    use(store, "a", (0, 1))
    os.utime(folder / "datasets" / "a", (0, 0))
    with Store(folder) as other:
        other.register("a", name="a", urls=[], keys=lambda: pytest.fail("was asked for its keys"))
    (entry,) = admin.entries(store)
    assert entry.keys == (key(0), key(1))
    assert entry.opened_ns > 0


def test_verify_names_what_is_wrong_and_removes_it_when_asked(store):
    for i in range(3):
        put(store, i)
    damage(store.path_of(key(1)))
    stray = store.path / "chunks" / "notes.txt"
    stray.touch()
    seen = []
    report = admin.verify(store, on_chunk=seen.append)
    assert (report.num_chunks, len(seen)) == (3, 3)
    assert [path for path, _ in report.corrupt] == [store.path_of(key(1))]
    assert "history" in report.corrupt[0][1] or "words" in report.corrupt[0][1]
    assert report.strays == (stray,)
    assert store.has(key(1))
    admin.verify(store, fix=True)
    assert there(store) == {0, 2}
    report = admin.verify(store)
    assert (report.corrupt, report.strays) == ((), ())


def test_what_is_evicted_leaves_no_note_that_it_was_verified(folder, size):
    with Store(folder) as store:
        use(store, "a", range(3))
        for i in range(3):
            put(store, i)
    with Store(folder, limit_bytes=3 * size) as store:
        use(store, "b", range(10, 13))
        for i in range(10, 13):
            put(store, i)
        assert sorted(path.name for path in (folder / "checked").iterdir()) == sorted(map(key, range(10, 13)))


def test_remove_takes_a_data_set_but_not_what_others_share(store, folder):
    with Store(folder) as other:
        use(other, "a", (0, 1))
        use(other, "b", (1, 2))
        for i in (0, 1, 2, 3):
            put(other, i)
        with pytest.raises(CacheError, match="in use"):
            store.disk.remove_datasets(["a"])
    freed = []
    store.disk.remove_datasets(["a"], on_removed=freed.append)
    assert there(store) == {1, 2, 3}
    assert len(freed) == 1
    store.disk.remove_datasets()
    assert there(store) == set()
    assert admin.entries(store) == []
    assert store.disk.folder.count_bytes() == 0


def test_a_data_set_that_comes_into_use_while_it_is_removed_keeps_what_is_still_there(folder):
    keys, kept, begun = [f"{i:064}" for i in range(5000)], [], []

    class Telling(Files):
        def remove(self, folder, name):
            if not begun:
                begun.append(threading.Thread(target=begin))
                begun[0].start()
            return super().remove(folder, name)

    def begin():
        other.register("a", name="a", urls=["lake/a"], keys=lambda: keys)
        kept.extend(other.disk.folder.list_chunks())

    with Store(folder) as store:
        store.register("a", name="a", urls=["lake/a"], keys=lambda: keys)
        for name in keys:
            store.path_of(name).write_bytes(b"")
    with Store(folder, files=Telling()) as store, Store(folder) as other:
        with pytest.raises(CacheError, match="in use"):
            store.disk.remove_datasets(["a"])
        begun[0].join()
        assert 0 < len(kept) < len(keys)
        assert store.disk.folder.list_chunks().keys() == {*kept}


def test_whoever_evicts_never_sees_a_data_set_in_use_without_its_chunks(store, folder):
    held = []

    class Looking(Files):
        def replace(self, source, name, target, new_name):
            held.append(store.disk.locks.is_held("", elsewhere=True))
            super().replace(source, name, target, new_name)

    with Store(folder, files=Looking()) as other:
        use(other, "a", range(3))
    assert held == [True]


def test_no_file_beside_the_cache_is_removed_whatever_a_data_set_says_its_chunks_are(folder, tmp_path):
    other = tmp_path / "model.safetensors"
    other.write_bytes(bytes(100))
    keys = [key(1), "../../model", str(tmp_path / "model"), "a\0b"]
    with Store(folder) as store:
        store.register("a", name="Dataset(a)", urls=["lake/a"], keys=lambda: keys)
        put(store, 1)
    with Store(folder, limit_bytes=1) as store:
        store.register("a", name="Dataset(a)", urls=["lake/a"], keys=lambda: keys)  # which trims what it has
        assert other.exists()
    with Store(folder) as store:
        store.disk.remove_datasets(["a"], on_removed=lambda _: pytest.fail("there was nothing"))
        assert store.disk.folder.list_datasets() == []
    assert other.exists()


class ClosingFiles(Files):
    """Closes a store while it removes a chunk, as a signal's handler may, and opens files of somebody else then."""

    store = None
    others = ()

    def remove(self, folder, name):
        is_gone = super().remove(folder, name)
        if self.store is not None:
            store, self.store = self.store, None
            numbers = len(list(Path("/proc/self/fd").iterdir()))
            store.close()
            path = store.path.parent / "other"
            path.write_bytes(b"of somebody else")
            self.others = [path.open("r+b") for _ in range(numbers - len(list(Path("/proc/self/fd").iterdir())))]
        return is_gone


def test_a_store_that_is_closed_while_it_counts_writes_into_no_file_opened_since(folder):
    files = ClosingFiles()
    with Store(folder, files=files) as store:
        put(store, 1)
        files.store = store
        with contextlib.suppress(OSError, CacheError):
            store.discard(key(1))
    assert files.others
    for file in files.others:
        file.close()
    assert (folder.parent / "other").read_bytes() == b"of somebody else"


def test_closing_twice_is_harmless_and_using_after_it_is_an_error(folder):
    store = Store(folder)
    put(store, 1)
    store.close()
    store.close()
    with pytest.raises(CacheError, match="closed"):
        store.try_lock(key(1))


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_closed_store_takes_no_chunk_and_opens_no_folder(folder, is_removed):
    store = Cache(folder).open()
    put(store, 1)
    store.close()
    if is_removed:
        shutil.rmtree(folder)
    with pytest.raises(CacheError, match="was closed"):
        put(store, 2)
    assert folder.exists() != is_removed
    with Store(folder) as other:
        assert there(other) == (set() if is_removed else {1})
        assert not other.has(key(2))  # in memory neither


def test_checked_files_are_remembered_by_key_not_by_file(store):
    before = len(stoker.cache.store._verified)
    for seed in range(5):
        put(store, 1, seed=seed)
        store.open(key(1)).close()
    assert len(stoker.cache.store._verified) == before + 1


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that processes share")
def test_a_chunk_in_memory_that_is_still_being_written_is_not_found_by_an_old_link(tmp_path):
    with Store(tmp_path / "cache", limit_bytes=1) as store:
        put(store, 1)
        (link,) = Path("/dev/shm").glob(f"stoker.chunk.*{key(1)}")
        stale = str(link.readlink())
        store.discard(key(1))
        seen = []

        class LookingFiles(Files):
            """Looks from another process, as it were, before the last byte is there."""

            def write(self, fd, data, *, offset):
                super().write(fd, data, offset=offset)
                if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):  # noqa: PTH115
                    link.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")  # as that of a process that had these numbers
                    seen.append(other.has(key(1)))
                    link.unlink()

        with Store(tmp_path / "cache", limit_bytes=1) as other:
            with Store(tmp_path / "cache", limit_bytes=1, files=LookingFiles()) as writer:
                put(writer, 1)
                assert other.has(key(1))
            assert seen == [False]
            assert stale.startswith(f"/proc/{os.getpid()}/fd/")


CHILD = """
import sys
from tests.unit.cache.test_store import N, SPEC, Store, key, put

store = Store(sys.argv[1], limit_bytes=1)
put(store, 2)
print(store.has(key(2)), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that processes share")
def test_chunks_in_memory_are_found_by_other_processes_and_go_with_theirs(tmp_path):
    with Store(tmp_path / "cache", limit_bytes=1) as store:
        put(store, 1)
        with Store(tmp_path / "cache", limit_bytes=1) as other:
            assert seed_in(other, 1) == 0
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        script = [sys.executable, "-c", CHILD, str(tmp_path / "cache")]
        with subprocess.Popen(script, env=environment, text=True, **pipes) as child:
            assert child.stdout.readline() == "True\n"
            assert [store.has(key(i)) for i in (1, 2)] == [True, True]
            child.kill()
            child.wait()
        assert [store.has(key(i)) for i in (1, 2)] == [True, False]
        put(store, 2)
        with Store(tmp_path / "cache", limit_bytes=1) as other:
            assert [other.has(key(i)) for i in (1, 2)] == [True, True]
            store.discard(key(2))
            assert not other.has(key(2))
    with Store(tmp_path / "cache", limit_bytes=1) as other:
        assert not other.has(key(1))
