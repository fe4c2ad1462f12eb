"""Small files of our own: written aside, then renamed, so that a reader sees all of one or nothing.

Arrow tables are kept behind a digest:

┆ magic ┆ digest of all that follows ┆ a table as an Arrow stream ┆ the next table ┆ ...
  8       16
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.ipc as ipc

_log = logging.getLogger("stoker")

# A file of ours is never a link. A fifo must not be waited for, and a terminal must not become ours.
SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
# A process that was killed while writing leaves its draft; an hour later nobody is writing it any more.
_STALE_S = 3600.0
_MAGIC_BYTES, _DIGEST_BYTES = 8, 16
_START = _MAGIC_BYTES + _DIGEST_BYTES


def write_aside(path: Path, write: Callable[[IO[bytes]], None]) -> bool:
    """Let `write` fill a new file, then rename it to `path`; return whether that worked.

    What is kept here only saves time, so a full or read-only disk is a warning, not an error. The file is this user's
    alone, and its folder is never reached through a link that somebody put in its place.
    """
    draft = f".{path.name}.{secrets.token_hex(8)}.draft"  # not by the process: containers number theirs alike
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _remove_stale(folder, path.name)
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o600, dir_fd=folder)
            with os.fdopen(fd, "w+b") as file:
                write(file)
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            os.close(folder)
    except OSError as error:
        _log.warning("%s cannot be written (%s): the next start will take longer", path, error)
        return False
    return True


def open_plain(name: str | Path, folder: int | None = None) -> tuple[int, os.stat_result]:
    """Return a plain file, open for reading, and what the system tells of it; a `FileNotFoundError` where none is.

    It is named in the folder that a descriptor stands for, if there is one.
    """
    try:
        fd = os.open(name, os.O_RDONLY | SAFELY, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, f"{name} is no plain file") from None
        raise
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, f"{name} is no plain file")
    return fd, about


def _remove_stale(folder: int, name: str) -> None:
    for draft in os.listdir(folder):
        if draft.startswith(f".{name}.") and draft.endswith(".draft"):
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(draft, dir_fd=folder, follow_symlinks=False)
                if time.time() - about.st_mtime > _STALE_S:
                    os.unlink(draft, dir_fd=folder)


def keep_tables(path: Path, magic: bytes, tables: Sequence[pa.Table], *, compression: str | None = None) -> None:
    """Write tables to one file, to be mapped unless compressed; a disk that does not take it is a warning."""
    # More than 2**31 rows need lengths of 64 bits.
    options = ipc.IpcWriteOptions(compression=compression, allow_64bit=True)

    def write(file: IO[bytes]) -> None:
        file.write(magic.ljust(_START, b"\0"))
        for table in tables:
            with ipc.new_stream(file, table.schema, options=options) as writer:
                writer.write_table(table)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = _digest_of(content)
        file.seek(_MAGIC_BYTES)
        file.write(digest)

    write_aside(path, write)


def kept_tables(path: Path, magic: bytes, what: str) -> list[pa.Table] | None:
    """Return what `keep_tables` wrote, mapped; None where nothing is kept, or it is damaged and `what` is done."""
    try:
        with os.fdopen(open_plain(path)[0], "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: an empty file
        _log.warning("%s cannot be read (%s): %s", path, error, what)
        return None
    if content[:_MAGIC_BYTES] != magic or content[_MAGIC_BYTES:_START] != _digest_of(content):
        content.close()
        _log.warning("%s is damaged: %s", path, what)
        return None
    source = pa.BufferReader(pa.py_buffer(content).slice(_START))
    tables = []
    while source.tell() < source.size():
        tables.append(ipc.open_stream(source).read_all())
    return tables


def _digest_of(content: mmap.mmap) -> bytes:
    with memoryview(content) as view, view[_START:] as told:
        return hashlib.blake2b(told, digest_size=_DIGEST_BYTES).digest()
