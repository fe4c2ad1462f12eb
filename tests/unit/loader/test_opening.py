"""How windows get into memory, by what memory there is: mapped once, mapped anew, or read past the page cache."""

import ctypes
import errno
import os
import sys
from contextlib import ExitStack, closing, contextmanager
from mmap import PAGESIZE as PAGE_BYTES
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import page_cache

from stoker import Cache, Dataset, Loader
from stoker._native import ChunkMap, WindowMemory, bring_in, cached_bytes, read_chunks
from stoker.cache import format as chunk_format
from stoker.cache import store
from stoker.host.huge import HUGE_BYTES
from stoker.loader.config import LoaderConfig
from stoker.loader.opened import filler_of, open_datasets
from stoker.loader.window import WindowOpener

NUM_ROWS = 6_000
NOTHING = {"harmless_bytes": 0, "available_bytes": lambda: 0}
PLENTY = {"harmless_bytes": 0, "available_bytes": lambda: 1 << 50}


def write(path, num_rows, *, row_group_size, chunk_size=4_000):
    lists = [list(range(i % 7)) for i in range(num_rows)]
    table = pa.table({"id": np.arange(num_rows), "list": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(table, path, row_group_size=row_group_size)
    return Dataset(path, chunk_size=chunk_size)


class Windows:
    """Opens the windows of an epoch that is not shuffled, and checks what is in them."""

    def __init__(self, opener, one, filler):
        self.opener, self.filler, self.num_chunks = opener, filler, len(one.num_samples)
        self._starts = np.cumsum([0, *one.num_samples])

    def epoch(self, num_together=3):
        """Return how many chunks of each window were mapped, and how many were read."""
        ways = []
        for begin in range(0, self.num_chunks, num_together):
            chunks = np.arange(begin, min(begin + num_together, self.num_chunks))
            with closing(self.opener.open(chunks, self.filler)) as window:
                ways.append((window.num_mapped, window.num_slots - window.num_mapped))
                for slot, chunk in enumerate(chunks):
                    records = np.frombuffer(window.records(slot), np.uint8).reshape(-1, self.opener.spec.record_bytes)
                    at = self.opener.spec.record_offsets["id"]
                    ids = np.ascontiguousarray(records[:, at : at + 8]).view(np.int64)[:, 0]
                    assert ids.tolist() == list(range(self._starts[chunk], self._starts[chunk + 1]))
        return ways


@contextmanager
def windows_of(dataset, cache):
    """Give what makes windows of a data set, all of whose chunks are in the cache, within limits."""
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_datasets(dataset, LoaderConfig(batch_size=64, cache=Cache(cache)))))
        filler = stack.enter_context(closing(filler_of(opened.datasets, 2)))
        (one,) = opened.datasets
        for chunk in range(len(one.num_samples)):
            one.builder.build(chunk)

        def make(*, stands=3, **limits):
            opener = stack.enter_context(closing(WindowOpener(one.builder, one.spec, **limits)))
            opener.expected_bytes = one.windows.expected_bytes
            if stands != "never":
                opener.stand(stands)
            return Windows(opener, one, filler)

        yield make


@pytest.fixture
def windows(tmp_path):
    with windows_of(write(tmp_path / "data.parquet", NUM_ROWS, row_group_size=500), tmp_path / "cache") as make:
        yield make


def chunk_files(cache):
    return sorted((cache / "chunks").glob("*"))


def drop(cache):
    page_cache.drop_all(chunk_files(cache))


def in_memory(cache):
    return sum(map(page_cache.cached_bytes, chunk_files(cache)))


class Map(NamedTuple):
    begin: int
    num_bytes: int
    offset: int
    file: str


def chunk_maps():
    """All maps of chunks."""
    found = []
    for words in (line.split() for line in Path("/proc/self/maps").read_text().splitlines()):
        if "/chunks/" in words[-1]:
            begin, end = (int(border, 16) for border in words[0].split("-"))
            found.append(Map(begin, end - begin, int(words[2], 16), words[-1]))
    return found


def all_mapped(ways):
    return bool(ways) and not any(num_read for _, num_read in ways)


def all_read(ways):
    return bool(ways) and not any(num_mapped for num_mapped, _ in ways)


def test_what_left_the_page_cache_is_tried_now_and_then_and_else_read_past_it(windows, tmp_path):
    made = windows(stands="never", **PLENTY)
    brought = []
    for _ in range(4):
        drop(tmp_path / "cache")
        ways = made.epoch(made.num_chunks)
        assert all_mapped(ways) or all_read(ways)
        brought.append(in_memory(tmp_path / "cache") > 0)
        assert brought[-1] == all_mapped(ways)
    assert brought == [True, True, False, True]
    drop(tmp_path / "cache")
    kept = chunk_files(tmp_path / "cache")[:2]
    for path in kept:
        path.read_bytes()
    assert made.epoch(made.num_chunks) == [(2, made.num_chunks - 2)]  # what is there is mapped
    assert in_memory(tmp_path / "cache") == sum(path.stat().st_size for path in kept)


def test_a_data_set_that_does_not_fit_never_goes_back_to_the_page_cache(windows, tmp_path):
    made = windows(**NOTHING)
    for _ in range(5):
        drop(tmp_path / "cache")
        assert all_read(made.epoch())
        assert in_memory(tmp_path / "cache") == 0


def test_windows_of_more_chunks_than_may_be_open_are_the_same_in_every_way(tmp_path):
    cache = tmp_path / "cache"
    with windows_of(write(tmp_path / "data.parquet", 600, row_group_size=2, chunk_size=1), cache) as make:
        assert make().num_chunks > 256
        for stands, limits in ((None, {}), ("never", NOTHING)):
            made = make(stands=stands, **limits)
            assert all_mapped(made.epoch(300))
            made.opener.close()  # what is mapped cannot be dropped
        drop(cache)
        assert all_read(make(stands="never", **NOTHING).epoch(300))


@pytest.mark.parametrize(
    ("limits", "parts"), [({}, 6), (PLENTY, 6), (NOTHING, 2), (NOTHING, 1)], ids=["small", "fits", "two windows", "one"]
)
def test_a_data_set_that_is_small_or_fits_or_lies_in_two_windows_is_mapped_once(windows, tmp_path, limits, parts):
    num_chunks = len(chunk_files(tmp_path / "cache"))
    window = -(-num_chunks // parts)
    made = windows(stands=window, **limits)
    maps = []
    for _ in range(2):
        assert all_mapped(made.epoch(window))
        maps.append(chunk_maps())
    assert maps[0] == maps[1]
    assert len({one.file for one in maps[0]}) == num_chunks


@pytest.mark.parametrize("limits", [NOTHING, {"max_chunks": 5}], ids=["bytes", "chunks"])
def test_a_data_set_that_is_larger_is_mapped_window_by_window(windows, limits):
    made = windows(**limits)
    assert all_mapped(made.epoch())
    assert chunk_maps() == []


def test_a_data_set_that_turns_out_too_large_to_stand_is_mapped_in_part(windows, tmp_path):
    # Its records alone would fit; a few chunks find a place, then there is none left.
    made = windows(harmless_bytes=NUM_ROWS * 64, available_bytes=lambda: 0)
    assert made.opener.spec.record_bytes <= 64
    for _ in range(2):
        assert all_mapped(made.epoch())
        assert 0 < len({one.file for one in chunk_maps()}) < len(chunk_files(tmp_path / "cache"))


def test_a_large_data_set_that_is_not_in_the_page_cache_is_read_past_it_until_it_is(windows, tmp_path):
    made = windows(**PLENTY)
    drop(tmp_path / "cache")
    tried, *others = made.epoch()
    assert all_mapped([tried])
    assert all_read(others)
    for path in chunk_files(tmp_path / "cache"):
        path.read_bytes()
    assert all_mapped(made.epoch())


def push_out():
    """Have the system let go of the pages of all maps of chunks."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for one in chunk_maps():
        libc.madvise(one.begin, one.num_bytes, 21)  # MADV_PAGEOUT


def test_a_large_data_set_that_was_pushed_out_of_memory_is_mapped_no_more(windows, tmp_path):
    made = windows(**PLENTY)
    made.epoch()
    assert len(chunk_maps()) == made.num_chunks
    push_out()
    if in_memory(tmp_path / "cache"):
        pytest.skip("the system keeps pages of maps")
    _, *others = made.epoch()  # one window tries whether they would stay
    assert all_read(others)
    assert chunk_maps() == []


def test_memory_that_no_window_needs_any_more_goes_back(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    memory = WindowMemory()
    with (tmp_path / "file").open("rb") as file:
        read_chunks([(file.fileno(), 1)], memory, True)
    assert memory.num_free == 1
    for _ in range(100):
        memory.rest()
    assert memory.num_free == 0


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


def test_what_a_file_has_in_the_page_cache_is_told(tmp_path):
    path, size = tmp_path / "file", 10 * PAGE_BYTES
    path.write_bytes(b"1" * size)
    with path.open("rb") as file:
        assert cached_bytes(file.fileno(), size) == size
        page_cache.drop_all([path])
        assert cached_bytes(file.fileno(), size) == 0
        os.pread(file.fileno(), 1, 9 * PAGE_BYTES)
        assert 0 < cached_bytes(file.fileno(), size) == page_cache.cached_bytes(path) < size


@pytest.mark.parametrize(("limits", "num_left"), [({}, 0), ({}, 5), ({}, 11), (NOTHING, 0), (NOTHING, 5)])
def test_a_process_that_may_have_no_more_maps_reads_what_it_cannot_map(windows, caplog, limits, num_left):
    left = [None] * num_left

    def map_file(fd, num_bytes):
        if not left:
            raise OSError(errno.ENOMEM, "mmap: Cannot allocate memory")
        left.pop()
        return ChunkMap(fd, num_bytes)

    ways = windows(map_file=map_file, **limits).epoch()
    assert sum(num_mapped for num_mapped, _ in ways) == num_left
    assert caplog.text.count("vm.max_map_count") == 1


def test_another_error_of_a_map_is_not_taken_for_that(windows):
    def map_file(fd, num_bytes):
        raise OSError(errno.EACCES, "mmap: Permission denied")

    with pytest.raises(PermissionError, match="Permission denied"):
        windows(map_file=map_file).epoch()


# ---------------------------------------------------------------------- huge pages

HUGE_ROWS = 40_000
needs_maps = pytest.mark.skipif(sys.platform != "linux", reason="maps are looked at in /proc")


@pytest.fixture
def large(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            **{f"x{i}": rng.integers(0, 1 << 40, HUGE_ROWS) for i in range(30)},
            "tags": [np.arange(i % 40, dtype=np.int64) for i in range(HUGE_ROWS)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=HUGE_ROWS // 4)
    return tmp_path / "a.parquet"


@needs_maps
@pytest.mark.parametrize("stands", [True, False], ids=["standing", "window by window"])
def test_chunks_are_mapped_as_far_from_a_huge_page_as_they_lie_in_their_file(large, tmp_path, stands):
    dataset = Dataset(large, chunk_size="10MiB")
    # All chunks fit into the smaller limit, but not twice: none stays mapped.
    options = {"cache": tmp_path / "c", "cache_limit": "1GB" if stands else "24MB"}
    with Loader(dataset, batch_size=1_000, shuffle=True, window=2, **options) as loader:
        for batches in (iter(loader), iter(loader)):
            next(batches)
            assert len(chunk_maps()) >= 2
            found = [one for one in chunk_maps() if one.num_bytes >= HUGE_BYTES]
            assert found
            assert all((one.begin - one.offset) % HUGE_BYTES == 0 for one in found)
            if keeps_huge_pages(tmp_path):
                assert sum(huge_bytes(tmp_path / "c")) >= HUGE_BYTES
            for _ in batches:
                pass


@needs_maps
def test_a_cache_that_is_used_after_a_start_of_the_machine_has_its_huge_pages(large, tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_format, "_LEAST_BYTES_S", 0.0)  # whatever pages cost here
    chunk_format._costs_much.clear()
    dataset, cache = Dataset(large), tmp_path / "c"
    with Loader(dataset, batch_size=1_000, cache=cache) as loader:
        for _ in loader:
            pass
    # As after a start: nothing is in the page cache, and no chunk has been checked.
    store._verified.clear()
    for mark in (cache / "checked").iterdir():
        mark.unlink()
    page_cache.drop(cache.rglob("*.safetensors"))
    with Loader(dataset, batch_size=1_000, cache=cache) as loader:
        batches = iter(loader)
        next(batches)
        if not keeps_huge_pages(tmp_path, is_read=True):
            pytest.skip("this system reads no huge pages into its page cache")
        sizes = [one.num_bytes for one in chunk_maps() if one.num_bytes >= HUGE_BYTES]
        assert sizes
        assert sum(huge_bytes(cache)) >= sum(size // HUGE_BYTES * HUGE_BYTES for size in sizes) // 2


def keeps_huge_pages(folder, *, is_read=False):
    """Return whether this system has huge pages of a file that was written in one call, or is read from the disk."""
    path = folder / "control"
    with path.open("w+b") as file:
        os.pwrite(file.fileno(), bytes(2 * HUGE_BYTES), 0)
        if is_read:
            page_cache.drop([path])
            bring_in(file.fileno(), 0, 2 * HUGE_BYTES)
        mapped = ChunkMap(file.fileno(), 2 * HUGE_BYTES)
    try:
        assert not any(mapped.view()[::PAGE_BYTES])
        return sum(huge_bytes(path)) == 2 * HUGE_BYTES if is_read else sum(huge_bytes(path)) > 0
    finally:
        path.unlink()


def huge_bytes(folder):
    """Return the bytes of each map of a folder's files that are entered as huge pages."""
    found, is_ours = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_ours = str(folder) in line
        elif is_ours and name == "FilePmdMapped:":
            found.append(int(values[0]) << 10)
    return found
