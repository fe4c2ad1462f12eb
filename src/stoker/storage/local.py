"""Files of this machine as a storage."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat as stat_modes

from stoker.errors import SourceError
from stoker.host.huge import LARGE_BYTES, memory
from stoker.storage.storage import DANGLING, BytesLike, ObjectInfo
from stoker.storage.urls import name_bytes, name_of


class LocalStorage:
    """Files of this machine. URLs are absolute paths, as `urls.local_path` writes them."""

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every regular file under the folder `url`, by the bytes of their paths.

        A link to a folder is that folder, wherever else its files come by other paths; one that leads back to a folder
        on its own path is not followed. Hidden folders are not entered. A link that leads nowhere is listed, with a
        size of -1.
        """
        return sorted(_files_below(name_bytes(url.rstrip("/") or "/")), key=lambda info: name_bytes(info.url))

    def stat(self, url: str) -> ObjectInfo:
        """Return what the system knows of the file `url`."""
        path = name_bytes(url)
        status = os.stat(path)  # noqa: PTH116  Path has no names of bytes
        if stat_modes.S_ISDIR(status.st_mode):
            raise IsADirectoryError(url)
        _check_regular(url, status)
        return _local_info(path, status)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the file `url` from `offset` on."""
        fd = os.open(name_bytes(url), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_regular(url, os.fstat(fd))
            if num_bytes < LARGE_BYTES and len(data := os.pread(fd, num_bytes, offset)) == num_bytes:
                return data
            room = memory(num_bytes).data
            done = 0
            while done < num_bytes:  # one call of the system gives at most 2 GiB
                num = os.preadv(fd, [room[done:]], offset + done)
                if not num:
                    raise SourceError(
                        f"{url} gave {done:,} bytes where {num_bytes:,} were asked for at {offset:,}: it was cut off "
                        "or replaced",
                        url=url,
                    )
                done += num
        finally:
            os.close(fd)
        return room

    def write(self, url: str, data: BytesLike) -> None:
        """Make the file `url`, in place of what has its name, and its folder: whole or not at all."""
        path = name_bytes(url)
        aside = path + f".{os.getpid()}-{secrets.token_hex(4)}".encode()
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120  Path has no names of bytes
        try:
            with open(aside, "xb") as file:  # noqa: PTH123
                file.write(data)
            os.replace(aside, path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)  # noqa: PTH108
            raise

    def __repr__(self) -> str:
        return "LocalStorage()"


def _check_regular(url: str, status: os.stat_result) -> None:
    if not stat_modes.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise SourceError(f"{url} is no regular file", url=url)


def _files_below(folder: bytes) -> list[ObjectInfo]:
    found: list[ObjectInfo] = []
    try:
        root = os.stat(folder)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return found
    if not stat_modes.S_ISDIR(root.st_mode):
        return found
    # Folders to go into, each with the folders on its path: only what leads back to one of them would never end.
    todo = [(folder, frozenset([(root.st_dev, root.st_ino)]))]
    while todo:
        here, above = todo.pop()
        try:
            entries = os.scandir(here)
        except FileNotFoundError:
            continue  # removed while listing
        with entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as error:
                    if entry.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                        found.append(ObjectInfo(url=name_of(entry.path), size_bytes=DANGLING, version=""))
                        continue
                    if error.errno == errno.ENOENT:
                        continue  # removed while listing
                    raise
                if stat_modes.S_ISREG(status.st_mode):
                    found.append(_local_info(entry.path, status))
                elif stat_modes.S_ISDIR(status.st_mode) and (
                    not entry.name.startswith(b".") or entry.name == b".hoodie"  # a log that readers must see
                ):
                    identity = (status.st_dev, status.st_ino)
                    if not (entry.is_symlink() and identity in above):
                        todo.append((entry.path, above | {identity}))
    return found


def _local_info(path: bytes, status: os.stat_result) -> ObjectInfo:
    # The time of modification can be set to anything, as `cp -p` and `rsync -t` do; the time of change cannot. Not the
    # number of the file: file systems in user space give a file another one each time they have forgotten it.
    return ObjectInfo(
        url=name_of(path), size_bytes=status.st_size, version=f"{status.st_mtime_ns}-{status.st_ctime_ns}"
    )
