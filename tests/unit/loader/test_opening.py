"""How windows get into memory: mapped once, mapped anew, or read past the page cache; the batches are the same."""

import ctypes
import errno
import os
from contextlib import ExitStack, closing, contextmanager
from mmap import PAGESIZE as PAGE_BYTES
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import Cache, Dataset, Loader
from stoker._native import ChunkMap, WindowChunks, WindowMemory, cached_bytes, read_chunks
from stoker.loader.config import LoaderConfig
from stoker.loader.opened import filler_of, open_datasets
from stoker.loader.window import WindowOpener

NUM_ROWS = 6_000
OPTIONS = {"batch_size": 64, "shuffle": True, "seed": 3, "window": 3, "num_threads": 2}
NOTHING = {"harmless_bytes": 0, "available_bytes": lambda: 0}
PLENTY = {"harmless_bytes": 0, "available_bytes": lambda: 1 << 50}


def write(path, num_rows, *, row_group_size, chunk_size=4_000):
    lists = [list(range(i % 7)) for i in range(num_rows)]
    table = pa.table({"id": np.arange(num_rows), "list": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(table, path, row_group_size=row_group_size)
    return Dataset(path, chunk_size=chunk_size)


@pytest.fixture
def dataset(tmp_path):
    return write(tmp_path / "data.parquet", NUM_ROWS, row_group_size=500)


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
def windows(dataset, tmp_path):
    with windows_of(dataset, tmp_path / "cache") as make:
        yield make


def tight(cache):
    """A limit that the chunks in a cache fit into once, not twice: then none stays mapped."""
    return {"cache_limit": sum(path.stat().st_size for path in chunk_files(cache)) * 3 // 2}


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


def all_mapped(ways):
    return bool(ways) and not any(num_read for _, num_read in ways)


def all_read(ways):
    return bool(ways) and not any(num_mapped for num_mapped, _ in ways)


def content(batches):
    return [
        (batch["id"].tobytes(), batch["list"].offsets.tobytes(), batch["list"].values.tobytes()) for batch in batches
    ]


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


def test_the_page_cache_is_tried_with_one_window_and_all_come_back_where_it_stays(dataset, tmp_path):
    options = OPTIONS | {"num_threads": 1, "cache": tmp_path / "cache"}
    with Loader(dataset, **options) as loader:
        expected = [content(loader) for _ in range(8)]
    with Loader(dataset, **options, **tight(tmp_path / "cache")) as loader:
        num_there = []
        drop(tmp_path / "cache")
        for epoch in expected:
            assert content(loader) == epoch
            num_there.append(in_memory(tmp_path / "cache"))
    num_bytes = sum(path.stat().st_size for path in chunk_files(tmp_path / "cache"))
    assert 0 < num_there[0] < num_there[-1] == num_bytes


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
    assert len({name for _, name in maps[0]}) == num_chunks


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
        assert 0 < len({name for _, name in chunk_maps()}) < len(chunk_files(tmp_path / "cache"))


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
    for borders, _ in chunk_maps():
        begin, end = (int(border, 16) for border in borders.split("-"))
        libc.madvise(begin, end - begin, 21)  # MADV_PAGEOUT


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


def test_pages_are_entered_once_and_go_on_where_it_was_ended_early(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * PAGE_BYTES))
    with path.open("rb") as file:
        maps = [ChunkMap(file.fileno(), 10 * PAGE_BYTES) for _ in range(2)]
    window = WindowChunks(maps, np.zeros((2, 0, 2), dtype=np.int64), [])
    assert [window.enter(4 * PAGE_BYTES) for _ in range(6)] == [False] * 4 + [True] * 2
    assert window.is_in_memory()


@pytest.mark.parametrize("stands", [True, False])
def test_a_chunk_that_is_removed_or_damaged_between_epochs_is_built_again(dataset, tmp_path, stands):
    with Loader(dataset, cache=tmp_path / "cache", **OPTIONS) as loader:
        expected = content(loader)
    limit = {} if stands else tight(tmp_path / "cache")
    with Loader(dataset, cache=tmp_path / "cache", **limit, **OPTIONS) as loader:
        assert content(loader) == expected
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
