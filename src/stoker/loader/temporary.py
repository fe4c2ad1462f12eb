"""Folders that are gone with whoever made them, whatever ends it: a cache in memory, and what experiments write."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from stoker.host.forks import Home

_OWNER = "owner"
# Of the memory that is free.
_SHARE = 0.5
# How often a folder is removed that is not empty after all, and how long whoever still writes to it has between.
_TRIES, _REST_S = 100, 0.002


class OwnedFolder:
    """A folder that is removed by `close`, or, after a kill, by the next process that makes one of its family.

    Its file `owner` is locked as long as its process lives: who can lock it knows that nobody needs the folder.

    It is named first and made by `make`, so that whoever is interrupted in between, or in the middle, can close it.

    Args:
        parent: Where it will be.
        prefix: What its name begins with.
        family: What the names of all those begin with of which abandoned ones are removed.
    """

    def __init__(self, parent: Path, *, prefix: str, family: str) -> None:
        self._parent = parent
        self._prefix = prefix
        self._family = family
        self._owner = -1
        self._home = Home()
        self.path = self._named()

    def make(self) -> None:
        """Make it, and remove those of processes that are no more."""
        self._parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        while True:
            self.path.mkdir(mode=0o700)
            self._owner = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _try_lock(self._owner):
                return
            os.close(self._owner)  # a sweeper was faster, and takes it for abandoned: so be it
            self._owner = -1
            self.path = self._named()

    def close(self) -> None:
        """Remove it. Harmless when called again, before it was made, and in a fork, which does nothing."""
        if not self._home.is_here:
            return
        # A thread that still writes, because the one that would have ended it was interrupted, finds it gone.
        gone = self.path.with_name(f"{self.path.name}-gone")
        with contextlib.suppress(OSError):
            self.path.rename(gone)
        for _ in range(_TRIES):
            shutil.rmtree(gone, ignore_errors=True)
            if not gone.exists():
                break
            time.sleep(_REST_S)  # a file came that was being opened when the folder was renamed; no others can
        if self._owner >= 0:
            os.close(self._owner)
            self._owner = -1

    def _named(self) -> Path:
        return self._parent / f"{self._prefix}{secrets.token_hex(4)}"

    def _sweep(self) -> None:
        for folder in self._parent.glob(f"{self._family}*"):
            with contextlib.suppress(OSError):  # another user's, or just removed
                owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _try_lock(owner):
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(owner)


class TemporaryFolder(OwnedFolder):
    """A cache folder in memory, for loaders without one of their own."""

    def __init__(self) -> None:
        super().__init__(_memory(), prefix=f"stoker-{os.getpid()}-", family="stoker-")

    @property
    def cache(self) -> Path:
        """Where the cache is."""
        return self.path / "cache"

    @property
    def limit_bytes(self) -> int:
        """How large a cache in it may become: the model's process needs some of the memory that is free, too."""
        return int(shutil.disk_usage(self._parent).free * _SHARE)


def _memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
