"""Reading parts of files into memory, many at a time.

    parts      chunk 7, 40 MB            chunk 2, 13 MB         …
    pieces     ┆ 0 ┆ 1 ┆ 2 ┆ 3 ┆ 4 ┆ …                          512 KiB each, in the order of the files
    thread 0     0               4                              each reads its own in one native call
    thread 1         1               5

A disk wants several pieces at a time. A thread that is awake for each of them needs a turn of the interpreter to ask
for the next, and beside threads that make batches waits for that longer than for the piece.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker._native import read_pieces
from stoker.fields.spec import Array
from stoker.host.huge import PAGE_BYTES

# Whole epochs beside two threads that gather, disk alone 2.25 GB/s: eight threads with 512 KiB 2.0, twelve 2.07, three
# with 1 MiB 1.9, six 2.0, four with 4 MiB 1.8.
_PIECE_BYTES = 512 << 10
_NUM_THREADS = 8
DIRECT: int = getattr(os, "O_DIRECT", 0)
"""The flag of a file that is read past the page cache; 0 where the system, as all but Linux, has no such."""


class FilePart(NamedTuple):
    """A part of an open file, and where it belongs.

    Attributes:
        fd: Open for reading.
        offset: In the file, a multiple of the page size.
        num_bytes: Up to the end of the file at most.
        at: In the target, a multiple of the page size.
    """

    fd: int
    offset: int
    num_bytes: int
    at: int


def pass_by_page_cache(fd: int) -> None:
    """Have an open file read past the page cache, if its file system can. Maps of it are as they would be."""
    if DIRECT:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, DIRECT)


def read(parts: Sequence[FilePart], memory: Array, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Read parts of files into memory.

    Args:
        parts: Which, and where to. What follows in the last page of each is written, too: past the page cache nothing
            but whole pages can be read.
        memory: The target, uint8.
        meanwhile: Called once by this thread, which has nothing else to do.

    Raises:
        OSError: The disk failed, or a file is shorter than it was.
    """
    pieces = _pieces(parts)
    num_threads = min(_NUM_THREADS, len(pieces))
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            while first < len(pieces) and not failed:
                first = read_pieces(pieces, memory, first, num_threads, PAGE_BYTES)
                if first < len(pieces):
                    _read(FilePart(*pieces[first].tolist()), memory)
                    first += num_threads
        except BaseException as error:  # raised by whoever asked for all of it
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=(i,), name=f"stoker-read-{i}", daemon=True) for i in range(num_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        meanwhile()
    finally:
        for thread in threads:
            if thread.ident is not None:  # nobody may write to the memory any more, if one could not be started
                thread.join()
    if failed:
        raise failed[0]


def _pieces(parts: Sequence[FilePart]) -> npt.NDArray[np.int64]:
    """Return parts of one piece each, int64, shape [N, 4]."""
    pieces = [
        (fd, offset + begin, min(_PIECE_BYTES, num_bytes - begin), at + begin)
        for fd, offset, num_bytes, at in parts
        for begin in range(0, num_bytes, _PIECE_BYTES)
    ]
    return np.array(pieces, dtype=np.int64).reshape(-1, 4)


def _read(part: FilePart, memory: Array) -> None:
    """Read one part, however many calls it takes."""
    fd, offset, num_bytes, at = part
    target = memory.data[at : at + -(-num_bytes // PAGE_BYTES) * PAGE_BYTES]
    while num_bytes > 0:
        try:
            got = os.preadv(fd, [target], offset)
        except OSError as error:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & DIRECT:
                raise
            # A file system that takes the flag and then wants other borders, or has none.
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~DIRECT)
            continue
        if got == 0:
            raise OSError(f"the file ends {num_bytes} bytes too early")
        target, offset, num_bytes = target[got:], offset + got, num_bytes - got
