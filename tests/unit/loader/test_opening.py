"""How windows get into memory: mapped once, mapped anew, or read past the page cache; the batches are the same."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker.loader.opening
import stoker.loader.windows.region
import stoker.loader.windows.standing
from stoker import Dataset, Loader
from stoker.loader.held import HeldAhead
from stoker.loader.windows.memory import Memories
from stoker.loader.windows.reading import FilePart
from stoker.loader.windows.region import PAGE_BYTES, Region
from stoker.loader.windows.resident import cached_bytes
from stoker.loader.windows.standing import Standing, StandingWindow

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
    monkeypatch.setattr(stoker.loader.windows.standing, "MAX_CHUNKS", 0)


@pytest.fixture
def nothing_is_tried(monkeypatch):
    monkeypatch.setattr(stoker.loader.opening.PageCacheTrial, "is_due", lambda _self, _gone: False)


@pytest.fixture
def windows(monkeypatch):
    """Every window that was opened: whether it was mapped, and how many chunks it has."""
    opened = []
    whole = stoker.loader.opening.WindowOpener.open

    def noted(self, numbers, filler, **options):
        window = whole(self, numbers, filler, **options)
        opened.append(window)
        return window

    monkeypatch.setattr(stoker.loader.opening.WindowOpener, "open", noted)
    return opened


def chunk_files(cache):
    return sorted((cache / "chunks").glob("*/*"))


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


def nothing_begun(loader):
    """Have the loader close its next epoch, which it may have begun ahead."""
    loader.set_epoch(loader.epoch + 1)


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


def content(batches):
    return [
        (batch["id"].tobytes(), batch["list"].offsets.tobytes(), batch["list"].values.tobytes()) for batch in batches
    ]


def test_a_window_that_left_the_page_cache_is_read_past_it_and_gives_the_same_batches(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = [content(loader) for _ in range(2)]
        assert all(window.is_mapped for window in windows)
    for number, epoch in enumerate(expected):
        with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
            drop(tmp_path / "cache")
            windows.clear()
            loader.set_epoch(number)
            assert content(loader) == epoch
            assert windows
            assert not any(window.is_mapped for window in windows)
            assert in_memory(tmp_path / "cache") == 0


def test_what_is_left_in_the_page_cache_is_copied_from_there(
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
        assert not any(window.is_mapped for window in windows)
        assert in_memory(tmp_path / "cache") <= sum(path.stat().st_size + PAGE_BYTES for path in kept)


def test_windows_of_more_chunks_than_may_be_open_are_the_same_in_every_way(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows, monkeypatch
):
    options = OPTIONS | {"window": "all"}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        expected = content(loader)
    monkeypatch.setattr(stoker.loader.opening, "_MAX_HELD", 2)
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        assert content(loader) == expected
        drop(tmp_path / "cache")
        loader.set_epoch(0)
        windows.clear()
        assert content(loader) == expected
        assert not any(window.is_mapped for window in windows)


def test_chunks_that_are_held_ahead_may_go_before_their_turn(
    dataset, tmp_path, nothing_stands, nothing_is_tried, windows, monkeypatch
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = content(loader)
        num_chunks = len(chunk_files(tmp_path / "cache"))
    fill, held = HeldAhead.fill, []

    def noted(self, chunks):
        fill(self, chunks)
        held.extend(chunks)
        if len(held) == num_chunks - OPTIONS["window"]:  # all but the first window's are, or were, open
            for path in chunk_files(tmp_path / "cache"):
                path.unlink()

    monkeypatch.setattr(HeldAhead, "fill", noted)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        drop(tmp_path / "cache")
        assert content(loader) == expected
        assert not any(window.is_mapped for window in windows[-3:])
    assert len(held) == len(set(held)) == num_chunks - OPTIONS["window"]


def test_the_page_cache_is_tried_again_after_a_while(dataset, tmp_path, nothing_stands, windows):
    options = OPTIONS | {"window": "all", "num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        for _ in loader:
            pass
        ways = []
        for _ in range(9):
            nothing_begun(loader)
            drop(tmp_path / "cache")
            windows.clear()
            for _ in loader:
                pass
            ways.append(windows[0].is_mapped)
        nothing_begun(loader)
        windows.clear()
        for _ in loader:
            pass
        assert not windows[0].is_mapped  # the ninth time left nothing there
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
            nothing_begun(loader)
            num_there.append(in_memory(tmp_path / "cache"))
        assert all(window.is_mapped for window in windows)
    num_bytes = sum(path.stat().st_size for path in chunk_files(tmp_path / "cache"))
    assert 0 < num_there[0] < num_there[-1] == num_bytes


def test_a_data_set_that_does_not_fit_never_goes_back_to_the_page_cache(
    dataset, tmp_path, nothing_stands, windows, monkeypatch
):
    monkeypatch.setattr(stoker.loader.opening, "available_bytes", lambda: 0)
    options = OPTIONS | {"window": "all", "num_threads": 1}
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        for _ in loader:
            pass
        windows.clear()
        for _ in range(9):
            drop(tmp_path / "cache")
            for _ in loader:
                pass
        assert not any(window.is_mapped for window in windows)


@pytest.mark.parametrize(("max_bytes", "parts"), [(512 << 20, 6), (0, 2), (0, 1)], ids=["small", "two windows", "one"])
def test_a_data_set_that_is_small_or_lies_in_two_windows_is_mapped_once(
    dataset, tmp_path, monkeypatch, max_bytes, parts
):
    monkeypatch.setattr(stoker.loader.windows.standing, "MAX_BYTES", max_bytes)
    monkeypatch.setattr(stoker.loader.windows.standing, "MEMORY_SHARE", 0)
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
    monkeypatch.setattr(stoker.loader.windows.standing, "MAX_BYTES", 0)
    monkeypatch.setattr(stoker.loader.windows.standing, "MEMORY_SHARE", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        batches = iter(loader)
        next(batches)
        num_mapped = len({name for _, name in chunk_maps()})
    assert 0 < num_mapped < len(chunk_files(tmp_path / "cache"))


@pytest.fixture
def all_is_large(monkeypatch):
    """Every data set is more than does no harm, and less than memory holds."""
    monkeypatch.setattr(stoker.loader.windows.standing, "MAX_BYTES", 0)


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
        assert all(isinstance(window, StandingWindow) for window in windows)
    with Loader(dataset, cache=tmp_path / "cache", **options) as loader:
        drop(tmp_path / "cache")
        windows.clear()
        assert content(loader) == expected
        assert not any(window.is_mapped for window in windows)
        for path in chunk_files(tmp_path / "cache"):
            path.read_bytes()
        windows.clear()
        loader.set_epoch(0)
        assert content(loader) == expected
        assert all(isinstance(window, StandingWindow) for window in windows)


def test_a_large_data_set_that_was_pushed_out_of_memory_is_mapped_no_more(
    dataset, tmp_path, all_is_large, windows, monkeypatch
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = content(loader)
        monkeypatch.setattr(StandingWindow, "is_in_memory", False)
        windows.clear()
        loader.set_epoch(0)
        assert content(loader) == expected
        assert windows
        assert not any(isinstance(window, StandingWindow) for window in windows)


def test_pages_whose_entering_was_ended_early_are_entered_later(dataset, tmp_path):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        content(loader)
        opener = loader._opened.datasets[0]._opener
        chunks = np.arange(len(chunk_files(tmp_path / "cache")))
        standing = Standing(loader.spec, loader._opened.num_samples, window=None)
        for number in chunks.tolist():
            opener.with_chunk(
                number, None, lambda one, n=number: standing.place(n, one.fd, one.header, one.version, name=b"it")
            )
        window = standing.window(chunks)
        window.settle(goes_on=lambda: False)
        fresh = standing.take_fresh(chunks)
        assert fresh.tolist() == chunks.tolist()
        standing.give_back_fresh(fresh)
        window.settle()
        assert standing.take_fresh(chunks).size == 0
        window.close()
        standing.leave()


@pytest.mark.parametrize("stands", [True, False])
def test_a_chunk_that_is_removed_or_damaged_between_epochs_is_built_again(dataset, tmp_path, stands, monkeypatch):
    if not stands:
        monkeypatch.setattr(stoker.loader.windows.standing, "MAX_CHUNKS", 0)
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
    monkeypatch.setattr(stoker.loader.windows.standing, "MAX_BYTES", NUM_ROWS * 64)
    monkeypatch.setattr(stoker.loader.windows.standing, "MEMORY_SHARE", 0)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        assert loader.spec.record_bytes <= 64
        assert [content(loader) for _ in range(2)] == expected


def test_memory_is_used_by_one_window_after_the_other_and_never_by_two():
    memories = Memories()
    first, second = memories.take(PAGE_BYTES), memories.take(PAGE_BYTES)
    assert not np.shares_memory(first, second)
    memories.give(first)
    third = memories.take(PAGE_BYTES)
    assert np.shares_memory(first, third)
    memories.give(second)
    memories.give(third)
    assert memories.num_free == 2
    memories.clear()
    assert memories.num_free == 0


def test_who_needs_more_memory_than_is_wanted_gets_it():
    memories = Memories()
    taken = [memories.take(PAGE_BYTES) for _ in range(4)]
    assert sum(np.shares_memory(a, b) for a in taken for b in taken) == 4
    for memory in taken:
        memories.give(memory)
    assert memories.num_free == 4


def test_memory_that_no_window_needs_any_more_goes_back():
    memories = Memories()
    memories.give(memories.take(PAGE_BYTES))
    for _ in range(100):
        memories.rest()
    assert memories.num_free == 0


def test_what_is_read_past_the_page_cache_lies_where_what_is_mapped_lies(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(10 * PAGE_BYTES + 100))
    regions = [Region(12 * PAGE_BYTES), Region(12 * PAGE_BYTES, is_mapped=False)]
    for region, flags in zip(regions, (0, getattr(os, "O_DIRECT", 0)), strict=True):
        try:
            fd = os.open(path, os.O_RDONLY | flags)
        except OSError:
            pytest.skip("the file system cannot do without the page cache")
        region.place([FilePart(fd, 2 * PAGE_BYTES, 8 * PAGE_BYTES + 100, at=PAGE_BYTES)])
        os.close(fd)
    mapped, read = (region.bytes[PAGE_BYTES : 9 * PAGE_BYTES + 100].tobytes() for region in regions)
    assert mapped == read == path.read_bytes()[2 * PAGE_BYTES :]
    for region in regions:
        region.close()


def test_what_a_file_has_in_the_page_cache_is_told_in_both_ways(tmp_path):
    from stoker.loader.windows import resident

    path = tmp_path / "file"
    path.write_bytes(b"1" * (10 * PAGE_BYTES))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    size = 10 * PAGE_BYTES
    assert cached_bytes(fd, size) == resident._mapped_bytes(fd, size) == size
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert cached_bytes(fd, size) == resident._mapped_bytes(fd, size)
    os.close(fd)


@pytest.mark.parametrize(("num_left", "is_standing"), [(0, True), (5, True), (11, True), (0, False), (5, False)])
def test_a_process_that_may_have_no_more_maps_reads_what_it_cannot_map(
    dataset, tmp_path, monkeypatch, caplog, num_left, is_standing
):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = [batch["id"].tolist() for batch in loader]
    if not is_standing:
        monkeypatch.setattr(stoker.loader.windows.standing, "MAX_CHUNKS", 0)
    left, lock = [num_left], threading.Lock()

    def map_at(address, num_bytes, protection, flags, fd, offset):
        with lock:
            left[0] -= fd >= 0
            if fd >= 0 and left[0] < 0:
                raise OSError(errno.ENOMEM, "mmap: Cannot allocate memory")
        return whole(address, num_bytes, protection, flags, fd, offset)

    whole = stoker.loader.windows.region.map_at
    monkeypatch.setattr(stoker.loader.windows.region, "map_at", map_at)
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        assert [batch["id"].tolist() for batch in loader] == expected
    assert left[0] < 0
    assert "vm.max_map_count" in caplog.text


def test_another_error_of_a_map_is_not_taken_for_that(dataset, tmp_path, monkeypatch):
    def map_at(address, num_bytes, protection, flags, fd, offset):
        if fd >= 0:
            raise OSError(errno.EACCES, "mmap: Permission denied")
        return whole(address, num_bytes, protection, flags, fd, offset)

    whole = stoker.loader.windows.region.map_at
    monkeypatch.setattr(stoker.loader.windows.region, "map_at", map_at)
    with (
        Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader,
        pytest.raises(PermissionError, match="Permission denied"),
    ):
        next(iter(loader))
