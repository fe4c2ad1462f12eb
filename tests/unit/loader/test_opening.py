"""How windows get into memory: mapped once, mapped anew, or read past the page cache; the batches are the same."""

import ctypes
import errno
import os
import threading
from mmap import PAGESIZE as PAGE_BYTES
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

import stoker.loader.window
from stoker import Dataset, Loader
from stoker._native import ChunkMap, WindowChunks, WindowMemory, cached_bytes, read_chunks

NUM_ROWS = 6_000
OPTIONS = {"batch_size": 64, "shuffle": True, "seed": 3, "window": 3, "num_threads": 2}


@pytest.fixture
def dataset(tmp_path):
    lists = [list(range(i % 7)) for i in range(NUM_ROWS)]
    table = pa.table({"id": np.arange(NUM_ROWS), "list": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=500)
    return Dataset(tmp_path / "data.parquet", chunk_size=4_000)


@pytest.fixture
def nothing_stands(monkeypatch):
    monkeypatch.setattr(stoker.loader.window, "MAX_CHUNKS", 0)


@pytest.fixture
def nothing_is_tried(monkeypatch):
    monkeypatch.setattr(stoker.loader.window.PageCacheTrial, "brings_back", lambda *_, **__: False)


@pytest.fixture
def windows(monkeypatch):
    """Of every window that was opened: how many of its chunks were mapped, and how many were read."""
    opened = []
    whole = stoker.loader.window.WindowOpener.open

    def noted(self, numbers, filler, **options):
        window = whole(self, numbers, filler, **options)
        opened.append((window.num_mapped, window.num_slots - window.num_mapped))
        return window

    monkeypatch.setattr(stoker.loader.window.WindowOpener, "open", noted)
    return opened


def chunk_files(cache):
    return sorted((cache / "chunks").glob("*"))


def drop(cache):
    """Drop the chunks from the page cache; skips where the file system keeps them or cannot do without it."""
    for path in chunk_files(cache):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_bytes(fd, path.stat().st_size):
                pytest.skip("the file system keeps its files in memory")
        finally:
            os.close(fd)


def in_memory(cache):
    total = 0
    for path in chunk_files(cache):
        fd = os.open(path, os.O_RDONLY)
        total += cached_bytes(fd, path.stat().st_size)
        os.close(fd)
    return total


def chunk_maps():
    """Addresses and files of all maps of chunks."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return [(words[0], words[-1]) for words in lines if "/chunks/" in words[-1]]


def all_mapped(windows):
    return bool(windows) and not any(num_read for _, num_read in windows)


def all_read(windows):
    return bool(windows) and not any(num_mapped for num_mapped, _ in windows)


def content(batches):
    return [
        (batch["id"].tobytes(), batch["list"].offsets.tobytes(), batch["list"].values.tobytes()) for batch in batches
    ]


def test_a_window_that_left_the_page_cache_is_read_past_it_and_gives_the_same_batches(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = [content(loader) for _ in range(2)]
        assert all_mapped(windows)
    for number, epoch in enumerate(expected):
        with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
            drop(tmp_path / "cache")
            windows.clear()
            loader.set_epoch(number)
            assert content(loader) == epoch
            assert all_read(windows)
            assert in_memory(tmp_path / "cache") == 0


def test_what_is_left_in_the_page_cache_is_mapped_and_the_rest_read_past_it(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows
):
    options = OPTIONS | {"window": "all"}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        expected = content(loader)
        drop(tmp_path / "cache")
        kept = chunk_files(tmp_path / "cache")[:2]
        for path in kept:
            path.read_bytes()
        loader.set_epoch(0)
        windows.clear()
        assert content(loader) == expected
        assert windows[0] == (2, len(chunk_files(tmp_path / "cache")) - 2)
        assert in_memory(tmp_path / "cache") == sum(path.stat().st_size for path in kept)


def test_windows_of_more_chunks_than_may_be_open_are_the_same_in_every_way(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows, monkeypatch
):
    options = OPTIONS | {"window": "all"}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        expected = content(loader)
    monkeypatch.setattr(stoker.loader.window, "_MAX_HELD", 2)
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        assert content(loader) == expected
        drop(tmp_path / "cache")
        loader.set_epoch(0)
        windows.clear()
        assert content(loader) == expected
        assert all_read(windows)


def test_the_page_cache_is_tried_again_after_a_while(dataset, tmp_path, nothing_stands, windows):
    options = OPTIONS | {"window": "all", "num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        for _ in loader:
            pass
        ways = []
        for _ in range(9):
            drop(tmp_path / "cache")
            windows.clear()
            for _ in loader:
                pass
            ways.append(all_mapped(windows[:1]))
        windows.clear()
        for _ in loader:
            pass
        assert all_read(windows[:1])  # the ninth time left nothing there
    assert ways == [number in (1, 2, 4, 8) for number in range(1, 10)]


def test_the_page_cache_is_tried_with_one_window_and_all_come_back_where_it_stays(
    dataset, tmp_path, nothing_stands, windows
):
    options = OPTIONS | {"num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        expected = [content(loader) for _ in range(8)]
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        num_there = []
        for number, epoch in enumerate(expected):
            loader.set_epoch(number)
            if number == 0:
                drop(tmp_path / "cache")
            windows.clear()
            assert content(loader) == epoch
            num_there.append(in_memory(tmp_path / "cache"))
        assert all_mapped(windows)
    num_bytes = sum(path.stat().st_size for path in chunk_files(tmp_path / "cache"))
    assert 0 < num_there[0] < num_there[-1] == num_bytes


def test_a_data_set_that_does_not_fit_never_goes_back_to_the_page_cache(
    dataset, tmp_path, nothing_stands, windows, monkeypatch
):
    monkeypatch.setattr(stoker.loader.window, "available_bytes", lambda: 0)
    options = OPTIONS | {"window": "all", "num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        for _ in loader:
            pass
        windows.clear()
        for _ in range(9):
            drop(tmp_path / "cache")
            for _ in loader:
                pass
        assert all_read(windows)


@pytest.mark.parametrize(("max_bytes", "parts"), [(512 << 20, 6), (0, 2), (0, 1)], ids=["small", "two windows", "one"])
def test_a_data_set_that_is_small_or_lies_in_two_windows_is_mapped_once(
    dataset, tmp_path, monkeypatch, max_bytes, parts
):
    monkeypatch.setattr(stoker.loader.window, "MAX_BYTES", max_bytes)
    monkeypatch.setattr(stoker.loader.window, "MEMORY_SHARE", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        content(loader)
    window = -(-len(chunk_files(tmp_path / "cache")) // parts)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS | {"window": window}) as loader:
        maps = []
        for num_epochs in (1, 2):
            for _ in range(num_epochs):
                for _ in loader:
                    pass
            maps.append(chunk_maps())
        before, after = maps
        assert after == before
        assert len({name for _, name in before}) == len(chunk_files(tmp_path / "cache"))


def test_a_data_set_that_is_larger_is_mapped_window_by_window(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(stoker.loader.window, "MAX_BYTES", 0)
    monkeypatch.setattr(stoker.loader.window, "MEMORY_SHARE", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        batches = iter(loader)
        next(batches)
        num_mapped = len({name for _, name in chunk_maps()})
    assert 0 < num_mapped < len(chunk_files(tmp_path / "cache"))


@pytest.fixture
def all_is_large(monkeypatch):
    """Every data set is more than does no harm, and less than memory holds."""
    monkeypatch.setattr(stoker.loader.window, "MAX_BYTES", 0)


def test_a_data_set_that_memory_holds_is_mapped_once_however_large_it_is(dataset, tmp_path, all_is_large):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        maps = []
        for _ in range(3):
            for _ in loader:
                pass
            maps.append(chunk_maps())
        assert maps[1] == maps[2]
        assert len({name for _, name in maps[2]}) == len(chunk_files(tmp_path / "cache"))


def test_a_large_data_set_that_is_not_in_the_page_cache_is_read_past_it_until_it_is(
    dataset, tmp_path, all_is_large, nothing_is_tried, windows
):
    options = OPTIONS | {"num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        expected = content(loader)
        assert all_mapped(windows)
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        drop(tmp_path / "cache")
        windows.clear()
        assert content(loader) == expected
        assert all_read(windows)
        for path in chunk_files(tmp_path / "cache"):
            path.read_bytes()
        windows.clear()
        loader.set_epoch(0)
        assert content(loader) == expected
        assert all_mapped(windows)


def push_out():
    """Have the system let go of the pages of all maps of chunks; skips where it does not."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for borders, _ in chunk_maps():
        begin, end = (int(border, 16) for border in borders.split("-"))
        libc.madvise(begin, end - begin, 21)  # MADV_PAGEOUT


def test_a_large_data_set_that_was_pushed_out_of_memory_is_mapped_no_more(dataset, tmp_path, all_is_large, windows):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = content(loader)
        assert len(chunk_maps()) == len(chunk_files(tmp_path / "cache"))
        push_out()
        if in_memory(tmp_path / "cache"):
            pytest.skip("the system keeps pages of maps")
        windows.clear()
        loader.set_epoch(0)
        assert content(loader) == expected
        assert all_read(windows[:1])
        assert len(chunk_maps()) < len(chunk_files(tmp_path / "cache"))


def test_pages_are_entered_once_and_go_on_where_it_was_ended_early(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * PAGE_BYTES))
    with path.open("rb") as file:
        maps = [ChunkMap(file.fileno(), 10 * PAGE_BYTES) for _ in range(2)]
    window = WindowChunks(maps, np.zeros((2, 0, 2), dtype=np.int64), [])
    assert [window.enter(4 * PAGE_BYTES) for _ in range(6)] == [False] * 4 + [True] * 2
    assert window.is_in_memory()


@pytest.mark.parametrize("stands", [True, False])
def test_a_chunk_that_is_removed_or_damaged_between_epochs_is_built_again(dataset, tmp_path, stands, monkeypatch):
    if not stands:
        monkeypatch.setattr(stoker.loader.window, "MAX_CHUNKS", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = content(loader)
        removed, damaged, cut, *_ = chunk_files(tmp_path / "cache")
        removed.unlink()
        whole = bytearray(damaged.read_bytes())
        whole[8_200] ^= 1
        aside = tmp_path / "aside"
        for path, damage in ((damaged, bytes(whole)), (cut, cut.read_bytes()[:-1])):
            aside.write_bytes(damage)
            aside.replace(path)
        loader.set_epoch(0)
        assert content(loader) == expected
        assert loader.stats().num_mended == 2


def test_a_data_set_that_turns_out_too_large_to_stand_is_opened_window_by_window(dataset, tmp_path, monkeypatch):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = [content(loader) for _ in range(2)]
    # Its records alone would fit; a few chunks find a place, then there is none left.
    monkeypatch.setattr(stoker.loader.window, "MAX_BYTES", NUM_ROWS * 64)
    monkeypatch.setattr(stoker.loader.window, "MEMORY_SHARE", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        assert loader.spec.record_bytes <= 64
        assert [content(loader) for _ in range(2)] == expected


@pytest.fixture
def read_one(tmp_path):
    """Reads a file as one window's only chunk, and tells where it lies."""
    (tmp_path / "file").write_bytes(b"1")

    def read(memory):
        with (tmp_path / "file").open("rb") as file:
            (one,) = read_chunks([(file.fileno(), 1)], memory, True)
        return one, np.frombuffer(one.view(), dtype=np.uint8).ctypes.data

    return read


def test_memory_is_used_by_one_window_after_the_other_and_never_by_two(read_one):
    memory = WindowMemory()
    first, its_place = read_one(memory)
    second, other_place = read_one(memory)
    assert other_place != its_place
    del first
    third, place = read_one(memory)
    assert place == its_place
    del second, third
    assert memory.num_free == 2
    memory.clear()
    assert memory.num_free == 0


def test_who_needs_more_memory_than_is_wanted_gets_it(read_one):
    memory = WindowMemory()
    taken = [read_one(memory) for _ in range(4)]
    assert len({place for _, place in taken}) == 4
    taken.clear()
    assert memory.num_free == 4


def test_memory_that_no_window_needs_any_more_goes_back(read_one):
    memory = WindowMemory()
    read_one(memory)
    assert memory.num_free == 1
    for _ in range(100):
        memory.rest()
    assert memory.num_free == 0


@given(sizes=st.lists(st.integers(1, 3 << 20), min_size=1, max_size=5), is_direct=st.booleans())
@examples(10)
def test_what_is_read_is_what_is_mapped(tmp_path_factory, sizes, is_direct):
    folder, files = tmp_path_factory.mktemp("files"), []
    for i, size in enumerate(sizes):
        (folder / str(i)).write_bytes(np.random.default_rng(i).bytes(size))
        try:
            fd = os.open(folder / str(i), os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if is_direct else 0))
        except OSError:
            pytest.skip("the file system cannot do without the page cache")
        files.append((fd, size))
    read = read_chunks(files, WindowMemory(), False)
    mapped = [ChunkMap(*file) for file in files]
    for i, (fd, _) in enumerate(files):
        os.close(fd)
        (folder / str(i)).unlink()
    for i, (one, other) in enumerate(zip(read, mapped, strict=True)):
        assert not one.is_mapped
        assert other.is_mapped
        assert one.view() == other.view() == np.random.default_rng(i).bytes(sizes[i])


def test_a_file_that_became_shorter_and_one_that_cannot_be_read_are_errors(tmp_path):
    (tmp_path / "file").write_bytes(bytes(PAGE_BYTES))
    with (tmp_path / "file").open("rb") as file:
        with pytest.raises(OSError, match=r"the file ends \d+ bytes too early"):
            read_chunks([(file.fileno(), PAGE_BYTES + 700_000)], WindowMemory(), False)
        fd = file.fileno()
    for size in (PAGE_BYTES, 3 << 20):
        with pytest.raises(OSError, match="Bad file descriptor") as raised:
            read_chunks([(fd, size)], WindowMemory(), False)
        assert raised.value.errno == errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor"):
            ChunkMap(fd, size)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no way to ask whether memory can be read")
@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("size", [PAGE_BYTES, PAGE_BYTES - 64, PAGE_BYTES - 63, 1, 2 << 20, (2 << 20) + 1, 4 << 20])
def test_behind_a_chunk_there_is_a_line_that_can_be_read(tmp_path, size, is_mapped):
    """Lists are copied by whole lines: behind a list that ends with the file."""
    (tmp_path / "file").write_bytes(b"1" * size)
    with (tmp_path / "file").open("rb") as file, Path("/proc/self/mem").open("rb", buffering=0) as memory:
        files = [(file.fileno(), size)] * 3
        maps = [ChunkMap(*one) for one in files] if is_mapped else read_chunks(files, WindowMemory(), False)
        for one in maps:
            place = np.frombuffer(one.view(), dtype=np.uint8).ctypes.data
            memory.seek(place)
            assert memory.read(size + 64)[:size] == b"1" * size
            assert not is_mapped or size < 2 << 20 or place % (2 << 20) == 0


def test_what_a_file_has_in_the_page_cache_is_told(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1" * (10 * PAGE_BYTES))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    size = 10 * PAGE_BYTES
    assert cached_bytes(fd, size) == size
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    left = cached_bytes(fd, size)
    if left == size:
        pytest.skip("the file system keeps its files in memory")
    assert left == 0
    os.pread(fd, 1, 9 * PAGE_BYTES)
    assert 0 < cached_bytes(fd, size) < size
    os.close(fd)


@pytest.mark.parametrize(("num_left", "is_standing"), [(0, True), (5, True), (11, True), (0, False), (5, False)])
def test_a_process_that_may_have_no_more_maps_reads_what_it_cannot_map(
    dataset, tmp_path, monkeypatch, caplog, num_left, is_standing
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = [batch["id"].tolist() for batch in loader]
    if not is_standing:
        monkeypatch.setattr(stoker.loader.window, "MAX_CHUNKS", 0)
    left, lock = [num_left], threading.Lock()

    def map_file(fd, num_bytes):
        with lock:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOMEM, "mmap: Cannot allocate memory")
        return ChunkMap(fd, num_bytes)

    monkeypatch.setattr(stoker.loader.window, "ChunkMap", map_file)
    monkeypatch.setattr(stoker.loader.window, "ChunkMap", map_file)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        assert [batch["id"].tolist() for batch in loader] == expected
    assert left[0] < 0
    assert "vm.max_map_count" in caplog.text


def test_another_error_of_a_map_is_not_taken_for_that(dataset, tmp_path, monkeypatch):
    def map_file(fd, num_bytes):
        raise OSError(errno.EACCES, "mmap: Permission denied")

    monkeypatch.setattr(stoker.loader.window, "ChunkMap", map_file)
    with (
        Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader,
        pytest.raises(PermissionError, match="Permission denied"),
    ):
        next(iter(loader))
