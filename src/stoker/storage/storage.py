"""The one seam to the outside: objects are listed, looked up and read in ranges.

    Storage            what Stoker asks of a store: list, stat, read
    ├── LocalStorage   `local.py`: files of this machine, by plain reads
    ├── ArrowStorage   `filesystems.py`: s3, gs, abfss, hdfs, which pyarrow.fs opens
    └── FsspecStorage  and any other scheme, where fsspec is installed

All of them turn what goes wrong below into `SourceError` in one place, `failures.py`. `find_storage.py` knows which one
opens a URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from stoker.errors import SourceError

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

# The version of an object that a listing says too little of: `stat` tells it.
NOT_LISTED = ""
# The version of an object whose store tells nothing that changes with it.
UNKNOWN = "unknown"
# The size of a link that leads nowhere, in a listing.
DANGLING = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object of a store, as it was when it was looked at.

    Attributes:
        url: Where it is; for a local file its absolute path.
        size_bytes: Its size; `DANGLING` for a link that leads nowhere.
        version: A text that changes when the object does: its etag, or its times of modification and change. In a
            listing it may be `NOT_LISTED`; it is `UNKNOWN` where the store tells nothing of the kind.
    """

    url: str
    size_bytes: int
    version: str


@runtime_checkable
class Storage(Protocol):
    """Where objects come from. Every method is called from several threads at once.

    An implementation may raise what it likes: `OSError` and its kin are tried again and reach the user as a
    `SourceError`.
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
