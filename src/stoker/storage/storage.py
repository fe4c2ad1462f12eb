"""The one seam to the outside: objects are listed, looked up and read in ranges.

    Storage                what Stoker asks of a store: list, stat, read
    ├── LocalStorage       files of this machine, by plain reads
    ├── ObjectStorage      `object_store.py`: s3, gs, abfss, by obstore; each read proves the version of what it gives
    ├── FsspecStorage      `find_storage.py`: hdfs, http and any other scheme, where fsspec is installed
    └── Around             another storage, with something done around each call
        └── RetryingStorage    `failures.py`: what went wrong below, as `SourceError`, after trying again

The first three raise what their clients raise, as a storage of a user's may: `RetryingStorage` is the one place where
that is translated, and where the length of an answer is checked. They can `write` as well, for a mirror: an object in
place of what has its name, of which nobody ever sees a part. `find_storage.py` knows which one opens a URL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat as stat_modes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa

from stoker.errors import SourceChangedError, SourceError
from stoker.host.forks import cached_property
from stoker.host.huge import LARGE_BYTES, memory
from stoker.storage.urls import name_bytes, name_of

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
T = TypeVar("T")

# The version of an object whose store tells nothing that changes with it.
NO_VERSION = "unknown"
# What a file is called that is being written. An hour later its writer has been killed.
_DRAFT, _STALE_S = b".stoker-draft", 3600.0
_looked_through: set[bytes] = set()  # folders from which this process has removed such files
# The size of a link that leads nowhere, in a listing.
DANGLING = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object of a store, as it was when it was looked at.

    Attributes:
        url: Where it is; for a local file its absolute path.
        size_bytes: Its size; `DANGLING` for a link that leads nowhere.
        version: A text that changes when the object does: its etag, or its times of modification and change;
            `NO_VERSION` where the store tells nothing of the kind.
        written_s: When it was last written, in seconds since 1970; None where that is not known. Tells no two apart.
    """

    url: str
    size_bytes: int
    version: str
    written_s: float | None = field(default=None, compare=False)


@runtime_checkable
class Storage(Protocol):
    """Where objects come from. Every method is called from several threads at once.

    An implementation may raise what it likes: `OSError` and its kin are tried again and reach the user as a
    `SourceError`. It may have one more method, `read_version(info, offset, num_bytes)`: read, or raise
    `SourceChangedError` where the bytes are not of the object that `info` describes; where there is none, an object is
    looked up again after it was read.
    """

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under the folder `url`, at any depth, in any order; an empty list if there is none."""
        ...

    def stat(self, url: str) -> ObjectInfo:
        """Return what is known of one object.

        Raises:
            FileNotFoundError: Nothing is there.
            IsADirectoryError: Only a folder is.
        """
        ...

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return exactly `num_bytes` from `offset` on."""
        ...


VersionReader: TypeAlias = Callable[[ObjectInfo, int, int], BytesLike]


def version_reader(storage: Storage) -> VersionReader | None:
    """Return the method of a storage that proves the version of what it reads, if it has one."""
    found: VersionReader | None = getattr(storage, "read_version", None)
    return found


def read_of(info: ObjectInfo, storage: Storage, offset: int, num_bytes: int) -> memoryview:
    """Return `num_bytes` from `offset` on of an object: of that version, where the storage can prove it."""
    read = version_reader(storage)
    found = storage.read(info.url, offset, num_bytes) if read is None else read(info, offset, num_bytes)
    return memoryview(found).cast("B")


class Around:
    """Another storage, or what makes it when it is first needed: what is asked of it passes through `_ask`."""

    def __init__(self, inner: Storage | Callable[[], Storage]) -> None:
        self._given = inner

    @cached_property
    def inner(self) -> Storage:
        """Where the objects are."""
        return self._given() if callable(self._given) else self._given

    def list(self, url: str) -> list[ObjectInfo]:
        """Return what `inner` lists, by the bytes of their URLs."""
        found = self._ask(lambda: self.inner.list(url), url=url, doing="listing")
        return sorted(found, key=lambda info: name_bytes(info.url))

    def stat(self, url: str) -> ObjectInfo:
        """Return what `inner` knows of the object `url`."""
        return self._ask(lambda: self.inner.stat(url), url=url, doing="looking up")

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return exactly `num_bytes` of the object `url` from `offset` on."""
        return self._read(lambda: self.inner.read(url, offset, num_bytes), url, offset, num_bytes)

    @property
    def read_version(self) -> VersionReader | None:
        """The same of one version of an object, where `inner` can prove it."""
        inner = version_reader(self.inner)
        if inner is None:
            return None
        return lambda info, offset, num_bytes: self._read(
            lambda: inner(info, offset, num_bytes), info.url, offset, num_bytes
        )

    def _read(self, call: Callable[[], BytesLike], url: str, offset: int, num_bytes: int) -> BytesLike:
        def exactly() -> BytesLike:
            data = call()
            if (given := memoryview(data).nbytes) != num_bytes:
                raise OSError(f"it gave {given:,} of the {num_bytes:,} bytes that were asked for at {offset:,}")
            return data

        return self._ask(exactly, url=url, doing="reading")

    def _ask(self, call: Callable[[], T], *, url: str, doing: str) -> T:  # noqa: ARG002
        """Return what a call of `inner` gives."""
        return call()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


def check_same(info: ObjectInfo, now: ObjectInfo) -> None:
    """Raise a `SourceChangedError` where an object is not what the store says of it now."""
    if (now.size_bytes, now.version) != (info.size_bytes, info.version):
        what = f"version {info.version} then, {now.version} now"
        if now.size_bytes != info.size_bytes:
            what = f"{info.size_bytes:,} bytes then, {now.size_bytes:,} now"
        raise SourceChangedError(
            f"{info.url} has changed since the data set was opened ({what}): open it again with refresh=True",
            url=info.url,
        )


# ---------------------------------------------------------------------------------------------- files of this machine


class LocalStorage:
    """Files of this machine. URLs are absolute paths, as `urls.local_path` writes them."""

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every regular file under the folder `url`.

        A link to a folder is that folder, wherever else its files come by other paths; one that leads back to a folder
        on its own path is not followed. Hidden folders are not entered. A link that leads nowhere is listed, with a
        size of -1.
        """
        found: list[ObjectInfo] = []
        folder = name_bytes(url.rstrip("/") or "/")
        try:
            root = os.stat(folder)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return found
        # Folders to go into, each with the folders on its path: only what leads back to one of them would never end.
        todo = [(folder, frozenset([(root.st_dev, root.st_ino)]))]
        while todo:
            here, above = todo.pop()
            try:
                entries = os.scandir(here)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed while listing, or a file
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
        aside, folder = path + b"." + secrets.token_hex(8).encode() + _DRAFT, os.path.dirname(path)  # noqa: PTH120
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103  Path has no names of bytes
        try:
            with open(aside, "xb") as file:  # noqa: PTH123
                _remove_drafts(folder, os.fstat(file.fileno()).st_mtime)
                file.write(data)
            os.replace(aside, path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)  # noqa: PTH108
            raise


def _remove_drafts(folder: bytes, now_s: float) -> None:
    """Remove what writers that were killed have left in a folder: once a process, since all of it is listed.

    It is `now_s` by the clock that stamps its files: another host's, where it is on a network.
    """
    if folder in _looked_through:
        return
    _looked_through.add(folder)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.endswith(_DRAFT) and now_s - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                    os.unlink(entry.path)  # noqa: PTH108


def _check_regular(url: str, status: os.stat_result) -> None:
    if not stat_modes.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise SourceError(f"{url} is no regular file", url=url)


def _local_info(path: bytes, status: os.stat_result) -> ObjectInfo:
    # The time of modification can be set to anything, as `cp -p` and `rsync -t` do; the time of change cannot. Not the
    # number of the file: file systems in user space give a file another one each time they have forgotten it.
    version = f"{status.st_mtime_ns}-{status.st_ctime_ns}"
    return ObjectInfo(url=name_of(path), size_bytes=status.st_size, version=version, written_s=status.st_mtime)
