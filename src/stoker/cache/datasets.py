"""The data sets that use a cache: what they are called, which chunks they are made of, who has them in use.

A file for each, named by its fingerprint: a line of JSON for people, and a line for each chunk's key. When it was last
written is when the data set was last opened, which decides what goes first.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.cache.folder import Folder
from stoker.cache.locks import Locks
from stoker.errors import without_secrets


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the cache knows of a data set.

    Attributes:
        fingerprint: Of the data set.
        name: What people call it.
        urls: Where it comes from.
        keys: Of its chunks, in its order, whether in the cache or not.
        opened_ns: When it was last opened.
    """

    fingerprint: str
    name: str
    urls: tuple[str, ...]
    keys: tuple[str, ...]
    opened_ns: int = 0


class Manifests:
    """The manifests of a cache folder. An unreadable one counts as not there: its data set is entered again.

    Args:
        folder: Of the cache.
        locks: Of its processes.
    """

    def __init__(self, folder: Folder, locks: Locks) -> None:
        self._folder = folder
        self._locks = locks
        self._mutex = threading.Lock()
        self._held: set[str] = set()

    def enter(self, fingerprint: str, name: str, urls: Sequence[str], keys: Callable[[], Sequence[str]]) -> None:
        """Say that this store uses a data set, until locks are closed: as long as any process does, its chunks stay.

        Raises:
            OSError: The manifest cannot be written.
        """
        with self._mutex:
            if fingerprint in self._held:
                return
            lock = self._locks.try_lock(fingerprint, is_shared=True)
            assert lock is not None, "nobody locks a data set exclusively"
            self._held.add(fingerprint)
        if self._locks.is_writable:
            head = json.dumps({"name": without_secrets(name), "urls": list(map(without_secrets, urls))})
            lines = [head, *keys(), ""]
            self._folder.write_small(self._folder.datasets, fingerprint, "\n".join(lines).encode())

    def in_use(self) -> frozenset[str]:
        """Return the data sets that a living process uses."""
        return frozenset(one for one in self._folder.list_datasets() if self._locks.is_held(one))

    def get(self, fingerprint: str) -> Manifest | None:
        """Return the manifest of a data set, None where there is none that can be read."""
        folder = self._folder
        try:
            opened_ns = os.stat(fingerprint, dir_fd=folder.datasets, follow_symlinks=False).st_mtime_ns
            head, *keys = folder.read_small(folder.datasets, fingerprint).decode().splitlines()
            content = json.loads(head)
            name, urls = str(content["name"]), tuple(map(str, content["urls"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Manifest(fingerprint=fingerprint, name=name, urls=urls, keys=tuple(keys), opened_ns=opened_ns)

    def all(self) -> list[Manifest]:
        """Return those of all data sets."""
        return [one for name in self._folder.list_datasets() if (one := self.get(name)) is not None]

    def remove(self, fingerprint: str) -> None:
        """Forget a data set."""
        self._folder.files.remove(self._folder.datasets, fingerprint)
