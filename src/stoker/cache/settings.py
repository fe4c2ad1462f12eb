"""The arguments of a cache, checked; nothing is opened before `Cache.open`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from stoker.arguments import explain_arguments, flag
from stoker.cache.mirror import Mirror, mirror_url
from stoker.cache.store import Store, Verify
from stoker.fields.spec import parse_size
from stoker.storage.urls import local_folder


@explain_arguments({})
@dataclass(frozen=True)
class Cache:
    """A folder that keeps transformed chunks, and how it is used; give it to a loader as `cache=`.

    Args:
        folder: On a fast local disk; made if it is not there. None keeps chunks in memory, for one loader alone.
        limit: Most bytes in that folder, such as "500GB", or a number; None means as much as the disk has.
        is_shared: Whether other users of the folder's group use it, too. They may then write to its files and folders,
            and what they put there is trusted. Otherwise files and folders belong to this user alone, and those of
            another user are refused.
        verify: When the checksums of a chunk are compared: "boot" means when it is first opened after the machine
            started, and again if its file changed since; "always" means whenever a window opens it.
        mirror: Where hosts leave the chunks that they have built for each other, such as "s3://bucket/stoker": an
            object store, or a folder that all of them reach. A chunk that it has is fetched and verified instead of
            being built. Training goes on without a mirror that cannot be reached. Nothing is ever removed from it.
        mirror_options: Options of that store's client, as the `storage_options` of a `Dataset`.
        scrub: Bytes a second, such as "20MB", at which a thread compares the checksums of all chunks in the folder,
            over and over: a damaged one is removed, and built again when needed. None means no such thread.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The folder is not local, the limit or `scrub` is 0, `verify` is neither of the two words, or
            `mirror` may contain credentials.
    """

    folder: Path | str | None
    _: KW_ONLY
    limit: int | str | None = None
    is_shared: bool = False
    verify: Verify = "boot"
    mirror: Path | str | None = None
    mirror_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    scrub: int | str | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            if not isinstance(self.folder, str | os.PathLike):
                raise TypeError(f"cache must be the path of a folder, not {self.folder!r}")
            local_folder(self.folder, what="cache")
        flag(self.is_shared, "is_shared")
        if self.verify not in ("boot", "always"):
            raise ValueError(f"verify must be 'boot' or 'always', not {self.verify!r}")
        if self.mirror is not None:
            mirror_url(self.mirror)
        elif self.mirror_options is not None:
            raise ValueError("mirror_options mean nothing without a mirror")
        if self.limit_bytes == 0:
            raise ValueError("cache_limit must not be 0: there is always a cache, in memory where cache= is left out")
        if self.scrub_bytes_s == 0:
            raise ValueError("scrub must not be 0 bytes a second; leave it out to compare none")

    @property
    def path(self) -> Path | None:
        """The folder, absolute; None for memory."""
        return None if self.folder is None else local_folder(self.folder, what="cache")

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes."""
        return None if self.limit is None else parse_size(self.limit, name="cache_limit")

    @property
    def scrub_bytes_s(self) -> int | None:
        """Bytes a second whose checksums are compared; None for no scrubbing."""
        return None if self.scrub is None else parse_size(self.scrub, name="scrub")

    def open(self, *, is_temporary: bool = False) -> Store:
        """Return the store of the folder, which is made if it is not there; see `Store`.

        Raises:
            ValueError: No client knows the mirror's URL, or takes its options.
        """
        assert self.path is not None
        mirror = None if self.mirror is None else Mirror(self.mirror, options=self.mirror_options)
        if mirror is not None:
            mirror.connect()
        return Store(
            self.path,
            limit_bytes=self.limit_bytes,
            is_temporary=is_temporary,
            is_shared=self.is_shared,
            verify=self.verify,
            mirror=mirror,
            scrub_bytes_s=None if is_temporary else self.scrub_bytes_s,
        )
