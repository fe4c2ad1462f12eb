"""Parts of files, read into memory by several threads: what arrives, and what becomes of errors."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.host.huge import PAGE_BYTES
from stoker.loader.windows import reading
from stoker.loader.windows.reading import FilePart, read

NUM_PAGES = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files and their content, the second of which ends within a page."""
    folder = tmp_path_factory.mktemp("files")
    content = [np.random.default_rng(i).bytes(NUM_PAGES * PAGE_BYTES - 100 * i) for i in range(2)]
    fds = []
    for i, data in enumerate(content):
        (folder / str(i)).write_bytes(data)
        fds.append(os.open(folder / str(i), os.O_RDONLY))
    yield fds, content
    for fd in fds:
        os.close(fd)


extents = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, NUM_PAGES - 1), st.integers(1, NUM_PAGES * PAGE_BYTES)), max_size=6
)


@given(wanted=extents, piece_pages=st.integers(1, 9), num_threads=st.integers(1, 4))
def test_every_part_arrives_where_it_belongs(files, wanted, piece_pages, num_threads):
    fds, content = files
    parts, expected, at = [], [], 0
    for number, page, length in wanted:
        offset = page * PAGE_BYTES
        data = content[number][offset : offset + length]
        parts.append(FilePart(fds[number], offset, len(data), at))
        expected.append((at, data))
        at += -(-len(data) // PAGE_BYTES) * PAGE_BYTES
    memory = np.zeros(at, dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PIECE_BYTES", piece_pages * PAGE_BYTES)
        patch.setattr(reading, "_NUM_THREADS", num_threads)
        read(parts, memory)
    for begin, data in expected:
        assert memory[begin : begin + len(data)].tobytes() == data


def test_a_file_that_became_shorter_is_an_error(files):
    fds, content = files
    memory = np.zeros((NUM_PAGES + 4) * PAGE_BYTES, dtype=np.uint8)
    with pytest.raises(OSError, match=r"the file ends \d+ bytes too early"):
        read([FilePart(fds[1], 0, len(content[1]) + PAGE_BYTES, 0)], memory)


def test_a_disk_that_fails_in_any_piece_is_an_error(files, monkeypatch):
    monkeypatch.setattr(reading, "_PIECE_BYTES", PAGE_BYTES)
    fds, content = files
    memory = np.zeros(2 * NUM_PAGES * PAGE_BYTES, dtype=np.uint8)
    closed = os.dup(fds[0])
    os.close(closed)
    for failing in range(2):
        parts = [FilePart(fds[0], 0, len(content[0]), 0)]
        parts.insert(failing, FilePart(closed, 0, PAGE_BYTES, NUM_PAGES * PAGE_BYTES))
        with pytest.raises(OSError, match="Bad file descriptor"):
            read(parts, memory)


def test_a_file_system_that_wants_the_page_cache_after_all_is_read_by_way_of_it(files):
    """It takes the flag when a file is opened, and refuses each read."""
    fds, content = files
    path = f"/proc/self/fd/{fds[0]}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):
        pytest.skip("the file system cannot do without the page cache")
    memory = np.zeros((NUM_PAGES + 1) * PAGE_BYTES, dtype=np.uint8)
    # A target that begins within a block is refused past the page cache as a file system refuses everything.
    target = memory[1 : 1 + NUM_PAGES * PAGE_BYTES]
    try:
        read([FilePart(fd, 0, len(content[0]), 0)], target)
    finally:
        os.close(fd)
    assert target.tobytes() == content[0]
