"""The one seam to the outside: objects are listed, looked up and read in ranges.

    Storage            what Stoker asks of a store: list, stat, read
    ├── LocalStorage   `local.py`: files of this machine, by plain reads
    ├── ObjectStorage  `object_store.py`: s3, gs, abfss, by obstore; each read proves the version of what it gives
    └── FsspecStorage  `filesystems.py`: hdfs, http and any other scheme, where fsspec is installed

All of them turn what goes wrong below into `SourceError` in one place, `failures.py`. `find_storage.py` knows which one
opens a URL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from stoker.errors import SourceChangedError, SourceError

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

# The version of an object whose store tells nothing that changes with it.
NO_VERSION = "unknown"
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
    """

    url: str
    size_bytes: int
    version: str


@runtime_checkable
class Storage(Protocol):
    """Where objects come from. Every method is called from several threads at once.

    An implementation may raise what it likes: `OSError` and its kin are tried again and reach the user as a
    `SourceError`. It may have a fourth method, `read_version(info, offset, num_bytes)`: read, or raise
    `SourceChangedError` where the bytes are not of the object that `info` describes. Where there is none, an object is
    looked up again after it was read.
    """

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under the folder `url`, at any depth, sorted by URL; an empty list if there is none."""
        ...

    def stat(self, url: str) -> ObjectInfo:
        """Return what is known of one object.

        Raises:
            SourceMissingError: Nothing, or only a folder, is there.
        """
        ...

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return exactly `num_bytes` from `offset` on.

        Raises:
            SourceError: The object ends before, or cannot be read.
        """
        ...


class WritableStorage(Storage, Protocol):
    """A storage that takes objects, too: where a mirror may be. All of ours are."""

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name: nobody ever sees a part of it."""
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


def check_same(info: ObjectInfo, now: ObjectInfo) -> None:
    """Compare an object as it was with what the store says of it now.

    Raises:
        SourceChangedError: They are two.
    """
    if now.size_bytes != info.size_bytes or now.version != info.version:
        what = (
            f"{info.size_bytes:,} bytes then, {now.size_bytes:,} now"
            if now.size_bytes != info.size_bytes
            else f"version {info.version} then, {now.version} now"
        )
        raise SourceChangedError(
            f"{info.url} has changed since the data set was opened ({what}): open it again with refresh=True",
            url=info.url,
        )


def exactly(data: BytesLike, num_bytes: int, *, url: str, offset: int) -> BytesLike:
    """Return `data` if it has `num_bytes`.

    Raises:
        SourceError: It has not: the object ends early.
    """
    size = len(data)
    if size != num_bytes:
        raise SourceError(
            f"{url} gave {size:,} bytes where {num_bytes:,} were asked for at {offset:,}: it was cut off or replaced",
            url=url,
        )
    return data
