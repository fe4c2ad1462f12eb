"""A cache folder in memory, for loaders without one of their own: gone with the loader, whatever ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "stoker-"
_OWNER = "owner"
# Of the memory that is free.
_SHARE = 0.5


class TemporaryFolder:
    """A folder on tmpfs that is removed by `close`, or, after a kill, by the next process that makes one.

    Its file `owner` is locked as long as its process lives: who can lock it knows that nobody needs the folder.
    """

    def __init__(self) -> None:
        self._parent = _parent()
        _sweep(self._parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=self._parent))
            self._owner = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _try_lock(self._owner):
                break
            os.close(self._owner)  # a sweeper was faster, and takes it for abandoned: so be it
        self.cache = self.path / "cache"

    @property
    def limit_bytes(self) -> int:
        """How large a cache in it may become: the model's process needs some of the memory that is free, too."""
        return int(shutil.disk_usage(self._parent).free * _SHARE)

    def close(self) -> None:
        """Remove it. Harmless when called again."""
        if self._owner >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._owner)
            self._owner = -1


def _parent() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are no more."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _try_lock(owner):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
