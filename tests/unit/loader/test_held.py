"""Chunks that are opened before their window's turn: each is closed once, whatever happens in between."""

import os
import threading

import pytest

from stoker.errors import ChunkCorruptError
from stoker.loader.held import Held, HeldAhead


class Folder:
    """Opens a file for each chunk, and knows which are open."""

    def __init__(self, path, *, missing=()):
        self.path = path
        self.path.write_bytes(b"chunk")
        self.missing = dict(missing)
        self.opened = []

    def hold(self, chunk):
        if chunk in self.missing:
            raise self.missing[chunk]
        fd = os.open(self.path, os.O_RDONLY)
        self.opened.append(fd)
        return Held(fd, None, 0)

    @property
    def num_open(self):
        num = 0
        for fd in set(self.opened):
            try:
                os.fstat(fd)
            except OSError:
                continue
            num += 1
        return num


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "file")


def test_a_chunk_is_taken_once(folder):
    ahead = HeldAhead(folder.hold)
    ahead.fill([3, 1])
    assert ahead.holds_any([0, 1])
    held = ahead.take(3)
    assert ahead.take(3) is None
    assert not ahead.holds_any([3])
    os.close(held.fd)
    ahead.close()
    assert folder.num_open == 0


def test_what_is_held_already_is_not_opened_again(folder):
    ahead = HeldAhead(folder.hold)
    ahead.fill([1, 2])
    ahead.fill([2, 1, 5])
    assert len(folder.opened) == 3
    ahead.close()
    assert folder.num_open == 0


@pytest.mark.parametrize("error", [KeyError("2"), ChunkCorruptError("2", path="2"), OSError("the disk is gone")])
def test_the_first_that_cannot_be_opened_ends_it_and_is_no_error_yet(tmp_path, error):
    folder = Folder(tmp_path / "file", missing={2: error})
    ahead = HeldAhead(folder.hold)
    ahead.fill([1, 2, 3])
    assert [ahead.holds_any([chunk]) for chunk in (1, 2, 3)] == [True, False, False]
    ahead.close()
    assert folder.num_open == 0


def test_nothing_is_held_any_more_once_it_is_closed(folder):
    ahead = HeldAhead(folder.hold)
    ahead.close()
    ahead.fill([1])
    assert ahead.take(1) is None
    assert folder.num_open == 0


def test_a_chunk_that_two_threads_open_is_held_once(folder):
    meeting = threading.Barrier(2)

    def hold(chunk):
        meeting.wait(timeout=10)  # both have seen that nobody holds it
        return folder.hold(chunk)

    ahead = HeldAhead(hold)
    threads = [threading.Thread(target=ahead.fill, args=([1],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folder.opened) == 2
    assert folder.num_open == 1
    ahead.close()
    assert folder.num_open == 0
