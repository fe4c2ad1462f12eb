"""Files of this machine as a storage."""

from __future__ import annotations

import os
import stat as stat_modes
from pathlib import Path

from stoker.errors import SourceError, SourceMissingError
from stoker.huge import memory
from stoker.source.failures import translated
from stoker.source.storage import BytesLike, ObjectInfo, exactly

# The C library gives memory of so many bytes back to the system each time, and gets it again a small page at a time,
# which takes longer than to read into it.
_LARGE_BYTES = 32 << 20


class LocalStorage:
    """Files of this machine. URLs are absolute paths."""

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every regular file under the folder `url`; links are followed, hidden folders are not entered."""
        found: list[ObjectInfo] = []
        with translated(url, doing="listing"):
            # A link that leads back up would never end: real folders are visited once.
            seen: set[tuple[int, int]] = set()
            _walk(url.rstrip("/") or "/", found, seen)
        found.sort(key=lambda info: info.url)
        return found

    def stat(self, url: str) -> ObjectInfo:
        """Return size and modification time of the file `url`."""
        with translated(url, doing="looking up"):
            status = Path(url).stat()
        if stat_modes.S_ISDIR(status.st_mode):
            raise SourceMissingError(f"{url} is a folder, not a file", url=url)
        if not stat_modes.S_ISREG(status.st_mode):
            raise SourceError(f"{url} is no regular file", url=url)  # a pipe would block for ever
        return _local_info(url, status)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the file `url` from `offset` on."""
        with translated(url, doing="reading"):
            fd = os.open(url, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read(fd, offset, num_bytes)
            finally:
                os.close(fd)
        return exactly(data, num_bytes, url=url, offset=offset)

    def __repr__(self) -> str:
        return "LocalStorage()"


def _read(fd: int, offset: int, num_bytes: int) -> BytesLike:
    """Return what there is of so many bytes."""
    if num_bytes < _LARGE_BYTES:
        return os.pread(fd, num_bytes, offset)
    room = memory(num_bytes).data
    done = 0
    while done < num_bytes:  # one call of the system gives at most 2 GiB
        num = os.preadv(fd, [room[done:]], offset + done)
        if not num:
            break
        done += num
    return room[:done]


def _walk(folder: str, found: list[ObjectInfo], seen: set[tuple[int, int]]) -> None:
    try:
        here = Path(folder).stat()
    except FileNotFoundError:
        return
    if not stat_modes.S_ISDIR(here.st_mode) or (here.st_dev, here.st_ino) in seen:
        return
    seen.add((here.st_dev, here.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_dir():
                    if not entry.name.startswith(".") or entry.name == ".hoodie":  # a log that readers must see
                        _walk(entry.path, found, seen)
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue  # removed while listing, or a link to nowhere
            if stat_modes.S_ISREG(status.st_mode):
                found.append(_local_info(entry.path, status))


def _local_info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(url=path, size_bytes=status.st_size, version=str(status.st_mtime_ns))
