"""A file written a huge page at a time: the same bytes, in the calls that the page cache takes huge pages for."""

from __future__ import annotations

import os
import tempfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.folder import Files
from stoker.cache.write import Blocks

HUGE = 64


class Calls(Files):
    """Notes where each call begins and ends."""

    def __init__(self):
        self.made: list[tuple[int, int]] = []

    def write(self, fd, data, *, offset):
        self.made.append((offset, offset + len(data)))
        super().write(fd, data, offset=offset)


@given(
    begin=st.integers(0, 3 * HUGE),
    pieces=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["added", "in place"]), st.binary(max_size=5 * HUGE)), st.integers(0, 2 * HUGE)
        ),
        max_size=12,
    ),
)
def test_pieces_come_out_as_they_went_in_and_whole_pages_in_one_call(begin, pieces):
    files = Calls()
    with tempfile.TemporaryFile() as file:
        written = Blocks(file.fileno(), files, begin=begin, page_bytes=HUGE)
        expected = bytes(begin)
        for piece in pieces:
            if isinstance(piece, int):
                written.skip_to(written.end + piece)
                expected += bytes(piece)
                continue
            way, content = piece
            if way == "in place":
                room = written.room()
                content = content[: len(room)]
                room[: len(content)] = np.frombuffer(content, np.uint8)
                written.fill(len(content))
            else:
                written.add(content)
            expected += content
            assert written.end == len(expected)
        written.flush()
        size = os.fstat(file.fileno()).st_size
        content = os.pread(file.fileno(), size, 0)
    assert content.ljust(len(expected), b"\0") == expected
    # One call a page, from its border on, full but for the last.
    assert [first for first, _ in files.made] == [begin // HUGE * HUGE + i * HUGE for i in range(len(files.made))]
    assert all(end - first == HUGE for first, end in files.made[:-1])
    assert len(files.made) <= len(expected) // HUGE + 1 - begin // HUGE
